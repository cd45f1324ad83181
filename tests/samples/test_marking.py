"""Positions, documents and counted targets of any pieces are what their definition says, in used arrays too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sample_lengths import ragged

from mmdata.samples import GPTSamples, PackedSamples, part_kernels
from mmdata.samples.rows import Rows

MakeShard = Any


def random_parts(rng: np.random.RandomState, rows: np.ndarray, width: int) -> np.ndarray:
    """Pieces that fill up to width + 1 columns of most of the rows."""
    parts = []
    for row in rows.tolist():
        room = 0 if rng.random_sample() < 0.2 else rng.randint(1, width + 2)
        column = 0
        while column < room:
            length = min(rng.randint(1, 9), room - column)
            parts.append([row, column, 0, 0, length, int(column == 0 or rng.randint(2))])
            column += length
    return np.array(parts, np.int64).reshape(-1, 6).T.copy()


def plain(parts: np.ndarray, row: int, width: int, options: tuple[bool, bool, bool]) -> tuple[list[Any], ...]:
    """Position, document and whether its target counts, for each column of a row."""
    reset, isolate, mask_first = options
    owner: list[tuple[int, int]] = []  # of each filled column: its document and where that begins
    opened = []
    for number, (_, column, _, _, length, opens) in enumerate(parts[:, parts[0] == row].T.tolist()):
        new = number == 0 or opens
        document, begin = (len(opened), column) if new else owner[-1]
        if new:
            opened.append(column)
        owner += [(document, begin)] * length
    filled = len(owner)
    owner += [(len(opened), filled)] * (width + 1 - filled)
    if not filled:
        owner = [(0, 0)] * (width + 1)
    positions = [q - (owner[q][1] if reset else 0) for q in range(width)]
    documents = [owner[q][0] if isolate else 0 for q in range(width)]
    counted = [q + 1 < filled and not (mask_first and q + 1 in opened) for q in range(width)]
    return positions, documents, counted


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("mask_first", [False, True])
def test_marks_are_what_their_definition_says(reset: bool, isolate: bool, mask_first: bool) -> None:
    rng = np.random.RandomState(8)
    for _ in range(150):
        width, count = rng.randint(1, 40), rng.randint(1, 6)
        rows = rng.permutation(count + 2)[:count]
        parts = random_parts(rng, rows, width)
        positions, documents = np.full((2, count + 2, width), 99, np.int32)
        counted = np.ones((count + 2, width), np.bool_)
        part_kernels.mark_rows(parts, rows, reset, isolate, mask_first, positions, documents, counted)
        for row in rows.tolist():
            wanted = plain(parts, row, width, (reset, isolate, mask_first))
            assert (positions[row].tolist(), documents[row].tolist(), counted[row].tolist()) == wanted
        for row in set(range(count + 2)) - set(rows.tolist()):
            assert (positions[row] == 99).all() and (documents[row] == 99).all() and counted[row].all()


@pytest.mark.parametrize("kind", ["gpt", "packed"])
def test_arrays_that_held_another_batch_give_the_same_as_new_ones(make_shard: MakeShard, kind: str) -> None:
    prefix = make_shard("a", ragged(200, 4), first=1)
    samples: Any = PackedSamples(prefix, 64) if kind == "packed" else GPTSamples(prefix, 64, None, drop_last=False)
    indices = np.array([len(samples) - 1, 3, -1, 0, 5])
    at = np.array([6, 1, 4, 3, 0])
    new, used = Rows.empty(7, 64), Rows.empty(7, 64)
    for array in (used.tokens, used.counted, used.positions, used.documents):
        assert array is not None
        array[:] = 1
    samples.read(indices, new, at)
    samples.read(indices, used, at)
    for name in ("tokens", "counted", "positions", "documents"):
        assert np.array_equal(getattr(new, name)[at], getattr(used, name)[at]), name
        assert (getattr(used, name)[[2, 5]] == 1).all(), "rows that were not asked for stay as they are"
