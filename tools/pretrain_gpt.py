#!/usr/bin/env python3
"""Train with Megatron's command line on this project's engine.

    python tools/pretrain_gpt.py --num-layers 48 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 \\
        --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 32 --tensor-model-parallel-size 4 \\
        --pipeline-model-parallel-size 2 --fp16 --save ./checkpoints --load ./pretrained_model \\
        --data-path my_text_document

Started as plain python it starts its own tensor x pipeline x data ranks on this machine; under torchrun it is one rank
of those that are there. Without --train-iters it trains one epoch. Every flag and its fate: docs/megatron-flags.md. The
same run as YAML is written to the --save folder as from_flags.yaml.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from mmdata.errors import MMDataError, UsageError
from mmdata.indexed.durable import disk_faults
from mmdata_train.config import TrainConfig
from mmdata_train.config_io import dump_yaml
from mmdata_train.console import shown_logging
from mmdata_train.errors import CommandLineError, LayoutError, exit_code_of
from mmdata_train.megatron_page import help_text, markdown
from mmdata_train.megatron_run import Prepared, make_ready, prepare

NAME = "pretrain_gpt"
MOST_LINES = 15
YAML = "from_flags.yaml"


def say(lines: Sequence[str]) -> None:
    """Lines on stderr, from the first rank only."""
    if os.environ.get("RANK", "0") == "0":
        for line in lines:
            print(f"{NAME}: {line}", file=sys.stderr, flush=True)


def complain(error: MMDataError) -> int:
    """What is wrong, within one screen; returns the exit code."""
    problems: tuple[str, ...] = (str(error),)
    rank = os.environ.get("RANK", "0")
    if isinstance(error, CommandLineError):
        say(error.notices[:MOST_LINES])
        problems = error.problems
    say([f"error: {problem}" for problem in problems[:MOST_LINES]])
    if len(problems) > MOST_LINES:
        say([f"... and {len(problems) - MOST_LINES} more"])
    if rank != "0" and not isinstance(error, UsageError):
        print(f"{NAME}: rank {rank}: error: {error}", file=sys.stderr, flush=True)
    return exit_code_of(error)


def world_here(config: TrainConfig) -> int:
    """Ranks to start on this machine: tensor x pipeline x data, where data ranks are as many as its GPUs allow.

    Raises LayoutError when there are GPUs but fewer than that.
    """
    import torch

    from mmdata_train.ranks import ranks_here

    parallel, devices, world = config.parallel, torch.cuda.device_count(), ranks_here(config)
    if 0 < devices < world:
        data = world // (parallel.tensor * parallel.pipeline)
        raise LayoutError(
            f"--tensor-model-parallel-size {parallel.tensor} x --pipeline-model-parallel-size {parallel.pipeline}"
            f" x {data} data ranks need {world} GPUs, but this machine has {devices}; lower one of them, or"
            " start the command with torchrun on several machines"
        )
    return world


def read(arguments: Sequence[str]) -> tuple[Prepared, int, bool]:
    """The run, its number of ranks, and whether they are running already. Raises CommandLineError, LayoutError."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        world = int(os.environ["WORLD_SIZE"])
        return prepare(arguments, world), world, True
    # What can be told without torch is told before it is loaded.
    world = world_here(prepare(arguments).config)
    return prepare(arguments, world), world, False


def train(prepared: Prepared) -> None:
    """Be one rank of the run."""
    from mmdata_train.run import finetune

    summary = finetune(prepared.config)
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(asdict(summary)))


def start(prepared: Prepared, world: int) -> None:
    """Refuse what every rank would refuse, then start the ranks with torchrun's launcher and wait for them."""
    from mmdata_train.ranks import start_ranks
    from mmdata_train.run import check_before_ranks

    check_before_ranks(prepared.config, world)
    start_ranks(world, ["finetune", str(Path(prepared.config.output.dir) / YAML), "--json"])


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code: 0 done, 1 failed, 2 wrong usage."""
    if "--help" in arguments or "-h" in arguments:
        print(help_text(__doc__ or ""))
        return 0
    if list(arguments) == ["--table"]:
        print(markdown(), end="")
        return 0
    try:
        prepared, world, running = read(arguments)
        ranks = "1 rank" if world == 1 else f"{world} ranks"
        say([*prepared.notices, f"{ranks}; the same run as YAML: {Path(prepared.config.output.dir) / YAML}"])
        make_ready(prepared)
        if os.environ.get("RANK", "0") == "0":
            folder = Path(prepared.config.output.dir)
            with disk_faults(str(folder)):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / YAML).write_text(dump_yaml(prepared.config), encoding="utf-8")
        with shown_logging():
            if world > 1 and not running:
                start(prepared, world)
            else:
                train(prepared)
    except MMDataError as error:
        return complain(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
