"""Files that survive a power cut: growing partial files, durable renames, and disk faults as our own errors.

A PartialFile costs one xxh3 pass over what is appended (about a tenth of the write itself). The disk begins with it
while it grows, so that making it durable waits for the last piece alone. Locks nothing: a second writer to the same
name takes the name over, and the first one notices when it seals.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import xxhash

from mmdata.errors import CheckpointError, DiskFullError, OutputError, OutputReplacedError

BLOCK_BYTES: Final = 1 << 20
EARLY_BYTES: Final = 32 << 20
"""Of a growing file: after as many more the disk begins with them."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT if hasattr(errno, "EDQUOT") else errno.ENOSPC)


@dataclass(slots=True, frozen=True)
class FileDigest:
    """size: bytes. xxh3_128: 32 hexadecimal digits of the whole content."""

    size: int
    xxh3_128: str


@contextmanager
def disk_faults(path: str) -> Iterator[None]:
    """Turn the system's errors while writing `path` into DiskFullError or OutputError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFullError(f"{path}: the disk is full or a quota is used up; free space and run again") from error
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error


def sync_directory(path: str) -> None:
    """Make the renames in the folder of `path` durable where the system can (Windows needs no such call)."""
    if os.name != "posix":
        return
    descriptor = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        # Some network file systems refuse fsync on folders; the rename itself stays atomic there.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def stage_beside(source: str, target: str) -> str:
    """`source` itself if a rename can take it to `target`, else a flushed copy `target.moving` on that file system."""
    folder = os.path.dirname(os.path.abspath(target))
    if os.stat(source).st_dev == os.stat(folder).st_dev:
        return source
    near = target + ".moving"
    try:
        with disk_faults(target):
            shutil.copyfile(source, near)
            with open(near, "rb+") as file:
                os.fsync(file.fileno())
    except BaseException:
        remove(near)
        raise
    return near


def remove(path: str) -> None:
    """Unlink `path` if it is there."""
    with suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path)


def digest_file(path: str, size: int | None = None, *, stop: threading.Event | None = None) -> FileDigest:
    """Size and hash of the first `size` bytes of a file (all when None), in blocks of 8 MiB.

    Raises OSError, and CancelledError soon after `stop` is set.
    """
    state = xxhash.xxh3_128()
    left = os.path.getsize(path) if size is None else size
    total = 0
    with open(path, "rb", buffering=0) as file:
        while left > 0:
            if stop is not None and stop.is_set():
                raise CancelledError
            block = file.read(min(left, 8 * BLOCK_BYTES))
            if not block:
                break
            state.update(block)
            total += len(block)
            left -= len(block)
    return FileDigest(total, state.hexdigest())


def stage_content(path: str, content: bytes) -> str:
    """Write `content`, flushed, under the temporary name of `path`, which is returned."""
    partial = path + ".partial"
    try:
        with disk_faults(path), open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        remove(partial)
        raise
    return partial


def write_durably(path: str, content: bytes) -> None:
    """Put `content` at `path` in one step: a reader sees the old file or the new one."""
    partial = stage_content(path, content)
    with disk_faults(path):
        os.replace(partial, path)
        sync_directory(path)


class PartialFile:
    """A file that grows under a temporary name and knows its size and, if `hashed`, the hash of its content."""

    def __init__(self, path: str, file: BinaryIO, size: int, state: Any) -> None:
        self.path = path
        self.size = size
        self._file = file
        self._hash = state
        self._identity = _identity(os.fstat(file.fileno()))
        self._early = _EarlySync(file, size)

    @classmethod
    def create(cls, path: str, *, hashed: bool) -> PartialFile:
        """Start afresh; a leftover of that name is unlinked, so a writer still on it keeps a nameless file."""
        with disk_faults(path):
            remove(path)
            file = open(path, "xb", buffering=BLOCK_BYTES)  # noqa: SIM115 - lives as long as the object
        return cls(path, file, 0, xxhash.xxh3_128() if hashed else None)

    @classmethod
    def reopen(cls, path: str, size: int, *, digest: str | None = None) -> PartialFile:
        """Go on after the first `size` bytes, which must hash to `digest` when it is given; cut what follows.

        Raises CheckpointError.
        """
        state = xxhash.xxh3_128() if digest is not None else None
        try:
            file = open(path, "rb+", buffering=BLOCK_BYTES)  # noqa: SIM115 - lives as long as the object
        except FileNotFoundError as error:
            raise CheckpointError(f"{path}: the unfinished file is gone; start without the checkpoint") from error
        try:
            cls._read_over(file, path, size, state)
            if state is not None and state.hexdigest() != digest:
                raise CheckpointError(
                    f"{path}: the first {size:,} bytes are not those of the checkpoint; start without the checkpoint"
                )
            file.seek(size)
            file.truncate(size)
        except BaseException:
            file.close()
            raise
        return cls(path, file, size, state)

    @staticmethod
    def _read_over(file: BinaryIO, path: str, size: int, state: Any) -> None:
        found = os.fstat(file.fileno()).st_size
        if found < size:
            raise CheckpointError(
                f"{path}: {found:,} bytes, but the checkpoint was taken at {size:,}; start without the checkpoint"
            )
        left = size
        while state is not None and left > 0:
            block = file.read(min(left, 8 * BLOCK_BYTES))
            state.update(block)
            left -= len(block)

    def append(self, data: Any) -> None:
        """Add a contiguous buffer."""
        with disk_faults(self.path):
            self._file.write(data)
            self.size += memoryview(data).nbytes
            self._early.begin_if_due(self.size)
        if self._hash is not None:
            self._hash.update(data)

    @property
    def xxh3_128(self) -> str:
        """The hash of everything appended so far."""
        assert self._hash is not None, "this file was opened without a hash"
        return str(self._hash.hexdigest())

    def sync(self) -> None:
        """Flush to the disk."""
        with disk_faults(self.path):
            self._file.flush()
            self._early.finish()
            os.fsync(self._file.fileno())

    def seal(self, *, durable: bool = True) -> None:
        """Flush (to the disk if `durable`) and close; raises OutputReplacedError when the name is another's now."""
        if durable:
            self.sync()
        with disk_faults(self.path):
            self._early.finish()
            self._file.close()
        there = self._there()
        if there is None or _identity(there) != self._identity or there.st_size != self.size:
            raise OutputReplacedError(
                f"{self.path}: another writer took this name over; let one run at a time write to a prefix"
            )

    def _there(self) -> os.stat_result | None:
        try:
            return os.stat(self.path)
        except FileNotFoundError:
            return None

    def close(self) -> None:
        """Close without a promise; what is not flushed may be lost, and a full disk is no news any more."""
        with suppress(OSError):
            self._early.finish()
        with suppress(OSError):
            self._file.close()

    def discard(self) -> None:
        """Close and unlink, unless the name now belongs to another writer."""
        self.close()
        there = self._there()
        if there is not None and _identity(there) == self._identity:
            remove(self.path)


class _EarlySync:
    """Flushes a growing file to the disk in a thread, a piece at a time.

    The system reports a lost write to one flush only: what the thread is told, every later call raises. Where no thread
    can be started, nothing is flushed early.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._begun = size
        self._thread: threading.Thread | None = None
        self._fault: OSError | None = None

    def begin_if_due(self, size: int) -> None:
        """Flush what there is once EARLY_BYTES more were written, unless the last piece is still on its way."""
        if size - self._begun < EARLY_BYTES or (self._thread is not None and self._thread.is_alive()):
            return
        self.finish()
        self._begun = size
        thread = threading.Thread(target=self._flush, args=(self._file.fileno(),), daemon=True)
        with suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def _flush(self, descriptor: int) -> None:
        try:
            os.fsync(descriptor)
        except OSError as fault:
            self._fault = fault

    def finish(self) -> None:
        """Wait for the thread; raise what it met."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._fault is not None:
            raise self._fault


def _identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino
