"""Every layout trains like one process: loss and gradient norm over 3 AdamW steps, pairs of all choices covered.

The whole matrix is `make parity`. One group of 4 ranks runs all cells; each has a deadline.
"""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

from rank_meshes import shallow  # noqa: E402

from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.parity import (  # noqa: E402
    MODELS,
    SEQ_LENGTH,
    TOLERANCE,
    Cell,
    Curve,
    Shape,
    all_cells,
    difference,
    run_cell,
)
from mmdata_train.schedules import SCHEDULES  # noqa: E402

LAYOUTS = ((1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1))


def candidates() -> list[Cell]:
    """Cells of 4 ranks that are offered, with no two that run the same code."""
    cells = []
    for layout, zero, schedule, recompute, model, sequence in itertools.product(
        LAYOUTS, (0, 1, 2, 3), SCHEDULES, ("none", "selective", "full"), MODELS, (True, False)
    ):
        cell = Cell(*layout, zero, schedule, recompute, model, sequence)  # type: ignore[arg-type]
        idle = (
            (cell.pipeline == 1 and schedule != "1f1b")
            or (cell.data == 1 and zero != 0)
            or (cell.tensor == 1 and not sequence)
        )
        if not idle and cell.refusal() is None:
            cells.append(cell)
    return cells


def pairs(cell: Cell) -> set[tuple[object, ...]]:
    """Pairs of choices a cell covers, degree by degree; choices that do nothing in it do not count.

    Sequence parallelism changes the layers of a tensor group: it is paired with what changes layers.
    """
    layers: list[tuple[str, object]] = [
        ("tensor", cell.tensor), ("recompute", cell.recompute), ("model", cell.model),
    ]  # fmt: skip
    choices = [*layers, ("pipeline", cell.pipeline), ("data", cell.data)]
    if cell.data > 1:
        choices.append(("zero", cell.zero_stage))
    if cell.pipeline > 1:
        choices.append(("schedule", cell.schedule))
    found: set[tuple[object, ...]] = set(itertools.combinations(choices, 2))
    if cell.tensor > 1:
        found |= {(choice, ("sequence", cell.sequence_parallel)) for choice in layers}
    return found


def covering(cells: list[Cell]) -> list[Cell]:
    """Greedily the fewest cells that cover every pair; ties go to the cheap ones without a tensor axis."""
    left = set().union(*(pairs(cell) for cell in cells))
    chosen = []
    while left:
        best = max(cells, key=lambda cell: (len(pairs(cell) & left), -cell.tensor))
        left -= pairs(best)
        chosen.append(best)
    return chosen


CELLS = covering(candidates())


@pytest.fixture(scope="module")
def references(one: RankPool) -> dict[Shape, Curve]:
    shapes = sorted({shallow(cell) for cell in CELLS}, key=str)
    return {shape: one.run(run_cell, Cell(model=shape.model), shape)[0] for shape in shapes}


def name(cell: Cell) -> str:
    sequence = "-sp" if cell.tensor > 1 and cell.sequence_parallel else ""
    schedule = f"-{cell.schedule}" if cell.pipeline > 1 else ""
    degrees = f"tp{cell.tensor}pp{cell.pipeline}dp{cell.data}"
    return f"{degrees}-zero{cell.zero_stage}{schedule}-{cell.recompute}-{cell.model}{sequence}"


@pytest.mark.parametrize("cell", CELLS, ids=name)
def test_layout_trains_like_one_process(cell: Cell, ranks: RankPool, references: dict[Shape, Curve]) -> None:
    curves = ranks.run(run_cell, cell, shallow(cell))
    assert all(curve == curves[0] for curve in curves), "ranks disagree"
    assert difference(curves[0], references[shallow(cell)]) < TOLERANCE


def test_at_most_15_percent_of_cells_are_refused_and_each_names_what_works() -> None:
    cells = all_cells(8)
    refused = {cell: why for cell in cells if (why := cell.refusal()) is not None}
    assert len(refused) / len(cells) <= 0.15
    assert all("nearest that works" in why for why in refused.values())
    for cell in refused:
        assert not (cell.schedule in ("1f1b", "interleaved") and cell.zero_stage in (0, 1, 3))


def test_reference_is_what_plain_torch_computes(references: dict[Shape, Curve]) -> None:
    """Nothing of the engine: transformers' model, torch's loss, norm clipping and AdamW, on the same weights."""
    transformers = pytest.importorskip("transformers")
    from mmdata_train.hf_names import sources
    from mmdata_train.model.init import initial_weight
    from mmdata_train.parity import STEPS

    shape = next(shape for shape in references if shape.model == "llama")
    config = shape.config()
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size, hidden_size=config.hidden_size, num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads, num_key_value_heads=config.num_kv_heads, rms_norm_eps=config.norm_eps,
            intermediate_size=config.intermediate_size, max_position_embeddings=SEQ_LENGTH, attn_implementation="eager",
        )
    )  # fmt: skip
    state = model.state_dict()
    for ours, source in sources(config).items():
        if source.key in state:
            rows = state[source.key].shape[0]
            padded = (
                (config.padded_vocab_size, *state[source.key].shape[1:])
                if source.vocabulary
                else state[source.key].shape
            )
            state[source.key].copy_(initial_weight(config, ours, torch.Size(padded), 7)[:rows])
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    norms = [weight for weight in model.parameters() if weight.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    curve = []
    for step in range(STEPS):
        batch = shape.batch(step)
        index = torch.arange(SEQ_LENGTH)
        sees = (batch.documents[:, :, None] == batch.documents[:, None, :]) & (index[:, None] >= index[None, :])
        mask = torch.zeros(sees.shape).masked_fill(~sees, float("-inf"))[:, None]
        logits = model(batch.tokens, position_ids=batch.positions, attention_mask=mask).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=-100)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        curve.append((loss.item(), norm.item()))
    assert difference(references[shape], curve) < TOLERANCE
