"""The decision itself: documents in keeper order, each compared with the already kept documents it shares a key with.

A document is dropped exactly when one of those has exact Jaccard similarity >= threshold. Few candidates are compared
one by one; where many kept documents share keys (a template) they are found through the index of prefix_kernels.py,
which loses no pair, so both ways give one result. The caller makes room before each call: nothing grows in here.
numba's cache looks at this file alone: change it too when prefix_kernels.py changes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup.prefix_kernels import (
    BASE,
    COMPARED,
    COMPONENT,
    DOCUMENT,
    EXTRA,
    FEW,
    FLOOR,
    HEAD,
    HUGE,
    INDEXED,
    KEPT,
    KEPT_BITS,
    KEY_START,
    LINKS,
    LOADED,
    MARK,
    NEXT_SHIFT,
    NOTHING,
    STAMP,
    STEPS,
    TALLY,
    TOKEN_START,
    VALUE,
    VALUE_STAMP,
    WIDTH,
    Chunk,
    Walk,
    find,
    post_last,
    prefix_sizes,
    select_prefix,
    update_index,
)
from mmdata.kernels import kernel

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@kernel
def _width(size: int) -> int:
    """The probe table's size for that many shingles."""
    width = 2
    while width < 2 * size:
        width *= 2
    return width


@kernel
def _load_probe(w: Walk, chunk: Chunk, d: int) -> None:
    """Put the document's shingles into the probe table, if they are not there yet.

    More than HUGE of them, which come ascending, go behind the kept ones instead, to be merged with: a table would
    take as much memory again several times over.
    """
    stamp = w.counts[STAMP]
    if w.counts[LOADED] == stamp:
        return
    w.counts[LOADED] = stamp
    if chunk.starts[d + 1] - chunk.starts[d] > HUGE:
        at = w.kept[w.counts[KEPT], TOKEN_START]
        for i in range(chunk.starts[d], chunk.starts[d + 1]):
            w.tokens[at] = chunk.values[i]
            at += 1
        return
    mask = _width(chunk.starts[d + 1] - chunk.starts[d]) - 1
    for i in range(chunk.starts[d], chunk.starts[d + 1]):
        slot = chunk.values[i] & mask
        while w.probe[slot, 1] == stamp:
            slot = (slot + 1) & mask
        w.probe[slot, 0] = chunk.values[i]
        w.probe[slot, 1] = stamp


@kernel
def _merged(w: Walk, size: int, span: tuple[int, int], spare: float) -> int:
    """How many of tokens[span] are among the `size` ascending ones behind the kept, or -1 once `spare` are missing."""
    begin = w.kept[w.counts[KEPT], TOKEN_START]
    stop = begin + size
    ascending = span[1] - span[0] > HUGE
    shared, low = 0, begin
    for j in range(span[0], span[1]):
        value = np.uint64(w.tokens[j])
        high = stop
        if ascending:
            while low < stop and np.uint64(w.tokens[low]) < value:
                low += 1
        else:
            low = begin
            while low < high:
                middle = (low + high) // 2
                if np.uint64(w.tokens[middle]) < value:
                    low = middle + 1
                else:
                    high = middle
        if low < stop and np.uint64(w.tokens[low]) == value:
            shared += 1
        elif j - span[0] + 1 - shared > spare:
            return -1
    return shared


@kernel
def _jaccard(w: Walk, size: int, y: int, floor: float) -> float:
    """Exact similarity of the probed document of `size` shingles with kept y, or -1 once it cannot reach `floor`."""
    low, high = w.kept[y, TOKEN_START], w.kept[y + 1, TOKEN_START]
    other = high - low
    if min(size, other) < floor * max(size, other) * 0.999999:
        return -1.0
    # How many shingles of y may be missing before intersection / union falls below the floor, rounded up.
    spare = other - floor / (1.0 + floor) * (size + other) * 0.999999 + 1.0
    if size > HUGE:
        shared = _merged(w, size, (low, high), spare)
        return float(shared / (size + other - shared)) if shared >= 0 else -1.0
    stamp = w.counts[STAMP]
    mask = _width(size) - 1
    shared = 0
    for i in range(low, high):
        value = w.tokens[i]
        slot = value & mask
        while w.probe[slot, 1] == stamp and w.probe[slot, 0] != value:
            slot = (slot + 1) & mask
        if w.probe[slot, 1] == stamp:
            shared += 1
        elif i - low + 1 - shared > spare:
            return -1.0
    return float(shared / (size + other - shared))


