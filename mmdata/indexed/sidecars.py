"""What stands beside a shard, as arrays: origins of documents and spans of the tokens that count in the loss.

Pure array code; both are stored as int32 shards in the shard format (docs/shard-format.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import SidecarMismatchError

UNKNOWN_INPUT: Final = -1
ORIGIN_WIDTH: Final = 4
_LOW_BITS: Final = 31
_LOW_MASK: Final = (1 << _LOW_BITS) - 1


class Origin(NamedTuple):
    """Where a document came from: input number, 1-based line, piece of the record from 0, and the input's path."""

    input_number: int
    line: int
    part: int
    path: str | None


def decode_origin(row: NDArray[np.int32], inputs: Sequence[str] | None, path: str, document: int) -> Origin | None:
    """The origin in one row, None where it is unknown; `inputs` are the manifest's, None without a manifest.

    Raises SidecarMismatchError.
    """
    where = f"document {document:,}"
    if row.size != ORIGIN_WIDTH:
        raise SidecarMismatchError(f"an origin has {ORIGIN_WIDTH} numbers, not {row.size}", path=path, where=where)
    number, low, high, part = (int(value) for value in row)
    if number == UNKNOWN_INPUT:
        return None
    line = (high << _LOW_BITS) + low
    if number < 0 or low < 0 or high < 0 or part < 0 or (inputs is not None and number >= len(inputs)):
        count = "an unknown number of" if inputs is None else f"{len(inputs):,}"
        raise SidecarMismatchError(
            f"names input {number}, line {line}, part {part}, but the manifest has {count} inputs",
            path=path,
            where=where,
            remedy="the sidecar is damaged or of another run: copy shard, sidecars and manifest together",
        )
    return Origin(number, line, part, None if inputs is None else inputs[number])


def encode_origins(input_numbers: Any, lines: Any, parts: Any) -> NDArray[np.int32]:
    """int32[n, 4] rows `input number, line low 31 bits, line high bits, part` from three arrays of n integers.

    Its `.ravel()` with lengths of 4 is what the origin sidecar's writer takes.
    """
    wide = np.asarray(lines, np.int64)
    rows = np.empty((wide.size, ORIGIN_WIDTH), np.int32)
    rows[:, 0] = input_numbers
    rows[:, 1] = wide & _LOW_MASK
    rows[:, 2] = wide >> _LOW_BITS
    rows[:, 3] = parts
    return rows


def decode_origins(rows: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Input numbers, lines and parts, int64[n] each, from int32[n, 4] rows."""
    wide = rows.astype(np.int64)
    return wide[:, 0], (wide[:, 2] << _LOW_BITS) + wide[:, 1], wide[:, 3]


def whole_span(length: int) -> NDArray[np.int32]:
    """The span of a sequence whose tokens all count: `[[1, length]]`, none for fewer than two tokens."""
    return np.array([[1, length]] if length > 1 else np.empty((0, 2)), np.int32)


def whole_spans(lengths: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Flat spans `1, length` of many sequences, and how many numbers each has (2, or 0 below two tokens)."""
    filled = lengths > 1
    flat = np.empty((int(filled.sum()), 2), np.int32)
    flat[:, 0] = 1
    flat[:, 1] = lengths[filled]
    return flat.ravel(), np.where(filled, 2, 0).astype(np.int64)


def check_spans(flat: NDArray[np.int32], length: int, path: str, sequence: int) -> NDArray[np.int32]:
    """`flat` as int32[k, 2]; raises SidecarMismatchError unless ascending, disjoint and within `[1, length]`."""
    if flat.size % 2 == 0:
        if flat.size == 0:
            return flat.reshape(0, 2)
        starts, ends = flat[::2], flat[1::2]
        sound = bool((starts < ends).all() and (starts[1:] >= ends[:-1]).all())
        if sound and starts[0] >= 1 and ends[-1] <= length:
            return flat.reshape(-1, 2)
    shown = ", ".join(str(value) for value in flat[:8]) + (", ..." if flat.size > 8 else "")
    raise SidecarMismatchError(
        f"spans [{shown}] are no ascending pairs within 1 to {length}",
        path=path,
        where=f"sequence {sequence:,}",
        remedy="the sidecar is damaged or of another run: copy shard and sidecars together",
    )
