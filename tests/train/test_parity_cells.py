"""Which cells there are, what counts as equal, and where a pool's ranks compute."""

from __future__ import annotations

import dataclasses
import math
import os

import pytest

torch = pytest.importorskip("torch")

from mmdata_train.errors import ConfigError  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.parity import (  # noqa: E402
    BF16_TOLERANCE,
    TOLERANCE,
    Cell,
    compiled_cells,
    current_device,
    difference,
    probes,
    run_cell,
)


def test_curve_that_is_not_finite_is_never_near() -> None:
    fine = [(1.0, 2.0), (1.0, 2.0)]
    assert difference(fine, fine) == 0
    assert difference([(1.0, 2.0), (1.0, 2.02)], fine) == pytest.approx(0.01)
    assert difference([(1.0, 2.0), (math.nan, 2.0)], fine) == math.inf
    assert difference(fine, [(1.0, math.inf), (1.0, 2.0)]) == math.inf


def test_every_probe_is_refused_and_every_compiled_cell_is_offered() -> None:
    assert all(cell.refusal() is not None for cell in probes(8))
    assert all(cell.refusal() is None for cell in compiled_cells(8))
    assert {(cell.schedule, cell.zero_stage) for cell in probes(4) if cell.pipeline > 1} == {
        (name, stage) for name in ("zero_bubble", "zbv", "dualpipev") for stage in (2, 3)
    }
    assert {cell.world_size for cell in probes(2)} == {2}


def test_refused_cell_does_not_run_unless_as_a_probe() -> None:
    with pytest.raises(ConfigError, match=r"train\.compile with parallel\.tensor 2"):
        run_cell(Cell(tensor=2, compile=True))


@pytest.mark.parametrize("cell", [Cell(data=2, zero_stage=3), Cell(tensor=2)], ids=["zero3", "tp2"])
def test_bf16_cell_is_near_one_process_in_bf16_and_differs_from_fp32(cell: Cell, one: RankPool, two: RankPool) -> None:
    cell = dataclasses.replace(cell, precision="bf16")
    reference = one.run(run_cell, Cell(precision="bf16"), cell.shape)[0]
    found = two.run(run_cell, cell)[0]
    assert difference(found, reference) < BF16_TOLERANCE
    assert difference(found, one.run(run_cell, Cell(), cell.shape)[0]) > TOLERANCE


def visible() -> tuple[str | None, str, str]:
    return os.environ.get("CUDA_VISIBLE_DEVICES"), str(current_device("cpu")), os.environ["OMP_NUM_THREADS"]


def test_ranks_on_the_cpu_see_no_gpu_and_take_one_thread(one: RankPool) -> None:
    assert one.run(visible) == [("", "cpu", "1")]
