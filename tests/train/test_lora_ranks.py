"""Adapters on several ranks: gradients of one process, checkpoints of adapters only, exact resume, dropout masks."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest

torch = pytest.importorskip("torch")

from rank_meshes import shallow  # noqa: E402

from mmdata_train.checkpoint import Checkpointer, check_adapters  # noqa: E402
from mmdata_train.checkpoint_format import read_index  # noqa: E402
from mmdata_train.config_io import to_mapping  # noqa: E402
from mmdata_train.errors import CheckpointError, RankError  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.lora.fill import whole  # noqa: E402
from mmdata_train.lora.layer import LoraLinear, adapter_parameters  # noqa: E402
from mmdata_train.model.decoder import canonical_name  # noqa: E402
from mmdata_train.parity import (  # noqa: E402
    BF16_TOLERANCE,
    LORAS,
    TOLERANCE,
    Cell,
    Curve,
    LoraKind,
    Shape,
    difference,
    lora_cells,
    open_cell,
    own_rows,
    run_cell,
)
from mmdata_train.run_folder import latest_checkpoint  # noqa: E402
from mmdata_train.step import Engine, seed_dropout  # noqa: E402

Gradients = dict[str, Any]
CELLS = [
    Cell(2, 1, 2, 3, recompute="full", lora="lora"),
    Cell(2, 1, 2, 1, recompute="selective", model="gpt2", lora="dora", sequence_parallel=False),
    Cell(4, 1, 1, model="qwen3-tied", lora="head"),
    Cell(4, 1, 1, sequence_parallel=False, recompute="full", model="gpt2", lora="lora"),
    Cell(2, 2, 1, schedule="1f1b", recompute="selective", lora="dora"),
    Cell(2, 2, 1, schedule="interleaved", model="gpt2", lora="one-layer"),
    Cell(2, 2, 1, schedule="zbv", model="qwen3-tied", lora="lora"),
    Cell(1, 2, 2, 2, schedule="interleaved", recompute="selective", lora="lora"),
    Cell(1, 2, 2, 1, schedule="zero_bubble", model="qwen3-tied", lora="dora"),
    Cell(1, 2, 2, 3, schedule="1f1b", recompute="full", model="qwen3-tied", lora="head"),
    Cell(1, 4, 1, schedule="1f1b", lora="one-layer"),
    Cell(1, 4, 1, schedule="zero_bubble", recompute="full", lora="one-layer"),
    Cell(1, 4, 1, schedule="interleaved", model="qwen3-tied", lora="head"),
    Cell(1, 4, 1, schedule="dualpipev", recompute="selective", lora="lora"),
    Cell(1, 4, 1, schedule="gpipe", model="gpt2", lora="dora"),
    Cell(4, 1, 1, lora="tokens"),
    Cell(4, 1, 1, sequence_parallel=False, model="qwen3-tied", lora="tokens"),
    Cell(2, 1, 2, 3, model="qwen3-tied", lora="tokens"),
    Cell(2, 2, 1, schedule="interleaved", model="gpt2", lora="tokens"),
    Cell(1, 2, 2, 1, schedule="zbv", model="qwen3-tied", lora="tokens"),
]


def gradients_of_step(cell: Cell, shape: Shape) -> tuple[Curve, Gradients]:
    """(loss, norm) of three steps, and the whole gradient of each adapter of this rank's stages in the first."""
    engine = open_cell(cell, shape)
    found: Gradients = {}

    def keep(*_: Any) -> None:
        if not found:
            for part in engine.model.parts:
                for name, weight in adapter_parameters(part).items():
                    assert weight.grad is not None
                    found[canonical_name(part.config, name)] = whole(weight.grad).clone()

    if engine.optimizer is not None:
        engine.optimizer.register_step_pre_hook(keep)
    return train(engine, shape, range(3)), found


def train(engine: Engine, shape: Shape, steps: range) -> Curve:
    results = [engine.train_step(shape.batch(step).rows(own_rows(engine, shape)), step) for step in steps]
    return [(result.loss, result.grad_norm) for result in results]


def name(cell: Cell) -> str:
    schedule = f"-{cell.schedule}" if cell.pipeline > 1 else ""
    degrees = f"tp{cell.tensor}pp{cell.pipeline}dp{cell.data}"
    return f"{cell.lora}-{degrees}-zero{cell.zero_stage}{schedule}-{cell.recompute}-{cell.model}"


@pytest.fixture(scope="module")
def references(one: RankPool) -> dict[tuple[Shape, Cell], tuple[Curve, Gradients]]:
    wanted = {(shallow(cell), cell.plain): None for cell in CELLS}
    return {(shape, plain): one.run(gradients_of_step, plain, shape)[0] for shape, plain in wanted}


