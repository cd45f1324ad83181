"""The rows of `benchmarks/scaling.py` are layouts the library takes, as many as the machine has GPUs for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def rows() -> Iterator[Any]:
    folder = str(Path(__file__).parents[2] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        yield import_module("scaling_rows")
    finally:
        sys.path.remove(folder)


def test_each_axis_and_the_mixes_are_there_for_four_and_eight(rows: Any) -> None:
    names = {ranks: [row.name for row in rows.all_rows() if row.ranks == ranks] for ranks in (1, 2, 4, 8)}
    assert len({name for found in names.values() for name in found}) == sum(map(len, names.values()))
    assert names[8][:10] == [
        "8B/2 FSDP8", "8B FSDP8", "8B TP8+SP", "8B TP8+SP, layers compiled", "8B PP4 x DP2 1F1B",
        "8B PP4 x DP2 interleaved, v=2", "8B TP2+SP x PP2 x DP2 1F1B", "8B TP4+SP x FSDP2", "8B TP2+SP x FSDP4",
        "8B PP2 x DP4 1F1B",
    ]  # fmt: skip
    assert {"8B TP4+SP", "8B PP4 1F1B", "8B TP2+SP x PP2 1F1B", "1B FSDP4", "8B LoRA TP2+SP x PP2 1F1B"} <= {*names[4]}


@pytest.mark.parametrize("tiny", [True, False])
def test_only_compiled_layers_in_tensor_parts_are_probes(rows: Any, tiny: bool) -> None:
    setup = rows.Setup("cuda", 32 if tiny else 4096, "bf16", tiny)
    probes = {row.name for row in rows.all_rows() if rows.is_probe(row, setup)}
    assert all("+SP, layers compiled" in name for name in probes), probes


def test_all_layouts_of_a_shape_give_each_gpu_the_same_work(rows: Any) -> None:
    work = {(row.shape, row.rows) for row in rows.all_rows()}
    assert work == {("1B", 8), ("8B", 4), ("8B/2", 4)}
    for row in rows.all_rows():
        sequences, parallel = row.rows * row.ranks, row.parallel
        assert sequences % ((parallel.data or 1) * row.micro_batch) == 0, row.name
        assert sequences // (parallel.data or 1) // row.micro_batch >= parallel.pipeline, row.name
