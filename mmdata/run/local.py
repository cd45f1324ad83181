"""The local executor: this process alone, or spawned worker processes fed over pipes.

With one worker everything happens in the calling process. With more, the parent pickles items, keeps at most two with
each worker (one being worked on, one read ahead), and holds finished results until their turn. Handing 4 MiB over and
back costs about 3 ms of the parent. A worker costs its imports (0.1 to 1 s) and is started only when there is work.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from mmdata.errors import UsageError, WorkerDiedError
from mmdata.run.channel import Message, pack, receive, send
from mmdata.run.worker import STOP, THREAD_CAPS, Answer, Ready, serve

T = TypeVar("T")
R = TypeVar("R")

MOST_WORKERS = 1024
_BYTES_PER_WORKER = 32 << 20
_AHEAD = 2  # items with one worker: one in work, one waiting
_ATTEMPTS = 2
_POLL_S = 0.1  # Ctrl-C is noticed between polls where waiting for a lock cannot be interrupted (Windows)
_GOODBYE_S = 1.0
_CLOSING_S = 30.0  # for what a worker built to close itself after the last item


class LocalExecutor:
    """Runs on this machine; see mmdata.run.executor.Executor for what it promises.

    workers: processes at work; 1 means the calling process. bytes_in_flight: most bytes of pickled items and results
    held at once (32 MiB for each worker by default); a larger item is handled alone.
    """

    def __init__(self, workers: int = 1, *, bytes_in_flight: int | None = None) -> None:
        if not 1 <= workers <= MOST_WORKERS:
            raise UsageError(f"--workers {workers}: at least 1 and at most {MOST_WORKERS}")
        self.workers = workers
        self._bytes = _BYTES_PER_WORKER * workers if bytes_in_flight is None else bytes_in_flight

    def map(
        self, build: Callable[[], Callable[[T], R]], items: Iterable[T], *, describe: Callable[[T], str]
    ) -> Generator[R, None, None]:
        """The results in the order of the items; close the generator (contextlib.closing) when leaving early."""
        if self.workers == 1:
            return _map_here(build, items, describe)
        return _Pool(self.workers, self._bytes, pack(build), describe).run(items)


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


@dataclass(slots=True)
class _Task:
    index: int
    message: Message
    description: str
    deaths: int = 0


@dataclass(slots=True, eq=False)
class _Worker:
    process: Any  # multiprocessing's spawn process
    tasks_in: Connection
    answers_out: Connection
    events: queue.Queue[tuple[_Worker, Message | None]]
    outbox: queue.SimpleQueue[Message | None] = field(default_factory=queue.SimpleQueue)
    threads: list[threading.Thread] = field(default_factory=list)
    tasks: deque[_Task] = field(default_factory=deque)
    ready: bool = False

    def start_threads(self) -> None:
        """One thread for each pipe: a worker that does not read while it computes must not stop the parent."""
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._receive)]
        for thread in self.threads:
            thread.start()

    def close(self) -> None:
        """After the process has ended: its pipes have no other end any more, so both threads end."""
        self.outbox.put(None)
        for thread in self.threads:
            thread.join(_GOODBYE_S)
        self.tasks_in.close()
        self.answers_out.close()
        self.process.close()

    def _send(self) -> None:
        # a pipe to a process that just died: the receiver reports the death
        with contextlib.suppress(OSError):
            while (message := self.outbox.get()) is not None:
                send(self.tasks_in, message)

    def _receive(self) -> None:
        while True:
            try:
                message = receive(self.answers_out)
            except (EOFError, OSError):
                self.events.put((self, None))
                return
            self.events.put((self, message))


@dataclass(slots=True, frozen=True)
class _Outcome:
    """What became of one item. size: bytes of the result that wait for their turn."""

    answer: Answer
    description: str
    size: int


class _Pool:
    """One map over worker processes. The thread that iterates does all the work; receivers only read pipes."""

    def __init__(self, workers: int, byte_limit: int, build: Message, describe: Callable[[Any], str]) -> None:
        self._most = workers
        self._byte_limit = byte_limit
        self._build = build
        self._describe = describe
        self._workers: list[_Worker] = []
        self._events: queue.Queue[tuple[_Worker, Message | None]] = queue.Queue()
        self._waiting: deque[_Task] = deque()  # pulled or given back by a dead worker, with nobody
        self._outcomes: dict[int, _Outcome] = {}
        self._pulled = self._yielded = 0
        self._bytes = 0
        self._failed_starts = 0

    def run(self, items: Iterable[Any]) -> Generator[Any, None, None]:
        source = iter(items)
        exhausted = False
        source_fault: BaseException | None = None
        finished = False
        try:
            while True:
                while not exhausted and self._has_room():
                    try:
                        self._pull(next(source))
                    except StopIteration:
                        exhausted = True
                    except Exception as fault:  # what came before is handed out first
                        exhausted, source_fault = True, fault
                self._hand_out()
                while (outcome := self._outcomes.pop(self._yielded, None)) is not None:
                    self._yielded += 1
                    self._bytes -= outcome.size
                    yield _result_of(outcome)
                    del outcome
                if exhausted and self._yielded == self._pulled:
                    if source_fault is not None:
                        raise source_fault
                    finished = True
                    return
                if not (self._has_room() and not exhausted):
                    self._take_event()
        finally:
            self._shut_down(gently=finished)

    def _has_room(self) -> bool:
        """Whether another item may be pulled: nobody to wait for, count and bytes below their limits."""
        if self._waiting:
            return False
        held = self._pulled - self._yielded
        with_workers = sum(len(worker.tasks) for worker in self._workers)
        return (
            held < (_AHEAD + 1) * self._most
            and with_workers < _AHEAD * self._most
            and (held == 0 or self._bytes < self._byte_limit)
        )

    def _pull(self, item: Any) -> None:
        message = pack((self._pulled, item))
        self._waiting.append(_Task(self._pulled, message, self._describe(item)))
        self._pulled += 1
        self._bytes += message.size

    def _hand_out(self) -> None:
        while self._waiting:
            task = self._waiting[0]
            too_large = self._bytes > self._byte_limit and any(worker.tasks for worker in self._workers)
            if too_large and not task.deaths:
                return
            worker = self._choose(fresh=task.deaths > 0)
            if worker is None:
                return
            self._waiting.popleft()
            worker.tasks.append(task)
            worker.outbox.put(task.message)

    def _choose(self, fresh: bool) -> _Worker | None:
        """The worker for the next task: an idle one, else a new one, else the one with the least to do."""
        free = [worker for worker in self._workers if len(worker.tasks) < _AHEAD]
        best = min(free, key=lambda worker: len(worker.tasks), default=None)
        if len(self._workers) < self._most and (fresh or best is None or best.tasks):
            return self._start()
        return best

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        # two one-way pipes: a two-way one is a socket pair, which costs four times the processor time
        tasks_out, tasks_in = context.Pipe(duplex=False)
        answers_out, answers_in = context.Pipe(duplex=False)
        name = f"mmdata-worker-{len(self._workers)}"
        process = context.Process(target=serve, args=(tasks_out, answers_in, self._build), name=name, daemon=True)
        with _capped_threads(), _interrupts_blocked():
            process.start()
        tasks_out.close()
        answers_in.close()
        worker = _Worker(process, tasks_in, answers_out, self._events)
        self._workers.append(worker)
        worker.start_threads()
        return worker

    def _take_event(self) -> None:
        """Wait for one answer or one death, then take whatever else is there."""
        while True:
            try:
                worker, message = self._events.get(timeout=_POLL_S)
                break
            except queue.Empty:
                continue
        while True:
            if message is None:
                self._bury(worker)
            else:
                self._note(worker, message)
            try:
                worker, message = self._events.get_nowait()
            except queue.Empty:
                return

    def _note(self, worker: _Worker, message: Message) -> None:
        answer = message.load()
        if isinstance(answer, Ready):
            worker.ready, self._failed_starts = True, 0
            return
        assert isinstance(answer, Answer)
        if answer.index < 0:
            assert answer.fault is not None
            raise answer.fault
        task = worker.tasks.popleft()
        assert task.index == answer.index
        self._bytes += message.size - task.message.size
        self._outcomes[task.index] = _Outcome(answer, task.description, message.size)

    def _bury(self, worker: _Worker) -> None:
        """Take a dead worker's tasks back; the one it was working on may die only once more."""
        worker.process.join(_GOODBYE_S)
        if worker.process.is_alive():  # its pipe is broken, so it is of no use any more
            worker.process.kill()
            worker.process.join()
        self._workers.remove(worker)
        how = _how_it_ended(worker.process.exitcode)
        worker.close()
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
        self._waiting.extendleft(reversed(worker.tasks))

    def _shut_down(self, gently: bool) -> None:
        for worker in self._workers:
            if gently:
                worker.outbox.put(STOP)
            else:
                worker.process.kill()
        for worker in self._workers:
            worker.process.join(_CLOSING_S if gently else _GOODBYE_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.close()
        self._workers.clear()


def _result_of(outcome: _Outcome) -> Any:
    fault = outcome.answer.fault
    if fault is not None:
        _name_item(fault, outcome.description)
        raise fault
    return outcome.answer.result


def _how_it_ended(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        try:
            name = signal.Signals(-exitcode).name
        except ValueError:
            name = f"signal {-exitcode}"
        return f"{name}, often the system's answer to too little memory" if name == "SIGKILL" else name
    return f"exit code {exitcode}"


@contextlib.contextmanager
def _capped_threads() -> Iterator[None]:
    """Environment for a process about to be spawned: libraries read these when they load, before our code runs."""
    before = {name: os.environ.get(name) for name in THREAD_CAPS}
    os.environ.update(THREAD_CAPS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Ctrl-C waits while a process is spawned, and the process inherits the block: the parent alone answers it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
