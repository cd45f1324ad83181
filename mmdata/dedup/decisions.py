"""The outcome: which documents are dropped, for which kept document, at what exact similarity, in input order.

Stored as pairs on disk (32 bytes a dropped document), read back one range of documents at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup.external import PairStore

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

RANGE_BITS = 18
"""Decisions are read in ranges of 2^18 documents."""
KEPT = -1


@dataclass(frozen=True, slots=True)
class DecisionRange:
    """Decisions for documents start, start + 1, ...

    kept_of: int64; -1 for a kept document, else the number of the kept document it duplicates, or -2 - i for document
    i of the index. similarity: float64, exact Jaccard, 0 for kept ones.
    """

    start: int
    kept_of: I64
    similarity: F64

    @property
    def kept(self) -> NDArray[np.bool_]:
        """True where the document stays."""
        return np.equal(self.kept_of, KEPT)


class Decisions:
    """Decisions of one run; iterate `ranges()` in input order as often as needed."""

    def __init__(self, total: int, folder: Path | None) -> None:
        self.total, self.dropped = total, 0
        self._of = PairStore(folder, "kept-of", RANGE_BITS)
        self._similarity = PairStore(folder, "similarity", RANGE_BITS)

    def add(self, documents: I64, kept_of: I64, similarity: F64) -> None:
        """Record dropped documents, in any order."""
        numbers = documents.astype(np.uint64)
        self._of.append(numbers, kept_of.view(np.uint64))
        self._similarity.append(numbers, similarity.view(np.uint64))
        self.dropped += len(documents)

    def ranges(self) -> Iterator[DecisionRange]:
        """Every document's decision, ascending, in ranges of 2^18."""
        size = 1 << RANGE_BITS
        dropped = _by_range(self._of)
        similar = _by_range(self._similarity)
        pending = next(dropped, None), next(similar, None)
        for start in range(0, self.total, size):
            count = min(size, self.total - start)
            kept_of, similarity = np.full(count, KEPT, dtype=np.int64), np.zeros(count)
            if pending[0] is not None and pending[1] is not None and pending[0][0] == start >> RANGE_BITS:
                kept_of[pending[0][1] - start] = pending[0][2].view(np.int64)
                similarity[pending[1][1] - start] = pending[1][2].view(np.float64)
                pending = next(dropped, None), next(similar, None)
            yield DecisionRange(start, kept_of, similarity)

    def arrays(self) -> tuple[I64, F64]:
        """All of `kept_of` and `similarity` at once (16 bytes a document): for corpora that fit in memory."""
        ranges = list(self.ranges())
        if not ranges:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        return np.concatenate([r.kept_of for r in ranges]), np.concatenate([r.similarity for r in ranges])

    def remove(self) -> None:
        """Delete what is on disk."""
        self._of.remove()
        self._similarity.remove()


def _by_range(store: PairStore) -> Iterator[tuple[int, I64, NDArray[np.uint64]]]:
    """(range number, documents, payloads) for every range that has any."""
    for documents, payloads in store.read_sorted(1 << 40, consume=False):
        numbers = documents.astype(np.int64)
        cuts = np.flatnonzero(np.diff(numbers >> RANGE_BITS)) + 1
        for part, values in zip(np.split(numbers, cuts), np.split(payloads, cuts), strict=True):
            yield int(part[0]) >> RANGE_BITS, part, values
