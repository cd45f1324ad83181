"""What the parity cells do not reach: evaluation under every schedule, uneven shards, loading slices, dropout."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rank_meshes import mesh_of  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402

from mmdata_train.batch import Batch  # noqa: E402
from mmdata_train.checkpoint import Checkpointer, named_state  # noqa: E402
from mmdata_train.hf import load_weights  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.model.config import ModelConfig  # noqa: E402
from mmdata_train.model.decoder import Decoder, canonical_name  # noqa: E402
from mmdata_train.model.init import initialize  # noqa: E402
from mmdata_train.parallelize import build_parts  # noqa: E402
from mmdata_train.parity import SEQ_LENGTH, Cell, Shape  # noqa: E402
from mmdata_train.run_folder import latest_checkpoint  # noqa: E402
from mmdata_train.schedules import SCHEDULES, ScheduleName  # noqa: E402
from mmdata_train.step import Engine  # noqa: E402


def engine_of(cell: Cell, model: ModelConfig | None = None, **training_changes: Any) -> Engine:
    shape, parallel, training = cell.configs()
    model, training = model or shape, dataclasses.replace(training, **training_changes)
    parts = build_parts(model, parallel, training, mesh_of(parallel))
    initialize(parts.parts, model, 7)
    return Engine(parts, parallel, training, SEQ_LENGTH, 3)


def share(engine: Engine, batch: Batch) -> Batch:
    mesh = engine.model.mesh
    rows = batch.tokens.shape[0] // mesh.layout.data
    return batch.rows(slice(mesh.data_rank * rows, (mesh.data_rank + 1) * rows))


def evaluated(cell: Cell, shape: Shape) -> list[float]:
    """Loss on one batch before, between and after two updates."""
    engine = engine_of(cell, shape.config())
    losses = []
    for step in range(3):
        total, tokens = engine.evaluate(share(engine, shape.batch(9)))
        losses.append(total / tokens)
        engine.train_step(share(engine, shape.batch(step)), step)
    return losses


@pytest.fixture(scope="module")
def expected(one: RankPool) -> list[float]:
    return one.run(evaluated, Cell(), Cell(pipeline=2, data=2, schedule="zbv").shape)[0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_evaluation_between_steps_is_right_under_every_schedule(
    schedule: ScheduleName, ranks: RankPool, expected: list[float]
) -> None:
    cell = Cell(pipeline=2, data=2, zero_stage=1, schedule=schedule)
    assert cell.shape == Cell(pipeline=2, data=2, schedule="zbv").shape
    assert ranks.run(evaluated, cell, cell.shape)[0] == pytest.approx(expected, rel=1e-5)
    assert len(set(expected)) == 3


def save_uneven(cell: Cell, folder: Path) -> dict[str, Any]:
    """Train and save with weights that no axis divides evenly."""
    engine = engine_of(cell, uneven_model())
    engine.train_step(share(engine, Shape("llama", 2, 12).batch(0)), 0)
    Checkpointer(folder, in_background=False).save(engine, {"step": 1})
    return whole(engine)


def load_uneven(folder: Path) -> dict[str, Any]:
    engine = engine_of(Cell(), uneven_model())
    found = latest_checkpoint(folder)
    assert found is not None
    Checkpointer(folder).load(engine, found)
    return whole(engine)


def uneven_model() -> ModelConfig:
    return dataclasses.replace(Shape("llama", 2, 12).config(), hidden_size=41, head_dim=10, intermediate_size=46)


def whole(engine: Engine) -> dict[str, Any]:
    return {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone().numpy()
        for name, tensor, _ in named_state(engine)
    }


def test_shards_no_axis_divides_are_saved_and_read_back_whole(one: RankPool, ranks: RankPool, tmp_path: Path) -> None:
    """Two data ranks over norms of 41 and, the tensor axis having cut first, 23 rows: shards of unequal length."""
    written = ranks.run(save_uneven, Cell(tensor=2, data=2, zero_stage=2), tmp_path)[0]
    read = one.run(load_uneven, tmp_path)[0]
    assert read.keys() == written.keys()
    assert all((read[name] == written[name]).all() for name in written)


def wrong_after_loading(cell: Cell, folder: Path) -> list[str]:
    """Weights that differ from the one whole model read from the folder."""
    engine = engine_of(cell)
    config = engine.model.config
    reference = Decoder(config)
    load_weights([reference], config, folder)
    expected = dict(reference.named_parameters())
    load_weights(engine.model.parts, config, folder)
    bad = []
    for name, weight in engine.model.named_parameters():
        full = weight.full_tensor() if isinstance(weight, DTensor) else weight
        if not torch.equal(full, expected[canonical_name(config, name)]):
            bad.append(name)
    return bad


@pytest.mark.peer
@pytest.mark.parametrize(
    "cell",
    [
        Cell(tensor=2, data=2, zero_stage=3, model="gpt2"),
        Cell(tensor=2, pipeline=2, model="qwen3-tied"),
        Cell(pipeline=2, data=2, schedule="zbv", model="gpt2"),
    ],
    ids=["tp2dp2-gpt2", "tp2pp2-qwen3", "folded-gpt2"],
)
def test_each_rank_reads_its_slice_of_a_hugging_face_folder(cell: Cell, ranks: RankPool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = cell.shape.config()
    if cell.model == "gpt2":
        shape = transformers.GPT2Config(
            vocab_size=61, n_embd=32, n_layer=config.num_layers, n_head=8, n_inner=48, n_positions=SEQ_LENGTH
        )
        model = transformers.GPT2LMHeadModel(shape)
    else:
        shape = transformers.Qwen3Config(
            vocab_size=61, hidden_size=32, num_hidden_layers=config.num_layers, num_attention_heads=8, head_dim=4,
            num_key_value_heads=4, intermediate_size=48, tie_word_embeddings=True,
        )  # fmt: skip
        model = transformers.Qwen3ForCausalLM(shape)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_()
    model.save_pretrained(tmp_path)
    assert ranks.run(wrong_after_loading, cell, tmp_path) == [[]] * 4


def curve_with_dropout(recompute: str) -> list[tuple[float, float]]:
    cell = Cell()
    model = dataclasses.replace(cell.shape.config(), dropout=0.2, attention_dropout=0.2)
    engine = engine_of(cell, model, activation_checkpointing=recompute)
    results = [engine.train_step(cell.shape.batch(step), step) for step in range(3)]
    return [(result.loss, result.grad_norm) for result in results]


def test_recomputation_draws_the_dropout_masks_of_the_forward_pass(one: RankPool) -> None:
    expected = one.run(curve_with_dropout, "none")[0]
    for mode in ("selective", "full"):
        for ours, theirs in zip(one.run(curve_with_dropout, mode)[0], expected, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-6)


def loss_without_tokens() -> tuple[float, bool, bool]:
    engine = engine_of(Cell())
    batch = Shape("llama", 4, 8).batch(0)
    before = [weight.to_local().clone() for _, weight in engine.model.named_parameters()]
    result = engine.train_step(dataclasses.replace(batch, labels=torch.full_like(batch.labels, -100)), 0)
    after = [weight.to_local() for _, weight in engine.model.named_parameters()]
    return result.loss, result.skipped, all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_step_without_a_counted_token_changes_nothing(one: RankPool) -> None:
    assert one.run(loss_without_tokens)[0] == (0.0, True, True)