@pytest.mark.parametrize("cell", CELLS, ids=name)
def test_gradients_of_adapters_are_those_of_one_process(
    cell: Cell, ranks: RankPool, references: dict[tuple[Shape, Cell], tuple[Curve, Gradients]]
) -> None:
    curve, expected = references[shallow(cell), cell.plain]
    results = ranks.run(gradients_of_step, cell, shallow(cell))
    assert all(difference(other, curve) < TOLERANCE for other, _ in results)
    found = {key: grad for _, grads in results for key, grad in grads.items()}
    assert found.keys() == expected.keys()
    for key, grad in expected.items():
        assert float(grad.abs().max()) > 0, key
        assert float((found[key] - grad).norm()) < 1e-5 * float(grad.norm()), key


@pytest.mark.parametrize("cell", [Cell(data=2, zero_stage=3), Cell(tensor=2), Cell(pipeline=2)], ids=name)
def test_frozen_base_in_bf16_trains_adapters_like_one_process(cell: Cell, one: RankPool, two: RankPool) -> None:
    cell = dataclasses.replace(cell, precision="bf16", lora="lora")
    reference = one.run(run_cell, cell.plain, cell.shape)[0]
    assert difference(two.run(run_cell, cell)[0], reference) < BF16_TOLERANCE


def held_bytes(cell: Cell) -> dict[str, int]:
    """Bytes of frozen weights and of adapters on this rank, and of Adam's moments."""
    engine = open_cell(cell, cell.shape)
    train(engine, cell.shape, range(1))
    sizes = {"frozen": 0, "adapters": 0, "moments": 0}
    for _, weight in engine.model.named_parameters():
        local = weight.to_local() if hasattr(weight, "to_local") else weight
        sizes["adapters" if weight.requires_grad else "frozen"] += local.numel() * local.element_size()
    for state in engine.optimizer.state.values() if engine.optimizer is not None else ():
        for key in ("exp_avg", "exp_avg_sq"):
            local = state[key].to_local() if hasattr(state[key], "to_local") else state[key]
            sizes["moments"] += local.numel() * local.element_size()
    return sizes


def test_frozen_weights_take_their_compute_dtype_and_are_sharded_by_zero_3_only(one: RankPool, two: RankPool) -> None:
    single, half = (one.run(held_bytes, Cell(lora="lora", precision=p))[0] for p in ("fp32", "bf16"))
    assert half["frozen"] * 2 == single["frozen"]
    assert half["adapters"] == single["adapters"] and half["moments"] == 2 * single["adapters"]
    stages: tuple[Literal[0, 1, 2, 3], ...] = (0, 1, 2, 3)
    for stage in stages:
        cell = Cell(data=2, zero_stage=stage, lora="lora", precision="bf16")
        sizes = two.run(held_bytes, cell)
        total = sum(size["frozen"] for size in sizes)
        assert total == half["frozen"] * (1 if stage == 3 else 2)
        assert sum(size["moments"] for size in sizes) == half["moments"] * (2 if stage == 0 else 1)


def save_midway(cell: Cell, shape: Shape, folder: Path) -> Curve:
    engine = open_cell(cell, shape)
    train(engine, shape, range(2))
    checkpointer = Checkpointer(folder)
    checkpointer.save(engine, {"step": 2})
    after = train(engine, shape, range(2, 4))
    checkpointer.wait()
    return after


def go_on(cell: Cell, shape: Shape, folder: Path) -> Curve:
    engine = open_cell(cell, shape)
    for part in engine.model.parts:
        for weight in adapter_parameters(part).values():
            weight.detach().zero_()
    found = latest_checkpoint(folder)
    assert found is not None
    Checkpointer(folder).load(engine, found)
    return train(engine, shape, range(2, 4))


FOUR_STAGES = Cell(1, 4, 1, lora="one-layer")


@pytest.fixture(scope="module")
def saved(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Cell, Path, Curve]]:
    cells = {"one-layer": FOUR_STAGES, "lora": Cell(2, 1, 2, 3, lora="lora"), "dora": Cell(2, 2, 1, lora="dora")}
    made = {}
    for kind, cell in cells.items():
        folder = tmp_path_factory.mktemp(kind)
        made[kind] = cell, folder, ranks.run(save_midway, cell, cell.shape, folder)[0]
    return made


@pytest.mark.parametrize("kind", ["one-layer", "lora", "dora"])
def test_resumed_adapters_train_on_bit_for_bit(
    kind: str, saved: dict[str, tuple[Cell, Path, Curve]], ranks: RankPool
) -> None:
    cell, folder, after = saved[kind]
    assert ranks.run(go_on, cell, cell.shape, folder)[0] == after


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        ("one-layer", Cell(2, 2, 1, lora="one-layer")),
        ("lora", Cell(1, 2, 2, 1, schedule="1f1b", lora="lora")),
        ("dora", Cell(4, 1, 1, lora="dora")),
    ],
)
def test_adapters_resume_in_another_layout(
    kind: str, cell: Cell, saved: dict[str, tuple[Cell, Path, Curve]], ranks: RankPool
) -> None:
    old, folder, after = saved[kind]
    assert difference(ranks.run(go_on, cell, old.shape, folder)[0], after) < TOLERANCE


