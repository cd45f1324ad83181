"""Loads the shingle sets that a decision asks for, several pieces at once, and hands them out in order.

Each piece is read and shingled by one thread while the caller compares the one before; both release the interpreter
lock. Memory: with n threads n + 1 pieces, within a limit in bytes, or a single larger one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def loaded_in_order(jobs: Iterable[tuple[int, Callable[[int], T]]], threads: int, most: int) -> Iterator[T]:
    """What the jobs give, in their order; what one raises comes where its result would have come.

    jobs: the bytes each takes and the job, called with a slot from 0 to `threads`. A slot is given again when its last
    result has been done with, that is, when the one behind it was asked for. threads: with one, the caller does all.
    most: bytes at a time. Leaving early waits for the jobs that are being done.
    """
    if threads == 1:
        for _, job in jobs:
            yield job(0)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[tuple[int, Future[T]]] = deque()
        held = 0
        for number, (size, job) in enumerate(jobs):
            while waiting and (len(waiting) > threads or held + size > most):
                yield waiting[0][1].result()
                held -= waiting.popleft()[0]
            waiting.append((size, pool.submit(job, number % (threads + 1))))
            held += size
        while waiting:
            yield waiting.popleft()[1].result()
