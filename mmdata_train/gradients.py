"""Gradient norm, clipping and the fp16 loss scale, over every mesh and stage at once.

Each rank adds up the squares of its shards, divided by how many ranks hold the same shard, and one sum over the world
gives the norm. So weights on different meshes need no special case, and every rank, pipeline stages included, sees
the same norm and takes the same decision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from mmdata_train.loss import to_local


def local_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """This rank's gradient shards, for in-place work."""
    return [to_local(weight.grad) for weight in parameters if weight.grad is not None]


def copies(tensor: Tensor) -> int:
    """How many ranks of the tensor's own mesh hold the same shard."""
    if not isinstance(tensor, DTensor):
        return 1
    mesh = tensor.device_mesh
    return math.prod(mesh.size(axis) for axis, place in enumerate(tensor.placements) if place.is_replicate())


def sum_of_squares(parameters: Iterable[nn.Parameter], device: torch.device) -> Tensor:
    """This rank's part of the squared gradient norm, float64 scalar; the sum over all ranks is the whole."""
    weights = [weight for weight in parameters if weight.grad is not None]
    if not weights:
        return torch.zeros((), dtype=torch.float64, device=device)
    norms = torch.stack(torch._foreach_norm(local_gradients(weights))).double()
    shares = torch.tensor([1.0 / copies(weight) for weight in weights], dtype=torch.float64, device=norms.device)
    return (norms.square() * shares).sum().to(device)


def first_non_finite(named: Iterable[tuple[str, nn.Parameter]]) -> str | None:
    """The first parameter whose gradient shard on this rank holds inf or nan."""
    for name, weight in named:
        if weight.grad is not None and not bool(to_local(weight.grad).isfinite().all()):
            return name
    return None


def first_non_finite_tensor(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """The first tensor whose shard on this rank holds inf or nan. One look at the device, and no copy of a tensor."""
    own = [(name, shard) for name, tensor in named if (shard := to_local(tensor.detach())).numel()]
    by_device: dict[torch.device, list[tuple[str, Tensor]]] = {}
    for name, shard in own:
        # The largest magnitude is nan or inf where one value is.
        by_device.setdefault(shard.device, []).append((name, torch.linalg.vector_norm(shard, ord=math.inf)))
    bad = {
        name
        for largest in by_device.values()
        for (name, _), good in zip(largest, torch.stack([v for _, v in largest]).isfinite().tolist(), strict=True)
        if not good
    }
    return next((name for name, _ in own if name in bad), None)


def clip_factor(norm: float, limit: float) -> float:
    """What gradients of this norm are multiplied by; limit 0 turns clipping off. The 1e-6 is torch's."""
    return min(1.0, limit / (norm + 1e-6)) if limit > 0 else 1.0


@torch.no_grad()
def scale_gradients(parameters: Iterable[nn.Parameter], factor: float) -> None:
    """Multiply this rank's gradients in place."""
    grads = local_gradients(parameters)
    if grads and factor != 1.0:
        torch._foreach_mul_(grads, factor)


@dataclass(slots=True)
class LossScaler:
    """Dynamic loss scaling for fp16: halve after `hysteresis` overflows, double after `window` good steps in a row.

    Overflow is read off the global gradient norm, so all ranks agree without another message. For bf16 and fp32 the
    scale is 1 and stays.
    """

    scale: float = 1.0
    minimum: float = 1.0
    window: int = 1000
    hysteresis: int = 2
    dynamic: bool = False
    good_steps: int = 0
    patience: int = 2

    def update(self, finite: bool) -> None:
        """Take note of one step."""
        if not self.dynamic:
            return
        if not finite:
            self.good_steps = 0
            self.patience -= 1
            if self.patience <= 0:
                self.scale = max(self.minimum, self.scale / 2)
            return
        self.good_steps += 1
        if self.good_steps % self.window == 0:
            self.scale *= 2
            self.patience = self.hysteresis

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"scale": self.scale, "good_steps": self.good_steps, "patience": self.patience}

    def load(self, state: dict[str, float]) -> None:
        """Continue from `state`."""
        self.scale = float(state["scale"])
        self.good_steps, self.patience = int(state["good_steps"]), int(state["patience"])
