"""What a worker process does: build its function once, then answer items until told to stop.

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
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from mmdata.errors import MMDataError, RunError
from mmdata.run.channel import Message, pack, receive, send

# One thread for each worker: as many workers as cores must not become cores times cores threads.
THREAD_CAPS = {
    "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "VECLIB_MAXIMUM_THREADS": "1", "ARROW_IO_THREADS": "1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has built its function."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result for one item, or the exception it raised."""

    index: int
    result: Any = None
    fault: BaseException | None = None


def serve(tasks: Connection, answers: Connection, build: Message) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    inbox: queue.Queue[Message | None] = queue.Queue(maxsize=1)
    threading.Thread(target=_read_ahead, args=(tasks, inbox), daemon=True).start()
    # A broken pipe means that the parent is gone: nobody is left to tell.
    with contextlib.suppress(BrokenPipeError, ConnectionError):
        _work(inbox, answers, build)


def _work(inbox: queue.Queue[Message | None], answers: Connection, build: Message) -> None:
    try:
        function: Callable[[Any], Any] = build.load()()
        gc.freeze()  # what was built stays: no use in looking through it for garbage again and again
    except BaseException as fault:
        send(answers, pack(Answer(-1, fault=portable(fault))))
        return
    send(answers, pack(Ready()))
    while (message := inbox.get()) is not None:
        index, item = message.load()
        del message
        send(answers, _answer(function, index, item))
    release = getattr(function, "close", None)
    if release is not None:
        release()


def _answer(function: Callable[[Any], Any], index: int, item: Any) -> Message:
    try:
        return pack(Answer(index, function(item)))
    except BaseException as fault:
        return pack(Answer(index, fault=portable(fault)))


def _read_ahead(tasks: Connection, inbox: queue.Queue[Message | None]) -> None:
    while True:
        try:
            message = receive(tasks)
        except (EOFError, OSError):
            inbox.put(None)
            return
        inbox.put(None if message.data == STOP.data else message)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


STOP = pack(None)


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
