"""The loops behind a batch: which pieces of which sequences fill its rows, copying them, marking what counts.

Pieces come as parallel arrays, ordered by row and column: row, column, sequence, offset in it, length, and whether a
new document starts there. A batch of any size is one call each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmdata.kernels import inlined, kernel
from mmdata.samples.memory import address_of, hint, hint_run

_ROWS_AHEAD = 2  # how many rows before its turn the lengths that a row is cut by are asked for


@kernel
def count_gpt(indices: Any, order: Any, samples: Any, documents: Any) -> int:
    """An upper bound on the pieces of these samples, -1 when an index is beyond the samples or below -1.

    Asks the processor for their part of the document index.
    """
    total = 0
    for i in range(len(indices)):
        if indices[i] >= len(order) or indices[i] < -1:
            return -1
        if indices[i] >= 0:
            sample = np.int64(order[indices[i]])
            first, count = np.int64(samples[sample, 0]), samples[sample + 1, 0] - samples[sample, 0] + 1
            hint_run(address_of(documents) + first * documents.itemsize, count * documents.itemsize)
            total += count
    return total


@inlined
def _ask_for_lengths(index: int, order: Any, samples: Any, documents: Any, lengths: Any) -> None:
    """Hints for the lengths that sample `index` is cut by; none for -1."""
    if index >= 0:
        sample = np.int64(order[index])
        for place in range(samples[sample, 0], samples[sample + 1, 0] + 1):
            hint(address_of(lengths) + (np.int64(documents[place]) << 2))


@kernel
def gpt_parts(
    indices: Any, at: Any, order: Any, samples: Any, documents: Any, lengths: Any, extra: int, parts: Any
) -> int:
    """Write the pieces of these samples into `parts`, int64 [6, bound]; returns how many there are."""
    used = 0
    for i in range(len(indices)):
        if i + _ROWS_AHEAD < len(indices):
            _ask_for_lengths(indices[i + _ROWS_AHEAD], order, samples, documents, lengths)
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
def clear_rest(parts: Any, at: Any, tokens: Any) -> None:
    """Zeros in the columns of the rows `at` that no piece fills."""
    p = 0
    for i in range(len(at)):
        end = np.int64(0)
        while p < parts.shape[1] and parts[0, p] == at[i]:
            end = parts[1, p] + parts[4, p]
            p += 1
        _fill(tokens[at[i]], end, tokens.shape[1], 0)


@inlined
def _fill(line: Any, begin: Any, stop: Any, value: Any) -> None:
    """`value` in line[begin:stop], cut to the line."""
    part = line[begin:stop]
    for k in range(len(part)):
        part[k] = value


@inlined
def _count_up(line: Any, begin: Any, stop: Any, zero: Any) -> None:
    """Distance from column `zero` in line[begin:stop], cut to the line."""
    part = line[begin:stop]
    for k in range(len(part)):
        part[k] = np.int32(begin - zero) + np.int32(k)


@kernel
def mark_rows(
    parts: Any, at: Any, reset: bool, isolate: bool, mask_first: bool, positions: Any, documents: Any, counted: Any
) -> None:
    """Positions, document numbers and counted targets of the rows `at`, each [rows, seq_length].

    Column q's target is the token in column q + 1. reset: positions start anew at each document. isolate: documents
    are numbered from 0 in each row, padding is one more document; else all are 0. mask_first: the first token of a
    document is no target. A row without pieces is one document in which nothing counts.
    """
    width = positions.shape[1]
    p = 0
    for i in range(len(at)):
        where, whose, counts = positions[at[i]], documents[at[i]], counted[at[i]]
        document, begin, end = np.int64(0), np.int64(0), np.int64(0)
        while p < parts.shape[1] and parts[0, p] == at[i]:
            column, end, opens = parts[1, p], parts[1, p] + parts[4, p], parts[5, p] == 1
            if column > 0:
                counts[column - 1] = not (opens and mask_first)
                if opens:
                    document += 1
                    begin = column
            _count_up(where, column, end, begin if reset else 0)
            _fill(whose, column, end, document if isolate else 0)
            _fill(counts, column, end - 1, True)
            _fill(counts, end - 1, end, False)
            p += 1
        _count_up(where, end, width, end if reset else 0)
        _fill(whose, end, width, document + 1 if isolate and end > 0 else 0)
        _fill(counts, end, width, False)


@kernel
def clear_counted(at: Any, counted: Any) -> None:
    """No target counts in the rows `at`."""
    for i in range(len(at)):
        for q in range(counted.shape[1]):
            counted[at[i], q] = False
