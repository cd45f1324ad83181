"""Activation checkpointing: what a layer keeps for its backward pass, and what it computes again.

`full` keeps a layer's input only. `selective` keeps the outputs of matrix products, attention and communication, and
computes the cheap rest (norms, activations, rotary turns) again. Weight names do not change: the layer's forward is
wrapped, not the layer. What was kept may be read more than once, so backward passes split into two (zero-bubble
schedules) work; torch's own selective contexts allow one reading.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from mmdata_train.model.layers import DecoderLayer

PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm"})
COMMUNICATION = frozenset(
    {
        "_c10d_functional::all_reduce",
        "_c10d_functional::reduce_scatter_tensor",
        "_c10d_functional::all_gather_into_tensor",
        "_c10d_functional::wait_tensor",
    }
)
ATTENTION = frozenset(
    {
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
    }
)
Kept = list[tuple[Any, Any]]


def _detached(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, value)


class _Keep(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Forward pass: note the results of the operations to keep, in order."""

    def __init__(self, names: frozenset[str], kept: Kept) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names, self.kept = names, kept

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func.name().partition(".")[0] in self.names:
            self.kept.append((func, _detached(output)))
        return output


class _Replay(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Recomputation: hand out what was kept, in the same order, from the start at each entry."""

    def __init__(self, names: frozenset[str], kept: Kept) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names, self.kept, self.position = names, kept, 0

    def __enter__(self) -> Any:
        self.position = 0
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().partition(".")[0] not in self.names:
            return func(*args, **(kwargs or {}))
        kept_func, output = self.kept[self.position]
        assert kept_func is func, f"recomputation runs {func} where the forward pass ran {kept_func}"
        self.position += 1
        # A new tensor each time: autograd writes into what it is given.
        return _detached(output)


def _contexts(names: frozenset[str]) -> Callable[[], tuple[_Keep, _Replay]]:
    def make() -> tuple[_Keep, _Replay]:
        kept: Kept = []
        return _Keep(names, kept), _Replay(names, kept)

    return make


def _compiler_contexts(names: frozenset[str]) -> Callable[[], Any]:
    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        keep = hasattr(operation, "name") and operation.name().partition(".")[0] in names
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return partial(create_selective_checkpoint_contexts, policy)


def recompute_layer(layer: DecoderLayer, mode: Literal["none", "selective", "full"], *, compiled: bool = False) -> None:
    """Wrap the layer's forward in place, and compile it where that is asked for.

    With `full` the compiled forward lies within the recomputation, since torch 2.13 cannot save what a compiled
    recomputation of tensor-parallel layers needs; with `selective` around it, since only the compiler's own contexts
    see the operations of compiled code.
    """
    if compiled and mode == "full":
        setattr(layer, "forward", torch.compile(layer.forward, fullgraph=True))  # noqa: B010 (over the method)
    if mode != "none":
        options: dict[str, Any] = {"use_reentrant": False}
        if mode == "selective":
            # Attention that drops draws random numbers; skipping it would shift the draws of what follows.
            names = PRODUCTS | COMMUNICATION | (frozenset() if layer.attention.dropout else ATTENTION)
            options["context_fn"] = _compiler_contexts(names) if compiled else _contexts(names)
        inner = layer.forward

        def forward(*args: Any) -> Any:
            return checkpoint(inner, *args, **options) if torch.is_grad_enabled() else inner(*args)

        setattr(layer, "forward", forward)  # noqa: B010 (an instance attribute over the method)
    if compiled and mode != "full":
        layer.compile(fullgraph=True)
