"""The arrays a batch is read into: one shape for every kind of sample set.

Row r holds `tokens[r]`, seq_length + 1 of them: the inputs are columns 0 .. seq_length - 1 and the target of column q
is column q + 1. `counted` says which targets count, `positions` and `documents` who sees whom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Preallocated arrays of one batch.

    tokens: integers [n, seq_length + 1], or None where only the index is of interest (middle pipeline stages); columns
    beyond a sample's tokens hold 0. counted: bool [n, seq_length]. positions, documents: int32 [n, seq_length].
    """

    tokens: NDArray[Any] | None
    counted: NDArray[np.bool_]
    positions: NDArray[np.int32]
    documents: NDArray[np.int32]

    @classmethod
    def empty(cls, count: int, seq_length: int, *, with_tokens: bool = True, dtype: Any = np.int32) -> Rows:
        """Rows of zeros for `count` samples of `seq_length` tokens. dtype: any integer that holds the tokens."""
        shape = (count, seq_length)
        tokens = np.zeros((count, seq_length + 1), dtype=dtype) if with_tokens else None
        return cls(tokens, np.zeros(shape, np.bool_), np.zeros(shape, np.int32), np.zeros(shape, np.int32))


class SampleSet(Protocol):
    """What loaders ask of GPTSamples, PackedSamples and BlendedSamples.

    Reading is a pure function of the index: the same in every process, thread and order of calls. An index of -1 is
    padding: a row in which nothing counts.
    """

    @property
    def seq_length(self) -> int:
        """Tokens a sample is trained on; a row holds one more."""
        ...

    @property
    def isolates(self) -> bool:
        """Whether documents in a row must not see each other."""
        ...

    @property
    def fingerprint(self) -> str:
        """Names the samples and their order: tokens, options and code version."""
        ...

    def __len__(self) -> int: ...

    def read(self, indices: Indices, rows: Rows, at: Indices | None = None) -> None:
        """Fill the rows `at` (0 .. n - 1 when None) with samples `indices`, int64 [n]."""
        ...
