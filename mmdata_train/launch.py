"""A pool of ranks on this machine: spawned processes in one group that run one function after another.

For checks and tests that need several ranks: starting processes and importing torch costs seconds, running a small
function in them does not. Every call has a deadline; past it, or when a rank fails, all ranks are ended and the error
says which rank failed first. Ranks on the CPU form a gloo group and see no GPU; ranks on GPUs take one each and form
an NCCL group, with gloo beside it for host tensors. One machine only; several need torchrun.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, cast

from mmdata_train.errors import RankError

DeviceType = Literal["cpu", "cuda"]
StartMethod = Literal["spawn", "forkserver"]


class RankPool:
    """`size` ranks; use as a context manager, or call `close`.

    deadline_s: seconds a call may take, the start of the ranks included in the first. device: `cuda` gives rank r the
    GPU r. threads: of torch's operators in each rank. method: `forkserver` (not on Windows) starts ranks in
    milliseconds once multiprocessing.set_forkserver_preload has named torch; `spawn` imports it anew in each.
    """

    def __init__(
        self,
        size: int,
        deadline_s: float = 120.0,
        device: DeviceType = "cpu",
        *,
        threads: int = 1,
        method: StartMethod = "spawn",
    ) -> None:
        self.size = size
        self.deadline_s = deadline_s
        self.device = device
        self.threads = threads
        self.method = method
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
        context: Any = multiprocessing.get_context(self.method)
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        store = str(Path(self._folder.name) / "store")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            place = _Place(rank, self.size, store, self.device, self.threads, self.deadline_s, dict(os.environ))
            process = context.Process(target=_serve, args=(place, theirs), daemon=True)
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


@dataclass(frozen=True, slots=True)
class _Place:
    """What a rank is told at its start. store: the file the ranks meet at. deadline_s: of a call, which no collective
    outlasts. environment: of the process that starts it; the server that forks it has that of an earlier moment.
    """

    rank: int
    size: int
    store: str
    device: DeviceType
    threads: int
    deadline_s: float
    environment: dict[str, str]


def _serve(place: _Place, pipe: Connection) -> None:
    """A rank's life: join the group, run what comes, answer."""
    os.environ.clear()
    os.environ.update(place.environment, OMP_NUM_THREADS=str(place.threads))
    if place.device == "cpu":
        # Code that picks a device by itself must pick the one of the group.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    else:
        os.environ["LOCAL_RANK"] = str(place.rank)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(place.threads)
    _start_group(place)
    while (call := pipe.recv()) is not None:
        function, arguments = call
        try:
            answer = (False, function(*arguments))
        except Exception:
            answer = (True, traceback.format_exc())
        pipe.send(answer)
    dist.destroy_process_group()


def _start_group(place: _Place) -> None:
    import torch
    import torch.distributed as dist

    backend = "gloo"
    if place.device == "cuda":
        torch.cuda.set_device(place.rank)
        backend = "cuda:nccl,cpu:gloo"
    dist.init_process_group(
        backend, init_method=Path(place.store).as_uri(), rank=place.rank, world_size=place.size,
        timeout=timedelta(seconds=place.deadline_s),
    )  # fmt: skip
