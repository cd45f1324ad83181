"""The state of the decision, and the prefix index that finds similar kept documents without comparing with all.

Order all shingles rare first; sets of Jaccard >= t and sizes a and b share at least o = t/(1+t)(a + b) shingles, hence
one among the first a - o + 1 of the one and the first b - o + 1 of the other (Bayardro, Ma, Srikant 2007; Xiao et al.,
PPJoin, 2008). A set's short prefix serves against larger ones (b >= a), its long prefix against smaller ones down to
max(t a, the least size met). Each kept document is entered under its short prefix, and under the rest of its long one
in a second table, which stays empty where sizes are equal; a probe looks its long prefix up in the first table and its
short one in both. No pair is lost, and the shingles of a template, being frequent, stand in no short prefix of
documents below the threshold. Everything is int64 so that tables share cache lines.
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

(
    KEPT, LINKS, COMPONENT, STAMP, LOADED, INDEXED, BASE, POSTINGS, COMPARED, STEPS, FLOOR, EXTRA, WIDTH, SLOTS,
) = range(14)  # fmt: skip
"""Places in Walk.counts. STAMP: the document in hand; LOADED: the one in the
probe table. BASE: how many were kept when frequencies were last counted, STEPS: steps along chains since then.
FLOOR: least size the prefixes serve, 0 before the first probe. EXTRA: postings in the second table.
WIDTH and SLOTS: how much of the heads and of `frequency` is in use."""
COUNTS = 14
DOCUMENT, TOKEN_START, KEY_START, MARK = range(4)
"""Columns of Walk.kept; rows are kept documents, and one more row ends the last one."""
VALUE, VALUE_STAMP, HEAD, TALLY = range(4)
"""Columns of Walk.key_slots: key, component, first link, number of links."""
HUGE = 1 << 21
"""Sets of more shingles come ascending and are merged with others: no table is made of them."""
NEXT_SHIFT = 32
"""A posting is (value, (next posting + 1) << 32 | table << 31 | kept document); heads begin chains of them."""
TABLE_SHIFT = 31
KEPT_BITS = (1 << TABLE_SHIFT) - 1
FEW = 64
"""Entries of shared keys up to which candidates are compared one by one."""
REBUILD_FACTOR = 16
"""Frequencies are counted anew after this growth, or after a twofold one where the order proves to be a bad one."""
RARE_SHARE = 8
"""Shingles met in fewer than one in so many kept documents are taken for rare ones."""
TOKENS_A_SLOT = 8
"""Counts may run together: rare ones stay far below those of a template, and the table stays in cache."""
FLOOR_STEP = 0.93
LEAST_WIDTH = 4096
CLASS_SHIFT = 55
LOW_BITS = (1 << CLASS_SHIFT) - 1
NOTHING = -1


class Walk(NamedTuple):
    """Arrays of the component in hand. Kept documents are numbered from 0 in the order they were kept.

    posted: two bits for each head, set by values modulo their number; it turns most probes away and stays in cache.
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
    extra_heads: I32
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
def prefix_sizes(size: int, floor: int, threshold: float) -> tuple[int, int]:
    """Lengths of the short and the long prefix of a set, rounded up against floating-point error."""
    share = threshold / (1 + threshold)
    least = max(float(floor), threshold * size)
    short = min(size, size - int(np.ceil(2 * share * size - 1e-6)) + 1)
    long = min(size, size - int(np.ceil(share * (size + least) - 1e-6)) + 1)
    return short, max(short, long)


