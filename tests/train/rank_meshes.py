"""Keeps tests of layouts quick: meshes made once for each grid of a pool of ranks, no more layers than needed."""

from __future__ import annotations

import dataclasses
import functools

import torch

from mmdata_train.config import ParallelConfig
from mmdata_train.mesh import Mesh
from mmdata_train.parity import Cell, Shape


def shallow(cell: Cell) -> Shape:
    """The cell's shape with two layers where no pipeline needs more; `make parity` trains four."""
    return cell.shape if cell.pipeline > 1 else dataclasses.replace(cell.shape, layers=2)


def mesh_of(parallel: ParallelConfig) -> Mesh:
    """The mesh of a layout on the CPU."""
    return _mesh_of(
        ParallelConfig(
            tensor=parallel.tensor, pipeline=parallel.pipeline, data=parallel.data, zero_stage=parallel.zero_stage,
            shard_size=parallel.shard_size,
        )
    )  # fmt: skip


@functools.cache
def _mesh_of(grid: ParallelConfig) -> Mesh:
    return Mesh.make(grid, torch.device("cpu"))
