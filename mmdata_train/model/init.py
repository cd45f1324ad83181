"""Random weights that depend on the seed and the weight's name alone: the same model in every layout.

Each weight has its own generator, is drawn whole in float32 on the CPU, and cut to what the rank holds: memory is
bounded by the largest weight, time by the number of elements in the stage. Matrices are normal with the configured
deviation; those that write into the residual stream are divided by sqrt(2 x layers) (GPT-2, section 2.3). Norms are
1, biases 0, padded vocabulary rows 0.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from mmdata_train.model.config import ModelConfig
from mmdata_train.model.decoder import EMBEDDING_WEIGHT, HEAD_WEIGHT, canonical_name
from mmdata_train.slices import fill, local_slices, named_weights

RESIDUAL_WRITERS = ("o_proj.weight", "down_proj.weight")


def weight_seed(seed: int, name: str) -> int:
    """A 63-bit seed for one weight."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def initial_weight(config: ModelConfig, name: str, shape: torch.Size, seed: int) -> Tensor:
    """The whole weight `name` in float32 on the CPU."""
    name = canonical_name(config, name)
    if name.endswith(".bias"):
        return torch.zeros(shape)
    if "norm" in name:
        return torch.ones(shape)
    std = config.init_std
    if name.endswith(RESIDUAL_WRITERS):
        std /= math.sqrt(2 * config.num_layers)
    generator = torch.Generator().manual_seed(weight_seed(seed, name))
    rows = config.vocab_size if name in (EMBEDDING_WEIGHT, HEAD_WEIGHT) else shape[0]
    weight = torch.zeros(shape)
    weight[:rows].normal_(0.0, std, generator=generator)
    return weight


def initialize(parts: Iterable[nn.Module], config: ModelConfig, seed: int) -> None:
    """Fill every weight of the parts; they must be on a real device, whole or sharded."""
    for name, weight in named_weights(parts):
        fill(weight, initial_weight(config, name, weight.shape, seed)[local_slices(weight)])
