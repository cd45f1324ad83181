"""stories260K's known cross-entropies and greedy text: after import, in two layouts, and after export from them."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
pytestmark = pytest.mark.peer

from export_models import LAYOUTS  # noqa: E402
from rank_meshes import mesh_of  # noqa: E402

from mmdata_train.batch import Batch  # noqa: E402
from mmdata_train.checkpoint import Checkpointer  # noqa: E402
from mmdata_train.config import ParallelConfig, TrainingConfig  # noqa: E402
from mmdata_train.export.command import export_checkpoint  # noqa: E402
from mmdata_train.export.options import ExportOptions  # noqa: E402
from mmdata_train.export.origin import origin_of_folder  # noqa: E402
from mmdata_train.hf import load_weights  # noqa: E402
from mmdata_train.hf_config import config_from_folder  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.loss import IGNORED  # noqa: E402
from mmdata_train.parallelize import build_parts  # noqa: E402
from mmdata_train.step import Engine  # noqa: E402

KNOWN = {
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.": (31, 0.18036),
    "The defendant shall pay the plaintiff the sum of 500 yuan within ten days of this judgment.": (49, 5.23977),
}
GREEDY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a"
    " big, red ball. She wanted to play with it, but it was too high."
)
LENGTH = 64


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    return shared / "models" / "stories260K"


def encoded(folder: Path, text: str) -> list[int]:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [1, *tokenizer.encode(text, add_special_tokens=False).ids]


def nats(layout: str, folder: Path, out: Path, rows: list[list[int]]) -> list[float]:
    """On every rank: load, cross-entropy of each row by the engine, and a checkpoint."""
    config = config_from_folder(folder, dropout=0.0, attention_dropout=0.0)
    parallel, training = ParallelConfig(**LAYOUTS[layout]), TrainingConfig(precision="fp32", steps=1)
    parts = build_parts(config, parallel, training, mesh_of(parallel))
    load_weights(parts.parts, config, folder)
    engine = Engine(parts, parallel, training, LENGTH, 10)
    found = []
    for row in rows:
        ids = torch.tensor([row + [0] * (LENGTH + 1 - len(row))])
        labels = ids[:, 1:].clone()
        labels[:, len(row) - 1 :] = IGNORED
        # Two equal rows for each data rank fill the pipeline; their mean is that of one.
        batch = Batch.causal(ids[:, :-1].repeat(2, 1), labels.repeat(2, 1))
        total, tokens = engine.evaluate(batch)
        found.append(total / tokens)
    checkpointer = Checkpointer(out, origin=origin_of_folder(str(folder), str(folder)).to_state())
    checkpointer.save(engine, {"step": 1})
    checkpointer.wait()
    return found


@pytest.mark.parametrize("layout", ["tp2pp2", "tp2dp2-zero3"])
def test_engine_and_export_of_a_layout_reproduce_the_known_truth(
    layout: str, folder: Path, ranks: RankPool, tmp_path: Path
) -> None:
    rows = [encoded(folder, text) for text in KNOWN]
    assert [len(row) - 1 for row in rows] == [count for count, _ in KNOWN.values()]
    found = ranks.run(nats, layout, folder, tmp_path / "checkpoints", rows)[0]
    assert found == pytest.approx([value for _, value in KNOWN.values()], abs=1e-4)
    export_checkpoint(tmp_path / "checkpoints", ExportOptions(to="hf", output=tmp_path / "out"))
    check_folder_with_transformers(tmp_path / "out", rows)
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        assert (tmp_path / "out" / name).is_file()
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def check_folder_with_transformers(folder: Path, rows: list[list[int]]) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        for row, (_, value) in zip(rows, KNOWN.values(), strict=True):
            ids = torch.tensor([row])
            assert float(model(ids, labels=ids).loss) == pytest.approx(value, abs=1e-4)
        made = model.generate(torch.tensor([[1]]), do_sample=False, max_new_tokens=90)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.decode(made[0, 1:].tolist()).strip().startswith(GREEDY)
