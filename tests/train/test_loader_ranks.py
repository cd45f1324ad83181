"""Four real processes in a tensor x pipeline grid: the same batches however they are read, and proof when not.

One start of the processes for all cases; every wait has a deadline.
"""

from __future__ import annotations

import multiprocessing
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from loader_shards import write_corpus  # noqa: E402
from rank_start import START  # noqa: E402

LAYOUT = {"tensor": 2, "pipeline": 2, "data": 1}
WORLD, GLOBAL, DEADLINE = 4, 6, 240


def hashes(loader: Any) -> list[tuple[int, int, int]]:
    """Each step's sums of tokens, labels and positions, weighted by place."""
    found = []
    for batch in loader:
        weights = torch.arange(batch.tokens.numel()).reshape(batch.tokens.shape) + 1
        found.append(tuple(int((getattr(batch, name) * weights).sum()) for name in ("tokens", "labels", "positions")))
    return found


def run_case(case: str, rank: int, folders: dict[str, str], groups: dict[str, Any]) -> Any:
    from mmdata_train.data.open import open_training
    from mmdata_train.data_config import DataConfig, LoadingConfig
    from mmdata_train.layout import ParallelLayout
    from mmdata_train.loader import Place, StepLoader
    from mmdata_train.sampler import ParallelSampler

    layout = ParallelLayout(**LAYOUT)
    differs = {"tensor_differs": rank == 1, "stage_differs": rank >= 2, "sender_fails": rank in (0, 2)}.get(case, False)
    folder = folders["damaged" if case == "sender_fails" and differs else "other" if differs else "corpus"]
    peers: Any = "broadcast" if case in ("broadcast", "sender_fails") else "read"
    loading = LoadingConfig(workers=0, tensor_peers=peers, verify_steps=2)
    config = DataConfig(train=(f"{folder}/plain", f"{folder}/chat"), seq_length=32, loading=loading)
    data = open_training(config, 4 * GLOBAL, None)
    sampler = ParallelSampler(4 * GLOBAL, layout, 2, GLOBAL, shuffle=False)
    loader = StepLoader(data, sampler, Place(layout, rank, groups), loading)
    try:
        return hashes(loader)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


CASES = ("read", "broadcast", "tensor_differs", "stage_differs", "sender_fails")


def worker(rank: int, store: str, folders: dict[str, str], results: Any) -> None:
    try:
        import torch.distributed as dist

        from mmdata_train.layout import ParallelLayout

        torch.set_num_threads(1)
        timeout = timedelta(seconds=150)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD, timeout=timeout)
        layout = ParallelLayout(**LAYOUT)
        groups: dict[str, Any] = {}
        for axis in ("tensor", "pipeline"):
            for members in layout.groups(axis):  # type: ignore[arg-type]
                group = dist.new_group(list(members))
                if rank in members:
                    groups[axis] = group
        for case in CASES:
            results.put((rank, case, run_case(case, rank, folders, groups)))
            dist.barrier()
        dist.destroy_process_group()
    except Exception:
        results.put((rank, "crash", traceback.format_exc()))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    folders = {name: str(folder / name) for name in ("corpus", "other", "damaged")}
    for path in folders.values():
        write_corpus(Path(path))
    flip(Path(folders["other"]) / "plain.bin", 0)
    index = Path(folders["damaged"]) / "plain.idx"
    content = bytearray(index.read_bytes())
    content[34 + 80 * 4 + 3 * 8] ^= 2
    index.write_bytes(content)
    (Path(folders["damaged"]) / "plain.json").unlink()
    context = multiprocessing.get_context(START)
    results = context.Queue()
    workers = [
        context.Process(target=worker, args=(rank, str(folder / "store"), folders, results)) for rank in range(WORLD)
    ]
    for process in workers:
        process.start()
    found: dict[str, list[Any]] = {case: [None] * WORLD for case in CASES}
    try:
        for _ in range(WORLD * len(CASES)):
            rank, case, answer = results.get(timeout=DEADLINE)
            assert case != "crash", answer
            found[case][rank] = answer
        for process in workers:
            process.join(30)
    finally:
        for process in workers:
            if process.is_alive():
                process.kill()
    return found


def flip(path: Path, place: int) -> None:
    """Change tokens but not the size; every second one, so that any sample is touched."""
    content = bytearray(path.read_bytes())
    for position in range(place, len(content), 4):
        content[position] ^= 1
    path.write_bytes(content)


def test_all_ranks_of_a_grid_hold_the_same_batches(answers: dict[str, list[Any]]) -> None:
    first = answers["read"][0]
    assert len(first) == 4 and all(isinstance(step, tuple) for step in first)
    assert answers["read"] == [first] * WORLD


def test_broadcasting_gives_what_reading_gives(answers: dict[str, list[Any]]) -> None:
    assert answers["broadcast"] == answers["read"]


def test_tensor_peers_with_other_files_are_caught(answers: dict[str, list[Any]]) -> None:
    for answer in answers["tensor_differs"][:2]:
        assert answer.startswith("BatchMismatch: step that ends at sample 6, tensor group: ranks hold different tokens")
        assert "rank 0: " in answer and "rank 1: " in answer
    for answer in answers["tensor_differs"][2:]:
        assert answer.startswith("BatchMismatch: step that ends at sample 6, pipeline group:"), "nobody is left waiting"


def test_a_last_stage_with_other_files_is_caught(answers: dict[str, list[Any]]) -> None:
    for answer in answers["stage_differs"]:
        assert answer.startswith("BatchMismatch: step that ends at sample 6, pipeline group")
        assert "put the shards on one shared disk" in answer


def test_a_sender_that_cannot_read_stops_its_peers_too(answers: dict[str, list[Any]]) -> None:
    for rank, answer in enumerate(answers["sender_fails"]):
        expected = "CorruptSampleError" if rank in (0, 2) else "DataError: rank"
        assert answer.startswith(expected), answer
