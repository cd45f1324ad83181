"""Read-only memory maps that hold no file descriptor and live as long as any array on them.

`mmap.mmap` keeps a duplicate of the descriptor until Python 3.13 (where `trackfd=False` ends that), so 1,500 open
shards would need 3,000 descriptors, beyond the usual limit of 1,024. Here the C library is called instead on POSIX.
A map costs about 10 microseconds. A file cut short while mapped ends the process with a bus error, as with any map.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from mmdata.errors import ShardNotFoundError, ShardReadError
from mmdata.indexed.durable import BLOCK_BYTES, FileDigest

_POSIX: Final = os.name == "posix"
_HAS_TRACKFD: Final = sys.version_info >= (3, 13)


def _load_mmap_calls() -> tuple[Any, Any, Any]:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_longlong,
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc.mmap, libc.munmap, libc.madvise


_CALLS: Final[tuple[Any, Any, Any]] = _load_mmap_calls() if _POSIX else (None, None, None)
_AROUND: Final = 4 << 20
_FAILED: Final = ctypes.c_void_p(-1).value


class _Mapping:
    """Owns one mapped region; numpy arrays on it hold a reference, and the last one to go unmaps it."""

    __slots__ = ("__array_interface__", "_address", "_size", "_unmap")

    def __init__(self, descriptor: int, size: int) -> None:
        self._address: int | None = None
        map_region, self._unmap, _ = _CALLS
        address = map_region(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address is None or address == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, f"mmap of {size:,} bytes failed: {os.strerror(code)}")
        self._address = address
        self._size = size
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        if self._address is not None:
            self._unmap(self._address, self._size)


def map_file(path: str) -> NDArray[np.uint8]:
    """The bytes of `path` as a read-only uint8 array of shape (size,); an empty file gives an empty array.

    The array, and every view of it, stays valid on its own. Raises OSError as `open` does.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        facts = os.fstat(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        size = facts.st_size
        if size == 0:
            return _empty()
        if _POSIX and not _HAS_TRACKFD:
            return np.asarray(_Mapping(descriptor, size))
        return np.frombuffer(_standard_map(descriptor, size), np.uint8)
    finally:
        os.close(descriptor)


@contextmanager
def reading_faults(path: str, remedy: str = "check the prefix", *, shown: str | None = None) -> Iterator[None]:
    """Turn the system's errors while opening a shard's file into ShardNotFoundError or ShardReadError."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ShardNotFoundError("there is no such file", path=shown or path, remedy=remedy) from error
    except OSError as error:
        raise ShardReadError(f"cannot be read: {error.strerror or error}", path=shown or path) from error


def forget(array: NDArray[Any]) -> None:
    """Take the pages under a slice of a mapped file out of resident memory; the data stay and are read again on use.

    For passes over whole files, whose resident memory would otherwise grow with the file. Does nothing to arrays
    that are not mapped here (there the same call would wipe them), and nothing on Windows.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    owner = owner.obj if isinstance(owner, memoryview) else owner
    if not isinstance(owner, _Mapping | _StandardMapping) or not _POSIX:
        return
    whole = np.asarray(owner) if isinstance(owner, _Mapping) else np.frombuffer(owner, np.uint8)
    base = whole.ctypes.data
    # A fault maps a whole large page of the cache (2 MiB), so the range reaches beyond the array, never beyond the map.
    first = max(base, (array.ctypes.data - _AROUND) // mmap.PAGESIZE * mmap.PAGESIZE)
    last = min(base + whole.nbytes, array.ctypes.data + array.nbytes + _AROUND)
    _CALLS[2](first, last - first, mmap.MADV_DONTNEED)


def digest_mapped(raw: NDArray[np.uint8]) -> FileDigest:
    """Size and hash of a mapped file, in blocks that are forgotten at once."""
    state = xxhash.xxh3_128()
    for start in range(0, raw.size, 8 * BLOCK_BYTES):
        block = raw[start : start + 8 * BLOCK_BYTES]
        state.update(cast(Any, block))
        forget(block)
    return FileDigest(raw.size, state.hexdigest())


class _StandardMapping(mmap.mmap):
    """A read-only map of a file made by the standard library, told apart from maps that others made."""


def _standard_map(descriptor: int, size: int) -> mmap.mmap:
    options: dict[str, Any] = {"access": mmap.ACCESS_READ}
    if _POSIX:
        options["trackfd"] = False
    return _StandardMapping(descriptor, size, **options)


def _empty() -> NDArray[np.uint8]:
    array = np.empty(0, np.uint8)
    array.flags.writeable = False
    return array
