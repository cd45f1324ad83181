"""Meshes of a pool's ranks: made once for each grid, so that the engines of a file's tests share their groups."""

from __future__ import annotations

import functools

import torch

from mmdata_train.config import ParallelConfig
from mmdata_train.mesh import Mesh


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
