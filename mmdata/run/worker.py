"""What a worker process does: build the function it is told to, then answer items until told otherwise.

It reads one item ahead while it works, ignores Ctrl-C (the parent ends it) and ends at once when the parent is gone,
however the parent ended.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from mmdata.collector import collector_paused
from mmdata.errors import MMDataError, RunError
from mmdata.run.channel import Line, Message, pack

# One thread for each worker: as many workers as cores must not become cores times cores threads.
THREAD_CAPS = {
    "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "VECLIB_MAXIMUM_THREADS": "1", "ARROW_IO_THREADS": "1",
}  # fmt: skip


_Inbox = queue.Queue[tuple[Message, int | None] | None]


@dataclass(frozen=True, slots=True)
class Warm:
    """To a worker: call this, to have loaded what later functions need."""

    function: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Build:
    """To a worker: build the function of the items that follow. number: of this function, for the answer."""

    number: int
    build: Callable[[], Callable[[Any], Any]]


@dataclass(frozen=True, slots=True)
class Release:
    """To a worker: there are no more items for the function; let it go."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has built the function of this number, or done what Warm asked for. at: when, as time.time()."""

    number: int
    at: float


@dataclass(frozen=True, slots=True)
class NotBuilt:
    """The function of this number could not be built."""

    number: int
    fault: BaseException


@dataclass(frozen=True, slots=True)
class Answer:
    """The result for one item, or the exception it raised."""

    index: int
    result: Any = None
    fault: BaseException | None = None


def serve(tasks: Line, answers: Line) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    inbox: _Inbox = queue.Queue(maxsize=1)
    threading.Thread(target=_read_ahead, args=(tasks, inbox), daemon=True).start()
    # A broken pipe means that the parent is gone: nobody is left to tell.
    with contextlib.suppress(BrokenPipeError, ConnectionError):
        _work(inbox, answers)


def _work(inbox: _Inbox, answers: Line) -> None:
    function: Callable[[Any], Any] | None = None
    while (got := inbox.get()) is not None:
        message, slot = got
        order = _read(message)
        del got, message
        if isinstance(order, Warm):
            # Whoever needs what could not be loaded meets the same fault again and reports it.
            with contextlib.suppress(Exception), collector_paused():
                order.function()
            answers.send(pack(Ready(NO_FUNCTION, time.time())))
        elif isinstance(order, Release):
            _release(function)
            function = None
        elif isinstance(order, Build):
            _release(function)
            function = _build(order, answers)
        elif isinstance(order, NotBuilt):
            answers.send(pack(order))
        elif function is not None:
            index, item = order
            answers.send(_answer(function, index, item), slot)
            del item
    _release(function)


def _read(message: Message) -> Any:
    """The order; one that cannot be unpickled here is the caller's to hear of."""
    try:
        return message.load()
    except Exception as fault:
        return NotBuilt(NO_FUNCTION, portable(fault))


def _build(order: Build, answers: Line) -> Callable[[Any], Any] | None:
    try:
        with collector_paused():
            function = order.build()
        gc.freeze()  # what was built stays: no use in looking through it for garbage again and again
    except BaseException as fault:
        answers.send(pack(NotBuilt(order.number, portable(fault))))
        return None
    answers.send(pack(Ready(order.number, time.time())))
    return function


def _release(function: Callable[[Any], Any] | None) -> None:
    release = getattr(function, "close", None)
    if release is not None:
        release()


def _answer(function: Callable[[Any], Any], index: int, item: Any) -> Message:
    try:
        return pack(Answer(index, function(item)))
    except BaseException as fault:
        return pack(Answer(index, fault=portable(fault)))


def _read_ahead(tasks: Line, inbox: _Inbox) -> None:
    try:
        # a pipe from a caller that is gone
        with contextlib.suppress(EOFError, OSError):
            while True:
                message, slot = tasks.receive()
                inbox.put(None if message.data == STOP.data else (message, slot))
    finally:  # whatever happened, nothing more comes: this process ends, and what it had in hand is tried elsewhere
        inbox.put(None)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


STOP = pack(None)
RELEASE = pack(Release())
NO_FUNCTION = 0
"""In Ready: it has loaded what it was told to. In NotBuilt: an order could not be read, so nobody knows its number."""


def portable(fault: BaseException) -> BaseException:
    """The exception as it can cross a pipe; one that cannot be pickled and read back, or would end the
    parent without a word (SystemExit), becomes a RunError that names it.

    Where it is not one of our own errors, which explain themselves, its traceback comes along as a note.
    """
    if not isinstance(fault, MMDataError):
        lines = traceback.format_exception(fault)
        fault.add_note("raised in a worker process:\n" + "".join(lines).rstrip())
    try:
        if isinstance(fault, Exception) and type(pickle.loads(pickle.dumps(fault))) is type(fault):
            return fault
    except Exception as reason:
        fault.add_note(f"(it could not be handed over as it is: {reason})")
    stand_in = RunError(f"{type(fault).__name__}: {fault}")
    for note in getattr(fault, "__notes__", ()):
        stand_in.add_note(note)
    return stand_in
