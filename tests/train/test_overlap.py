"""A profiler's trace of one step tells overlap from none: what is gathered ahead, and what is waited for."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile, record_function  # noqa: E402

import mmdata_train.overlap  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.mesh import Mesh  # noqa: E402
from mmdata_train.model.init import initialize  # noqa: E402
from mmdata_train.parallelize import build_parts  # noqa: E402
from mmdata_train.parity import SEQ_LENGTH, Cell  # noqa: E402
from mmdata_train.step import Engine  # noqa: E402

WAITED = "waited for the collective"
_COLLECTIVE = re.compile(r"c10d::_(allgather_base|reduce_scatter_base)_")


def step_trace(zero_stage: int, overlap: bool) -> list[str]:
    """Names of what the training thread of this rank began in one step, in order: FSDP's spans and the collectives."""
    cell = Cell(data=2, zero_stage=zero_stage)  # type: ignore[arg-type]
    model, parallel, training = cell.configs()
    parallel = dataclasses.replace(parallel, overlap=overlap)
    mesh = Mesh.make(parallel, torch.device("cpu"))
    parts = build_parts(model, parallel, training, mesh)
    initialize(parts.parts, model, 7)
    engine = Engine(parts, parallel, training, SEQ_LENGTH, 3)
    share = cell.shape.rows // 2
    rows = slice(mesh.data_rank * share, (mesh.data_rank + 1) * share)
    engine.train_step(cell.shape.batch(0).rows(rows), 0)
    wait = mmdata_train.overlap._wait_for

    def marked(device: Any) -> None:
        with record_function(WAITED):
            wait(device)

    mmdata_train.overlap._wait_for = marked
    try:
        with profile(activities=[ProfilerActivity.CPU]) as found:
            engine.train_step(cell.shape.batch(1).rows(rows), 1)
    finally:
        mmdata_train.overlap._wait_for = wait
    events = sorted(found.events() or (), key=lambda event: (event.time_range.start, -event.time_range.end))
    return [e.name for e in events if e.name == WAITED or e.name.startswith("FSDP::") or _COLLECTIVE.match(e.name)]


@pytest.fixture(scope="module")
def traces(two: RankPool) -> dict[tuple[int, bool], list[str]]:
    return {(zero, overlap): two.run(step_trace, zero, overlap)[0] for zero in (3, 2) for overlap in (True, False)}


# A step has two micro-batches: a name's first places are those of the first, its forward pass before its backward pass.


def positions(trace: list[str], name: str) -> list[int]:
    return [number for number, found in enumerate(trace) if found == name]


def test_with_overlap_each_layer_is_gathered_before_its_neighbour_is_done(
    traces: dict[tuple[int, bool], list[str]],
) -> None:
    trace = traces[3, True]
    for layer in range(3):
        gathered = positions(trace, f"FSDP::all_gather (layers.{layer + 1})")[0]
        assert gathered < positions(trace, f"FSDP::post_forward (layers.{layer})")[0]
    for layer in range(1, 4):
        gathered = positions(trace, f"FSDP::all_gather (layers.{layer - 1})")[1]
        assert gathered < positions(trace, f"FSDP::post_backward_reduce (layers.{layer})")[0]


def test_without_overlap_each_layer_is_gathered_after_its_neighbour_is_done(
    traces: dict[tuple[int, bool], list[str]],
) -> None:
    trace = traces[3, False]
    for layer in range(3):
        gathered = positions(trace, f"FSDP::all_gather (layers.{layer + 1})")[0]
        assert gathered > positions(trace, f"FSDP::post_forward (layers.{layer})")[0]
    for layer in range(1, 4):
        gathered = positions(trace, f"FSDP::all_gather (layers.{layer - 1})")[1]
        assert gathered > positions(trace, f"FSDP::post_backward_reduce (layers.{layer})")[0]


@pytest.mark.parametrize("zero", [3, 2])
def test_without_overlap_every_collective_is_waited_for_at_once_and_with_it_none(
    traces: dict[tuple[int, bool], list[str]], zero: int
) -> None:
    on, off = traces[zero, True], traces[zero, False]
    assert WAITED not in on
    collectives = [number for number, name in enumerate(off) if _COLLECTIVE.match(name)]
    assert len(collectives) >= 18 and sum(bool(_COLLECTIVE.match(name)) for name in on) >= 18
    assert [off[number + 1] for number in collectives] == [WAITED] * len(collectives)
    assert off.count(WAITED) == len(collectives)
