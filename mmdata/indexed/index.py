"""Opens `.idx`: maps it, checks in constant time what must hold, and gives its arrays.

About 50 microseconds for any size. The arrays are zero-copy views, so they may be unaligned (the header has 34 bytes).
What only a walk over the arrays can tell is in checks.py.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import BinSizeError, DocumentIndexError, PointerError, SequenceLengthError
from mmdata.indexed.durable import FileDigest
from mmdata.indexed.layout import (
    DOCUMENT_DTYPE,
    HEADER_SIZE,
    LENGTH_DTYPE,
    MODE_DTYPE,
    POINTER_DTYPE,
    Header,
    check_index_size,
    unpack_header,
)
from mmdata.indexed.mapping import digest_mapped, forget, map_file, reading_faults


@dataclass(slots=True, frozen=True)
class ShardIndex:
    """The mapped index of one shard.

    raw: all bytes. lengths: int32[S]. pointers: int64[S]. documents: int64[D]. modes: int8[S] if multimodal, else None.
    """

    path: str
    header: Header
    raw: NDArray[np.uint8]
    lengths: NDArray[np.int32]
    pointers: NDArray[np.int64]
    documents: NDArray[np.int64]
    modes: NDArray[np.int8] | None

    def bin_size(self) -> int:
        """Bytes that `.bin` must have."""
        if self.header.sequences == 0:
            return 0
        return int(self.pointers[-1]) + int(self.lengths[-1]) * self.header.dtype.itemsize

    def forget(self) -> None:
        """Take the index out of resident memory; walks do so after each block, to stay flat."""
        forget(self.raw)

    def digest(self) -> FileDigest:
        """Size and hash of the whole index."""
        return digest_mapped(self.raw)


def open_index(path: str, multimodal: bool = False, *, shown: str | None = None) -> ShardIndex:
    """Map the index at `path` and check it as far as constant time goes; `shown` is the path for messages.

    Raises ShardNotFoundError, ShardReadError, IndexTruncatedError, BadMagicError, UnsupportedVersionError,
    UnknownDtypeError, IndexSizeError, DocumentIndexError, PointerError, SequenceLengthError.
    """
    shown = shown or path
    index = read_index_arrays(path, multimodal, shown=shown)
    header = index.header
    first, last = int(index.documents[0]), int(index.documents[-1])
    if first != 0 or last != header.sequences:
        raise DocumentIndexError(
            f"document indices run from {first:,} to {last:,}; they must run from 0 to {header.sequences:,} sequences",
            path=shown,
            remedy="the file is damaged: copy it again, or rebuild it with `mmdata verify --repair`",
        )
    if header.sequences:
        if int(index.pointers[0]) != 0:
            raise PointerError(
                f"the first pointer is {int(index.pointers[0]):,} instead of 0",
                path=shown,
                where="sequence 0",
                remedy="rebuild the pointers with `mmdata verify --repair`",
            )
        if int(index.lengths[-1]) < 0:
            raise negative_length(shown, header.sequences - 1, int(index.lengths[-1]))
        if int(index.pointers[-1]) % header.dtype.itemsize:
            facts = f"begins at byte {int(index.pointers[-1]):,}, inside a token of {header.dtype.itemsize} bytes"
            raise wrong_pointer(shown, header.sequences - 1, facts)
    return index


def read_index_arrays(path: str, multimodal: bool = False, *, shown: str | None = None) -> ShardIndex:
    """Map the index and check only header and size, for `verify` and `repair`, which look at the arrays themselves."""
    shown = shown or path
    with reading_faults(path, shown=shown):
        raw = map_file(path)
    header = unpack_header(raw[:HEADER_SIZE].tobytes(), shown, multimodal)
    check_index_size(header, raw.size, shown)
    return ShardIndex(
        shown,
        header,
        raw,
        _view(raw, header.lengths_at, header.sequences, LENGTH_DTYPE),
        _view(raw, header.pointers_at, header.sequences, POINTER_DTYPE),
        _view(raw, header.documents_at, header.entries, DOCUMENT_DTYPE),
        _view(raw, header.modes_at, header.sequences, MODE_DTYPE) if multimodal else None,
    )


def _view(raw: NDArray[np.uint8], start: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    return raw[start : start + count * dtype.itemsize].view(dtype)


def has_mode_bytes(path: str) -> bool:
    """Whether the local index is as long as one with mode bytes; only its size can tell. Raises as `open_index`."""
    with reading_faults(path), open(path, "rb") as file:
        head = file.read(HEADER_SIZE)
        size = os.fstat(file.fileno()).st_size
    header = unpack_header(head, path, multimodal=True)
    return header.sequences > 0 and size == header.size


def items(raw: NDArray[np.uint8], start: int, count: int, dtype: np.dtype[Any]) -> memoryview:
    """An array of the index as a memoryview: one item as a Python int takes a third of the time numpy needs."""
    part = raw[start : start + count * dtype.itemsize]
    if sys.byteorder == "big":
        part = part.view(dtype).astype(dtype.newbyteorder("=")).view(np.uint8)
    # numpy declares its buffer to type checkers only from Python 3.12 on.
    view: memoryview = memoryview(cast(Any, part))
    return view.cast("i" if dtype.itemsize == 4 else "q")


def check_bin_size(index: ShardIndex, size: int, path: str) -> None:
    """Raise BinSizeError unless `.bin` ends where the last sequence does."""
    expected = index.bin_size()
    if size == expected:
        return
    what = f"{expected - size:,} bytes are missing" if size < expected else f"{size - expected:,} bytes are left over"
    raise BinSizeError(
        f"{size:,} bytes, but the index ends at {expected:,}: {what}",
        path=path,
        remedy="copy both files again, or tokenize again; `.bin` and `.idx` may be of different runs",
    )


def negative_length(path: str, sequence: int, length: int) -> SequenceLengthError:
    """The error for a negative sequence length."""
    return SequenceLengthError(
        f"its length is {length}",
        path=path,
        where=f"sequence {sequence:,}",
        remedy="the index is damaged: copy it again, or rebuild it with `mmdata verify --repair`",
    )


def wrong_pointer(path: str, sequence: int, facts: str) -> PointerError:
    """The error for a pointer that does not follow from its neighbours."""
    return PointerError(
        facts,
        path=path,
        where=f"sequence {sequence:,}",
        remedy="the index is damaged: copy it again, or rebuild the pointers with `mmdata verify --repair`",
    )
