"""The decision itself: documents in keeper order, each compared with the already kept documents it shares a key with.

A document is dropped exactly when one of those has exact Jaccard similarity >= threshold. Few candidates are compared
one by one. Where many kept documents share keys (a template), candidates come from a prefix index instead: order all
shingles rare first; two sets of Jaccard >= t share a shingle among the first |s| - ceil(2t/(1+t)|s|) + 1 of the
smaller and the first |l| - ceil(t|l|) + 1 of the larger (Bayardro et al. 2007; Xiao et al., PPJoin, 2008). That filter
never loses a pair, so both ways give one result, and documents that share only a template never meet.

`Walk` is the state of one component; the caller makes room before each call, so kernels never allocate per document.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdata.kernels import kernel

U64 = NDArray[np.uint64]
U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
F64 = NDArray[np.float64]

KEPT, LINKS, COMPONENT, STAMP, INDEXED, BASE, EPOCH, POSTINGS, COMPARED, INDEX_PROBES = range(10)
"""Places in Walk.counts. BASE: how many were kept when the index was last counted anew, at stamp EPOCH."""
COUNTS = 10
DONE, NEEDS_INDEX = 0, 1
FEW = 64
"""Entries of shared keys up to which candidates are compared one by one."""
CLASSES = 256
"""Frequencies from this on count as equal in the rare-first order."""
REBUILD_FACTOR = 4


class Walk(NamedTuple):
    """Arrays of the component in hand. Kept documents are numbered from 0 in the order they were kept."""

    counts: I64
    kept_document: I64
    token_start: I64
    key_start: I64
    mark: I64
    tokens: U64
    keys: U64
    key_table: U64
    key_stamp: I64
    key_head: I64
    key_count: I64
    link_kept: I64
    link_next: I64
    probe_table: U64
    probe_stamp: I64
    frequency: U32
    short_table: U64
    short_stamp: I64
    short_head: I64
    long_table: U64
    long_stamp: I64
    long_head: I64
    posting_kept: I64
    posting_next: I64
    scratch: U64


class Chunk(NamedTuple):
    """Documents in (component, keeper) order: numbers, first-of-component flags, kinds, shingle sets and keys.

    kind: 0 an ordinary document, 1 always kept (in an index or a test set), 2 only compared, never kept.
    """

    document: I64
    first: NDArray[np.bool_]
    kind: NDArray[np.uint8]
    values: U64
    starts: I64
    keys: U64
    key_starts: I64


@kernel
def _scramble(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xFF51AFD7ED558CCD)
    return x ^ (x >> np.uint64(32))


@kernel
def _find(table: U64, stamps: I64, stamp: int, key: np.uint64) -> int:
    """The slot of `key` among entries of this stamp, or the free slot where it belongs."""
    mask = np.uint64(len(table) - 1)
    slot = _scramble(key) & mask
    while stamps[slot] == stamp and table[slot] != key:
        slot = (slot + np.uint64(1)) & mask
    return int(slot)


@kernel
def _load_probe(w: Walk, chunk: Chunk, d: int) -> None:
    """Put the document's shingles into the probe table under a new stamp."""
    w.counts[STAMP] += 1
    stamp = w.counts[STAMP]
    size = 2
    while size < 2 * (chunk.starts[d + 1] - chunk.starts[d]):
        size *= 2
    mask = np.uint64(size - 1)
    for i in range(chunk.starts[d], chunk.starts[d + 1]):
        h = chunk.values[i]
        slot = h & mask
        while w.probe_stamp[slot] == stamp:
            slot = (slot + np.uint64(1)) & mask
        w.probe_stamp[slot] = stamp
        w.probe_table[slot] = h


@kernel
def _jaccard(w: Walk, size: int, y: int, floor: float) -> float:
    """Exact similarity of the probed document of `size` shingles with kept y, or -1 once it cannot reach `floor`."""
    low, high = w.token_start[y], w.token_start[y + 1]
    other = high - low
    if min(size, other) < floor * max(size, other) * 0.999999:
        return -1.0
    # Shingles of y that may be missing before intersection / union falls below the floor.
    needed = floor / (1.0 + floor) * (size + other)
    spare = np.int64(other - needed + 1e-6 * needed + 1.0)
    stamp = w.counts[STAMP]
    width = 2
    while width < 2 * size:
        width *= 2
    mask = np.uint64(width - 1)
    shared, missing = 0, 0
    for i in range(low, high):
        h = w.tokens[i]
        slot = h & mask
        while w.probe_stamp[slot] == stamp and w.probe_table[slot] != h:
            slot = (slot + np.uint64(1)) & mask
        if w.probe_stamp[slot] == stamp:
            shared += 1
        else:
            missing += 1
            if missing > spare:
                return -1.0
    return float(shared / (size + other - shared))


@kernel
def _better(w: Walk, similarity: float, y: int, best: float, best_kept: int) -> bool:
    if best_kept < 0 or similarity > best:
        return True
    return similarity == best and w.kept_document[y] < w.kept_document[best_kept]


