"""AdamW over this rank's shards, weight-decay groups, and learning-rate schedules as pure functions of the step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from mmdata_train.config import OptimConfig


def learning_rate(config: OptimConfig, step: int, total_steps: int) -> float:
    """The rate of step `step` (0-based) of `total_steps`, or of `decay_steps` where they are set.

    Warm-up is linear and reaches `lr` at its last step. Then: cosine or linear down, towards `min_lr` one step after
    the last; wsd keeps `lr` and falls linearly over the last `decay_ratio` of all steps; constant keeps it. So no step
    is lost on a rate of 0 at either end. Past `decay_steps` the rate is `min_lr` (constant: `lr`).
    """
    total_steps = total_steps if config.decay_steps is None else config.decay_steps
    warmup = warmup_steps(config, total_steps)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    if config.lr_schedule == "constant":
        return config.lr
    start = warmup
    if config.lr_schedule == "wsd":
        start = max(warmup, total_steps - round(config.decay_ratio * total_steps))
    if step < start:
        return config.lr
    progress = min(1.0, (step - start + 1) / (total_steps - start + 1)) if step < total_steps else 1.0
    share = 0.5 * (1.0 + math.cos(math.pi * progress)) if config.lr_schedule == "cosine" else 1.0 - progress
    return config.min_lr + (config.lr - config.min_lr) * share


def warmup_steps(config: OptimConfig, total_steps: int) -> int:
    """Steps of warm-up: as given, or a ratio of all steps (of `decay_steps` where set) rounded up."""
    if config.warmup_ratio is None:
        return config.warmup_steps
    total_steps = total_steps if config.decay_steps is None else config.decay_steps
    return math.ceil(config.warmup_ratio * total_steps)


def decays(name: str, weight: nn.Parameter) -> bool:
    """Weight decay acts on matrices, not on biases and norms (Megatron's rule)."""
    return weight.ndim >= 2


def build_optimizer(
    named: Iterable[tuple[str, nn.Parameter]], config: OptimConfig, plus_ratio: float = 1.0
) -> torch.optim.Optimizer | None:
    """Fused AdamW over the trainable parameters, in groups of one weight decay and rate; None where this rank has none.

    plus_ratio: the rate of lora_B over that of the others (LoRA+); a group's `lr_factor` says what its rate is
    multiplied by.
    """
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, weight in named:
        if weight.requires_grad:
            factor = plus_ratio if name.endswith("lora_B") else 1.0
            groups.setdefault((decays(name, weight), factor), []).append(weight)
    filled: list[dict[str, Any]] = [
        {"params": weights, "weight_decay": config.weight_decay if decayed else 0.0, "lr_factor": factor}
        for (decayed, factor), weights in sorted(groups.items(), key=lambda item: item[0], reverse=True)
    ]
    if not filled:
        return None
    return torch.optim.AdamW(filled, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)
