"""What sample sets have in common whose samples are made of pieces of a group of shards: reading, marking, tracing.

A subclass says which pieces a sample has (`parts`) and what restarts at a document's first token (`restarts`); reading
a batch is then a few calls of compiled code, whatever cut the samples. It keeps no state of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import SampleRangeError
from mmdata.samples import part_kernels
from mmdata.samples.reopened import Reopened
from mmdata.samples.rows import Indices, Rows
from mmdata.samples.shards import Parts, Piece, ShardGroup


class Restarts(NamedTuple):
    """What changes at a document's first token: positions begin at 0, the row's document number grows, and the token
    does not count as a target.
    """

    positions: bool
    documents: bool
    counted: bool


class PieceSamples(Reopened):
    """Samples cut from a group of shards; see the module."""

    group: ShardGroup

    @property
    @abstractmethod
    def restarts(self) -> Restarts:
        """What changes at a document's first token."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def parts(self, indices: Indices, at: Indices | None = None) -> Parts:
        """The pieces that make up these samples, int64 [6, pieces]: row, column, sequence, offset, length, opens.

        Rows are `at`, or 0 .. n - 1. An index of -1 has no pieces. Raises SampleRangeError.
        """

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> NDArray[Any]:
        """Sample `index` without padding: up to seq_length + 1 tokens, a copy in the shard's dtype.

        Raises SampleRangeError (an IndexError), CorruptSampleError.
        """
        parts = self._parts_of(index)
        out = np.empty((1, int(parts[4].sum())), dtype=self.group.dtype)
        self.group.copy(parts, out)
        return out.reshape(-1)

    def _parts_of(self, index: int) -> Parts:
        """The pieces of one sample, counted from the end when negative."""
        if not -len(self) <= index < len(self):
            raise SampleRangeError(f"sample {index} of {len(self):,}")
        return self.parts(np.array([index + len(self) if index < 0 else index]))

    def fill(self, indices: Indices, out: NDArray[Any]) -> None:
        """Copy samples into `out`, integers [n, seq_length + 1]; columns beyond a partial sample stay as they are.

        Raises SampleRangeError, CorruptSampleError.
        """
        self.group.copy(self.parts(indices), out)

    def read(self, indices: Indices, rows: Rows, at: Indices | None = None) -> None:
        """As SampleSet.read."""
        where = np.arange(len(indices)) if at is None else at
        parts = self.parts(indices, where)
        if rows.tokens is not None:
            part_kernels.clear_rest(parts, where, rows.tokens)
            self.group.copy(parts, rows.tokens)
        part_kernels.mark_rows(parts, where, *self.restarts, rows.positions, rows.documents, rows.counted)
        if self.group.has_spans:
            part_kernels.clear_counted(where, rows.counted)
            self.group.mark_spans(parts, rows.counted)

    def pieces(self, index: int) -> list[Piece]:
        """Which documents sample `index` is made of, with their origin where the shard knows it."""
        parts = self._parts_of(index)
        return [self.group.piece(parts, number, with_origin=True) for number in range(parts.shape[1])]
