"""Rotary position tables, in float32, computed from positions at each forward pass: nothing to store, nothing to
checkpoint.

The half-rotation layout of Hugging Face checkpoints: dimension i turns with dimension i + head_dim / 2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mmdata_train.model.config import ModelConfig, RopeScaling

Rotary = tuple[Tensor, Tensor]


def inverse_frequencies(config: ModelConfig, device: torch.device | None = None) -> tuple[Tensor, float]:
    """Radians per position for each of head_dim / 2 pairs (float32), and the factor the tables are multiplied by."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64, device=device).float() / config.head_dim
    plain = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return plain, 1.0
    if scaling.kind == "linear":
        return plain / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(plain, scaling), 1.0
    return _yarn(plain, scaling, config)


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's rule: short wavelengths stay, long ones are divided, those between are blended linearly in 1 /
    wavelength.
    """
    wavelengths = 2 * math.pi / plain
    rotations = scaling.original_max_positions / wavelengths
    smooth = (rotations - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return torch.lerp(plain / scaling.factor, plain, smooth.clamp(0.0, 1.0))


def _yarn(plain: Tensor, scaling: RopeScaling, config: ModelConfig) -> tuple[Tensor, float]:
    """YaRN (arXiv 2309.00071, sections 3.2 and 3.4): blend by the number of full turns within the original length."""

    def dimension(turns: float) -> float:
        ratio = scaling.original_max_positions / (turns * 2 * math.pi)
        return config.head_dim * math.log(ratio) / (2 * math.log(config.rope_theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    index = torch.arange(plain.numel(), dtype=torch.float32, device=plain.device)
    ramp = ((index - low) / max(high - low, 0.001)).clamp(0.0, 1.0)
    frequencies = torch.lerp(plain, plain / scaling.factor, ramp)
    attention_factor = scaling.attention_factor
    if attention_factor is None:
        attention_factor = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1.0 else 1.0
    return frequencies, attention_factor


def rotary_tables(config: ModelConfig, positions: Tensor) -> Rotary:
    """(cos, sin), each [batch, 1, length, head_dim] float32, for positions [batch, length]."""
    frequencies, factor = inverse_frequencies(config, positions.device)
    angles = positions.float().unsqueeze(-1) * frequencies
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
    return angles.cos() * factor, angles.sin() * factor


def rotate(states: Tensor, rotary: Rotary) -> Tensor:
    """Turn [batch, heads, length, head_dim] by the tables; computed in float32, returned in the dtype it came in."""
    cos, sin = rotary
    first, second = states.float().chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (states.float() * cos + turned * sin).to(states.dtype)
