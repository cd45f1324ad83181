"""Encoding that begins while duplicates are still decided, so that no core waits for the other.

A document that shares no key with another is kept for certain, and that is known early: sorting the keys is a small
part of deciding. While a thread of the parent compares candidates, such documents of the first frames are encoded;
the rest of each of these frames follows when it is decided, and both halves are joined: what comes out is what one
frame after the other would have given. Costs the tokens of a few frames of memory. With one worker there is nobody to
do both, and this is not used.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup.barrier import Barrier
from mmdata.dedup.decide import Watch
from mmdata.pipeline.frames import DedupSetup, FrameTask, decided_tasks, joined, write_decisions
from mmdata.pipeline.work import BlockResult

FRAMES_AHEAD = 8
"""For each worker; they hold 2 MiB of tokens each as a rule."""
_POLL_S = 0.1  # Ctrl-C is noticed between polls where waiting for a lock cannot be interrupted (Windows)


class _StoppedError(Exception):
    """The decision is of no use any more."""


class _Candidates(Watch):
    """Which of the first documents share a key; filled by the thread that decides."""

    def __init__(self, documents: int) -> None:
        self.shares = np.zeros(documents, np.bool_)
        self.known, self.stop = Event(), Event()

    def working(self) -> None:
        if self.stop.is_set():
            raise _StoppedError

    def candidates(self, documents: NDArray[np.uint64]) -> None:
        self.working()
        self.shares[documents[documents < len(self.shares)].astype(np.int64)] = True

    def candidates_known(self) -> None:
        self.known.set()


class DecisionAhead:
    """A decision in a thread of its own, and the tasks that can be done meanwhile and afterwards; a context manager.

    `tasks` goes into an executor and its results through `whole_frames`, both in one thread.
    """

    def __init__(self, setup: DedupSetup, barrier: Barrier, workers: int) -> None:
        self._setup = setup
        with barrier.reader() as reader:
            frames = min(len(reader), FRAMES_AHEAD * workers)
            self._firsts = [reader.first_document(frame) for frame in range(frames + 1)]
        self._candidates = _Candidates(self._firsts[-1])
        self._halves = 0  # frames whose certain documents were asked for
        self._clocks = time.process_time(), time.thread_time()
        self._pool = ThreadPoolExecutor(1)
        self._decided = self._pool.submit(write_decisions, setup, barrier, self._candidates)
        self._decided.add_done_callback(lambda _: self._candidates.known.set())  # with or without a result
        self.seconds = 0.0

    def __enter__(self) -> DecisionAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._candidates.stop.set()
        self._pool.shutdown()

    def tasks(self) -> Iterator[FrameTask]:
        """Certain documents of the first frames until all is decided, then the rest of these, then whole frames.

        Raises what deciding raises.
        """
        _wait(self._candidates.known.wait)
        while not self._decided.done() and self._halves < len(self._firsts) - 1:
            self._halves += 1
            yield FrameTask(self._halves - 1, [], ~self._shares(self._halves - 1))
        done = Event()
        self._decided.add_done_callback(lambda _: done.set())
        _wait(done.wait)
        self._decided.result()
        # Of all threads but this one, which has worked on frames.
        now = time.process_time(), time.thread_time()
        self.seconds = max(now[0] - self._clocks[0] - (now[1] - self._clocks[1]), 0.0)
        for task in decided_tasks(self._setup, 0):
            yield replace(task, only=self._shares(task.number)) if task.number < self._halves else task

    def _shares(self, frame: int) -> NDArray[np.bool_]:
        return self._candidates.shares[self._firsts[frame] : self._firsts[frame + 1]]

    def whole_frames(self, results: Iterable[BlockResult]) -> Iterator[BlockResult]:
        """From the results of `tasks`, in their order: those of whole frames. The first comes when all is decided."""
        halves: deque[BlockResult] = deque()
        for number, result in enumerate(results):
            if number < self._halves:  # a task behind these is made when their number is settled
                halves.append(result)
            else:
                yield joined(halves.popleft(), result) if halves else result


def _wait(wait: Callable[..., Any]) -> None:
    while not wait(timeout=_POLL_S):
        continue
