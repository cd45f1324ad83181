"""When cached machine code of a kernel is out of date.

Numba keeps the code of a kernel with a hash of the file that the kernel stands in. But a kernel also contains what it
takes from elsewhere: functions it calls, numbers and tables, which are constants to the compiler. After an update that
changes such a file only, numba would go on running the old code, and its results would be wrong without a word. Here
the hash covers all that the kernel reaches through global names: the files of its functions (intrinsics too) and the
values of its constants. It costs a few milliseconds at the first call of a kernel.

Not covered: variables of a function around a kernel and attributes of attributes (no kernel uses either), and numba's
own version, which numba checks itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import xxhash
from numba.core.caching import IndexDataCacheFile


class StampedIndex(IndexDataCacheFile):
    """Numba's index of a kernel's machine code, stamped when it is first needed: by then all names exist."""

    def __init__(self, plain: Any, function: FunctionType) -> None:
        self.__dict__.update(vars(plain))
        self.own_stamp = self.__dict__.pop("_source_stamp")
        self.function = function

    @property
    def _source_stamp(self) -> tuple[object, str]:
        return self.own_stamp, reached_hash(self.function)


def refresh_with_callees(dispatcher: Any) -> bool:
    """Let the cache of a numba dispatcher become stale with everything it reaches.

    False for a numba whose cache is built in another way: then code must not be kept, or stale code would pass unseen.
    """
    if isinstance(dispatcher, FunctionType):  # NUMBA_DISABLE_JIT: nothing is compiled
        return True
    try:
        dispatcher._cache._cache_file = StampedIndex(dispatcher._cache._cache_file, dispatcher.py_func)
    except (AttributeError, KeyError):
        return False
    return True


def reached_hash(function: FunctionType) -> str:
    """A hash (xxh3-128, hex) of the files of all functions and the values of all constants that `function` reaches."""
    digest = xxhash.xxh3_128()
    for name, content in sorted(set(_reached(function, set()))):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _reached(function: FunctionType, seen: set[FunctionType]) -> Iterator[tuple[str, bytes]]:
    """Pairs of a name and what stands behind it, some of them more than once."""
    seen.add(function)
    file = inspect.getfile(function)
    yield Path(file).name, _file_hash(file)
    names = list(_names(function.__code__))
    for name, value in _values(names, function):
        called = _python_function(value)
        if called is not None:
            if called not in seen and _package(called.__module__) == _package(function.__module__):
                yield from _reached(called, seen)
        elif isinstance(value, np.ndarray):
            yield name, f"{value.dtype.str}{value.shape}".encode() + value.tobytes()
        elif isinstance(value, (bool, int, float, str, bytes, tuple, np.generic)):
            yield name, repr(value).encode()


def _values(names: list[str], function: FunctionType) -> Iterator[tuple[str, object]]:
    """What the names stand for: globals of the function, and globals of our modules among those."""
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, ModuleType) and _package(value.__name__) == _package(function.__module__):
            yield from ((f"{name}.{inner}", vars(value)[inner]) for inner in names if inner in vars(value))


def _python_function(value: object) -> FunctionType | None:
    """The function behind a dispatcher, an intrinsic or itself; None for anything else."""
    for behind in (value, getattr(value, "py_func", None), getattr(value, "_defn", None)):
        if isinstance(behind, FunctionType):
            return behind
    return None


def _package(module: str) -> str:
    return module.partition(".")[0]


def _names(code: CodeType) -> Iterator[str]:
    """Global names and attributes that `code` and the functions inside it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


@cache
def _file_hash(file: str) -> bytes:
    return xxhash.xxh3_128_digest(Path(file).read_bytes())
