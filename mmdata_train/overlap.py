"""Whether communication over data ranks runs beside computation.

On (the default): each layer's parameters are gathered while the former layer computes, and gradients are reduced
while the next layer's backward pass runs. Off: nothing is gathered ahead and every collective is waited for, which
shows what overlap is worth and helps to find a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule


def _wait_for(device: torch.device) -> None:
    """Until the device has done what was asked of it; host collectives are done when they return."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


class _Allocating:
    """Plain memory for a collective."""

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(tuple(size), dtype=dtype, device=device)


class WaitingAllGather(_Allocating):
    """An all-gather that is over when it returns."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        dist.all_gather_into_tensor(output_tensor, input_tensor, group=group)
        _wait_for(output_tensor.device)


class WaitingReduceScatter(_Allocating):
    """A reduce-scatter that is over when it returns."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group)
        _wait_for(output_tensor.device)


def set_overlap(modules: Sequence[FSDPModule], layers: Sequence[FSDPModule], *, overlap: bool, gathers: bool) -> None:
    """Choose for one part: `modules` are all its sharded modules, `layers` those of its layers in order.

    gathers: whether parameters are gathered for each pass (ZeRO 3); only then is there anything to gather ahead.
    """
    if overlap:
        if gathers:
            for layer, following in pairwise(layers):
                layer.set_modules_to_forward_prefetch([following])
        return
    for module in modules:
        module.set_custom_all_gather(WaitingAllGather())  # type: ignore[arg-type]
        module.set_custom_reduce_scatter(WaitingReduceScatter())  # type: ignore[arg-type]
        # An own list replaces the default of gathering the layer before; itself is gathered already.
        module.set_modules_to_backward_prefetch([module])
