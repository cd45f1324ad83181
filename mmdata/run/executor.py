"""What a stage needs from whatever runs it, and the choice among the ways there are.

Only `local` exists in this version. Ray and `--shard i/n` join behind the same protocol; asked for by name they are
refused, never replaced by something else.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

from mmdata.errors import NotOfferedError, UsageError
from mmdata.run.local import LocalExecutor

T = TypeVar("T")
R = TypeVar("R")

EXECUTORS = ("local", "ray")
_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


class Executor(Protocol):
    """Applies a function to items, in order, somewhere else.

    `build` is a picklable function without arguments (a module-level function, or functools.partial of one), called
    once in each worker; it returns the function applied to every item, so what is costly to load is loaded once. If
    that function has a `close`, it is called at the end.
    An item that a worker process gets is a copy of its own: the function may keep it and change it.
    Results come in the order of the items, the same for any number of workers. Items are pulled lazily; only a few
    are in flight, bounded in bytes. Errors of the function arrive as themselves, with `describe(item)` in their notes,
    after the results of all items before. An item whose worker dies is tried once more; then WorkerDiedError names it.
    """

    @property
    def workers(self) -> int:
        """How many processes work at once."""
        ...

    @property
    def loaded(self) -> list[float]:
        """When each worker process had loaded what its first function needs, as time.time(); none where there is none.

        Empty again after `close`.
        """
        ...

    def prepare(self, warm: Callable[[], object]) -> None:
        """Start workers ahead of the first `map`, kept for all maps until `close`; each calls `warm`.

        Called again, it has the same workers call another `warm` too.

        warm: picklable, loads what will be needed; what it raises is left to the functions to raise again.
        """
        ...

    def close(self) -> None:
        """End the workers that `prepare` started."""
        ...

    def map(
        self, build: Callable[[], Callable[[T], R]], items: Iterable[T], *, describe: Callable[[T], str]
    ) -> Generator[R, None, None]:
        """The results in the order of the items. Closing the generator early ends every worker."""
        ...


def make_executor(
    name: str = "local", workers: int | None = None, shard: str | None = None, *, caller_works: bool = False
) -> Executor:
    """The executor of that name. workers: None takes one for each core this process may use.

    caller_works: the calling process may be one of them (see LocalExecutor).

    Raises NotOfferedError (a UsageError) for `ray` and for a shard `i/n`, UsageError for anything else.
    """
    if shard is not None:
        raise NotOfferedError(f"--shard {shard} is not offered yet: run the command on one machine with --workers N")
    if name == "ray":
        raise NotOfferedError("--executor ray is not offered yet: use --executor local with --workers N")
    if name not in EXECUTORS:
        near = difflib.get_close_matches(name, EXECUTORS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"unknown executor {name!r}: offered is local{hint}")
    return LocalExecutor(available_cores() if workers is None else workers, caller_works=caller_works)


def available_cores() -> int:
    """Cores this process may use: its affinity and its container's quota count, not the machine's size; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _quota() or cores)


def _quota() -> int | None:
    """Whole cores the control group grants, None for no limit (cpu.max: admin-guide/cgroup-v2 of kernel.org)."""
    try:
        granted, period = _CPU_MAX.read_text(encoding="ascii").split()
        return max(1, int(granted) // int(period))
    except (OSError, ValueError):  # no such file, or "max": no limit
        return None