@kernel
def _share_key(w: Walk, chunk: Chunk, d: int, y: int) -> bool:
    """Whether the document and kept y have a key in common; both lists are ascending."""
    i, j = chunk.key_starts[d], w.key_start[y]
    while i < chunk.key_starts[d + 1] and j < w.key_start[y + 1]:
        if chunk.keys[i] == w.keys[j]:
            return True
        if chunk.keys[i] < w.keys[j]:
            i += 1
        else:
            j += 1
    return False


@kernel
def _one_by_one(w: Walk, chunk: Chunk, d: int, threshold: float) -> tuple[int, float]:
    """The best kept candidate at or above the threshold, found by walking the lists of the document's keys."""
    best_kept, best = -1, threshold
    size = chunk.starts[d + 1] - chunk.starts[d]
    for k in range(chunk.key_starts[d], chunk.key_starts[d + 1]):
        slot = _find(w.key_table, w.key_stamp, w.counts[COMPONENT], chunk.keys[k])
        if w.key_stamp[slot] != w.counts[COMPONENT]:
            continue
        link = w.key_head[slot]
        while link >= 0:
            y = w.link_kept[link]
            link = w.link_next[link]
            if w.mark[y] == w.counts[STAMP]:
                continue
            w.mark[y] = w.counts[STAMP]
            w.counts[COMPARED] += 1
            similarity = _jaccard(w, size, y, best)
            if similarity >= threshold and _better(w, similarity, y, best, best_kept):
                best_kept, best = y, similarity
    return best_kept, best


@kernel
def _class(w: Walk, token: np.uint64) -> int:
    return min(int(w.frequency[token & np.uint64(len(w.frequency) - 1)]), CLASSES - 1)


@kernel
def _select_least(values: U64, count: int, wanted: int) -> None:
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
def _prefix(w: Walk, tokens: U64, wanted: int, out: U64) -> int:
    """The `wanted` first shingles in the order (frequency class, hash), in no order; returns how many."""
    histogram = np.zeros(CLASSES, dtype=np.int64)
    for token in tokens:
        histogram[_class(w, token)] += 1
    cut, below = 0, 0
    while below + histogram[cut] < wanted:
        below += histogram[cut]
        cut += 1
    filled, tied = 0, below
    for token in tokens:
        kind = _class(w, token)
        if kind < cut:
            out[filled] = token
            filled += 1
        elif kind == cut:
            out[tied] = token
            tied += 1
    _select_least(out[below:tied], tied - below, wanted - below)
    return wanted


@kernel
def _prefix_sizes(size: int, threshold: float) -> tuple[int, int]:
    """Lengths of the short and the long prefix, rounded up against floating-point error."""
    short = size - int(np.ceil(2 * threshold / (1 + threshold) * size - 1e-6)) + 1
    long = size - int(np.ceil(threshold * size - 1e-6)) + 1
    return min(short, size), min(long, size)


@kernel
def _post(w: Walk, table: U64, stamps: I64, heads: I64, token: np.uint64, y: int) -> None:
    slot = _find(table, stamps, w.counts[EPOCH], token)
    if stamps[slot] != w.counts[EPOCH]:
        stamps[slot] = w.counts[EPOCH]
        table[slot] = token
        heads[slot] = -1
    posting = w.counts[POSTINGS]
    w.posting_kept[posting] = y
    w.posting_next[posting] = heads[slot]
    heads[slot] = posting
    w.counts[POSTINGS] += 1


@kernel
def _post_prefixes(w: Walk, y: int, threshold: float) -> None:
    """Enter kept y under its short and its long prefix."""
    tokens = w.tokens[w.token_start[y] : w.token_start[y + 1]]
    short, long = _prefix_sizes(len(tokens), threshold)
    for i in range(_prefix(w, tokens, long, w.scratch)):
        _post(w, w.long_table, w.long_stamp, w.long_head, w.scratch[i], y)
    for i in range(_prefix(w, tokens, short, w.scratch)):
        _post(w, w.short_table, w.short_stamp, w.short_head, w.scratch[i], y)


@kernel
def _update_index(w: Walk, threshold: float) -> None:
    """Bring the prefix index up to date with what is kept, counting frequencies anew after each fourfold growth.

    Any order of shingles gives the same pairs; frequencies only make it fast.
    """
    kept = w.counts[KEPT]
    if w.counts[BASE] == 0 or w.counts[BASE] * REBUILD_FACTOR <= kept:
        w.frequency[:] = 0
        for i in range(w.token_start[kept]):
            w.frequency[w.tokens[i] & np.uint64(len(w.frequency) - 1)] += np.uint32(1)
        w.counts[STAMP] += 1
        w.counts[EPOCH] = w.counts[STAMP]
        w.counts[POSTINGS] = 0
        w.counts[INDEXED] = 0
        w.counts[BASE] = kept
    for y in range(w.counts[INDEXED], kept):
        _post_prefixes(w, y, threshold)
    w.counts[INDEXED] = kept


