"""The state of the decision, and the prefix index that finds similar kept documents without comparing with all.

Order all shingles rare first; two sets of Jaccard >= t share a shingle among the first |s| - ceil(2t/(1+t)|s|) + 1 of
the smaller and the first |l| - ceil(t|l|) + 1 of the larger (Bayardro, Ma, Srikant 2007; Xiao et al., PPJoin, 2008).
Each kept document is entered under its short and its long prefix; a probe looks its long prefix up among the short
ones and its short prefix among the long ones. No pair is lost, and the shingles of a template, being frequent, stand
in no short prefix of documents below the threshold. Everything is int64 so that tables share cache lines.
numba's cache looks at one file alone: change greedy_kernels.py too when this file changes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdata.kernels import kernel

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]

KEPT, LINKS, COMPONENT, STAMP, LOADED, INDEXED, BASE, POSTINGS, COMPARED, INDEX_PROBES = range(10)
"""Places in Walk.counts. STAMP: the document in hand; LOADED: the one in the
probe table. BASE: how many were kept when frequencies were last counted."""
COUNTS = 10
DOCUMENT, TOKEN_START, KEY_START, MARK = range(4)
"""Columns of Walk.kept; rows are kept documents, and one more row ends the last one."""
VALUE, VALUE_STAMP, HEAD, TALLY = range(4)
"""Columns of Walk.key_slots: key, component, first link, number of links."""
NEXT_SHIFT = 32
"""A posting is (value, (next posting + 1) << 32 | kept document); the heads of both tables begin chains of them."""
KEPT_BITS = (1 << NEXT_SHIFT) - 1
FEW = 64
"""Entries of shared keys up to which candidates are compared one by one."""
REBUILD_FACTOR = 4
CLASS_SHIFT = 55
LOW_BITS = (1 << CLASS_SHIFT) - 1
NOTHING = -1


class Walk(NamedTuple):
    """Arrays of the component in hand. Kept documents are numbered from 0 in the order they were kept.

    posted: one bit for each value of the index modulo its size; small enough for the cache, it turns most probes away.
    """

    counts: I64
    kept: I64
    tokens: I64
    keys: I64
    key_slots: I64
    links: I64
    probe: I64
    frequency: U8
    short_heads: I32
    long_heads: I32
    posted: U8
    postings: I64
    prefix: I64


class Chunk(NamedTuple):
    """Documents in (component, keeper) order: numbers, first-of-component flags, kinds, shingle sets and keys.

    kind: 0 an ordinary document, 1 always kept (in an index or a test set), 2 only compared, never kept.
    """

    document: I64
    first: NDArray[np.bool_]
    kind: U8
    values: I64
    starts: I64
    keys: I64
    key_starts: I64


@kernel
def find(slots: I64, stamp: int, value: int) -> int:
    """The row of `value` among the rows of this stamp, or the free row where it belongs."""
    mask = np.uint64(len(slots) - 1)
    x = np.uint64(value)
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xFF51AFD7ED558CCD)
    row = (x ^ (x >> np.uint64(32))) & mask
    while slots[row, VALUE_STAMP] == stamp and slots[row, VALUE] != value:
        row = (row + np.uint64(1)) & mask
    return int(row)


@kernel
def _select_least(values: I64, count: int, wanted: int) -> None:
    """Reorder so that the `wanted` least of values[:count] come first (Hoare's selection)."""
    low, high = 0, count - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if wanted - 1 <= j:
            high = j
        elif wanted - 1 >= i:
            low = i
        else:
            return


@kernel
def prefixes(w: Walk, tokens: I64, low: int, high: int, threshold: float) -> tuple[int, int]:
    """Put the long prefix of tokens[low:high] into w.prefix, its short prefix first; returns (short, long).

    A shingle stands as (frequency class, low 55 bits of its hash). Sizes are rounded up against floating-point error.
    """
    size = high - low
    mask = len(w.frequency) - 1
    for i in range(size):
        token = tokens[low + i]
        w.prefix[i] = (np.int64(w.frequency[token & mask]) << CLASS_SHIFT) | (token & LOW_BITS)
    short = min(size, size - int(np.ceil(2 * threshold / (1 + threshold) * size - 1e-6)) + 1)
    long = min(size, size - int(np.ceil(threshold * size - 1e-6)) + 1)
    _select_least(w.prefix, size, long)
    _select_least(w.prefix, long, short)
    return short, long


@kernel
def _chain(w: Walk, heads: I32, slot: int, y: int, value: int) -> None:
    posting = w.counts[POSTINGS]
    w.postings[posting, 0] = value
    w.postings[posting, 1] = ((np.int64(heads[slot]) + 1) << NEXT_SHIFT) | y
    heads[slot] = np.int32(posting)
    w.counts[POSTINGS] += 1


@kernel
def _post(w: Walk, y: int, short: int, long: int) -> None:
    """Enter kept y under the prefix that stands in w.prefix: the long one in one table, the short one in both."""
    mask = len(w.long_heads) - 1
    for i in range(long):
        value = w.prefix[i]
        bit = value & (8 * len(w.posted) - 1)
        w.posted[bit >> 3] |= np.uint8(1 << (bit & 7))
        _chain(w, w.long_heads, value & mask, y, value)
        if i < short:
            _chain(w, w.short_heads, value & mask, y, value)


@kernel
def update_index(w: Walk, threshold: float) -> None:
    """Bring the prefix index up to date with what is kept, counting frequencies anew after each fourfold growth.

    Any order of shingles gives the same pairs; frequencies only make it fast.
    """
    kept = w.counts[KEPT]
    if w.counts[BASE] == 0 or w.counts[BASE] * REBUILD_FACTOR <= kept:
        w.frequency[:] = 0
        mask = len(w.frequency) - 1
        for i in range(w.kept[kept, TOKEN_START]):
            slot = w.tokens[i] & mask
            if w.frequency[slot] < 255:
                w.frequency[slot] += np.uint8(1)
        w.short_heads[:] = NOTHING
        w.long_heads[:] = NOTHING
        w.posted[:] = 0
        w.counts[POSTINGS] = 0
        w.counts[INDEXED] = 0
        w.counts[BASE] = kept
    for y in range(w.counts[INDEXED], kept):
        short, long = prefixes(w, w.tokens, w.kept[y, TOKEN_START], w.kept[y + 1, TOKEN_START], threshold)
        _post(w, y, short, long)
    w.counts[INDEXED] = kept


@kernel
def post_last(w: Walk, short: int, long: int) -> None:
    """Enter the document just kept, whose prefix still stands in w.prefix, where the index was up to date before."""
    if w.counts[INDEXED] == w.counts[KEPT] - 1 and w.counts[BASE] > 0:
        _post(w, w.counts[KEPT] - 1, short, long)
        w.counts[INDEXED] = w.counts[KEPT]
