"""The hash of every input for the manifests, made in a thread of the calling process while it does something else.

Costs 0.3 s of one core for each GB, and reads each file once more. With deduplication that is best done while the
workers wait for the decision, which is why the run says when to begin.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from mmdata.errors import InputError
from mmdata.indexed.durable import digest_file
from mmdata.jsonl import InputFile


class InputDigests:
    """A context: leaving it with an error stops the thread, since nobody needs the hashes then."""

    def __init__(self, inputs: Sequence[InputFile]) -> None:
        self._inputs = inputs
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mmdata-digests")
        self._future: Future[list[str | None]] | None = None

    def begin(self) -> None:
        """Start, unless it was started before."""
        if self._future is None:
            self._future = self._pool.submit(hash_inputs, self._inputs, self._stop)

    def result(self) -> list[str | None]:
        """See hash_inputs; waits for the thread. Raises what it raises."""
        self.begin()
        assert self._future is not None
        return self._future.result()

    def __enter__(self) -> InputDigests:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._stop.set()
        self._pool.shutdown()


def hash_inputs(inputs: Sequence[InputFile], stop: threading.Event) -> list[str | None]:
    """xxh3-128 of each file as it is on disk; None for standard input and pipes.

    Raises InputError for a file that cannot be read to its end, CancelledError on `stop`.
    """
    found: list[str | None] = []
    for source in inputs:
        try:
            found.append(digest_file(source.path, stop=stop).xxh3_128 if os.path.isfile(source.path) else None)
        except OSError as fault:
            raise InputError(f"{source.path} cannot be read: {fault.strerror or fault}") from fault
    return found
