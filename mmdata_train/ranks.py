"""Starting the ranks of a run on this machine when it was started as a plain command.

Under torchrun (or Slurm through it) the environment names the rank and nothing is started. Otherwise torch's own
elastic launcher starts the ranks, waits for them, and ends the rest when one fails.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import get_args_parser
from torch.distributed.run import run as run_elastic

from mmdata_train.config import TrainConfig
from mmdata_train.errors import RankError
from mmdata_train.mesh import require_devices


def under_launcher() -> bool:
    """Whether a launcher started this process as one rank of a run."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def ranks_here(config: TrainConfig) -> int:
    """Ranks to start: the product of the degrees; where `data` is null, as many as this machine's devices allow."""
    parallel = config.parallel
    block = parallel.tensor * parallel.pipeline
    if parallel.data is not None:
        return block * parallel.data
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 1
    return block * max(1, devices // block)


def start_ranks(count: int, arguments: Sequence[str]) -> None:
    """Run `python -m mmdata_train ARGUMENTS` on `count` ranks of this machine; returns when all are done.

    Raises LayoutError for more ranks than GPUs, RankError naming the rank that failed first, or the signal that ended
    the run.
    """
    require_devices(count)
    # Threads of all ranks together should not outnumber the cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    # The launcher's own account of a failed rank says less than the error raised here.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    launch = ["--standalone", f"--nproc-per-node={count}", "-m", "mmdata_train", *arguments]
    sys.stderr.flush()
    try:
        run_elastic(get_args_parser().parse_args(launch))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        raise _failure({rank: failure.exitcode for rank, failure in error.failures.items()}, error) from None
    except SignalException as error:
        raise RankError(f"stopped by {error.sigval.name}; the same command goes on from the last checkpoint") from None


def _failure(codes: Mapping[int, int], error: ChildFailedError) -> RankError:
    """The error for ranks that ended with these exit codes (negative: a signal)."""
    # A rank killed from outside takes the others with it within the launcher's poll: it comes first.
    killed = sorted(rank for rank, code in codes.items() if code < 0 and -code != signal.SIGTERM)
    rank = killed[0] if killed else error.get_first_failure()[0]
    return RankError(f"rank {rank} failed first: {explain_exit(codes[rank])}", 2 if codes[rank] == 2 else 1)


def explain_exit(code: int) -> str:
    """What an exit code of a rank says about its end. Negative: the number of the signal that ended it."""
    if code == -9:
        return (
            "it was killed by signal 9, which is most often the system ending the process that holds most of the host's"
            " memory. Look for 'out of memory' in the system log; use fewer ranks on this machine, lower"
            " data.loading.workers, set parallel.cpu_offload: false, or output.async_save: false (a save keeps a host"
            " copy of the rank's state)"
        )
    if code == -6:
        return (
            "it aborted (signal 6). NCCL does so when a collective takes longer than parallel.timeout_minutes: the rank"
            " it waited for is slower, stuck or gone; that rank's lines above say more"
        )
    if code < 0:
        return f"it was ended by signal {-code} ({signal.Signals(-code).name})"
    return f"exit code {code}; its own lines above say why"