@kernel
def _consider(w: Walk, size: int, y: int, best: tuple[int, float]) -> tuple[int, float]:
    """The better of `best` and kept y, if y is similar enough; of equal similarity the lower document number."""
    best_kept, floor = best
    w.counts[COMPARED] += 1
    similarity = _jaccard(w, size, y, floor)
    if similarity < floor:
        return best
    if best_kept >= 0 and similarity == floor and w.kept[y, DOCUMENT] > w.kept[best_kept, DOCUMENT]:
        return best
    return y, similarity


@kernel
def _share_key(w: Walk, chunk: Chunk, d: int, y: int) -> bool:
    """Whether the document and kept y have a key in common; both lists are ascending."""
    i, j = chunk.key_starts[d], w.kept[y, KEY_START]
    while i < chunk.key_starts[d + 1] and j < w.kept[y + 1, KEY_START]:
        if chunk.keys[i] == w.keys[j]:
            return True
        # Ascending as unsigned numbers.
        if np.uint64(chunk.keys[i]) < np.uint64(w.keys[j]):
            i += 1
        else:
            j += 1
    return False


@kernel
def _one_by_one(w: Walk, chunk: Chunk, d: int, threshold: float) -> tuple[int, float]:
    """The best kept candidate at or above the threshold, found by walking the lists of the document's keys."""
    best = (-1, threshold)
    size = chunk.starts[d + 1] - chunk.starts[d]
    for k in range(chunk.key_starts[d], chunk.key_starts[d + 1]):
        row = find(w.key_slots, w.counts[COMPONENT], chunk.keys[k])
        link = NOTHING
        if w.key_slots[row, VALUE_STAMP] == w.counts[COMPONENT]:
            link = w.key_slots[row, HEAD]
        while link >= 0:
            y = w.links[link, 0]
            link = w.links[link, 1]
            if w.kept[y, MARK] != w.counts[STAMP]:
                w.kept[y, MARK] = w.counts[STAMP]
                best = _consider(w, size, y, best)
    return best


@kernel
def _scan(w: Walk, chunk: Chunk, d: int, heads: I32, count: int, best: tuple[int, float]) -> tuple[int, float]:
    """Consider every kept document posted in one table under the first `count` values of w.prefix.

    The loops stand in one function: handing the arrays on costs more than a step along a chain.
    """
    mask, bits, stamp = w.counts[WIDTH] - 1, 2 * w.counts[WIDTH] - 1, w.counts[STAMP]
    steps = 0
    for i in range(count):
        value = w.prefix[i]
        bit = value & bits
        if (w.posted[bit >> 3] >> (bit & 7)) & 1 == 0:
            continue
        posting = np.int64(heads[value & mask])
        while posting >= 0:
            steps += 1
            packed = w.postings[posting, 1]
            y = packed & KEPT_BITS
            if w.postings[posting, 0] == value and w.kept[y, MARK] != stamp:
                w.kept[y, MARK] = stamp
                if _share_key(w, chunk, d, y):
                    _load_probe(w, chunk, d)
                    best = _consider(w, chunk.starts[d + 1] - chunk.starts[d], y, best)
            posting = (packed >> NEXT_SHIFT) - 1
    w.counts[STEPS] += steps
    return best


@kernel
def _by_index(w: Walk, chunk: Chunk, d: int, threshold: float, sizes: tuple[int, int]) -> tuple[int, float]:
    """As `_one_by_one`, the candidates found through the prefix index; the document's prefixes stand in w.prefix."""
    best = _scan(w, chunk, d, w.short_heads, sizes[1], (-1, threshold))
    return _scan(w, chunk, d, w.extra_heads, sizes[0], best) if w.counts[EXTRA] > 0 else best


@kernel
def _least_size(chunk: Chunk, d: int) -> int:
    """The least size among the document and those after it in its component, as far as the chunk goes."""
    least = chunk.starts[d + 1] - chunk.starts[d]
    for other in range(d + 1, len(chunk.document)):
        if chunk.first[other]:
            break
        least = min(least, chunk.starts[other + 1] - chunk.starts[other])
    return int(least)


