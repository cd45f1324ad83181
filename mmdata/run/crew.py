"""The worker processes of this machine: started, fed over pipes and shared memory, buried, ended.

A worker is started once and may serve several functions in turn, so that what is costly to load is loaded once. Two
threads of the caller serve each worker's pipes; a worker costs its imports (0.3 s) and what it is asked to load.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mmdata.run.area import SLOTS, Area
from mmdata.run.channel import Line, Message, pack, widen
from mmdata.run.worker import STOP, THREAD_CAPS, Warm, serve

_GOODBYE_S = 1.0
_CLOSING_S = 30.0  # for what a worker built to close itself after the last item


@dataclass(slots=True)
class Task:
    """One item on its way. deaths: of workers that had it in hand. item: for the caller to work on it itself."""

    index: int
    message: Message
    description: str
    item: Any
    deaths: int = 0


@dataclass(slots=True, eq=False)
class Worker:
    """A process and the lines to and from it. ready: it has built the function of this map; warm: it has loaded what it
    was told to, so it can be given items before it is ready. ready_before: it has built a function. on_answer: called
    for every message, by the thread that receives it.

    slots: free ones; an item has one from when it is handed over until its answer has been copied. An item without an
    answer keeps it: its worker is dead, or could not build the function, which ends the map and its workers. One
    thread at a time hands items over, and the receiver gives slots back: a deque allows that without a lock.
    """

    process: Any  # multiprocessing's spawn process
    tasks_in: Line
    answers_out: Line
    events: queue.SimpleQueue[tuple[Worker, Message | None]]
    slots: deque[int] = field(default_factory=lambda: deque(range(SLOTS)))
    outbox: queue.SimpleQueue[tuple[Message, int | None] | None] = field(default_factory=queue.SimpleQueue)
    threads: list[threading.Thread] = field(default_factory=list)
    tasks: deque[Task] = field(default_factory=deque)
    ready: bool = False
    warm: bool = False
    ready_before: bool = False
    on_answer: Callable[[Worker], None] | None = None

    def start_threads(self) -> None:
        """One thread for each pipe: a worker that does not read while it computes must not stop the parent."""
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._receive)]
        for thread in self.threads:
            thread.start()

    def say(self, message: Message) -> None:
        """Send an order, one that is no item."""
        self.outbox.put((message, None))

    def hand(self, task: Task) -> None:
        """Send an item. There must be a free slot: one with fewer than SLOTS `tasks` has one."""
        assert self.slots, "an answered item kept its slot"
        self.tasks.append(task)
        self.outbox.put((task.message, self.slots.popleft()))

    def end(self, wait_s: float) -> str:
        """Wait for the process, kill it when it does not end by itself, close pipes and area; how it ended."""
        self.process.join(wait_s)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        how = _how_it_ended(self.process.exitcode)
        # Its pipes have no other end any more, so both threads end.
        self.outbox.put(None)
        for thread in self.threads:
            thread.join(_GOODBYE_S)
        self.tasks_in.close()
        self.answers_out.close()
        self.process.close()
        return how

    def _send(self) -> None:
        try:
            while (order := self.outbox.get()) is not None:
                self.tasks_in.send(*order)
        except OSError:
            pass  # a pipe to a process that just died: the receiver reports the death
        except BaseException:
            self.process.kill()  # it would wait for ever for what was not sent; the receiver reports its death
            raise

    def _receive(self) -> None:
        try:
            # a pipe from a process that ended
            with contextlib.suppress(EOFError, OSError):
                while True:
                    self._take_answer()
        finally:  # whatever happened, nothing more comes from this worker
            self.events.put((self, None))

    def _take_answer(self) -> None:
        lent, slot = self.answers_out.receive()
        message = lent.owned()
        del lent
        if slot is not None:
            assert slot not in self.slots, "two answers to one item"
            self.slots.append(slot)
        said = self.on_answer  # the caller may take it away meanwhile
        if said is not None:
            said(self)
        self.events.put((self, message))


class Crew:
    """The workers there are, and what they say. Not safe for several threads."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.functions = 0
        """How many functions they were told to build so far."""
        self.loaded: list[float] = []
        """When each had built its first one, as time.time()."""
        self._events: queue.SimpleQueue[tuple[Worker, Message | None]] = queue.SimpleQueue()
        self._warm: list[Message] = []

    def warm(self, load: Callable[[], object]) -> None:
        """Have every worker, those to come too, call `load`."""
        self._warm.append(pack(Warm(load)))
        for worker in self.workers:
            worker.say(self._warm[-1])

    def start(self) -> Worker:
        """One more worker."""
        context = multiprocessing.get_context("spawn")
        # two one-way pipes: a two-way one is a socket pair, which costs four times the processor time
        tasks_out, tasks_in = context.Pipe(duplex=False)
        answers_out, answers_in = context.Pipe(duplex=False)
        widen(tasks_in)
        widen(answers_in)
        area = Area.create()
        there = Line(tasks_out, area, "item"), Line(answers_in, area, "result")
        name = f"mmdata-worker-{len(self.workers)}"
        process = context.Process(target=serve, args=there, name=name, daemon=True)
        try:
            with _capped_threads(), _interrupts_blocked():
                process.start()
        finally:
            if area is not None:
                area.handed_over()
        tasks_out.close()
        answers_in.close()
        here = Line(tasks_in, area, "item"), Line(answers_out, area, "result")
        worker = Worker(process, *here, self._events)
        self.workers.append(worker)
        worker.start_threads()
        for order in self._warm:
            worker.say(order)
        return worker

    def event(self, timeout_s: float | None) -> tuple[Worker, Message | None] | None:
        """The next thing a worker said, with None for its death; None alone when nothing came in that time."""
        try:
            return self._events.get_nowait() if timeout_s is None else self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def bury(self, worker: Worker) -> str:
        """Take a dead worker out; how it ended. Its tasks stay in its hands."""
        self.workers.remove(worker)
        return worker.end(_GOODBYE_S)  # one whose pipe is broken is of no use any more, dead or not

    def close(self, gently: bool) -> None:
        """End every worker: gently those that are ready, once what they built has closed itself; others at once."""
        kind = [gently and worker.ready for worker in self.workers]
        for worker, waits in zip(self.workers, kind, strict=True):
            if waits:
                worker.say(STOP)
            else:
                worker.process.kill()
        for worker, waits in zip(self.workers, kind, strict=True):
            worker.end(_CLOSING_S if waits else _GOODBYE_S)
        self.workers.clear()
        self._events = queue.SimpleQueue()  # their last words are nobody's concern any more


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
