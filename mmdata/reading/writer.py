"""Writes JSON lines, plain, gzip or zstd: durable, atomic, and the same bytes whenever the same records are written.

Compressed files are cut into members (gzip) or frames (zstd) of 256 KiB of text, each independent, so a file can be
continued after a kill with the very bytes it would have had. gzip members carry no time stamp. Costs fsync at the end
and at each checkpoint; compression runs in the calling process (isal level 2, zstd level 3).
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import zlib
from types import TracebackType
from typing import Any

import orjson
import zstandard
from isal import isal_zlib

from mmdata.errors import DiskFullError, LedgerMismatchError, OutputError, OutputExistsError
from mmdata.indexed.durable import sync_directory

MEMBER_BYTES = 1 << 18
_GZIP_LEVEL = 2
_ZSTD_LEVEL = 3


class JsonlWriter:
    """A context manager; the suffix of `path` (`.gz`, `.zst`, else plain) chooses the compression.

    Records go to a temporary name beside `path`; leaving the block without an error makes them durable and renames,
    leaving it with an error removes them. Raises OutputExistsError when `path` exists and overwrite is false,
    OutputError when the folder cannot be written, DiskFullError when the disk is full.
    state: from checkpoint(), to continue a run that was killed; what was written after it is cut off.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, overwrite: bool = False, state: dict[str, Any] | None = None
    ) -> None:
        self.path = os.fspath(path)
        self.temporary = f"{self.path}.partial"
        self.lines = 0
        if os.path.exists(self.path) and not overwrite:
            raise OutputExistsError(f"{self.path} exists; choose another name or give --overwrite")
        self._pending = bytearray()
        self._written = 0
        self._closed = False
        try:
            self._stream = open(self.temporary, "wb" if state is None else "r+b")  # noqa: SIM115
        except FileNotFoundError as fault:
            if state is None:
                raise self._named(fault) from fault
            raise LedgerMismatchError(
                f"{self.temporary} of the unfinished run is gone; start again with --overwrite"
            ) from fault
        except OSError as fault:
            raise self._named(fault) from fault
        if state is not None:
            self._continue(state)

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            if not self._closed:
                self.abort()

    def write(self, record: dict[str, Any]) -> None:
        """One record as one line of UTF-8 JSON, keys in their order, integers of any size exactly."""
        self.write_line(encode_record(record))

    def write_line(self, line: bytes) -> None:
        """One record that is JSON already, without a line feed inside or at its end."""
        assert b"\n" not in line
        self._pending += line
        self._pending += b"\n"
        self.lines += 1
        if len(self._pending) >= MEMBER_BYTES:
            self._put_member()

    def checkpoint(self) -> dict[str, Any]:
        """Make what was written durable and return a JSON state from which a new writer continues."""
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as fault:
            raise self._named(fault) from fault
        pending = base64.b64encode(zlib.compress(bytes(self._pending), 1)).decode("ascii")
        return {"bytes": self._written, "lines": self.lines, "pending": pending}

    def close(self) -> None:
        """Write what is left, fsync, and rename to the final name. A second call does nothing.

        When this fails the temporary file stays until abort() or a new writer.
        """
        if self._closed:
            return
        if self._pending or not self._written:
            self._put_member()
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()
            os.replace(self.temporary, self.path)
            self._closed = True
            sync_directory(self.path)
        except OSError as fault:
            raise self._named(fault) from fault

    def abort(self) -> None:
        """Remove what was written; the final name is never touched."""
        if not self._closed:
            self.suspend()
            os.unlink(self.temporary)

    def suspend(self) -> None:
        """Close without removing or renaming, for a run that will be continued from its last checkpoint."""
        self._closed = True
        with contextlib.suppress(OSError):  # a full disk: what could not be flushed is after the last checkpoint
            self._stream.close()

    def _continue(self, state: dict[str, Any]) -> None:
        size = os.path.getsize(self.temporary)
        if size < state["bytes"]:
            self.suspend()
            raise LedgerMismatchError(
                f"{self.temporary} has {size} bytes, fewer than the {state['bytes']} of the unfinished run; "
                "start again with --overwrite"
            )
        self._stream.truncate(state["bytes"])
        self._stream.seek(state["bytes"])
        self._written, self.lines = state["bytes"], state["lines"]
        self._pending += zlib.decompress(base64.b64decode(state["pending"]))

    def _put_member(self) -> None:
        data: bytes = bytes(self._pending)
        if self.path.endswith(".gz"):
            data = isal_zlib.compress(data, _GZIP_LEVEL, 31)
        elif self.path.endswith((".zst", ".zstd")):
            data = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)
        try:
            self._stream.write(data)
        except OSError as fault:
            raise self._named(fault) from fault
        self._written += len(data)
        self._pending.clear()

    def _named(self, fault: OSError) -> OutputError:
        if fault.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFullError(f"{self.path}: the disk is full; free space and run the command again")
        if isinstance(fault, FileNotFoundError) and not os.path.isdir(os.path.dirname(self.path) or "."):
            return OutputError(f"{self.path}: the folder {os.path.dirname(self.path)} does not exist; create it first")
        return OutputError(f"{self.path} cannot be written: {fault.strerror}")


def encode_record(record: dict[str, Any]) -> bytes:
    """A record as one line of compact UTF-8 JSON without its line feed."""
    try:
        return orjson.dumps(record)
    except TypeError:  # an integer beyond 64 bits, or nesting beyond orjson's 254 levels
        return json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8")
