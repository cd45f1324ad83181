"""A pool of ranks on this machine: spawned processes in one gloo group that run one function after another.

For checks and tests that need several ranks: starting processes and importing torch costs seconds, running a small
function in them does not. Every call has a deadline; past it, or when a rank fails, all ranks are ended and the error
says which rank failed first.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

from mmdata_train.errors import RankError


class RankPool:
    """`size` ranks; use as a context manager, or call `close`."""

    def __init__(self, size: int, deadline_s: float = 120.0) -> None:
        self.size = size
        self.deadline_s = deadline_s
        self._ranks: list[tuple[BaseProcess, Connection]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """`function(*arguments)` on every rank, results in the order of ranks. Function and values must pickle.

        Raises RankError with the first failing rank's traceback, or when the deadline passes.
        """
        if not self._ranks:
            self._start()
        for _, pipe in self._ranks:
            pipe.send((function, arguments))
        results: dict[int, Any] = {}
        pipes = {pipe: rank for rank, (_, pipe) in enumerate(self._ranks)}
        end = time.monotonic() + self.deadline_s
        while len(results) < self.size:
            waiting = [pipe for pipe, rank in pipes.items() if rank not in results]
            ready = cast("list[Connection]", wait(waiting, timeout=max(0.0, end - time.monotonic())))
            if not ready:
                silent = [pipes[pipe] for pipe in waiting]
                self.close()
                raise RankError(f"ranks {silent} did not answer within {self.deadline_s:g} s; all ranks were ended")
            for pipe in ready:
                results[pipes[pipe]] = self._receive(pipes[pipe], pipe)
        return [results[rank] for rank in range(self.size)]

    def _receive(self, rank: int, pipe: Connection) -> Any:
        try:
            failed, value = pipe.recv()
        except EOFError:
            process = self._ranks[rank][0]
            process.join(5)
            code = process.exitcode
            self.close()
            hint = "; signal 9 is most often the system out of memory" if code == -9 else ""
            raise RankError(f"rank {rank} died with exit code {code}{hint}") from None
        if failed:
            self.close()
            raise RankError(f"rank {rank} failed first:\n{value}")
        return value

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        store = str(Path(self._folder.name) / "store")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.size, store, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ranks.append((process, ours))

    def close(self) -> None:
        """End the ranks: asked first, killed after a moment."""
        ranks, self._ranks = self._ranks, []
        for _, pipe in ranks:
            with contextlib.suppress(OSError):
                pipe.send(None)
        end = time.monotonic() + 2.0
        for process, pipe in ranks:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _serve(rank: int, size: int, store: str, pipe: Connection) -> None:
    """A rank's life: join the group, run what comes, answer."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(store).as_uri(), rank=rank, world_size=size)
    while (call := pipe.recv()) is not None:
        function, arguments = call
        try:
            answer = (False, function(*arguments))
        except Exception:
            answer = (True, traceback.format_exc())
        pipe.send(answer)
    dist.destroy_process_group()
