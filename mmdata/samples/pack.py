"""Packing: which sequences share a bin of `capacity` tokens, by best-fit decreasing, as index arrays only.

Each sequence, longest first, goes to the open bin with the least room that still holds it. Room is an integer up to the
capacity, so one stack of bins for each room and a bitmap tree over the rooms find that bin in O(log capacity); with the
counting sort the whole is O(N log capacity). Ten million sequences take a few seconds on one core and about 40 bytes
each. Nothing is cut or padded here: a sequence longer than a bin is an error, never a truncation.

The seed orders sequences of equal length, the sequences in a bin, and the bins; the fill does not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdata.errors import PackingError
from mmdata.kernels import kernel

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PackedBins:
    """The bins of one packing.

    order: int64 (sequences,), each sequence number once, bin after bin. starts: int64 (bins + 1,), bin b holds
    `order[starts[b]:starts[b + 1]]`. lengths: int64 (sequences,), tokens of each sequence as given. capacity: tokens a
    bin may hold.
    """

    order: Indices
    starts: Indices
    lengths: Indices
    capacity: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> Indices:
        """The sequence numbers of bin `index`, in the order they are laid out."""
        index = self._checked(index)
        return self.order[self.starts[index] : self.starts[index + 1]]

    def boundaries(self, index: int) -> Indices:
        """Token offsets at which the sequences of bin `index` begin and end: `[0, n0, n0 + n1, ...]` (cu_seqlens).

        Attention and position ids must not cross them; the first token behind one is no target.
        """
        return np.concatenate(([0], np.cumsum(self.lengths[self[index]])))

    def used(self) -> Indices:
        """Tokens in each bin, int64 (bins,)."""
        total = np.concatenate(([0], np.cumsum(self.lengths[self.order])))
        return total[self.starts[1:]] - total[self.starts[:-1]]

    @property
    def fill(self) -> float:
        """Tokens over capacity, summed over all bins: 1.0 is perfect; 1.0 for no bins at all."""
        room = len(self) * self.capacity
        return float(self.lengths.sum()) / room if room else 1.0

    def _checked(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"bin {index} of {len(self)}")
        return index % len(self)


def pack(lengths: npt.ArrayLike, capacity: int, seed: int = 1234) -> PackedBins:
    """Assign sequences of `lengths` tokens to bins of `capacity` tokens; best-fit decreasing, deterministic.

    lengths: one non-negative integer for each sequence. The same lengths, capacity and seed give the same bins on any
    machine and with any version (the stream of NumPy's RandomState is frozen). Raises PackingError for a capacity
    below 1, negative or non-integer lengths, and for a sequence longer than the capacity.
    """
    sizes = _checked_lengths(lengths, capacity)
    rng = np.random.RandomState([seed >> shift & 0xFFFFFFFF for shift in (0, 32)])
    by_length = _longest_first(sizes, rng.permutation(len(sizes)), capacity)
    bins, count = _best_fit(sizes, by_length, capacity)
    names = rng.permutation(count)
    placed = names[bins] if count else bins
    order, starts = _group(placed, rng.permutation(len(sizes)), count)
    return PackedBins(order, starts, sizes, capacity)


def _checked_lengths(lengths: npt.ArrayLike, capacity: int) -> Indices:
    if capacity < 1:
        raise PackingError(f"a bin holds {capacity} tokens; the capacity must be at least 1")
    raw = np.asarray(lengths)
    if raw.ndim != 1 or not (np.issubdtype(raw.dtype, np.integer) or raw.size == 0):
        raise PackingError(f"lengths must be one row of integers, not {raw.dtype} of shape {raw.shape}")
    sizes = raw.astype(np.int64)
    if len(sizes) and int(sizes.min()) < 0:
        raise PackingError(f"sequence {int(sizes.argmin())} has the length {int(sizes.min())}")
    too_long = np.flatnonzero(sizes > capacity)
    if len(too_long):
        first = int(too_long[0])
        raise PackingError(
            f"{len(too_long)} of {len(sizes)} sequences are longer than a bin of {capacity} tokens (the first: "
            f"sequence {first} with {int(sizes[first])}, the longest: {int(sizes.max())}); "
            f"convert with --max-length {capacity} (and --too-long), or raise the sequence length"
        )
    return sizes


@kernel
def _longest_first(sizes: Any, shuffled: Any, capacity: int) -> Any:
    """Counting sort of the sequence numbers by length, longest first; ties keep the order of `shuffled`."""
    at = np.zeros(capacity + 2, dtype=np.int64)
    for size in sizes:
        at[capacity - size + 1] += 1
    for i in range(1, capacity + 2):
        at[i] += at[i - 1]
    result = np.empty(len(sizes), dtype=np.int64)
    for i in range(len(shuffled)):
        sequence = shuffled[i]
        slot = capacity - sizes[sequence]
        result[at[slot]] = sequence
        at[slot] += 1
    return result


@kernel
def _least_room(tree: Any, width: int, wanted: int) -> int:
    """The smallest room of at least `wanted` that an open bin has, or -1; tree[width + r]: does room r exist."""
    node = width + wanted
    if tree[node]:
        return wanted
    while node > 1:
        if node % 2 == 0 and tree[node + 1]:
            node += 1
            while node < width:
                node *= 2
                if not tree[node]:
                    node += 1
            return int(node - width)
        node //= 2
    return -1


@kernel
def _set_room(tree: Any, width: int, room: int, present: bool) -> None:
    """Mark whether any open bin has `room`, up to the root."""
    node = width + room
    tree[node] = present
    while node > 1:
        parent = node // 2
        merged = tree[2 * parent] or tree[2 * parent + 1]
        if tree[parent] == merged:
            break
        tree[parent] = merged
        node = parent


@kernel
def _best_fit(sizes: Any, by_length: Any, capacity: int) -> Any:
    """The bin of each sequence and the number of bins; bins of equal room form a stack."""
    width = 1
    while width < capacity + 1:
        width *= 2
    tree = np.zeros(2 * width, dtype=np.bool_)
    top = np.full(capacity + 1, -1, dtype=np.int64)
    below = np.empty(len(sizes), dtype=np.int64)
    bins = np.empty(len(sizes), dtype=np.int64)
    count = 0
    for i in range(len(by_length)):
        sequence = by_length[i]
        size = sizes[sequence]
        room = _least_room(tree, width, size)
        if room < 0:
            chosen = count
            count += 1
            room = capacity
        else:
            chosen = top[room]
            top[room] = below[chosen]
            if top[room] < 0:
                _set_room(tree, width, room, False)
        bins[sequence] = chosen
        left = room - size
        below[chosen] = top[left]
        if top[left] < 0:
            _set_room(tree, width, left, True)
        top[left] = chosen
    return bins, count


@kernel
def _group(bins: Any, shuffled: Any, count: int) -> Any:
    """Sequence numbers by bin (those of one bin in the order of `shuffled`) and where each bin starts."""
    starts = np.zeros(count + 1, dtype=np.int64)
    for b in bins:
        starts[b + 1] += 1
    for i in range(1, count + 1):
        starts[i] += starts[i - 1]
    at = starts[:-1].copy()
    order = np.empty(len(bins), dtype=np.int64)
    for i in range(len(shuffled)):
        sequence = shuffled[i]
        b = bins[sequence]
        order[at[b]] = sequence
        at[b] += 1
    return order, starts