@kernel
def select_prefix(w: Walk, tokens: I64, span: tuple[int, int], cuts: tuple[int, int]) -> None:
    """Put the cuts[1] first shingles of tokens[span] into w.prefix, the cuts[0] first of them in front.

    A shingle stands as (frequency class, low 55 bits of its hash).
    """
    low, high = span
    mask, rare = w.counts[SLOTS] - 1, max(w.counts[BASE] // RARE_SHARE, 2)
    front, back = 0, high - low
    for i in range(low, high):
        token = tokens[i]
        frequency = np.int64(w.frequency[token & mask])
        value = (frequency << CLASS_SHIFT) | (token & LOW_BITS)
        if frequency <= rare:
            w.prefix[front] = value
            front += 1
        else:
            back -= 1
            w.prefix[back] = value
    # Rare ones alone nearly always suffice, and are far fewer.
    _select_least(w.prefix, front if front >= cuts[1] else high - low, cuts[1])
    if cuts[0] < cuts[1]:
        _select_least(w.prefix, cuts[1], cuts[0])


@kernel
def _post(w: Walk, table: int, y: int, span: tuple[int, int]) -> None:
    """Enter kept y under the values w.prefix[span] in table 0 (short prefixes) or 1 (the rest of long ones)."""
    heads = w.extra_heads if table else w.short_heads
    mask, bits = w.counts[WIDTH] - 1, 2 * w.counts[WIDTH] - 1
    entry = (table << TABLE_SHIFT) | y
    posting = w.counts[POSTINGS]
    for i in range(span[0], span[1]):
        value = w.prefix[i]
        bit = value & bits
        w.posted[bit >> 3] |= np.uint8(1 << (bit & 7))
        slot = value & mask
        w.postings[posting, 0] = value
        w.postings[posting, 1] = ((np.int64(heads[slot]) + 1) << NEXT_SHIFT) | entry
        heads[slot] = np.int32(posting)
        posting += 1
    w.counts[POSTINGS] = posting


@kernel
def _enter(w: Walk, y: int, short: int, long: int) -> None:
    """Enter kept y under the prefix that stands in w.prefix."""
    _post(w, 0, y, (0, short))
    _post(w, 1, y, (short, long))
    w.counts[EXTRA] += long - short


@kernel
def _span(w: Walk, y: int) -> tuple[int, int]:
    return w.kept[y, TOKEN_START], w.kept[y + 1, TOKEN_START]


@kernel
def _lower_floor(w: Walk, least: int, threshold: float) -> None:
    """Make the prefixes serve sets of `least` shingles too: enter what the long prefixes gain by it."""
    before = w.counts[FLOOR]
    # Not in small steps: a corpus may come by descending size.
    after = least if before == 0 else min(least, int(before * FLOOR_STEP))
    w.counts[FLOOR] = after
    for y in range(w.counts[INDEXED]):
        span = _span(w, y)
        held = prefix_sizes(span[1] - span[0], before, threshold)[1]
        long = prefix_sizes(span[1] - span[0], after, threshold)[1]
        if long > held:
            select_prefix(w, w.tokens, span, (held, long))
            _post(w, 1, y, (held, long))
            w.counts[EXTRA] += long - held


@kernel
def _power_of_two(least: int) -> int:
    width = LEAST_WIDTH
    while width < least:
        width *= 2
    return width


@kernel
def _empty_tables(w: Walk) -> None:
    width = w.counts[WIDTH]
    w.short_heads[:width] = NOTHING
    w.extra_heads[:width] = NOTHING
    w.posted[: width // 4] = 0


@kernel
def _count_frequencies(w: Walk) -> None:
    """Count anew how common each shingle is, and empty the index. Any order of shingles gives the same pairs."""
    kept = w.counts[KEPT]
    tokens = w.kept[kept, TOKEN_START]
    w.counts[SLOTS] = min(_power_of_two(tokens // TOKENS_A_SLOT), len(w.frequency))
    w.frequency[: w.counts[SLOTS]] = 0
    mask = w.counts[SLOTS] - 1
    for i in range(tokens):
        slot = w.tokens[i] & mask
        if w.frequency[slot] < 255:
            w.frequency[slot] += np.uint8(1)
    w.counts[WIDTH] = min(_power_of_two(tokens), len(w.short_heads))
    _empty_tables(w)
    w.counts[POSTINGS] = w.counts[INDEXED] = w.counts[STEPS] = w.counts[EXTRA] = 0
    w.counts[BASE] = kept


@kernel
def _widen(w: Walk) -> None:
    """Chain all postings anew in tables four times as wide."""
    w.counts[WIDTH] = min(4 * w.counts[WIDTH], len(w.short_heads))
    _empty_tables(w)
    mask, bits = w.counts[WIDTH] - 1, 2 * w.counts[WIDTH] - 1
    for posting in range(w.counts[POSTINGS]):
        value, entry = w.postings[posting, 0], w.postings[posting, 1] & ((1 << NEXT_SHIFT) - 1)
        bit = value & bits
        w.posted[bit >> 3] |= np.uint8(1 << (bit & 7))
        heads = w.extra_heads if entry >> TABLE_SHIFT else w.short_heads
        slot = value & mask
        w.postings[posting, 1] = ((np.int64(heads[slot]) + 1) << NEXT_SHIFT) | entry
        heads[slot] = np.int32(posting)


@kernel
def update_index(w: Walk, least: int, threshold: float) -> None:
    """Bring the prefix index up to date with what is kept, for a probe of a set of at least `least` shingles."""
    kept, base = w.counts[KEPT], w.counts[BASE]
    costly = w.counts[STEPS] > w.kept[kept, TOKEN_START]
    if base == 0 or kept >= base * REBUILD_FACTOR or (costly and kept >= 2 * base):
        _count_frequencies(w)
    elif w.counts[POSTINGS] > w.counts[WIDTH] and w.counts[WIDTH] < len(w.short_heads):
        _widen(w)
    for y in range(w.counts[INDEXED], kept):
        least = min(least, w.kept[y + 1, TOKEN_START] - w.kept[y, TOKEN_START])
    if w.counts[FLOOR] == 0 or least < w.counts[FLOOR]:
        _lower_floor(w, least, threshold)
    for y in range(w.counts[INDEXED], kept):
        span = _span(w, y)
        sizes = prefix_sizes(span[1] - span[0], w.counts[FLOOR], threshold)
        select_prefix(w, w.tokens, span, sizes)
        _enter(w, y, sizes[0], sizes[1])
    w.counts[INDEXED] = kept


@kernel
def post_last(w: Walk, short: int, long: int) -> None:
    """Enter the document just kept, whose prefix still stands in w.prefix, where the index was up to date before."""
    if w.counts[INDEXED] == w.counts[KEPT] - 1 and w.counts[BASE] > 0:
        _enter(w, w.counts[KEPT] - 1, short, long)
        w.counts[INDEXED] = w.counts[KEPT]