@kernel
def _scan(
    w: Walk, chunk: Chunk, d: int, lists: tuple[U64, I64, I64], wanted: int, best: tuple[int, float]
) -> tuple[int, float]:
    """Compare with every posting under the document's prefix of `wanted` shingles in one of the two indexes."""
    table, stamps, heads = lists
    best_kept, floor = best
    tokens = chunk.values[chunk.starts[d] : chunk.starts[d + 1]]
    for i in range(_prefix(w, tokens, wanted, w.scratch)):
        slot = _find(table, stamps, w.counts[EPOCH], w.scratch[i])
        if stamps[slot] != w.counts[EPOCH]:
            continue
        posting = heads[slot]
        while posting >= 0:
            y = w.posting_kept[posting]
            posting = w.posting_next[posting]
            if w.mark[y] == w.counts[STAMP]:
                continue
            w.mark[y] = w.counts[STAMP]
            if not _share_key(w, chunk, d, y):
                continue
            w.counts[COMPARED] += 1
            similarity = _jaccard(w, len(tokens), y, floor)
            if similarity >= floor and _better(w, similarity, y, floor, best_kept):
                best_kept, floor = y, similarity
    return best_kept, floor


@kernel
def _by_index(w: Walk, chunk: Chunk, d: int, threshold: float) -> tuple[int, float]:
    """As `_one_by_one`, the candidates found through the prefix index."""
    w.counts[INDEX_PROBES] += 1
    size = chunk.starts[d + 1] - chunk.starts[d]
    short, long = _prefix_sizes(size, threshold)
    best = _scan(w, chunk, d, (w.short_table, w.short_stamp, w.short_head), long, (-1, threshold))
    return _scan(w, chunk, d, (w.long_table, w.long_stamp, w.long_head), short, best)


@kernel
def _link(w: Walk, y: int) -> None:
    """Enter kept y in the list of each of its keys."""
    for k in range(w.key_start[y], w.key_start[y + 1]):
        slot = _find(w.key_table, w.key_stamp, w.counts[COMPONENT], w.keys[k])
        if w.key_stamp[slot] != w.counts[COMPONENT]:
            w.key_stamp[slot] = w.counts[COMPONENT]
            w.key_table[slot] = w.keys[k]
            w.key_head[slot] = -1
            w.key_count[slot] = 0
        link = w.counts[LINKS]
        w.link_kept[link] = y
        w.link_next[link] = w.key_head[slot]
        w.key_head[slot] = link
        w.key_count[slot] += 1
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
    w.kept_document[y] = chunk.document[d]
    w.mark[y] = 0
    at = w.token_start[y]
    for i in range(chunk.starts[d], chunk.starts[d + 1]):
        w.tokens[at] = chunk.values[i]
        at += 1
    w.token_start[y + 1] = at
    at = w.key_start[y]
    for k in range(chunk.key_starts[d], chunk.key_starts[d + 1]):
        w.keys[at] = chunk.keys[k]
        at += 1
    w.key_start[y + 1] = at
    _link(w, y)
    w.counts[KEPT] += 1


@kernel
def _entries(w: Walk, chunk: Chunk, d: int) -> int:
    """How many entries the lists of the document's keys hold together."""
    total = 0
    for k in range(chunk.key_starts[d], chunk.key_starts[d + 1]):
        slot = _find(w.key_table, w.key_stamp, w.counts[COMPONENT], chunk.keys[k])
        if w.key_stamp[slot] == w.counts[COMPONENT]:
            total += w.key_count[slot]
    return total


@kernel
def _start_component(w: Walk) -> None:
    w.counts[KEPT] = 0
    w.counts[LINKS] = 0
    w.counts[INDEXED] = 0
    w.counts[BASE] = 0
    w.counts[COMPONENT] += 1


@kernel
def walk_chunk(
    w: Walk, chunk: Chunk, threshold: float, begin: int, index_room: int, out: tuple[I64, F64]
) -> tuple[int, int]:
    """Decide documents from `begin` on; returns (next document, DONE or NEEDS_INDEX).

    out: the number of the kept document that each duplicates, or -1, and the exact similarity (0 for kept ones).
    index_room: postings that fit; where more may be needed the walk stops before that document, untouched.
    """
    kept_of, similarity_of = out
    for d in range(begin, len(chunk.document)):
        if chunk.first[d]:
            _start_component(w)
        kept_of[d], similarity_of[d] = -1, 0.0
        if chunk.kind[d] != 1:
            entries = _entries(w, chunk, d)
            if entries > FEW:
                if index_room < 0:
                    return d, NEEDS_INDEX
                _update_index(w, threshold)
            best_kept, best = -1, 0.0
            if entries > 0:
                _load_probe(w, chunk, d)
                if entries > FEW:
                    best_kept, best = _by_index(w, chunk, d, threshold)
                else:
                    best_kept, best = _one_by_one(w, chunk, d, threshold)
            if best_kept >= 0:
                kept_of[d], similarity_of[d] = w.kept_document[best_kept], best
                continue
        if chunk.kind[d] != 2:
            _keep(w, chunk, d)
    return len(chunk.document), DONE
