"""How adapters are split over the tensor axis: beside columns and beside rows.

Beside a layer split by columns (outputs), A is whole on every rank and B is split by outputs. Beside one split by rows
(inputs), A is split by inputs and B whole: each rank's output is a part of a sum, like the layer's own, and both are
added up in the one collective the layer has anyway. Gradients of whole weights are summed over the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

COLUMNS: Mapping[str, Placement] = {
    "weight": Shard(0), "bias": Shard(0), "lora_A": Replicate(), "lora_B": Shard(0), "lora_magnitude": Shard(0),
}  # fmt: skip
ROWS: Mapping[str, Placement] = {
    "weight": Shard(1), "bias": Replicate(), "lora_A": Shard(1), "lora_B": Replicate(), "lora_magnitude": Replicate(),
}  # fmt: skip


class AdaptedColumns(ParallelStyle):
    """A linear layer with an adapter, split by outputs: whole input, output split in its last dimension."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return _apply(module, device_mesh, COLUMNS, Replicate(), Shard(-1))


class AdaptedRows(ParallelStyle):
    """A linear layer with an adapter, split by inputs: input split in its last dimension, output as `after`."""

    def __init__(self, after: Placement) -> None:
        self.after = after

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return _apply(module, device_mesh, ROWS, Shard(-1), self.after)


def _apply(
    module: nn.Module, mesh: DeviceMesh, places: Mapping[str, Placement], before: Placement, after: Placement
) -> nn.Module:
    split: Any = partial(_split, places)
    enter: Any = partial(_enter, before)
    leave: Any = partial(_leave, after)
    return distribute_module(module, mesh, split, enter, leave)


def _split(places: Mapping[str, Placement], name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for key, weight in list(module.named_parameters(recurse=False)):
        share = distribute_tensor(weight.detach(), mesh, [places[key]], src_data_rank=None)
        module.register_parameter(key, nn.Parameter(share, requires_grad=weight.requires_grad))


def _enter(layout: Placement, module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
    x = inputs[0]
    if not isinstance(x, DTensor):
        x = DTensor.from_local(x, mesh, [layout], run_check=False)
    return (x.redistribute(placements=[layout]), *inputs[1:])


def _leave(layout: Placement, module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
    return output.redistribute(placements=[layout]).to_local()
