"""Cross-entropy of the output head without keeping the logits: chunked, vocabulary-parallel, summed over tokens.

The gradient is computed beside the loss, chunk by chunk, so a step holds one chunk of float32 logits (at most 512
MiB), the gradient of the hidden states and one gradient of the head. The sum over tokens is multiplied by `scale`
(loss scale / global number of counted tokens) before it is rounded to the compute dtype. Vocabulary padding is masked
out of the softmax. No label smoothing, no z-loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

IGNORED = -100
"""The label of a token that is not counted."""
CHUNK_ELEMENTS = 2**27
"""Logits held at once, in elements: 512 MiB of float32."""


def to_local(tensor: Tensor) -> Tensor:
    """This rank's shard of a distributed tensor; a plain tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@dataclass(frozen=True, slots=True)
class VocabShard:
    """Which rows of the head a rank holds: `start` is its first row, `group` the ranks that hold the others (None:
    all rows here).
    """

    start: int = 0
    group: dist.ProcessGroup | None = None

    def reduce(self, tensor: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """Reduce in place over the ranks that share the vocabulary; a collective where there are several."""
        if self.group is not None:
            dist.all_reduce(tensor, op=op, group=self.group)
        return tensor


@dataclass(slots=True)
class TokenLoss:
    """Head weight and hidden states to a scaled loss and each sequence's sum of negative log-likelihoods.

    `scale` is set before each step by whoever knows the global number of counted tokens. split_backward: the schedule
    computes gradients of inputs and of weights in two passes, which torch 2.11 cannot do over a node written in Python.
    """

    vocab_size: int
    shard: VocabShard = VocabShard()
    scale: float = 1.0
    chunk_elements: int = CHUNK_ELEMENTS
    split_backward: bool = False

    def __call__(self, hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """hidden [batch, length, hidden], weight [rows held, hidden], labels [batch, length] (IGNORED: not counted).

        Returns (loss, nll): loss [1] float32 = scale x sum, differentiable; nll [batch] float32, unscaled, detached.
        """
        rows = to_local(weight)
        if self.split_backward:
            return _from_plain_operations(hidden, rows, labels, self)
        loss, nll = _LinearCrossEntropy.apply(hidden, rows, labels, self)  # type: ignore[no-untyped-call]
        return loss, nll

    @torch.no_grad()
    def logits(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """[batch, length, vocab_size] in the compute dtype, whole on every rank, padding cut off. For evaluation
        only.
        """
        local = hidden @ to_local(weight).T
        if self.shard.group is not None:
            parts = [torch.empty_like(local) for _ in range(dist.get_world_size(self.shard.group))]
            dist.all_gather(parts, local.contiguous(), group=self.shard.group)
            local = torch.cat(parts, dim=-1)
        return local[..., : self.vocab_size]


class _LinearCrossEntropy(torch.autograd.Function):
    """One fused node: hidden x weight -> loss, with both gradients made in the forward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, spec: TokenLoss) -> tuple[Tensor, Tensor]:
        loss, by_row, *ctx.grads = _loss_and_gradients(hidden, weight, labels, spec, ctx.needs_input_grad)
        ctx.mark_non_differentiable(by_row)
        return loss, by_row

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scaled = tuple(None if grad is None else grad * grads[0] for grad in ctx.grads)
        return (*scaled, None, None)


def _from_plain_operations(hidden: Tensor, weight: Tensor, labels: Tensor, spec: TokenLoss) -> tuple[Tensor, Tensor]:
    """The same loss and gradients, from products whose derivative is the gradient computed already.

    Costs a float32 copy of hidden states and weight. The sums are subtracted from themselves, so the value is exact.
    """
    needed = (hidden.requires_grad, weight.requires_grad)
    with torch.no_grad():
        loss, by_row, *grads = _loss_and_gradients(hidden, weight, labels, spec, needed)
    for tensor, grad in zip((hidden, weight), grads, strict=True):
        if grad is not None:
            product = torch.dot(tensor.float().flatten(), grad.float().flatten())
            loss = loss + (product - product.detach())
    return loss, by_row


def _loss_and_gradients(
    hidden: Tensor, weight: Tensor, labels: Tensor, spec: TokenLoss, needed: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """(loss [1], nll [batch], gradient of hidden, gradient of weight); a gradient that is not needed is None."""
    states, targets = hidden.detach().flatten(0, 1), labels.flatten()
    grad_hidden = torch.empty_like(states) if needed[0] else None
    grad_weight = torch.zeros_like(weight, dtype=torch.float32) if needed[1] else None
    nll = torch.empty(targets.numel(), dtype=torch.float32, device=states.device)
    rows = max(1, spec.chunk_elements // weight.shape[0])
    for start in range(0, targets.numel(), rows):
        span = slice(start, start + rows)
        nll[span], error = _chunk(states[span], weight, targets[span], spec)
        if grad_hidden is None and grad_weight is None:
            continue
        error = (error * spec.scale).to(weight.dtype)
        if grad_hidden is not None:
            torch.mm(error, weight, out=grad_hidden[span])
        if grad_weight is not None:
            grad_weight += error.T @ states[span]
    if grad_hidden is not None:
        spec.shard.reduce(grad_hidden)
        grad_hidden = grad_hidden.view_as(hidden)
    if grad_weight is not None:
        grad_weight = grad_weight.to(weight.dtype)
    return nll.sum(dim=0, keepdim=True) * spec.scale, nll.view(labels.shape).sum(dim=1), grad_hidden, grad_weight


def _chunk(states: Tensor, weight: Tensor, targets: Tensor, spec: TokenLoss) -> tuple[Tensor, Tensor]:
    """(nll [tokens], softmax - one_hot [tokens, rows held]), both float32 and zero where the target is IGNORED."""
    shard = spec.shard
    logits = (states @ weight.T).float()
    padding = max(0, shard.start + weight.shape[0] - spec.vocab_size)
    if padding:
        logits[:, max(0, weight.shape[0] - padding) :] = float("-inf")
    peak = shard.reduce(logits.amax(dim=-1), dist.ReduceOp.MAX)
    logits -= peak[:, None]
    counted = targets != IGNORED
    column = targets - shard.start
    held = counted & (column >= 0) & (column < weight.shape[0])
    column = torch.where(held, column, 0)[:, None]
    target = torch.where(held, logits.gather(1, column).squeeze(1), 0.0)
    chances = logits.exp_()
    total, target = shard.reduce(torch.stack((chances.sum(dim=-1), target)))
    nll = torch.where(counted, total.log() - target, 0.0)
    chances /= total[:, None]
    chances.scatter_add_(1, column, -held.float()[:, None])
    return nll, chances.mul_(counted[:, None])
