"""The loops behind the index arrays: legacy numpy shuffles, the walk over documents, the blend. Integers only.

About 12 ns an item for a shuffle and a few ns a document for the walk. Imported only when an index is built.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmdata.kernels import kernel

_N, _M = 624, 397


@kernel
def _refill(key: Any) -> None:
    """The next 624 words of MT19937 (Matsumoto and Nishimura, 1998)."""
    for i in range(_N):
        word = (key[i] & np.uint32(0x80000000)) | (key[(i + 1) % _N] & np.uint32(0x7FFFFFFF))
        mixed = key[(i + _M) % _N] ^ (word >> np.uint32(1))
        if word & np.uint32(1):
            mixed ^= np.uint32(0x9908B0DF)
        key[i] = mixed


@kernel
def shuffle(items: Any, key: Any, position: int) -> int:
    """What numpy's RandomState.shuffle does to a one-dimensional array of fewer than 2^32 items, in place.

    key: uint32[624], position: the generator's state, advanced; returns the new position.
    """
    for i in range(len(items) - 1, 0, -1):
        mask = np.uint32(i)
        mask |= mask >> np.uint32(1)
        mask |= mask >> np.uint32(2)
        mask |= mask >> np.uint32(4)
        mask |= mask >> np.uint32(8)
        mask |= mask >> np.uint32(16)
        while True:
            if position == _N:
                _refill(key)
                position = 0
            word = key[position]
            position += 1
            word ^= word >> np.uint32(11)
            word ^= (word << np.uint32(7)) & np.uint32(0x9D2C5680)
            word ^= (word << np.uint32(15)) & np.uint32(0xEFC60000)
            word ^= word >> np.uint32(18)
            j = np.int64(word & mask)
            if j <= i:
                break
        held = items[i]
        items[i] = items[j]
        items[j] = held
    return position


@kernel
def walk(lengths: Any, documents: Any, seq_length: int, extra: int, index: Any) -> int:
    """Fill rows 1.. of the sample index; returns how many rows stand, the first included.

    Row k is the place where sample k begins: the first document whose end reaches token k * seq_length + extra, and the
    offset of token k * seq_length in it.
    """
    wanted = len(index)
    row = 1
    start = np.int64(0)
    for place in range(len(documents)):
        if row == wanted:
            break
        end = start + lengths[documents[place]]
        while row < wanted and row * seq_length + extra <= end:
            index[row, 0] = place
            index[row, 1] = row * seq_length - start
            row += 1
        start = end
    return row


@kernel
def blend_two(first: float, second: float, dataset_index: Any, sample_index: Any) -> None:
    """`blend` for two sets, whose counts then never leave the registers: half the time, and without a branch."""
    taken, other = 0.0, 0.0
    scale = 1.0
    for draw in range(len(dataset_index)):
        late = np.int64(second * scale - other > first * scale - taken)
        dataset_index[draw] = late
        sample_index[draw] = np.int64(other) if late else np.int64(taken)
        other += late
        taken += 1 - late
        scale = 1.0 if draw == 0 else scale + 1.0


@kernel
def blend_four(weights: Any, dataset_index: Any, sample_index: Any) -> None:
    """`blend` for three or four sets in the same way; a missing fourth is infinitely far ahead."""
    one, two, three = weights[0], weights[1], weights[2]
    four = weights[3] if len(weights) > 3 else 0.0
    first, second, third = 0.0, 0.0, 0.0
    fourth = 0.0 if len(weights) > 3 else np.inf
    scale = 1.0
    for draw in range(len(dataset_index)):
        low, other = one * scale - first, two * scale - second
        high, last = three * scale - third, four * scale - fourth
        in_low, in_high = np.int64(other > low), np.int64(last > high)
        worst, worst_high = max(low, other), max(high, last)
        best = 2 + in_high if worst_high > worst else in_low
        taken_low = second if in_low else first
        taken_high = fourth if in_high else third
        dataset_index[draw] = best
        sample_index[draw] = np.int64(taken_high if best > 1 else taken_low)
        first += best == 0
        second += best == 1
        third += best == 2
        fourth += best == 3
        scale = 1.0 if draw == 0 else scale + 1.0


@kernel
def blend(weights: Any, dataset_index: Any, sample_index: Any) -> None:
    """Give each draw to the set that is farthest behind its share; the first of equals wins.

    Both halves of the sets are searched at once, since each comparison waits for the one before it. Counts are floats,
    exact up to 2^53 draws; a set added to make the halves even is infinitely far ahead.
    """
    count = len(weights)
    if count == 2:
        blend_two(weights[0], weights[1], dataset_index, sample_index)
        return
    if 2 < count <= 4:
        blend_four(weights, dataset_index, sample_index)
        return
    half = (count + 1) // 2
    shares = np.zeros(2 * half, dtype=np.float64)
    shares[:count] = weights
    taken = np.full(2 * half, np.inf)
    taken[:count] = 0.0
    low_shares, high_shares, low_taken, high_taken = shares[:half], shares[half:], taken[:half], taken[half:]
    scale = 1.0
    for draw in range(len(dataset_index)):
        low, high = 0, 0
        low_worst = low_shares[0] * scale - low_taken[0]
        high_worst = high_shares[0] * scale - high_taken[0]
        for number in range(1, half):
            behind = low_shares[number] * scale - low_taken[number]
            low = number if behind > low_worst else low
            low_worst = behind if behind > low_worst else low_worst
            behind = high_shares[number] * scale - high_taken[number]
            high = number if behind > high_worst else high
            high_worst = behind if behind > high_worst else high_worst
        best = half + high if high_worst > low_worst else low
        dataset_index[draw] = best
        sample_index[draw] = np.int64(taken[best])
        taken[best] += 1.0
        scale = 1.0 if draw == 0 else scale + 1.0


@kernel
def blend_exhaustive(sizes: Any, dataset_index: Any, sample_index: Any) -> None:
    """As `blend` with the sizes as weights, leaving out sets that are used up."""
    count = len(sizes)
    total = np.int64(0)
    for number in range(count):
        total += sizes[number]
    weights = np.empty(count, dtype=np.float64)
    for number in range(count):
        weights[number] = sizes[number] / float(total)
    taken = np.zeros(count, dtype=np.int64)
    open_sets = np.arange(count)
    left = count
    for draw in range(total):
        scale = float(max(draw, 1))
        best_place = 0
        worst = -np.inf
        for place in range(left):
            number = open_sets[place]
            behind = weights[number] * scale - float(taken[number])
            if behind > worst:
                worst = behind
                best_place = place
        best = open_sets[best_place]
        dataset_index[draw] = best
        sample_index[draw] = taken[best]
        taken[best] += 1
        if taken[best] == sizes[best]:
            for place in range(best_place, left - 1):
                open_sets[place] = open_sets[place + 1]
            left -= 1
