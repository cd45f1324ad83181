"""Checkpoints: exact resume, any layout reads any other's, and nothing half-written is ever in use."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from rank_meshes import mesh_of  # noqa: E402
from torch.distributed.checkpoint.filesystem import FileSystemWriter  # noqa: E402
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed  # noqa: E402

from mmdata_train.checkpoint import Checkpointer  # noqa: E402
from mmdata_train.checkpoint_format import INDEX_FILE, load_tensors, read_index  # noqa: E402
from mmdata_train.checkpoint_storage import RawWriter  # noqa: E402
from mmdata_train.errors import CheckpointError, RankError  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.megatron_load import has_run, identify  # noqa: E402
from mmdata_train.model.init import initialize  # noqa: E402
from mmdata_train.parallelize import build_parts  # noqa: E402
from mmdata_train.parity import SEQ_LENGTH, Cell, Curve, Shape, difference  # noqa: E402
from mmdata_train.run_folder import RUN_STATE, check_state, latest_checkpoint, only_run, read_state, step_folder  # noqa: E402
from mmdata_train.step import Engine  # noqa: E402

Saved = dict[str, tuple[Path, Curve]]
TIED = Shape("qwen3-tied", 4, 8)
PLAIN = Shape("llama", 4, 8)


def make_engine(cell: Cell, shape: Shape, seed: int = 7, **training_changes: Any) -> Engine:
    _, parallel, training = cell.configs()
    model = shape.config()
    mesh = mesh_of(parallel)
    training = dataclasses.replace(training, **training_changes)
    parts = build_parts(model, parallel, training, mesh)
    initialize(parts.parts, model, seed)
    return Engine(parts, parallel, training, SEQ_LENGTH, 100)


def train(engine: Engine, shape: Shape, steps: range) -> Curve:
    mesh = engine.model.mesh
    share = shape.rows // mesh.layout.data
    own = slice(mesh.data_rank * share, (mesh.data_rank + 1) * share)
    results = [engine.train_step(shape.batch(step).rows(own), step) for step in steps]
    return [(result.loss, result.grad_norm) for result in results]


def train_and_save(cell: Cell, shape: Shape, folder: Path, steps: int, more: int) -> Curve:
    """Save after `steps` in the background, go on at once; the curve of what came after."""
    engine = make_engine(cell, shape)
    train(engine, shape, range(steps))
    checkpointer = Checkpointer(folder)
    checkpointer.save(engine, {"step": steps})
    after = train(engine, shape, range(steps, steps + more))
    checkpointer.wait()
    return after


def resume(cell: Cell, shape: Shape, folder: Path, more: int, weights_only: bool = False) -> Curve:
    engine = make_engine(cell, shape, seed=99)
    checkpointer = Checkpointer(folder)
    found = latest_checkpoint(folder)
    assert found is not None
    state = checkpointer.load(engine, found, weights_only=weights_only)
    return train(engine, shape, range(state["step"], state["step"] + more))


LAYOUTS = {
    "tp2pp2": Cell(tensor=2, pipeline=2, model="qwen3-tied"),
    "dp2pp2-zero1": Cell(pipeline=2, data=2, zero_stage=1, model="qwen3-tied"),
    "tp2dp2-zero3": Cell(tensor=2, data=2, zero_stage=3, model="qwen3-tied"),
    "folded": Cell(pipeline=2, data=2, schedule="zbv", model="qwen3-tied"),
}


@pytest.fixture(scope="module")
def saved(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    made = {}
    for name, cell in LAYOUTS.items():
        folder = tmp_path_factory.mktemp(name)
        made[name] = (folder, ranks.run(train_and_save, cell, TIED, folder, 2, 2)[0])
    return made


@pytest.mark.parametrize("name", LAYOUTS)
def test_resume_in_the_same_layout_is_bit_exact(name: str, ranks: RankPool, saved: Saved) -> None:
    folder, expected = saved[name]
    assert ranks.run(resume, LAYOUTS[name], TIED, folder, 2)[0] == expected


@pytest.mark.parametrize(
    ("written", "read"),
    [("tp2pp2", "tp2dp2-zero3"), ("tp2dp2-zero3", "folded"), ("folded", "dp2pp2-zero1"), ("dp2pp2-zero1", "tp2pp2")],
)
def test_another_layout_continues_the_same_training(written: str, read: str, ranks: RankPool, saved: Saved) -> None:
    folder, expected = saved[written]
    assert difference(ranks.run(resume, LAYOUTS[read], TIED, folder, 2)[0], expected) < 1e-5


def test_fewer_ranks_read_what_more_ranks_wrote(one: RankPool, saved: Saved) -> None:
    folder, expected = saved["tp2dp2-zero3"]
    assert difference(one.run(resume, Cell(model="qwen3-tied"), TIED, folder, 2)[0], expected) < 1e-5
    # Weights alone start the optimizer anew, so the first step agrees and the second does not.
    fresh = one.run(resume, Cell(model="qwen3-tied"), TIED, folder, 2, True)[0]
    assert difference(fresh[:1], expected[:1]) < 1e-5 < difference(fresh[1:], expected[1:])


def test_moments_written_by_one_layout_are_read_bit_equal_by_another(ranks: RankPool, saved: Saved) -> None:
    """The first update after a resume depends on every moment, so equal curves say little about each; this does."""
    folder, _ = saved["tp2pp2"]
    expected = ranks.run(whole_state, LAYOUTS["tp2pp2"], folder)[0]
    for name in ("tp2dp2-zero3", "dp2pp2-zero1"):
        found = ranks.run(whole_state, LAYOUTS[name], folder)[0]
        assert found.keys() == expected.keys()
        assert all(found[key] == expected[key] for key in expected)


def whole_state(cell: Cell, folder: Path) -> dict[str, str]:
    """Hash of every stored tensor, put together from all ranks."""
    import hashlib

    from torch.distributed.tensor import DTensor

    from mmdata_train.checkpoint import named_state

    engine = make_engine(cell, TIED, seed=5)
    checkpointer = Checkpointer(folder)
    found = latest_checkpoint(folder)
    assert found is not None
    checkpointer.load(engine, found)
    hashes = {}
    for name, tensor, _ in named_state(engine):
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        hashes[name] = hashlib.blake2b(full.contiguous().numpy().tobytes()).hexdigest()
    gathered: list[dict[str, str]] = [{}] * dist.get_world_size()
    dist.all_gather_object(gathered, hashes)
    merged: dict[str, str] = {}
    for part in gathered:
        assert all(merged.get(key, value) == value for key, value in part.items()), "copies differ"
        merged.update(part)
    return dict(sorted(merged.items()))


def save_several(folder: Path, keep: int) -> list[str]:
    engine = make_engine(Cell(), PLAIN)
    checkpointer = Checkpointer(folder, keep=keep)
    for step in (1, 2, 3, 4):
        checkpointer.save(engine, {"step": step}, best=step == 1)
    checkpointer.wait()
    return sorted(path.name for path in folder.iterdir())


def fail_to_save(folder: Path) -> str:
    """A save after the folder became unwritable: the former one stays."""
    engine = make_engine(Cell(), PLAIN)
    checkpointer = Checkpointer(folder, in_background=False)
    checkpointer.save(engine, {"step": 1})
    # A file where the new folder should be stands for a disk that takes no more.
    (folder / f"{step_folder(2)}.tmp").write_text("in the way", encoding="utf-8")
    try:
        checkpointer.save(engine, {"step": 2})
    except CheckpointError as error:
        return str(error)
    return "saved"


def test_only_the_newest_and_the_named_ones_are_kept(one: RankPool, tmp_path: Path) -> None:
    names = one.run(save_several, tmp_path, 2)[0]
    assert names == ["best", "latest", "step_00000001", "step_00000003", "step_00000004"]


def test_failed_save_leaves_the_former_checkpoint_in_use(one: RankPool, tmp_path: Path) -> None:
    told = one.run(fail_to_save, tmp_path)[0]
    assert "the former one, step_00000001, stays in use" in told and "\n" not in told
    assert re.search(r"rank 0: \S+step_00000002\.tmp: File exists; [\d,]+ are free there", told)
    found = latest_checkpoint(tmp_path)
    assert found is not None and found.name == step_folder(1) and read_state(found)["step"] == 1


def die_while_saving(folder: Path) -> None:
    """Rank 1 is killed when the second save has begun to write."""
    import os
    import signal

    engine = make_engine(Cell(data=2), PLAIN)
    checkpointer = Checkpointer(folder)
    checkpointer.save(engine, {"step": 1})
    checkpointer.wait()
    checkpointer.save(engine, {"step": 2})
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    checkpointer.wait()


def test_rank_killed_during_a_save_leaves_a_whole_checkpoint(one: RankPool, two: RankPool, tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"exit code -9|failed first"):
        two.run(die_while_saving, tmp_path)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert len(one.run(resume, Cell(), PLAIN, tmp_path, 1)[0]) == 1
    assert not list(tmp_path.glob("*.tmp"))


def save_on_a_full_disk(folder: Path, in_background: bool) -> str:
    engine = make_engine(Cell(), PLAIN)
    checkpointer = Checkpointer(folder, in_background=in_background)
    temporary = folder / f"{step_folder(1)}.tmp"
    temporary.mkdir()
    (temporary / "__0_0.distcp").symlink_to("/dev/full")
    try:
        checkpointer.save(engine, {"step": 1})
        checkpointer.wait()
    except CheckpointError as error:
        return str(error)
    return "saved"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
@pytest.mark.parametrize("in_background", [True, False])
def test_full_disk_is_one_line_with_cause_path_and_bytes(in_background: bool, one: RankPool, tmp_path: Path) -> None:
    told = one.run(save_on_a_full_disk, tmp_path, in_background)[0]
    assert "\n" not in told and "no former one is there" in told
    sizes = re.search(
        r"rank 0: \S+step_00000001\.tmp/__0_0\.distcp: No space left on device; ([\d,]+) bytes are to be written to it,"
        r" [\d,]+ are free there",
        told,
    )
    assert sizes is not None and int(sizes[1].replace(",", "")) > 10_000
    assert not list(tmp_path.glob("step_*"))


def test_lost_latest_beside_whole_checkpoints_is_refused_naming_them(tmp_path: Path) -> None:
    """Starting anew would replace and prune them."""
    for name in ("step_00000003", "step_00000012", "step_00000007.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").write_text('{"format": 1}', encoding="utf-8")
    (tmp_path / "step_00000020").mkdir()
    words = r"latest is missing, .*: step_00000003, step_00000012\. To go on"
    with pytest.raises(CheckpointError, match=words) as caught:
        latest_checkpoint(tmp_path)
    assert f"echo step_00000012 > {tmp_path / 'latest'}" in str(caught.value)
    (tmp_path / "latest").write_text("step_00000012\n", encoding="utf-8")
    assert latest_checkpoint(tmp_path) == tmp_path / "step_00000012"


def test_first_checkpoint_is_continued_when_the_run_was_killed_before_naming_it(tmp_path: Path) -> None:
    for name in ("step_00000003", "step_00000007.tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "state.json").write_text('{"format": 1}', encoding="utf-8")
    only = tmp_path / "checkpoints" / "step_00000003"
    assert latest_checkpoint(only.parent) == only
    assert has_run(tmp_path) and identify(tmp_path).folder == only


GOOD = {
    "format": 1, "step": 3, "consumed": 24, "data": {}, "best": {"best": None, "mark": 1.5, "since": 0},
    "optimizer_steps": 3.0, "skipped_in_a_row": 0, "scaler": {"scale": 1.0, "good_steps": 3, "patience": 2},
    "lora": None, "origin": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"step": "x"}, "step is 'x'"),
        ({"consumed": -5}, "consumed is -5"),
        ({"consumed": None}, "consumed is None"),
        ({"data": None}, "data is None"),
        ({"best": {"mark": 1.0, "since": 0}}, "best.best is missing"),
        ({"scaler": []}, r"scaler is \[\]"),
        ({"skipped_in_a_row": True}, "skipped_in_a_row is True"),
    ],
    ids=str,
)
def test_state_that_was_changed_is_refused_naming_the_value(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    check_state(tmp_path, GOOD, RUN_STATE)
    with pytest.raises(CheckpointError, match=f"{told}; the file was changed or damaged"):
        check_state(tmp_path, GOOD | change, RUN_STATE)
    with pytest.raises(CheckpointError, match="is missing; the file was changed"):
        check_state(tmp_path, {"format": 1}, RUN_STATE)


def test_second_run_is_kept_out_of_a_folder_and_let_in_when_the_first_ended(tmp_path: Path) -> None:
    words = r"run: another run is writing there .*another output\.dir"
    with only_run(tmp_path / "run"), pytest.raises(CheckpointError, match=words), only_run(tmp_path / "run"):
        pass
    with only_run(tmp_path / "run"):
        pass


def test_latest_that_names_nothing_whole_lists_what_there_is(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    (tmp_path / "step_00000003").mkdir()
    (tmp_path / "step_00000003" / "state.json").write_text('{"format": 1}', encoding="utf-8")
    (tmp_path / "latest").write_text("step_00000009\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match="not a whole checkpoint; whole ones: step_00000003"):
        latest_checkpoint(tmp_path)
    (tmp_path / "latest").write_text("../elsewhere\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        latest_checkpoint(tmp_path)


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("ran"),))


@pytest.mark.parametrize("content", [pickle.dumps(Evil()), b"", b"not a pickle", pickle.dumps({"a": 1})])
def test_index_that_is_not_one_runs_nothing(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / INDEX_FILE).write_bytes(content)
    with pytest.raises(CheckpointError):
        read_index(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_state_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"format": 99}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="another format"):
        read_state(tmp_path)


def test_tensor_of_another_shape_is_named(one: RankPool, saved: Saved) -> None:
    folder, _ = saved["folded"]
    with pytest.raises(RankError, match=r"model.layers.4\S+ is missing"):
        one.run(resume, Cell(model="qwen3-tied"), Shape("qwen3-tied", 8, 8), folder, 1)


def test_tensors_of_torch_s_own_writer_and_raw_ones_are_read_back_bit_equal(tmp_path: Path) -> None:
    tensors = {
        "matrix": torch.randn(5, 7), "turned": torch.randn(3, 4).T, "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3), "half": torch.randn(3).bfloat16(), "counts": torch.arange(9),
    }  # fmt: skip
    for number, writer in enumerate((FileSystemWriter, RawWriter)):
        folder = tmp_path / str(number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            save_distributed(tensors, storage_writer=writer(folder), no_dist=True)
        found = {name: torch.full_like(tensor, 7) for name, tensor in tensors.items()}
        load_tensors(found, folder, no_dist=True)
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    data = (tmp_path / "1" / "__0_0.distcp").stat().st_size
    assert data == sum(tensor.nbytes + 8 for tensor in tensors.values())


def test_bytes_that_are_not_those_written_are_named(one: RankPool, tmp_path: Path) -> None:
    one.run(save_several, tmp_path, 1)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    file = found / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    words = r"CheckpointError: .*__0_0.distcp: bytes 0 to .*, which hold \S+, are not those that were written"
    with pytest.raises(RankError, match=words):
        one.run(resume, Cell(), PLAIN, tmp_path, 1)
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(RankError, match="are not those that were written"):
        one.run(resume, Cell(), PLAIN, tmp_path, 1)
    file.unlink()
    with pytest.raises(RankError, match=r"CheckpointError: .* cannot be read \(rank 0\): FileNotFoundError"):
        one.run(resume, Cell(), PLAIN, tmp_path, 1)
