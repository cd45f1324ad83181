"""Index arrays kept on disk under a key of all that decides them, mapped, safe when many processes build at once.

An entry is `KEY.bin` (the arrays, each from a multiple of 64 bytes) and `KEY.json` (what they are and a hash). Both are
written under names of their own, flushed and renamed, `.json` last, so a reader sees a whole entry or none. Builders of
one key write equal bytes, so it does not matter who is last; a lock file only saves the others the work, and never
decides what is right: a folder on one node, on a network disk, or deleted in mid-run all work. An entry that is torn,
or of other facts than its key says, is built again. Reading costs about 0.1 ms plus a hash over at most 16 MiB.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray

from mmdata.errors import OutputError
from mmdata.indexed.durable import disk_faults, remove, sync_directory
from mmdata.indexed.manifest import canonical_json
from mmdata.indexed.mapping import map_file

Arrays = dict[str, NDArray[Any]]

# Raise it when the code that builds any index changes what it builds: old entries are then left alone.
CODE_VERSION = 1
_ALIGNMENT = 64
_HASHED_WHOLE = 16 << 20
_PIECE = 64 << 10
_PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 0.02

_log = logging.getLogger(__name__)


def key_of(facts: Mapping[str, Any]) -> str:
    """32 hex digits over the facts and the code version."""
    return str(xxhash.xxh3_128_hexdigest(canonical_json({"code": CODE_VERSION, **facts})))


def content_hash(content: NDArray[np.uint8], budget: int = _HASHED_WHOLE) -> str:
    """xxh3-128 of the content; beyond `budget` bytes, of its size and of pieces of 64 KiB, spread evenly, as many."""
    if content.size <= budget:
        return str(xxhash.xxh3_128_hexdigest(content.data))
    state = xxhash.xxh3_128(str(content.size).encode())
    for start in np.linspace(0, content.size - _PIECE, budget // _PIECE).astype(np.int64).tolist():
        state.update(content[start : start + _PIECE].data)
    return str(state.hexdigest())


def cached(directory: str | os.PathLike[str] | None, facts: Mapping[str, Any], build: Callable[[], Arrays]) -> Arrays:
    """The arrays that `build` gives, from the cache when they are there; None builds in memory and keeps nothing.

    facts: JSON values that decide the arrays. Arrays from the cache are read-only maps that stay valid on their own.
    Raises OutputError when the folder cannot be written.
    """
    if directory is None:
        return build()
    folder = os.fspath(directory)
    with disk_faults(folder):
        os.makedirs(folder, exist_ok=True)
    entry = os.path.join(folder, key_of(facts))
    found = _load(entry, facts)
    if found is not None:
        return found
    with _turn(entry + ".lock") as waited:
        found = _load(entry, facts) if waited else None
        if found is None:
            arrays = build()
            _store(entry, facts, arrays)
            found = _load(entry, facts)
            # Someone may empty the folder at any time; what was built is right all the same.
            return arrays if found is None else found
    return found


def _load(entry: str, facts: Mapping[str, Any]) -> Arrays | None:
    try:
        with open(entry + ".json", "rb") as file:
            description = json.loads(file.read())
        content = map_file(entry + ".bin")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("%s.json cannot be read (%s): building the index again", entry, error)
        return None
    try:
        arrays = _parse(description, content, facts)
    except (KeyError, TypeError, ValueError) as error:
        _log.warning("%s.bin is torn or stale (%s): building the index again", entry, error)
        return None
    return arrays


def _parse(description: Any, content: NDArray[np.uint8], facts: Mapping[str, Any]) -> Arrays:
    if canonical_json(description["facts"]) != canonical_json(dict(facts)):
        raise ValueError("it holds another index")
    if content.size != description["size"] or content_hash(content) != description["hash"]:
        raise ValueError("its content is not what was written")
    arrays = {}
    for name, (dtype, shape, start) in description["arrays"].items():
        count = int(np.prod(shape, dtype=np.int64))
        piece = content[start : start + count * np.dtype(dtype).itemsize]
        arrays[name] = piece.view(dtype).reshape(shape)
    return arrays


def _store(entry: str, facts: Mapping[str, Any], arrays: Arrays) -> None:
    own = f"{entry}.{uuid.uuid4().hex}"
    places, size = {}, 0
    for name, array in arrays.items():
        places[name] = (array.dtype.str, array.shape, size)
        size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    try:
        with disk_faults(entry):
            _write(own + ".bin", lambda file: _write_arrays(file, arrays))
            content = map_file(own + ".bin")
            description = {"facts": dict(facts), "arrays": places, "size": size, "hash": content_hash(content)}
            del content
            _write(own + ".json", lambda file: file.write(canonical_json(description)))
            _publish(own, entry)
            sync_directory(entry)
    finally:
        remove(own + ".bin")
        remove(own + ".json")


def _write(path: str, fill: Callable[[BinaryIO], Any]) -> None:
    with open(path, "xb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())


def _write_arrays(file: BinaryIO, arrays: Arrays) -> None:
    for array in arrays.values():
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        file.write(bytes(-array.nbytes % _ALIGNMENT))


def _publish(own: str, entry: str) -> None:
    for suffix in (".bin", ".json"):
        try:
            os.replace(own + suffix, entry + suffix)
        except PermissionError:
            # Windows does not replace a file that another process has mapped: that one holds the same bytes.
            if os.name != "nt" or not os.path.exists(entry + suffix):
                raise


@contextlib.contextmanager
def _turn(lock: str) -> Iterator[bool]:
    """Hold the lock if it is free; else wait, within reason, until its holder is done. Gives whether it waited."""
    waited = False
    deadline = time.monotonic() + _PATIENCE_SECONDS
    held = _take(lock)
    while not held and time.monotonic() < deadline and _holder_lives(lock):
        waited = True
        time.sleep(_POLL_SECONDS)
        if not os.path.exists(lock):
            break
    try:
        yield waited or not held
    finally:
        if held:
            remove(lock)


def _take(lock: str) -> bool:
    try:
        with open(lock, "x", encoding="utf-8") as file:
            file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
    except FileExistsError:
        if _holder_lives(lock):
            return False
        remove(lock)
        return False
    except OSError as error:
        raise OutputError(f"{lock}: cannot be written: {error.strerror or error}; choose another cache_dir") from error
    return True


def _holder_lives(lock: str) -> bool:
    """False when the lock is gone, old, or of a process of this machine that has ended."""
    try:
        age = time.time() - os.stat(lock).st_mtime
        with open(lock, encoding="utf-8") as file:
            holder = json.loads(file.read() or "{}")
    except (OSError, ValueError):
        return os.path.exists(lock)
    if age > _PATIENCE_SECONDS:
        return False
    if os.name != "posix" or holder.get("host") != socket.gethostname() or "pid" not in holder:
        return True
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
