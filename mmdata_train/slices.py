"""Which rows and columns of a weight a rank holds, as plain slices of the whole tensor.

A weight is split over the tensor axis first and each share over the data-shard axis next, both in equal chunks
rounded up (the last may be short or empty). Initialisation and loading use these slices, so a rank touches only what
it keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from mmdata_train.lora.settings import is_adapter_weight

TENSOR_AXIS = "tensor"
Slices = tuple[slice, ...]


def local_slices(tensor: Tensor) -> Slices:
    """The part of the whole tensor that this rank's shard is, one slice a dimension, bounds included."""
    bounds = [(0, size) for size in tensor.shape]
    if isinstance(tensor, DTensor):
        mesh = tensor.device_mesh
        names = mesh.mesh_dim_names or ()
        for axis in sorted(range(mesh.ndim), key=lambda axis: names[axis] != TENSOR_AXIS):
            dim = getattr(tensor.placements[axis], "dim", None)
            if dim is not None:
                bounds[dim] = _chunk(bounds[dim], mesh.size(axis), mesh.get_local_rank(axis))
    slices = tuple(slice(low, high) for low, high in bounds)
    shape = tensor.to_local().shape if isinstance(tensor, DTensor) else tensor.shape
    assert tuple(s.stop - s.start for s in slices) == tuple(shape), (
        f"slices {slices} do not make the shard {tuple(shape)}"
    )
    return slices


def _chunk(bounds: tuple[int, int], parts: int, index: int) -> tuple[int, int]:
    low, high = bounds
    size = -(-(high - low) // parts)
    start = min(low + index * size, high)
    return start, min(start + size, high)


@torch.no_grad()
def fill(tensor: Tensor, value: Tensor) -> None:
    """Copy `value`, already cut to this rank's slices, into the shard."""
    target = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    target.copy_(value)


def named_weights(parts: Iterable[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    """Every weight of the model in the parts by its name in the whole model; a tied one once, adapters left out."""
    for part in parts:
        yield from ((name, weight) for name, weight in part.named_parameters() if not is_adapter_weight(name))
