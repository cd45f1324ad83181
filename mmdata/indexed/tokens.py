"""Checks on what a writer is given: every token in range, lengths and documents that add up.

One pass over the tokens for the range (a reduction at memory speed), none over anything else that grows with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import LengthMismatchError, SequenceTooLongError, TokenRangeError, UsageError
from mmdata.indexed.layout import MAX_SEQUENCE_LENGTH, MODE_DTYPE, dtype_for_vocabulary, stored_dtype

# Native signed dtypes, each with its unsigned twin and the first value that is negative when signed.
_UNSIGNED: Final = {np.dtype(f"i{size}"): (np.dtype(f"u{size}"), 1 << (8 * size - 1)) for size in (1, 2, 4, 8)}


@dataclass(slots=True, frozen=True)
class TokenRange:
    """Tokens `low <= token < high` are allowed; `reason` says why in a message. Floats have no range."""

    dtype: np.dtype[Any]
    low: int
    high: int
    reason: str
    whole_dtype: bool = False

    @classmethod
    def of(cls, vocab_size: int | None, dtype: Any = None) -> TokenRange:
        """The dtype and bounds for a vocabulary (added tokens counted) and, if given, a dtype.

        Raises UsageError when the vocabulary does not fit the dtype.
        """
        chosen = dtype_for_vocabulary(vocab_size)
        if dtype is not None:
            chosen = stored_dtype(dtype)
        if chosen.kind == "f":
            if vocab_size is not None:
                raise UsageError(f"dtype {chosen.name} holds no token ids; leave out vocab_size or take int32")
            return cls(chosen, 0, 0, "")
        bounds = np.iinfo(chosen)
        if vocab_size is None:
            return cls(chosen, int(bounds.min), int(bounds.max) + 1, f"{chosen.name} holds", whole_dtype=True)
        if vocab_size - 1 > bounds.max:
            raise UsageError(f"dtype {chosen.name} ends at {bounds.max}, too small for vocab_size {vocab_size}")
        return cls(chosen, 0, vocab_size, f"a vocabulary of {vocab_size:,} has")

    def checked(self, tokens: Any, path: str) -> NDArray[Any]:
        """`tokens` as a one-dimensional array of integers (floats for a float shard), every one in range.

        Raises TokenRangeError naming the first token that is not.
        """
        array = np.asarray(tokens)
        if array.ndim != 1:
            raise LengthMismatchError(f"tokens have shape {array.shape}; give a flat list or array", path=path)
        if array.size == 0:
            return np.empty(0, self.dtype)
        if self.dtype.kind == "f":
            return array
        if array.dtype.kind not in "iu":
            raise TokenRangeError(
                f"tokens are of dtype {array.dtype}, not integers that fit 64 bits", path=path, remedy="give token ids"
            )
        if not self._holds(array):
            self._refuse(array, path)
        return array

    def _holds(self, array: NDArray[Any]) -> bool:
        if self.whole_dtype and np.can_cast(array.dtype, self.dtype):
            return True
        seen = _UNSIGNED.get(array.dtype)
        if self.low == 0 and seen is not None:
            # Seen as unsigned, a negative token is at least half the type's range: one pass finds both faults.
            unsigned, half = seen
            return int(np.maximum.reduce(array.view(unsigned))) < min(self.high, half)
        return self.low <= int(array.min()) and int(array.max()) < self.high

    def _refuse(self, array: NDArray[Any], path: str) -> None:
        position = int(np.flatnonzero((array < self.low) | (array >= self.high))[0])
        raise TokenRangeError(
            f"token {position:,} of this call is {array[position]}, but {self.reason} ids {self.low} to "
            f"{self.high - 1:,}",
            path=path,
            remedy="count added tokens in vocab_size, or write int32",
        )


def checked_lengths(lengths: Any, token_count: int, path: str) -> NDArray[Any]:
    """Sequence lengths as a flat integer array that adds up to the tokens.

    Raises LengthMismatchError, SequenceTooLongError.
    """
    array = _counts(lengths, "lengths", path)
    if array.size and int(array.max()) > MAX_SEQUENCE_LENGTH:
        raise SequenceTooLongError(
            f"a sequence has {int(array.max()):,} tokens; the format holds at most {MAX_SEQUENCE_LENGTH:,}",
            path=path,
            remedy="cut the text into several sequences",
        )
    total = int(array.sum(dtype=np.int64))
    if total != token_count:
        raise LengthMismatchError(f"lengths add up to {total:,}, but there are {token_count:,} tokens", path=path)
    return array


def checked_ends(documents: Any, sequence_count: int, path: str) -> NDArray[np.int64]:
    """Sequences per document as cumulative ends; raises LengthMismatchError unless they add up to the sequences."""
    array = _counts(documents, "documents", path)
    ends = np.cumsum(array, dtype=np.int64)
    total = int(ends[-1]) if ends.size else 0
    if total != sequence_count:
        raise LengthMismatchError(f"documents add up to {total:,} of {sequence_count:,} sequences", path=path)
    return ends


def checked_modes(modes: Any, sequence_count: int, path: str) -> NDArray[np.int8]:
    """Mode bytes, one for each sequence, within int8; raises LengthMismatchError, TokenRangeError."""
    array = np.asarray(modes)
    if array.shape != (sequence_count,):
        raise LengthMismatchError(f"modes of shape {array.shape} for {sequence_count:,} sequences", path=path)
    if array.size and (array.dtype.kind not in "iu" or int(array.min()) < -128 or int(array.max()) > 127):
        raise TokenRangeError("modes must be integers from -128 to 127", path=path)
    return array.astype(MODE_DTYPE)


def _counts(values: Any, name: str, path: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 1:
        raise LengthMismatchError(f"{name} have shape {array.shape}; give a flat list or array", path=path)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise LengthMismatchError(f"{name} are of dtype {array.dtype}; give integers", path=path)
    if int(array.min()) < 0:
        raise LengthMismatchError(f"{name} hold {int(array.min())}; a count cannot be negative", path=path)
    return array
