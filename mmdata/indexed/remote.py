"""Shards at remote addresses (`s3://...`, `gs://...`, anything fsspec knows): index cached, tokens by ranged reads.

Opening downloads `.idx` once into a local cache, keyed by address and the store's own version of the object, and maps
it; each read of tokens is one ranged request. Needs fsspec (the extra `mmdata[s3]`). Keeps no cache of tokens.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from mmdata.errors import DiskFullError, RemoteStorageError, ShardNotFoundError, ShortReadError
from mmdata.indexed.durable import disk_faults, remove


def is_remote(prefix: str) -> bool:
    """Whether the prefix is an address (`scheme://...`) rather than a local path."""
    return "://" in prefix


def default_cache_dir() -> str:
    """Where indices of remote shards are kept: `MMDATA_CACHE_DIR`, else the user's cache folder."""
    chosen = os.environ.get("MMDATA_CACHE_DIR")
    if chosen:
        return chosen
    if os.name == "nt":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser("~\\AppData\\Local")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "mmdata", "index")


class RemoteFile:
    """One remote file; each process connects anew, since most stores' clients do not survive a fork."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._process = -1
        self._filesystem: Any = None
        self._path = ""

    def _connect(self) -> tuple[Any, str]:
        if self._process != os.getpid():
            try:
                import fsspec
            except ImportError as error:
                raise RemoteStorageError(
                    "remote addresses need fsspec", path=self.address, remedy="pip install 'mmdata[s3]'"
                ) from error
            try:
                fresh = {} if self._process == -1 else {"skip_instance_cache": True}
                self._filesystem, self._path = fsspec.core.url_to_fs(self.address, **fresh)
            except (ImportError, ValueError) as error:
                raise RemoteStorageError(str(error), path=self.address) from error
            self._process = os.getpid()
        return self._filesystem, self._path

    def size(self) -> int:
        """Bytes of the file now; raises ShardNotFoundError."""
        filesystem, path = self._connect()
        with _store_faults(self.address):
            filesystem.invalidate_cache()
            return int(filesystem.size(path))

    def read(self, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop`; raises ShortReadError when the store gives fewer."""
        filesystem, path = self._connect()
        with _store_faults(self.address):
            data = bytes(filesystem.cat_file(path, start=start, end=stop))
        if len(data) != stop - start:
            raise ShortReadError(
                f"asked for {stop - start:,} bytes and got {len(data):,}",
                path=self.address,
                where=f"byte {start:,}",
                remedy="the object changed after the shard was opened: open it again",
            )
        return data

    def read_all(self) -> bytes | None:
        """The whole content, None where there is no such file."""
        filesystem, path = self._connect()
        try:
            with _store_faults(self.address):
                return bytes(filesystem.cat_file(path))
        except ShardNotFoundError:
            return None

    def cached(self, cache_dir: str) -> str:
        """A local copy of the file, downloaded unless the cache has this version of it already."""
        size = self.size()
        filesystem, path = self._connect()
        with _store_faults(self.address):
            version = f"{self.address}\0{size}\0{filesystem.ukey(path)}"
        name = xxhash.xxh3_128_hexdigest(version.encode()) + "-" + self.address.rpartition("/")[2]
        target = os.path.join(cache_dir, name)
        if os.path.exists(target) and os.path.getsize(target) == size:
            return target
        with disk_faults(target):
            os.makedirs(cache_dir, exist_ok=True)
        partial = f"{target}.{os.getpid()}.{threading.get_ident()}.partial"
        try:
            with _store_faults(self.address):
                filesystem.get_file(path, partial)
            found = os.path.getsize(partial)
            if found != size:
                raise ShortReadError(f"{found:,} of {size:,} bytes came", path=self.address)
            with disk_faults(target):
                os.replace(partial, target)
        finally:
            remove(partial)
        return target


@contextmanager
def _store_faults(address: str) -> Iterator[None]:
    """Whatever a store's client raises, as our errors: each has its own kinds, many of them no OSError."""
    try:
        yield
    except FileNotFoundError as error:
        raise ShardNotFoundError("there is no such file", path=address, remedy="check the prefix") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise DiskFullError(f"the disk is full while {address} is copied to the cache; free space") from error
        raise RemoteStorageError(f"cannot be read: {type(error).__name__}: {error}", path=address) from error


class RemoteTokens:
    """The token array of a remote shard: slicing makes one ranged read and gives a read-only array."""

    def __init__(self, file: RemoteFile, dtype: np.dtype[Any]) -> None:
        self._file = file
        self._dtype = dtype

    def __getitem__(self, span: slice) -> NDArray[Any]:
        start, stop = span.start * self._dtype.itemsize, span.stop * self._dtype.itemsize
        return np.frombuffer(self._file.read(start, stop) if stop > start else b"", self._dtype)