def test_checkpoint_holds_adapters_and_their_moments_only(saved: dict[str, tuple[Cell, Path, Curve]]) -> None:
    for kind, adapters in (("one-layer", 7), ("lora", 28), ("dora", 28)):
        found = latest_checkpoint(saved[kind][1])
        assert found is not None
        stored = read_index(found).state_dict_metadata
        each = 3 if kind == "dora" else 2
        assert len(stored) == adapters * each * 3
        assert all(".lora_" in key for key in stored)
        assert sum(key.startswith("optimizer.") for key in stored) == adapters * each * 2


def save_larger(folder: Path) -> int:
    """A model whose adapters are large enough for a file's own overhead not to count; bytes of adapters and moments."""
    cell = Cell(data=2, zero_stage=3, lora="lora")
    engine = open_cell(cell, cell.shape)
    train(engine, cell.shape, range(1))
    checkpointer = Checkpointer(folder, in_background=False)
    checkpointer.save(engine, {"step": 1})
    return sum(weight.numel() * 12 for part in engine.model.parts for weight in adapter_parameters(part).values())


def test_tensors_of_a_checkpoint_are_as_large_as_adapters_and_moments(two: RankPool, tmp_path: Path) -> None:
    expected = two.run(save_larger, tmp_path)[0]
    found = latest_checkpoint(tmp_path)
    assert found is not None
    stored: list[Any] = list(read_index(found).state_dict_metadata.values())
    assert sum(entry.size.numel() * entry.properties.dtype.itemsize for entry in stored) == expected


def load_other(cell: Cell, folder: Path) -> None:
    engine = open_cell(cell, cell.shape)
    found = latest_checkpoint(folder)
    assert found is not None
    Checkpointer(folder).load(engine, found)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("none", "holds lora_rank 3, this run has no adapters"),
        ("dora", "holds lora_rslora False, this run has lora_rslora True"),
        ("head", "holds lora_targets all-linear, this run has lora_targets"),
    ],
)
def test_checkpoint_of_other_adapters_is_refused_by_the_setting(
    kind: Any, words: str, saved: dict[str, tuple[Cell, Path, Curve]], one: RankPool
) -> None:
    with pytest.raises(RankError, match=words):
        one.run(load_other, Cell(lora=kind), saved["lora"][1])


@pytest.mark.parametrize(("ids", "refused"), [([46, 47, 48, 49], False), ([46, 47, 48, 50], True)])
def test_checkpoint_of_other_new_tokens_is_refused(ids: list[int], refused: bool, tmp_path: Path) -> None:
    stored = {**to_mapping(LORAS["tokens"]), "added_ids": ids}
    with pytest.raises(CheckpointError, match="set the lora_ fields") if refused else contextlib.nullcontext():
        check_adapters(tmp_path, stored, LORAS["tokens"])


def dropped(cell: Cell, shape: Shape) -> Curve:
    engine = open_cell(cell, shape)
    for part in engine.model.parts:
        for module in part.modules():
            if isinstance(module, LoraLinear):
                module.dropout = 0.5
    return train(engine, shape, range(2))


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_adapter_dropout_is_the_same_in_a_tensor_group_as_in_one_process(
    sequence_parallel: bool, one: RankPool, two: RankPool
) -> None:
    kinds: tuple[LoraKind, ...] = ("lora", "dora")
    for kind in kinds:
        cell = Cell(tensor=2, lora=kind, sequence_parallel=sequence_parallel)
        reference = one.run(dropped, cell.plain, cell.shape)[0]
        assert difference(two.run(dropped, cell, cell.shape)[0], reference) < TOLERANCE
        assert difference(reference, one.run(run_cell, cell.plain, cell.shape)[0][:2]) > 1e-3


def recomputed(recompute: Any) -> Curve:
    cell = Cell(lora="lora", recompute=recompute)
    return dropped(cell, cell.shape)


def test_recomputation_drops_what_the_forward_pass_dropped(one: RankPool) -> None:
    plain = one.run(recomputed, "none")[0]
    for mode in ("selective", "full"):
        assert difference(one.run(recomputed, mode)[0], plain) < TOLERANCE


def mask_of_rank(cell: Cell) -> list[float]:
    """What this rank's random state gives for its first adapter in step 3."""
    engine = open_cell(cell, cell.shape)
    mesh = engine.model.mesh
    seed_dropout(7, 3, mesh.data_rank, mesh.rank_on("pipeline"))
    values: list[float] = torch.rand(4).tolist()
    return values


def test_data_ranks_draw_their_own_masks_and_tensor_peers_the_same(ranks: RankPool) -> None:
    masks = ranks.run(mask_of_rank, Cell(2, 1, 2, lora="lora"))
    assert masks[0] == masks[1] != masks[2] == masks[3]


def test_cells_with_adapters_are_refused_where_full_ones_are() -> None:
    cells = lora_cells(4)
    assert all(cell.refusal() is None for cell in cells)
    assert {cell.lora for cell in cells} == {"lora", "dora", "one-layer", "head", "tokens"}
