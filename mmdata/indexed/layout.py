"""The bytes of a shard: magic, header, dtype codes, sizes and offsets (docs/shard-format.md).

The only module that knows them. Costs nothing: pure arithmetic on a 34-byte header. Opens no file and checks only
what the header alone can tell; whether the arrays agree with it is the business of checks.py.
"""

from __future__ import annotations

import operator
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from mmdata.errors import (
    BadMagicError,
    DocumentIndexError,
    IndexSizeError,
    IndexTruncatedError,
    UnknownDtypeError,
    UnsupportedVersionError,
    UsageError,
)

MAGIC: Final = b"MMIDIDX\x00\x00"
LEGACY_MAGIC: Final = b"TNTIDX\x00\x00"
VERSION: Final = 1

_HEADER: Final = struct.Struct("<9sQBQQ")
HEADER_SIZE: Final = _HEADER.size
assert HEADER_SIZE == 34

LENGTH_DTYPE: Final = np.dtype("<i4")
POINTER_DTYPE: Final = np.dtype("<i8")
DOCUMENT_DTYPE: Final = np.dtype("<i8")
MODE_DTYPE: Final = np.dtype("i1")

MAX_SEQUENCE_LENGTH: Final = 2**31 - 1

# Megatron-LM writes uint16 below this vocabulary and int32 from it on (its DType.optimal_dtype).
UINT16_VOCABULARY_LIMIT: Final = 65500

_DTYPE_OF_CODE: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    6: np.dtype("<f8"),
    7: np.dtype("<f4"),
    8: np.dtype("<u2"),
}
_CODE_OF_DTYPE: Final = {dtype.name: code for code, dtype in _DTYPE_OF_CODE.items()}


@dataclass(slots=True, frozen=True)
class Header:
    """What the first 34 bytes of `.idx` say.

    sequences: number of sequences. entries: length of the document index, which is documents + 1. multimodal: whether
    one mode byte a sequence follows (not in the header: the caller says so).
    """

    dtype: np.dtype[Any]
    sequences: int
    entries: int
    multimodal: bool = False

    @property
    def lengths_at(self) -> int:
        """Byte offset of the int32 sequence lengths."""
        return HEADER_SIZE

    @property
    def pointers_at(self) -> int:
        """Byte offset of the int64 sequence pointers."""
        return HEADER_SIZE + LENGTH_DTYPE.itemsize * self.sequences

    @property
    def documents_at(self) -> int:
        """Byte offset of the int64 document indices."""
        return self.pointers_at + POINTER_DTYPE.itemsize * self.sequences

    @property
    def modes_at(self) -> int:
        """Byte offset of the mode bytes; the end of the file when there are none."""
        return self.documents_at + DOCUMENT_DTYPE.itemsize * self.entries

    @property
    def size(self) -> int:
        """Bytes of the whole `.idx`."""
        return self.modes_at + (MODE_DTYPE.itemsize * self.sequences if self.multimodal else 0)

    def pack(self) -> bytes:
        """The 34 header bytes."""
        return _HEADER.pack(MAGIC, VERSION, dtype_code(self.dtype), self.sequences, self.entries)


def unpack_header(head: bytes, path: str, multimodal: bool = False) -> Header:
    """Read the header from the first bytes of `.idx`; `path` is for messages.

    Raises IndexTruncatedError, BadMagicError, UnsupportedVersionError, UnknownDtypeError, DocumentIndexError.
    """
    if not head.startswith(MAGIC[: len(head)]):
        if head.startswith(LEGACY_MAGIC):
            raise BadMagicError(
                "this is an index of the old `lazy` or `cached` kind",
                path=path,
                remedy="only `mmap` shards are read: tokenize the text again",
            )
        raise BadMagicError(
            f"begins with {head[: len(MAGIC)].hex(' ')} instead of {MAGIC.hex(' ')}",
            path=path,
            remedy="this is no shard index: check the path, or rebuild it with `mmdata verify --repair`",
        )
    if len(head) < HEADER_SIZE:
        raise IndexTruncatedError(
            f"{len(head)} bytes, but the header alone has {HEADER_SIZE}",
            path=path,
            remedy="copy the file again, or rebuild it with `mmdata verify --repair`",
        )
    _, version, code, sequences, entries = _HEADER.unpack_from(head)
    if version != VERSION:
        raise UnsupportedVersionError(
            f"version {version}; only version {VERSION} is known",
            path=path,
            remedy="the file is damaged, or made by a newer writer: rebuild it with `mmdata verify --repair`",
        )
    if code not in _DTYPE_OF_CODE:
        raise UnknownDtypeError(
            f"dtype code {code}; known are {known_codes()}",
            path=path,
            remedy="the file is damaged: rebuild it with `mmdata verify --repair`",
        )
    if entries < 1:
        raise DocumentIndexError(
            "the document index has no entry, not even the leading 0",
            path=path,
            remedy="the file is damaged: rebuild it with `mmdata verify --repair`",
        )
    return Header(_DTYPE_OF_CODE[code], sequences, entries, multimodal)


def check_index_size(header: Header, size: int, path: str) -> None:
    """Raise IndexSizeError unless `.idx` is exactly as long as its counts say."""
    if size == header.size:
        return
    expected = f"{header.sequences:,} sequences and {header.entries:,} document entries make {header.size:,} bytes"
    if not header.multimodal and size == header.size + header.sequences:
        remedy = "it holds one more byte a sequence, as multimodal shards do: open it with multimodal=True"
    elif header.multimodal and size == header.size - header.sequences:
        remedy = "it holds no mode bytes: open it with multimodal=False"
    else:
        remedy = "the file was cut or appended to: copy it again, or rebuild it with `mmdata verify --repair`"
    raise IndexSizeError(f"{size:,} bytes, but {expected}", path=path, remedy=remedy)


def known_codes() -> str:
    """The dtype codes and names, for messages."""
    return ", ".join(f"{code} {dtype.name}" for code, dtype in _DTYPE_OF_CODE.items())


def dtype_code(dtype: np.dtype[Any]) -> int:
    """The format's code of a numpy dtype; raises UnknownDtypeError for one it does not have."""
    code = _CODE_OF_DTYPE.get(dtype.name)
    if code is None:
        raise UnknownDtypeError(f"dtype {dtype.name} has no code in the shard format; known are {known_codes()}")
    return code


def stored_dtype(dtype: Any) -> np.dtype[Any]:
    """The little-endian form of `dtype` as it stands in `.bin`; raises UnknownDtypeError."""
    try:
        wanted = np.dtype(dtype)
    except TypeError as error:
        raise UnknownDtypeError(f"{dtype!r} is no dtype; known are {known_codes()}") from error
    return _DTYPE_OF_CODE[dtype_code(wanted)]


def dtype_for_vocabulary(vocab_size: int | None) -> np.dtype[Any]:
    """uint16 below a vocabulary of 65,500 (added tokens counted), else, or when unknown, int32."""
    if vocab_size is None:
        return _DTYPE_OF_CODE[4]
    try:
        operator.index(vocab_size)
    except TypeError as error:
        raise UsageError(f"vocab_size is {vocab_size!r}; it must be an integer") from error
    if vocab_size < 1:
        raise UsageError(f"vocab_size is {vocab_size}; it must be at least 1")
    if vocab_size > 2**31:
        raise UsageError(f"vocab_size is {vocab_size}; int32 tokens allow at most {2**31}")
    return _DTYPE_OF_CODE[8 if vocab_size < UINT16_VOCABULARY_LIMIT else 4]
