"""The loops that bring pieces out of the shards: copying their tokens into a batch, counting the targets of loss spans.

Pieces are as in part_kernels.py, of any number of shards at once; where a shard lies in memory stands in a table. What
the index says is checked for each piece before it is copied. A piece costs about what memory takes to deliver it: the
places of a block of pieces are worked out first, then each piece is asked for while those before it are copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmdata.kernels import inlined, kernel
from mmdata.samples.memory import address_of, copy_bytes, hint, hint_pages, hint_run, items_at, load64

INTACT = -1
# Columns of a table of shards: addresses of the tokens and of the sequence pointers, the number of sequences, the bytes
# of `.bin`. An address of 0 means that the shard is not in memory.
TOKENS, POINTERS, SEQUENCES, SIZE = range(4)
# Pieces whose places are worked out at once: their pages must fit the processor's table of translated addresses.
_BLOCK = 512
# The tokens of a piece are asked for this many pieces and bytes before their turn: memory takes about as long to answer
# as 4 KB take to copy. Beyond _HINTED bytes the processor itself has long followed a run.
_PIECES_AHEAD, _BYTES_AHEAD, _HINTED = 2, 8192, 16_384
_PAGES_AHEAD = 4


@inlined
def _shard_of(firsts: Any, sequence: int) -> int:
    """The last shard that begins at or before `sequence`; a search without a branch to guess."""
    low, size = 0, len(firsts) - 1
    while size > 1:
        half = size >> 1
        low = low + half if firsts[low + half] <= sequence else low
        size -= half
    return low


@inlined
def _ask_for_index(parts: Any, begin: int, stop: int, firsts: Any, table: Any, lengths: Any, shards: Any) -> None:
    """Write the shard of each piece into `shards`, and hint at its entries of the index."""
    for p in range(begin, stop):
        sequence = parts[2, p]
        shard = _shard_of(firsts, sequence)
        shards[p - begin] = shard
        hint(table[shard, POINTERS] + ((sequence - firsts[shard]) << 3))
        hint(address_of(lengths) + (sequence << 2))


@inlined
def _locate(
    parts: Any, begin: int, stop: int, firsts: Any, table: Any, lengths: Any, shift: int, shards: Any, sources: Any
) -> int:
    """Write the address of each piece's tokens into `sources` (0: not in memory); INTACT or a piece that lies."""
    for p in range(begin, stop):
        sequence, offset, taken = parts[2, p], parts[3, p], parts[4, p]
        shard = shards[p - begin]
        sources[p - begin] = 0
        tokens, size = table[shard, TOKENS], table[shard, SIZE]
        if tokens == 0:
            continue
        local = sequence - firsts[shard]
        place = table[shard, POINTERS] + (local << 3)
        start = load64(place)
        after = load64(place + 8) if local + 1 < table[shard, SEQUENCES] else size
        length = np.int64(lengths[sequence])
        if start < 0 or after > size or (start >> shift) << shift != start or start + (length << shift) != after:
            return p
        if offset < 0 or length < 0 or offset + taken > length:
            return p
        sources[p - begin] = tokens + start + (offset << shift)
    return INTACT


@inlined
def _copy_block(parts: Any, begin: int, stop: int, shift: int, sources: Any, kind: Any, same: bool, out: Any) -> None:
    """Copy pieces [begin, stop) from their `sources`. same: byte for byte."""
    asked, ahead = begin, np.int64(0)
    for p in range(begin, stop):
        while asked < stop and (asked <= p + _PIECES_AHEAD or ahead < _BYTES_AHEAD):
            later = asked + _PAGES_AHEAD
            if later < stop:
                hint_pages(sources[later - begin], min(parts[4, later] << shift, _HINTED))
            hint_run(sources[asked - begin], min(parts[4, asked] << shift, _HINTED))
            ahead += parts[4, asked] << shift
            asked += 1
        ahead -= parts[4, p] << shift
        if sources[p - begin] == 0:
            continue
        row, column = parts[0, p], parts[1, p]
        target = out[row, column : column + parts[4, p]]
        if same:
            copy_bytes(target, sources[p - begin], len(target) << shift)
            continue
        source = items_at(sources[p - begin], kind)
        for k in range(len(target)):
            target[k] = source[k]


@kernel
def copy_parts(parts: Any, firsts: Any, table: Any, lengths: Any, kind: Any, out: Any) -> int:
    """Copy the pieces into `out`; returns INTACT or the number of a piece that lies, which is not copied.

    firsts: int64 [shards + 1], the first sequence of each shard and the number of all. table: int64 [shards, 4].
    lengths: of all sequences. kind: any array of the shards' dtype; that of `out` may be another. A piece lies when the
    pointer behind its sequence is not where its length leads, or when it reaches beyond its sequence.
    """
    shift = 0
    while 1 << shift < kind.itemsize:
        shift += 1
    same = kind.dtype == out.dtype and out.strides[1] == out.itemsize
    shards, sources = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    total = parts.shape[1]
    for begin in range(0, total, _BLOCK):
        stop = min(begin + _BLOCK, total)
        _ask_for_index(parts, begin, stop, firsts, table, lengths, shards)
        bad = _locate(parts, begin, stop, firsts, table, lengths, shift, shards, sources)
        if bad != INTACT:
            return bad
        _copy_block(parts, begin, stop, shift, sources, kind, same, out)
    return INTACT


@kernel
def mark_spans(parts: Any, firsts: Any, table: Any, counts: Any, lengths: Any, counted: Any) -> int:
    """Count the targets within the loss spans of the pieces; returns INTACT or a piece whose spans lie.

    table: int64 [shards, 4] of the span sidecars (int32, flat half-open pairs). counts: how many numbers each sequence
    has there. lengths: tokens of each sequence.
    """
    width = counted.shape[1]
    for p in range(parts.shape[1]):
        sequence = parts[2, p]
        shard = _shard_of(firsts, sequence)
        base = load64(table[shard, POINTERS] + ((sequence - firsts[shard]) << 3))
        count = np.int64(counts[sequence])
        if count < 0 or count % 2 or base < 0 or base & 3 or base + (count << 2) > table[shard, SIZE]:
            return p
        spans = items_at(table[shard, TOKENS] + base, counts)
        row, offset, taken = parts[0, p], parts[3, p], parts[4, p]
        shift = parts[1, p] - offset - 1
        lowest = np.int64(1)
        for k in range(0, count, 2):
            begin, end = np.int64(spans[k]), np.int64(spans[k + 1])
            if begin < lowest or end <= begin or end > lengths[sequence]:
                return p
            lowest = end
            for token in range(max(begin, offset), min(end, offset + taken)):
                q = token + shift
                if 0 <= q < width:
                    counted[row, q] = True
    return INTACT
