"""Activation checkpointing: what a layer keeps for its backward pass, and what it computes again.

`full` keeps a layer's input only. `selective` keeps the outputs of matrix products, attention and communication, and
computes the cheap rest (norms, activations, rotary turns) again. Weight names do not change: the layer's forward is
wrapped, not the layer.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

KEPT = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_attention_math",
    "_c10d_functional::all_reduce",
    "_c10d_functional::reduce_scatter_tensor",
    "_c10d_functional::all_gather_into_tensor",
    "_c10d_functional::wait_tensor",
)


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    name = operation.name() if hasattr(operation, "name") else str(operation)
    return CheckpointPolicy.MUST_SAVE if name.partition(".")[0] in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def recompute_layer(layer: nn.Module, mode: Literal["none", "selective", "full"]) -> None:
    """Wrap the layer's forward in place."""
    if mode == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if mode == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    inner = layer.forward

    def forward(*args: torch.Tensor | None) -> Any:
        return checkpoint(inner, *args, **options) if torch.is_grad_enabled() else inner(*args)

    layer.forward = forward
