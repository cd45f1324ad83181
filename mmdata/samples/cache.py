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
from mmdata.indexed.mapping import forget, map_file

Arrays = dict[str, NDArray[Any]]
# What a builder gives: all arrays, or one after the other, each of which is let go once it is written.
Built = Arrays | Iterator[tuple[str, NDArray[Any]]]

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
        forget(content[start : start + _PIECE])  # a fault may map far more than the piece
    return str(state.hexdigest())


def cached(directory: str | os.PathLike[str] | None, facts: Mapping[str, Any], build: Callable[[], Built]) -> Arrays:
    """The arrays that `build` gives, from the cache when they are there; None builds in memory and keeps nothing.

    A builder that gives its arrays one by one needs memory for those that it still holds, not for all.

    facts: JSON values that decide the arrays. Arrays from the cache are read-only maps that stay valid on their own.
    Raises OutputError when the folder cannot be written.
    """
    if directory is None:
        return dict(_items(build()))
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
            _store(entry, facts, _items(build()))
            found = _load(entry, facts)
    # Someone may empty the folder at any time, even now.
    return dict(_items(build())) if found is None else found


def _items(built: Built) -> Iterator[tuple[str, NDArray[Any]]]:
    return iter(built.items()) if isinstance(built, dict) else built


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


def _store(entry: str, facts: Mapping[str, Any], items: Iterator[tuple[str, NDArray[Any]]]) -> None:
    own = f"{entry}.{uuid.uuid4().hex}"
    places: dict[str, tuple[str, tuple[int, ...], int]] = {}
    try:
        with disk_faults(entry):
            _write(own + ".bin", lambda file: _write_arrays(file, items, places))
            content = map_file(own + ".bin")
            description = {"facts": dict(facts), "arrays": places, "size": content.size, "hash": content_hash(content)}
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


def _write_arrays(file: BinaryIO, items: Iterator[tuple[str, NDArray[Any]]], places: dict[str, Any]) -> None:
    """Write the arrays as they come, and into `places` what and where they are."""
    for name, array in items:
        places[name] = (array.dtype.str, array.shape, file.tell())
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        file.write(bytes(-array.nbytes % _ALIGNMENT))
        del array  # before the next one is built


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