@kernel
def _link(w: Walk, y: int) -> None:
    """Enter kept y in the list of each of its keys."""
    for k in range(w.kept[y, KEY_START], w.kept[y + 1, KEY_START]):
        row = find(w.key_slots, w.counts[COMPONENT], w.keys[k])
        if w.key_slots[row, VALUE_STAMP] != w.counts[COMPONENT]:
            w.key_slots[row, VALUE] = w.keys[k]
            w.key_slots[row, VALUE_STAMP] = w.counts[COMPONENT]
            w.key_slots[row, HEAD] = NOTHING
            w.key_slots[row, TALLY] = 0
        link = w.counts[LINKS]
        w.links[link, 0] = y
        w.links[link, 1] = w.key_slots[row, HEAD]
        w.key_slots[row, HEAD] = link
        w.key_slots[row, TALLY] += 1
        w.counts[LINKS] += 1


@kernel
def link_again(w: Walk) -> None:
    """Fill a new, larger key table with everything kept in the component in hand."""
    w.counts[LINKS] = 0
    w.counts[COMPONENT] += 1
    for y in range(w.counts[KEPT]):
        _link(w, y)


@kernel
def _keep(w: Walk, chunk: Chunk, d: int) -> None:
    """Append the document to what is kept and link it under each of its keys."""
    y = w.counts[KEPT]
    w.kept[y, DOCUMENT] = chunk.document[d]
    w.kept[y, MARK] = 0
    at = w.kept[y, TOKEN_START]
    for i in range(chunk.starts[d], chunk.starts[d + 1]):
        w.tokens[at] = chunk.values[i]
        at += 1
    w.kept[y + 1, TOKEN_START] = at
    at = w.kept[y, KEY_START]
    for k in range(chunk.key_starts[d], chunk.key_starts[d + 1]):
        w.keys[at] = chunk.keys[k]
        at += 1
    w.kept[y + 1, KEY_START] = at
    _link(w, y)
    w.counts[KEPT] += 1


@kernel
def _entries(w: Walk, chunk: Chunk, d: int) -> int:
    """How many entries the lists of the document's keys hold together."""
    total = 0
    for k in range(chunk.key_starts[d], chunk.key_starts[d + 1]):
        row = find(w.key_slots, w.counts[COMPONENT], chunk.keys[k])
        if w.key_slots[row, VALUE_STAMP] == w.counts[COMPONENT]:
            total += w.key_slots[row, TALLY]
    return total


@kernel
def walk_chunk(w: Walk, chunk: Chunk, threshold: float, begin: int, index_room: bool, out: tuple[I64, F64]) -> int:
    """Decide documents from `begin` on; returns the next document to decide.

    out: the number of the kept document that each duplicates, or -1, and the exact similarity (0 for kept ones).
    index_room: whether the prefix index has room for all; without, the walk stops where it would be needed.
    """
    kept_of, similarity_of = out
    for d in range(begin, len(chunk.document)):
        if chunk.first[d]:
            w.counts[KEPT] = w.counts[LINKS] = w.counts[INDEXED] = w.counts[BASE] = w.counts[FLOOR] = 0
            w.counts[COMPONENT] += 1
        kept_of[d], similarity_of[d] = -1, 0.0
        sizes = (0, 0)
        if chunk.kind[d] != 1:
            entries = _entries(w, chunk, d)
            best = (-1, 0.0)
            w.counts[STAMP] += 1
            if entries > FEW:
                if not index_room:
                    return d
                span = (chunk.starts[d], chunk.starts[d + 1])
                below = w.counts[FLOOR] == 0 or span[1] - span[0] < w.counts[FLOOR]
                update_index(w, _least_size(chunk, d) if below else span[1] - span[0], threshold)
                sizes = prefix_sizes(span[1] - span[0], w.counts[FLOOR], threshold)
                select_prefix(w, chunk.values, span, sizes)
                best = _by_index(w, chunk, d, threshold, sizes)
            elif entries > 0:
                _load_probe(w, chunk, d)
                best = _one_by_one(w, chunk, d, threshold)
            if best[0] >= 0:
                kept_of[d], similarity_of[d] = w.kept[best[0], DOCUMENT], best[1]
                continue
        if chunk.kind[d] != 2:
            _keep(w, chunk, d)
            if sizes[1] > 0:
                post_last(w, sizes[0], sizes[1])
    return len(chunk.document)
