"""Keys and values of tokens already seen, so that the next token costs one position instead of all of them.

A cache is a value made for one batch and handed to `Decoder.forward`; the model keeps nothing. Each slot remembers its
token's position (EMPTY for padding), and who sees whom is decided by positions alone: prompts may be padded left or
right, and rows may be of any length. Costs 2 x layers x kv heads x head_dim x capacity elements a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

EMPTY = -1
"""The position of a slot that holds no token."""


@dataclass(slots=True)
class LayerCache:
    """One layer's keys and values, [batch, kv heads, capacity, head_dim], filled up to `length` slots."""

    capacity: int
    length: int = 0
    keys: Tensor | None = None
    values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store [batch, kv heads, new, head_dim] behind what is there; returns all that is filled."""
        if self.keys is None or self.values is None:
            shape = (*keys.shape[:2], self.capacity, keys.shape[3])
            self.keys, self.values = keys.new_zeros(shape), values.new_zeros(shape)
        start, self.length = self.length, self.length + keys.shape[2]
        assert self.length <= self.capacity, f"{self.length} slots in a cache of {self.capacity}"
        self.keys[:, :, start : self.length] = keys
        self.values[:, :, start : self.length] = values
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows of the batch."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[rows], self.values[rows]


@dataclass(slots=True)
class KVCache:
    """The cache of a batch. capacity: slots of a row. positions: int64 [batch, filled], EMPTY where there is padding.

    Layers make their part at their first use, so a stage of a pipeline holds only its own.
    """

    capacity: int
    positions: Tensor | None = None
    layers: dict[str, LayerCache] = field(default_factory=dict)

    def layer(self, name: str) -> LayerCache:
        """The part of the layer of this name."""
        return self.layers.setdefault(name, LayerCache(self.capacity))

    def extend(self, positions: Tensor, window: int | None) -> Tensor:
        """Note the positions of new slots, int64 [batch, new]; returns the mask of `cached_mask` over all slots."""
        self.positions = positions if self.positions is None else torch.cat((self.positions, positions), dim=1)
        return cached_mask(positions, self.positions, window)

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows of the batch, int64 [rows]."""
        if self.positions is not None:
            self.positions = self.positions[rows]
        for layer in self.layers.values():
            layer.keep(rows)


def cached_mask(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """True where query i sees key j, [batch, 1, new, slots], from positions [batch, new] and [batch, slots].

    A padding query sees every slot: its result is used by nobody, and a row of nothing would be not-a-number.
    """
    distance = queries[:, :, None] - keys[:, None, :]
    seen = (distance >= 0) & (keys >= 0)[:, None, :]
    if window is not None:
        seen = seen & (distance < window)
    return (seen | (queries < 0)[:, :, None]).unsqueeze(1)
