"""Permutations as functions: the i-th item of a shuffle without storing the shuffle.

`shuffled(positions, size, seed, epoch)` answers for any positions in O(1) memory, so that the place in a run of a
billion samples is one integer and resuming costs nothing. It is a keyed Feistel network over the next even power of
two, walked until the value falls inside [0, size) (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
About 0.3 us an index in batches. Not cryptographic.

`torch_randperm` gives what `torch.randperm` gives on a CPU without importing torch: Megatron's cyclic order needs it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import SamplesError

_ROUNDS = 8
_WORD = (1 << 64) - 1
# Small sets are walked inside 2^6 values: a two-bit Feistel network reaches few permutations.
_SMALLEST_HALF = 3
# From here torch draws 64-bit numbers (aten/src/ATen/native/TensorFactories.cpp, randperm_cpu).
_TORCH_32BIT_LIMIT = (2**32 - 1) // 20


def _mix(value: int) -> int:
    """SplitMix64's finalizer (Steele, Lea and Flood, 2014) on a Python integer."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)


@lru_cache(maxsize=64)
def _round_keys(size: int, seed: int, epoch: int) -> tuple[int, ...]:
    state = _mix(_mix(_mix(seed & _WORD) ^ (epoch & _WORD)) ^ (size & _WORD))
    return tuple(_mix(state + number) for number in range(_ROUNDS))


def _mix_array(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _feistel(values: NDArray[np.uint64], half: int, keys: tuple[int, ...]) -> NDArray[np.uint64]:
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix_array(right + np.uint64(key)) & mask)
    return (left << shift) | right


def shuffled(positions: NDArray[np.int64], size: int, seed: int, epoch: int = 0) -> NDArray[np.int64]:
    """What stands at `positions` of the permutation of [0, size) named by (seed, epoch).

    positions: int64 of any shape, each in [0, size). Returns int64 of the same shape. The same on every machine and
    version: integer arithmetic modulo 2^64 only. Raises SamplesError when a position is outside the permutation.
    """
    positions = np.asarray(positions, dtype=np.int64)
    if positions.size and (int(positions.min()) < 0 or int(positions.max()) >= size):
        raise SamplesError(f"a position is outside [0, {size}): {int(positions.min())} to {int(positions.max())}")
    half = max(_SMALLEST_HALF, ((size - 1).bit_length() + 1) // 2)
    keys = _round_keys(size, seed, epoch)
    values = _feistel(positions.astype(np.uint64).reshape(-1), half, keys)
    outside = np.flatnonzero(values >= np.uint64(size))
    while outside.size:
        values[outside] = _feistel(values[outside], half, keys)
        outside = outside[values[outside] >= np.uint64(size)]
    return values.astype(np.int64).reshape(positions.shape)


@lru_cache(maxsize=4)
def torch_randperm(size: int, seed: int) -> NDArray[np.int64]:
    """`torch.randperm(size, generator=torch.Generator().manual_seed(seed))` on a CPU, read-only int64 [size].

    torch swaps item i with item i + draw % (size - i), the draws being the raw 32-bit outputs of MT19937 seeded with
    the low 32 bits of `seed`, which numpy's RandomState also gives.
    Raises SamplesError from 214,748,364 items, where torch changes to 64-bit draws.
    """
    if size >= _TORCH_32BIT_LIMIT:
        raise SamplesError(
            f"the cyclic order is offered below {_TORCH_32BIT_LIMIT:,} samples a bucket and this one has {size:,}; "
            "use the default order, which has no limit"
        )
    order = list(range(size))
    draws = np.random.RandomState(seed & 0xFFFFFFFF).randint(0, 2**32, size=max(size - 1, 0), dtype=np.uint32)
    jumps = draws.astype(np.int64) % np.arange(size, 1, -1, dtype=np.int64)
    for item, jump in enumerate(jumps.tolist()):
        order[item], order[item + jump] = order[item + jump], order[item]
    result = np.array(order, dtype=np.int64)
    result.flags.writeable = False
    return result
