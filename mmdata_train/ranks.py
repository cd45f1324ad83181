"""Starting the ranks of a run on this machine when it was started as a plain command.

Under torchrun (or Slurm through it) the environment names the rank and nothing is started. Otherwise torch's own
elastic launcher starts the ranks, waits for them, and ends the rest when one fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import torch
from torch.distributed.run import get_args_parser
from torch.distributed.run import run as run_elastic

from mmdata_train.config import TrainConfig


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

    Raises torch's ChildFailedError when one fails; that rank has said why.
    """
    # Threads of all ranks together should not outnumber the cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    launch = ["--standalone", f"--nproc-per-node={count}", "-m", "mmdata_train", *arguments]
    sys.stderr.flush()
    run_elastic(get_args_parser().parse_args(launch))  # type: ignore[no-untyped-call]
