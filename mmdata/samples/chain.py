"""Sample sets one after the other: a set prolonged by a second index, and a run whose mix changed on the way.

Neither rebuilds or reorders what was there: earlier sample numbers keep their samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import BlendError, SampleRangeError
from mmdata.samples.cache import key_of
from mmdata.samples.rows import Indices, Rows, SampleSet


class ChainedSamples:
    """Sample i of the first set, then those of the second, and so on. counts: how many are taken of each."""

    def __init__(self, sets: Sequence[SampleSet], counts: Sequence[int] | None = None) -> None:
        """Raises BlendError when a set is shorter than its count or the lengths of samples differ."""
        if not sets:
            raise BlendError("a chain needs at least one set")
        if len({one.seq_length for one in sets}) > 1:
            raise BlendError(f"the sets have seq_length {sorted({one.seq_length for one in sets})}; build all with one")
        self.sets = list(sets)
        self.counts = [len(one) for one in sets] if counts is None else list(counts)
        for number, (count, one) in enumerate(zip(self.counts, self.sets, strict=True)):
            if count > len(one):
                raise BlendError(f"{count:,} samples are wanted of part {number}, which has {len(one):,}")
        self.starts = np.concatenate(([0], np.cumsum(self.counts))).astype(np.int64)

    @property
    def seq_length(self) -> int:
        """Tokens a sample is trained on; a row holds one more."""
        return self.sets[0].seq_length

    @property
    def isolates(self) -> bool:
        """Whether documents in a row must not see each other: when any blend of the chain needs it."""
        return any(one.isolates for one in self.sets)

    @property
    def fingerprint(self) -> str:
        """32 hex digits over the blends and where each ends. Raises ShardChangedError as theirs do."""
        return key_of({"kind": "chain", "counts": self.counts, "sets": [one.fingerprint for one in self.sets]})

    def __len__(self) -> int:
        return int(self.starts[-1])

    def locate(self, indices: Indices) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Part and sample number within it, int64 [n] each; part 0 and -1 for padding. Raises SampleRangeError."""
        indices = np.asarray(indices, dtype=np.int64)
        if indices.size and not -1 <= int(indices.min()) <= int(indices.max()) < len(self):
            raise SampleRangeError(f"samples {int(indices.min())} to {int(indices.max())} of {len(self):,}")
        parts = np.maximum(np.searchsorted(self.starts, indices, side="right") - 1, 0)
        return parts, np.where(indices < 0, -1, indices - self.starts[parts])

    def __getitem__(self, index: int) -> NDArray[Any]:
        """The tokens of sample `index`. Raises SampleRangeError (an IndexError), CorruptSampleError."""
        one, local = self._one(index)
        tokens: NDArray[Any] = one[local]
        return tokens

    def _one(self, index: int) -> tuple[Any, int]:
        if not -len(self) <= index < len(self):
            raise SampleRangeError(f"sample {index} of {len(self):,}")
        part, local = self.locate(np.array([index % len(self)]))
        return self.sets[int(part[0])], int(local[0])

    def read(self, indices: Indices, rows: Rows, at: Indices | None = None) -> None:
        """As SampleSet.read."""
        where = np.arange(len(indices)) if at is None else at
        parts, local = self.locate(indices)
        for number in np.unique(parts).tolist():
            here = parts == number
            self.sets[number].read(local[here], rows, where[here])

    def pieces(self, index: int) -> list[Any]:
        """Which documents sample `index` is made of."""
        one, local = self._one(index)
        pieces: list[Any] = one.pieces(local)
        return pieces
