"""The local executor: this process alone, or spawned worker processes fed through pipes and shared memory.

With one worker everything happens in the calling process. With more, the parent pickles items, keeps at most two with
each worker (one being worked on, one read ahead), and holds finished results until their turn. What handing them over
costs is said in area.py and channel.py. A worker costs its imports (0.3 to 1 s) and what it loads; it is started when
there is work, or ahead of it by `prepare`.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from mmdata.errors import UsageError, WorkerDiedError
from mmdata.run.area import SLOTS
from mmdata.run.channel import Message, pack
from mmdata.run.crew import Crew, Task, Worker
from mmdata.run.worker import NO_FUNCTION, RELEASE, Answer, Build, NotBuilt, Ready

T = TypeVar("T")
R = TypeVar("R")

MOST_WORKERS = 1024
_BYTES_PER_WORKER = 32 << 20
_STOCK = 2  # where the caller works: items that wait for whoever is free first
_HELD = 16  # and pulled items whose turn has not come: what the caller has done may wait for one of the worker
_ATTEMPTS = 2
_SWITCH_S = 0.0005  # a receiver waits that long for the interpreter while the caller works; its worker waits with it
_POLL_S = 0.1  # Ctrl-C is noticed between polls where waiting for a lock cannot be interrupted (Windows)


class LocalExecutor:
    """Runs on this machine; see mmdata.run.executor.Executor for what it promises.

    workers: processes at work; 1 means the calling process. bytes_in_flight: most bytes of pickled items and results
    held at once (32 MiB for each worker by default); a larger item is handled alone. caller_works: with two workers,
    the caller is one of them: it takes an item whenever the other has enough to do, or has not started yet.
    """

    def __init__(self, workers: int = 1, *, bytes_in_flight: int | None = None, caller_works: bool = False) -> None:
        if not 1 <= workers <= MOST_WORKERS:
            raise UsageError(f"--workers {workers}: at least 1 and at most {MOST_WORKERS}")
        self.workers = workers
        self._bytes = _BYTES_PER_WORKER * workers if bytes_in_flight is None else bytes_in_flight
        # With more workers the parent has its hands full, and a crash in native code must not take it along.
        self._caller_works = caller_works and workers == 2
        self._kept: Crew | None = None

    @property
    def _spawned(self) -> int:
        return self.workers - self._caller_works

    @property
    def loaded(self) -> list[float]:
        """When each worker process that `prepare` started had built its first function, as time.time()."""
        return [] if self._kept is None else list(self._kept.loaded)

    def prepare(self, warm: Callable[[], object]) -> None:
        """Start the workers now and keep them from map to map until `close`; each calls `warm`, and those of later
        calls.

        warm: picklable, loads what will be needed; what it raises is left to the functions to raise again.
        """
        if self.workers == 1:
            return
        if self._kept is None:
            self._kept = Crew()
            for _ in range(self._spawned):
                self._kept.start()
        self._kept.warm(warm)

    def close(self) -> None:
        """End the workers that `prepare` started."""
        if self._kept is not None:
            self._kept.close(gently=True)
            self._kept = None

    def map(
        self, build: Callable[[], Callable[[T], R]], items: Iterable[T], *, describe: Callable[[T], str]
    ) -> Generator[R, None, None]:
        """The results in the order of the items; close the generator (contextlib.closing) when leaving early."""
        if self.workers == 1:
            return _map_here(build, items, describe)
        crew = Crew() if self._kept is None else self._kept
        here = _Here(build) if self._caller_works else None
        return _Map(crew, (self._spawned, self.workers, self._bytes), build, here, describe).run(
            items, keep=self._kept is not None
        )


class _Here:
    """The function as the calling process applies it; built when first needed."""

    def __init__(self, build: Callable[[], Callable[[Any], Any]]) -> None:
        self._build = build
        self._function: Callable[[Any], Any] | None = None

    def answer(self, task: Task) -> Answer:
        """As a worker would answer. Errors of building pass through."""
        if self._function is None:
            self._function = self._build()
        try:
            return Answer(task.index, self._function(task.item))
        except Exception as fault:
            return Answer(task.index, fault=fault)

    def close(self) -> None:
        release = getattr(self._function, "close", None)
        if release is not None:
            release()


def _map_here(
    build: Callable[[], Callable[[T], R]], items: Iterable[T], describe: Callable[[T], str]
) -> Generator[R, None, None]:
    function = build()
    try:
        for item in items:
            try:
                result = function(item)
            except Exception as fault:
                _name_item(fault, describe(item))
                raise
            yield result
    finally:
        release = getattr(function, "close", None)
        if release is not None:
            release()


def _name_item(fault: BaseException, description: str) -> None:
    fault.add_note(f"while working on {description}")


@dataclass(slots=True, frozen=True)
class _Outcome:
    """What became of one item. size: bytes of the result that wait for their turn."""

    answer: Answer
    description: str
    size: int


class _Map:
    """One map over worker processes. The thread that iterates does all the work; receivers take answers and hand
    the next item out."""

    def __init__(
        self, crew: Crew, limits: tuple[int, int, int], build: Callable[[], Callable[[Any], Any]],
        here: _Here | None, describe: Callable[[Any], str],
    ) -> None:  # fmt: skip
        """limits: worker processes, processes at work, bytes in flight."""
        self._crew = crew
        self._spawned, most, self._byte_limit = limits
        self._most_waiting, self._most_held = (1, (SLOTS + 1) * most) if here is None else (_STOCK, _HELD)
        crew.functions += 1
        self._number = crew.functions
        self._build = pack(Build(self._number, build))
        self._here = here
        self._describe = describe
        self._waiting: deque[Task] = deque()  # pulled or given back by a dead worker, with nobody
        self._handing = threading.Lock()  # of tasks from `_waiting` to workers, which receivers do too
        self._outcomes: dict[int, _Outcome] = {}
        self._source: Iterator[Any] | None = None  # None when it is exhausted
        self._source_fault: BaseException | None = None
        self._pulled = self._yielded = 0
        self._bytes = 0
        self._failed_starts = 0

    def run(self, items: Iterable[Any], keep: bool) -> Generator[Any, None, None]:
        """keep: leave the workers running afterwards, unless something went wrong."""
        self._source = iter(items)
        finished = False
        switch_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        try:
            for worker in self._crew.workers:
                self._tell(worker)
            self._listen(self._crew.event(None))
            while True:
                while self._has_room() and self._pull():
                    pass
                self._hand_out()
                while (outcome := self._outcomes.pop(self._yielded, None)) is not None:
                    self._yielded += 1
                    self._bytes -= outcome.size
                    yield _result_of(outcome)
                    del outcome
                if self._all_done():
                    finished = True
                    return
                if not self._has_room():
                    self._progress()
        finally:
            sys.setswitchinterval(switch_s)
            try:
                self._leave(finished, keep)
            finally:
                if self._here is not None:
                    self._here.close()

    def _leave(self, finished: bool, keep: bool) -> None:
        for worker in self._crew.workers:
            worker.on_answer = None
        if not (finished and keep):
            self._crew.close(gently=finished)
            return
        for worker in self._crew.workers:
            worker.say(RELEASE)

    def _all_done(self) -> bool:
        """Whether nothing is left. Raises what the source raised, once all before it has been handed out."""
        if self._source is not None or self._yielded < self._pulled:
            return False
        if self._source_fault is not None:
            raise self._source_fault
        return True

    def _within_limits(self) -> bool:
        held = self._pulled - self._yielded
        # What the caller has done itself waits for the first items, which a worker has that is still building.
        ahead = self._here is not None and not all(worker.ready for worker in self._crew.workers)
        few = ahead or held < self._most_held
        return few and (held == 0 or self._bytes < self._byte_limit)

    def _has_room(self) -> bool:
        """Whether another item may be pulled for a worker: few wait, count and bytes are below their limits."""
        if self._source is None or len(self._waiting) >= self._most_waiting:
            return False
        if self._here is not None and not any(worker.ready or worker.warm for worker in self._crew.workers):
            return not self._crew.workers  # the first item starts one
        with_workers = sum(len(worker.tasks) for worker in self._crew.workers)
        wanted = self._here is not None or with_workers < SLOTS * self._spawned
        return wanted and self._within_limits()

    def _pull(self) -> bool:
        """Take the next item from the source; False when there is none, or when the source has failed."""
        assert self._source is not None
        try:
            item = next(self._source)
        except StopIteration:
            self._source = None
            return False
        except Exception as fault:  # what came before is handed out first
            self._source, self._source_fault = None, fault
            return False
        message = pack((self._pulled, item))
        kept = None if self._here is None else item
        self._waiting.append(Task(self._pulled, message, self._describe(item), kept))
        self._pulled += 1
        self._bytes += message.size
        return True

    def _hand_out(self) -> None:
        with self._handing:
            while self._waiting:
                task = self._waiting[0]
                too_large = self._bytes > self._byte_limit and any(worker.tasks for worker in self._crew.workers)
                if too_large and not task.deaths:
                    return
                worker = self._choose(fresh=task.deaths > 0)
                if worker is None:
                    return
                worker.hand(self._waiting.popleft())

    def _refill(self, worker: Worker) -> None:
        """The next item for a worker that said something; by its receiver, as the caller may be at work for a while."""
        with self._handing:
            if worker.slots and self._waiting and not self._waiting[0].deaths and self._bytes <= self._byte_limit:
                worker.hand(self._waiting.popleft())

    def _choose(self, fresh: bool) -> Worker | None:
        """The worker for the next task: an idle one, else a new one, else the one with the least to do.

        Where the caller works too, a new one gets nothing before it has loaded what it needs.
        """
        free = [worker for worker in self._crew.workers if len(worker.tasks) < SLOTS]
        best = min(free, key=lambda worker: len(worker.tasks), default=None)
        if len(self._crew.workers) < self._spawned and (fresh or best is None or best.tasks):
            best = self._crew.start()
            self._tell(best)
        return best if best is None or best.ready or best.warm or self._here is None else None

    def _tell(self, worker: Worker) -> None:
        worker.ready = False
        worker.say(self._build)
        worker.on_answer = None if self._here is None else self._refill

    def _progress(self) -> None:
        """Take what workers said; where nobody said anything, work here, or wait until somebody does."""
        event = self._crew.event(None)
        if event is None:
            if self._work_here():
                return
            while (event := self._crew.event(_POLL_S)) is None:
                continue
        self._listen(event)

    def _listen(self, event: tuple[Worker, Message | None] | None) -> None:
        """Take this and everything else that has been said."""
        while event is not None:
            worker, message = event
            if message is None:
                self._bury(worker)
            else:
                self._note(worker, message)
            event = self._crew.event(None)

    def _work_here(self) -> bool:
        """Work on one item in the calling process, if it may and there is one that has killed no worker."""
        if self._here is None:
            return False
        if not self._waiting:
            if self._source is None or not self._within_limits():
                return False
            if not self._pull():
                return True  # the end has been met: the loop looks at what is left
        with self._handing:
            task = next((task for task in self._waiting if not task.deaths), None)
            if task is None:
                return False
            self._waiting.remove(task)
        # What the result takes is not known without packing it; it is taken for as large as the item.
        self._outcomes[task.index] = _Outcome(self._here.answer(task), task.description, task.message.size)
        return True

    def _note(self, worker: Worker, message: Message) -> None:
        answer = message.load()
        if isinstance(answer, Ready):
            self._failed_starts = 0
            if answer.number != NO_FUNCTION and not worker.ready_before:
                worker.ready_before = True
                self._crew.loaded.append(answer.at)
            worker.ready = worker.ready or answer.number == self._number
            worker.warm = worker.warm or answer.number == NO_FUNCTION
        elif isinstance(answer, NotBuilt):
            if answer.number in (self._number, NO_FUNCTION):  # else nobody needs that function any more
                raise answer.fault
        else:
            assert isinstance(answer, Answer)
            task = worker.tasks.popleft()
            assert task.index == answer.index
            self._bytes += message.size - task.message.size
            self._outcomes[task.index] = _Outcome(answer, task.description, message.size)

    def _bury(self, worker: Worker) -> None:
        """Take a dead worker's tasks back; the one it was working on may die only once more."""
        how = self._crew.bury(worker)
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= _ATTEMPTS:
                raise WorkerDiedError(
                    f"worker processes end before they start to work ({how}). A script that uses workers > 1 must "
                    'start its work below `if __name__ == "__main__":`, since workers import it; else use workers=1'
                )
        elif worker.tasks:
            culprit = worker.tasks[0]
            culprit.deaths += 1
            if culprit.deaths >= _ATTEMPTS:
                worker.tasks.popleft()
                fault = WorkerDiedError(
                    f"the worker on {culprit.description} died twice ({how}). If memory ran out, use fewer --workers "
                    "or a smaller --memory; else look at that input"
                )
                self._bytes -= culprit.message.size
                self._outcomes[culprit.index] = _Outcome(Answer(culprit.index, fault=fault), culprit.description, 0)
        with self._handing:
            self._waiting.extendleft(reversed(worker.tasks))


def _result_of(outcome: _Outcome) -> Any:
    fault = outcome.answer.fault
    if fault is not None:
        _name_item(fault, outcome.description)
        raise fault
    return outcome.answer.result
