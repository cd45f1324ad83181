"""Functions for workers: at module level, so that a spawned process can import them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmdata.errors import InputError
from mmdata.run.area import Area, Part, Side


class OddError(Exception):
    """Cannot be unpickled: its constructor needs two arguments and it keeps one."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(f"{name} {number}")


def double() -> Callable[[int], int]:
    return lambda number: 2 * number


def add_from(table: np.ndarray[Any, np.dtype[np.int64]]) -> Callable[[int], int]:
    """Reads and writes the array it was built with."""

    def work(number: int) -> int:
        table[number] += 1
        return int(table[number])

    return work


def same() -> Callable[[Any], Any]:
    return lambda item: item


class Closing:
    """Leaves a mark when it is closed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, number: int) -> int:
        if number == 3:
            raise InputError("a.jsonl:17: no good")
        return number

    def close(self) -> None:
        (Path(self._folder) / f"{os.getpid()}-{time.monotonic_ns()}").touch()


def slow_first() -> Callable[[int], int]:
    def work(number: int) -> int:
        time.sleep(0.4 if number == 0 else 0.0)
        return number

    return work


def process_of() -> Callable[[Any], int]:
    return lambda item: os.getpid()


def counted_build(folder: str) -> Callable[[Any], int]:
    (Path(folder) / f"{os.getpid()}-{time.monotonic_ns()}").touch()
    return lambda item: os.getpid()


def environment() -> Callable[[str], str | None]:
    return os.environ.get


def arrays() -> Callable[[int], dict[str, Any]]:
    return lambda size: {"tokens": np.arange(size, dtype=np.int32), "small": np.arange(3), "name": str(size)}


def change_array() -> Callable[[Any], Any]:
    def work(array: Any) -> Any:
        array += 1
        return array

    return work


def failing() -> Callable[[int], int]:
    def work(number: int) -> int:
        if number == 3:
            raise InputError("a.jsonl:17: no good")
        if number == 30:
            raise KeyError("no such thing")
        if number == 300:
            raise OddError("odd", 1)
        if number == 3000:
            raise SystemExit(5)
        return number

    return work


def unpicklable() -> Callable[[int], Any]:
    return lambda number: threading.Lock() if number == 1 else number


def failing_build() -> Callable[[int], int]:
    raise InputError("the tokenizer is gone")


def dying_build() -> Callable[[int], int]:
    os._exit(3)


def dying(folder: str, deaths: int) -> Callable[[int], int]:
    """Number 5 kills its process the first `deaths` times."""

    def work(number: int) -> int:
        if number == 5:
            marks = len(os.listdir(folder))
            if marks < deaths:
                (Path(folder) / str(marks)).touch()
                os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        return number

    return work


def sleeping(folder: str) -> Callable[[int], int]:
    (Path(folder) / str(os.getpid())).touch()

    def work(number: int) -> int:
        time.sleep(60)
        return number

    return work


def name(item: Any) -> str:
    return f"item {item}"


def mark(folder: str) -> None:
    """Leaves a mark of this process."""
    (Path(folder) / f"{os.getpid()}-{time.monotonic_ns()}").touch()


def waiting_for_others(caller: int, folder: str, count: int) -> Callable[[int], int]:
    """Elsewhere than in `caller` each item leaves a mark; the first item of the caller waits for `count` marks."""
    waits = os.getpid() == caller

    def work(number: int) -> int:
        nonlocal waits
        if os.getpid() != caller:
            (Path(folder) / f"item-{number}").touch()
        end = time.monotonic() + 60.0
        while waits and len(os.listdir(folder)) < count:
            assert time.monotonic() < end, "the worker ran out of items"
            time.sleep(0.01)
        waits = False
        return number

    return work


def waiting_same(caller: int, folder: str, count: int) -> Callable[[Any], Any]:
    """As waiting_for_others, for items that are a number and an array; built slowly elsewhere than in `caller`."""
    if os.getpid() != caller:
        time.sleep(0.2)
    wait = waiting_for_others(caller, folder, count)
    return lambda item: (wait(item[0]), item[1])


def cannot_load() -> None:
    raise InputError("not there yet")


def dying_once_away_from(parent: int, folder: str) -> Callable[[int], int]:
    """The first item that another process than `parent` gets kills that process."""

    def work(number: int) -> int:
        time.sleep(0.02)
        if os.getpid() != parent and not os.listdir(folder):
            mark(folder)
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        return number

    return work


def slow_process_of() -> Callable[[Any], int]:
    def work(item: Any) -> int:
        time.sleep(0.05)
        return os.getpid()

    return work


def backwards() -> Callable[[Any], Any]:
    """The array and the bytes of an item, each from its end to its start."""
    return lambda item: (item[0][::-1].copy(), item[1][::-1])


def noise(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def resized() -> Callable[[Any], Any]:
    """An item is an array and how many bytes its result has; the result is noise that depends on every byte of it."""
    return lambda item: noise(item[1], int(np.sum(item[0], dtype=np.int64)))


def keeping() -> Callable[[Any], int]:
    """Keeps every array it gets; how many of them are not as they came."""
    kept: list[tuple[Any, bytes]] = []

    def work(arrays: Any) -> int:
        changed = sum(array.tobytes() != data for array, data in kept)
        kept.extend((array, array.tobytes()) for array in arrays)
        return changed

    return work


def places() -> Callable[[Any], Any]:
    """The arrays, and how far each begins behind a multiple of its dtype's alignment."""
    return lambda arrays: (arrays, [array.ctypes.data % array.dtype.alignment for array in arrays])


def failing_at_thirds() -> Callable[[Any], Any]:
    def work(item: Any) -> Any:
        if item[0] % 3 == 0:
            raise ValueError(item[1].tobytes())
        return item[1]

    return work


def killed_while_it_writes(folder: str) -> Callable[[Any], Any]:
    """The first result is half written when its process is killed."""

    def half(self: Area, slot: int, side: Side, parts: Sequence[Part]) -> bool:
        put(self, slot, side, parts)
        if not os.listdir(folder):
            mark(folder)
            for view in self.views(slot, side, [len(part) for part in parts]):
                view[len(view) // 2 :] = bytes(len(view) - len(view) // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    put = Area.put
    Area.put = half  # type: ignore[method-assign]
    return lambda item: item


def open_files() -> Callable[[Any], Any]:
    """What this process has open, and what a program that it starts finds open."""

    def work(item: Any) -> Any:
        return targets(), children_targets()

    return work


def targets() -> list[str]:
    """Of this process's descriptors; one that is closed meanwhile (of the list itself) is left out."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{entry}"))
    return found


def children_targets() -> str:
    """Of a program's descriptors that is given whatever may be inherited."""
    command = [sys.executable, "-c", "import os; os.system('ls -l /proc/self/fd')"]
    return subprocess.run(command, close_fds=False, capture_output=True, check=True, timeout=60, text=True).stdout
