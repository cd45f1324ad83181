"""The decompressed bytes of one input, in bounded chunks, with every way they can end early told apart.

Plain files, gzip with any number of members (through isal) and zstd with any number of frames. Chunks hold about
256 KiB; very compressible zstd data may give a few MiB. Truncated or damaged data raise only after everything that
could be decompressed before the fault has been handed out, so that the caller can name the last whole record.
Resuming inside a compressed file decompresses and skips what came before: about 1 s for each 0.5 to 0.9 GB.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any, BinaryIO, Literal

import zstandard
from isal import isal_zlib

from mmdata.errors import InputCorruptError, InputReadError, InputTruncatedError

Compression = Literal["none", "gzip", "zstd"]

STDIN = "-"
CHUNK_BYTES = 1 << 18

# 1f 8b 08: RFC 1952 section 2.3.1. 28 b5 2f fd, and 5? 2a 4d 18 for skippable frames: RFC 8878 section 3.1.
_GZIP_MAGIC = b"\x1f\x8b\x08"
_ZSTD_MAGIC = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
_GZIP_WRAPPER = 31  # zlib's wbits for a gzip header and trailer
_FIRST_SLICE = 1 << 9
_LARGEST_SLICE = 1 << 16


def sniff_compression(head: bytes) -> Compression:
    """What the first bytes say. No UTF-8 or GB18030 text begins like either format."""
    if head.startswith(_GZIP_MAGIC):
        return "gzip"
    return "zstd" if _ZSTD_MAGIC.match(head) else "none"


class ByteSource:
    """One open input. `consumed`: bytes taken from the disk so far, compressed where the file is."""

    def __init__(self, path: str, compression: Compression, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.path = path
        self.consumed = 0
        self._compression = compression
        self._chunk_bytes = chunk_bytes
        try:
            self._stream: BinaryIO = sys.stdin.buffer if path == STDIN else open(path, "rb")  # noqa: SIM115
            self._seekable = path != STDIN and self._stream.seekable()
        except OSError as fault:
            raise InputReadError(f"{path} cannot be read: {fault.strerror}") from fault

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.path != STDIN:
            self._stream.close()

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """Decompressed bytes from offset `start`, none of them empty.

        Raises InputTruncatedError or InputCorruptError after the last good bytes, InputReadError when the disk fails.
        """
        head = b""
        compression = self._compression
        if not self._seekable:
            head = self._read(64)
            compression = sniff_compression(head)
        if compression == "none":
            pieces = self._plain(head, start if self._seekable else 0)
            skip = 0 if self._seekable else start
        else:
            pieces = self._gzip(head) if compression == "gzip" else self._zstd(head)
            skip = start
        for piece in pieces:
            if skip >= len(piece):
                skip -= len(piece)
                continue
            yield piece[skip:] if skip else piece
            skip = 0

    def _read(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except OSError as fault:
            raise InputReadError(f"{self.path}: reading failed at byte {self.consumed}: {fault.strerror}") from fault
        self.consumed += len(data)
        return data

    def _damaged(self, format_name: str, fault: Exception) -> InputCorruptError:
        return InputCorruptError(f"{self.path}: damaged {format_name} data near byte {self.consumed} ({fault})")

    def _plain(self, head: bytes, start: int) -> Iterator[bytes]:
        if start:
            self._stream.seek(start)
            self.consumed = start
        if head:
            yield head
        while data := self._read(self._chunk_bytes):
            yield data

    def _gzip(self, head: bytes) -> Iterator[bytes]:
        """Members one after another (RFC 1952 section 2.2); zero bytes after the last are padding, as for gzip(1)."""
        data = head or self._read(self._chunk_bytes)
        while data:
            member: Any = isal_zlib.decompressobj(wbits=_GZIP_WRAPPER)
            while not member.eof:
                try:
                    piece = member.decompress(data, self._chunk_bytes)
                except isal_zlib.error as fault:  # type: ignore[misc]  # the stub declares it as a plain object
                    raise self._damaged("gzip", fault) from fault
                data = member.unconsumed_tail
                if piece:
                    yield piece
                if not member.eof and not data:
                    data = self._read(self._chunk_bytes)
                    if not data and not piece:
                        raise InputTruncatedError(f"{self.path}: the gzip data end in the middle")
            data = self._after_member(member.unused_data)

    def _after_member(self, data: bytes) -> bytes:
        data = data.lstrip(b"\0")
        while not data:
            data = self._read(self._chunk_bytes)
            if not data:
                return b""
            data = data.lstrip(b"\0")
        if len(data) < len(_GZIP_MAGIC):
            data += self._read(self._chunk_bytes)
        if not data.startswith(_GZIP_MAGIC[:2]):
            raise InputCorruptError(f"{self.path}: something that is not gzip data follows near byte {self.consumed}")
        return data

    def _zstd(self, head: bytes) -> Iterator[bytes]:
        """Frames one after another (RFC 8878 section 3.1).

        zstandard has no bound on what one call gives back, so the slice fed to it follows the ratio seen so far and
        starts small; `stream_reader` is not used because it takes a truncated file for a whole one.
        """
        size = _FIRST_SLICE
        data = head or self._read(size)
        while data:
            frame: Any = zstandard.ZstdDecompressor().decompressobj()
            while not frame.eof:
                try:
                    piece = frame.decompress(data)
                except zstandard.ZstdError as fault:
                    raise self._damaged("zstd", fault) from fault
                if len(piece) > self._chunk_bytes:
                    size = max(64, size // 4)
                elif len(piece) < self._chunk_bytes // 2:
                    size = min(size * 2, _LARGEST_SLICE)
                if piece:
                    yield piece
                if frame.eof:
                    break
                data = self._read(size)
                if not data:
                    raise InputTruncatedError(f"{self.path}: the zstd data end in the middle")
            data = frame.unused_data or self._read(size)
