"""The loops behind a batch: which pieces of which sequences fill its rows, copying them, marking what counts.

Pieces come as parallel arrays, ordered by row and column: row, column, sequence, offset in it, length, and whether a
new document starts there. A batch of any size is one call each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmdata.kernels import kernel

INTACT = -1


@kernel
def count_gpt(indices: Any, order: Any, samples: Any) -> int:
    """An upper bound on the pieces of these samples."""
    total = 0
    for i in range(len(indices)):
        if indices[i] >= 0:
            sample = np.int64(order[indices[i]])
            total += samples[sample + 1, 0] - samples[sample, 0] + 1
    return total


@kernel
def gpt_parts(
    indices: Any, at: Any, order: Any, samples: Any, documents: Any, lengths: Any, extra: int, parts: Any
) -> int:
    """Write the pieces of these samples into `parts`, int64 [6, bound]; returns how many there are."""
    used = 0
    for i in range(len(indices)):
        if indices[i] < 0:
            continue
        sample = np.int64(order[indices[i]])
        first, last = np.int64(samples[sample, 0]), np.int64(samples[sample + 1, 0])
        column = np.int64(0)
        for place in range(first, last + 1):
            sequence = np.int64(documents[place])
            begin = np.int64(samples[sample, 1]) if place == first else np.int64(0)
            end = np.int64(samples[sample + 1, 1]) + extra if place == last else np.int64(lengths[sequence])
            if end > begin:
                parts[0, used] = at[i]
                parts[1, used] = column
                parts[2, used] = sequence
                parts[3, used] = begin
                parts[4, used] = end - begin
                parts[5, used] = 1
                column += end - begin
                used += 1
    return used


@kernel
def count_packed(bins: Any, order: Any, starts: Any, items: Any, documents: Any) -> int:
    """How many sequences these bins hold."""
    total = 0
    for i in range(len(bins)):
        if bins[i] >= 0:
            for place in range(starts[bins[i]], starts[bins[i] + 1]):
                item = items[order[place]]
                total += documents[item + 1] - documents[item]
    return total


@kernel
def packed_parts(
    bins: Any, at: Any, order: Any, starts: Any, items: Any, documents: Any, lengths: Any, parts: Any
) -> int:
    """Write the sequences of these bins into `parts`; only the first of a document starts one."""
    used = 0
    for i in range(len(bins)):
        if bins[i] < 0:
            continue
        column = np.int64(0)
        for place in range(starts[bins[i]], starts[bins[i] + 1]):
            item = items[order[place]]
            opens = 1
            for sequence in range(documents[item], documents[item + 1]):
                length = np.int64(lengths[sequence])
                if length > 0:
                    parts[0, used] = at[i]
                    parts[1, used] = column
                    parts[2, used] = sequence
                    parts[3, used] = 0
                    parts[4, used] = length
                    parts[5, used] = opens
                    opens = 0
                    column += length
                    used += 1
    return used


@kernel
def copy_parts(
    parts: Any, first: int, stop: int, tokens: Any, pointers: Any, lengths: Any, size: int, shift: int, out: Any
) -> int:
    """Copy the pieces of sequences [first, stop) from one shard; returns INTACT or the number of a piece that lies.

    tokens, pointers, lengths: of that shard. size: bytes of its `.bin`. shift: log2 of its item size. A piece lies when
    the pointer behind its sequence is not where its length leads, or when it reaches beyond its sequence.
    """
    count = len(pointers)
    for p in range(parts.shape[1]):
        if parts[2, p] < first or parts[2, p] >= stop:
            continue
        sequence = parts[2, p] - first
        begin = np.int64(pointers[sequence])
        after = np.int64(pointers[sequence + 1]) if sequence + 1 < count else np.int64(size)
        length = np.int64(lengths[sequence])
        offset, taken = parts[3, p], parts[4, p]
        start = begin >> shift
        if begin < 0 or after > size or start << shift != begin or begin + (length << shift) != after:
            return p
        if offset < 0 or length < 0 or offset + taken > length:
            return p
        row, column = parts[0, p], parts[1, p]
        source = tokens[start + offset : start + offset + taken]
        target = out[row, column : column + taken]
        for k in range(len(target)):
            target[k] = source[k]
    return INTACT


@kernel
def mark_rows(
    parts: Any, at: Any, reset: bool, isolate: bool, mask_first: bool, positions: Any, documents: Any, counted: Any
) -> None:
    """Positions, document numbers and counted targets of the rows `at`, each [rows, seq_length].

    Column q's target is the token in column q + 1. reset: positions start anew at each document. isolate: documents
    are numbered from 0 in each row, padding is one more document; else all are 0. mask_first: the first token of a
    document is no target.
    """
    width = positions.shape[1]
    for i in range(len(at)):
        row = at[i]
        for q in range(width):
            positions[row, q] = q
            documents[row, q] = 0
            counted[row, q] = False
    total = parts.shape[1]
    row, document, begin = -1, 0, 0
    for p in range(total):
        column, end, opens = parts[1, p], parts[1, p] + parts[4, p], parts[5, p] == 1
        if parts[0, p] != row:
            row, document, begin = parts[0, p], 0, 0
        elif opens:
            document += 1
            begin = column
        if isolate:
            for q in range(column, min(end, width)):
                documents[row, q] = document
        if reset:
            for q in range(column, min(end, width)):
                positions[row, q] = q - begin
        low = column if column == 0 or (opens and mask_first) else column - 1
        for q in range(low, min(end - 1, width)):
            counted[row, q] = True
        if p + 1 == total or parts[0, p + 1] != row:
            for q in range(end, width):
                if isolate:
                    documents[row, q] = document + 1
                if reset:
                    positions[row, q] = q - end


@kernel
def clear_counted(at: Any, counted: Any) -> None:
    """No target counts in the rows `at`."""
    for i in range(len(at)):
        for q in range(counted.shape[1]):
            counted[at[i], q] = False


@kernel
def mark_spans(
    parts: Any, first: int, stop: int, spans: Any, pointers: Any, sizes: Any, lengths: Any, counted: Any
) -> int:
    """Count the targets within the loss spans of sequences [first, stop); returns INTACT or a piece whose spans lie.

    spans: int32, flat half-open pairs; pointers: byte offset of each sequence's; sizes: how many numbers it has.
    """
    width = counted.shape[1]
    for p in range(parts.shape[1]):
        if parts[2, p] < first or parts[2, p] >= stop:
            continue
        sequence = parts[2, p] - first
        base, size = np.int64(pointers[sequence]) >> 2, np.int64(sizes[sequence])
        if size % 2 or base < 0 or base + size > len(spans):
            return p
        row, offset, taken = parts[0, p], parts[3, p], parts[4, p]
        shift = parts[1, p] - offset - 1
        lowest = np.int64(1)
        for k in range(base, base + size, 2):
            begin, end = np.int64(spans[k]), np.int64(spans[k + 1])
            if begin < lowest or end <= begin or end > lengths[sequence]:
                return p
            lowest = end
            for token in range(max(begin, offset), min(end, offset + taken)):
                q = token + shift
                if 0 <= q < width:
                    counted[row, q] = True
    return INTACT
