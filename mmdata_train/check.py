"""What can be wrong with a run, looked at before a cluster spends hours on it: sizes, shards, first batch, disk.

Opens the data as the run would, on one process and without a model; raw files are converted and indices cached, so the
run itself starts faster. Last, the layout is compared with one process on ranks of this machine: see `proof`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from mmdata_train.beginning import settle
from mmdata_train.config import TrainConfig
from mmdata_train.config_checks import check_run
from mmdata_train.counting import Done, check_supply, count_steps
from mmdata_train.course import course_lines, notices
from mmdata_train.data.show import batch_lines, open_run, open_tokenizer, share_lines
from mmdata_train.errors import ConfigError, DataError
from mmdata_train.launch import DeviceType
from mmdata_train.lora.layer import insert_adapters
from mmdata_train.lora.settings import LoraConfig
from mmdata_train.model.config import ModelConfig
from mmdata_train.model.decoder import Decoder
from mmdata_train.needs import Machine, check_needs
from mmdata_train.parity import STEPS
from mmdata_train.proof import facts_of, known, prove_here

MOST_RANKS = 8
"""Started for the comparison on a machine without GPUs; each takes about 300 MiB."""
_BYTES_A_WEIGHT = 12
"""Of a checkpoint: float32 weight and both of Adam's moments."""


def check_lines(config: TrainConfig, world_size: int) -> Iterator[str]:
    """One report, line by line. Raises what the run would: ConfigError, DataError, ModelError, CheckpointError and the
    data side's.
    """
    begun = settle(config)
    model = begun.model
    micro_batches = check_run(model, config.parallel, config.train, config.data.seq_length, world_size)
    check_needs(config, model, world_size, Machine.elsewhere())
    yield f"sizes: {config.parallel.layout(world_size)}, {micro_batches} micro-batches a step on each data rank"
    if begun.found is not None:
        yield f"checkpoint: {begun.found} fits; the run continues it"
    elif begun.config.start_from is not None:
        yield f"checkpoint: {begun.config.start_from} fits; the run starts from its weights"
    run = open_run(config, world_size, as_run=True)
    samples = len(run.data.samples)
    done = Done.of(begun.state)
    check_supply(config, samples, done)
    steps = config.train.steps or count_steps(config.train, samples, done)
    yield f"data: {samples:,} samples of {config.data.seq_length:,} tokens, {steps:,} steps"
    yield from share_lines(run.data)
    yield from course_lines(config.train, run.data, steps)
    yield from (f"notice: {text}" for text in notices(config, model, steps))
    silent = [share.path for share in run.data.shares() if share.counted == 0]
    if silent:
        raise DataError(f"{silent[0]}: no token of it counts in the loss; look at its loss spans, or take it out")
    yield from batch_lines(run, 0, 1, open_tokenizer(config))
    yield _disk(config, parameters_of(model, config.lora), steps)
    yield from _parity(config, world_size)


def _parity(config: TrainConfig, world_size: int) -> Iterator[str]:
    """Whether the layout trains like one process here. Raises ParityError, RankError."""
    if world_size == 1:
        yield "parity: one rank, nothing to compare"
        return
    if not config.parallel.parity_check:
        yield "parity: left out (parallel.parity_check is false)"
        return
    device: DeviceType = "cuda" if torch.cuda.device_count() >= world_size else "cpu"
    former = known(facts_of(config, world_size, device))
    what = f"{STEPS} steps of a small model like this one, torch {torch.__version__}, {device}"
    if former is not None:
        yield f"parity: equals one process within {former:.1e} ({what}; found before)"
    elif device == "cpu" and world_size > MOST_RANKS:
        yield (
            f"parity: not compared: {world_size} ranks are more than the {MOST_RANKS} this command starts without GPUs;"
            " the run itself compares before its first step"
        )
    else:
        yield f"parity: starting {world_size} ranks for {what}"
        yield f"parity: equals one process within {prove_here(config, world_size, device).difference:.1e}"


def parameters_of(model: ModelConfig, lora: LoraConfig | None = None) -> int:
    """Trained weights: the adapters', or the model's with vocabulary padding; built without memory."""
    with torch.device("meta"):
        part = Decoder(model)
    if lora is not None:
        insert_adapters(part, lora)
    return sum(weight.numel() for weight in part.parameters() if weight.requires_grad)


def _disk(config: TrainConfig, parameters: int, steps: int) -> str:
    """What checkpoints take against what is free. Raises ConfigError when they will not fit."""
    each = _BYTES_A_WEIGHT * parameters
    saves = 1 if not config.output.save_every else -(-steps // config.output.save_every)
    # The newest are kept, the best beside them, and a new one is whole before an old one goes.
    need = each * (min(config.output.keep, saves) + (saves > 1) + bool(config.data.valid))
    place = Path(config.output.dir).absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    words = (
        f"{parameters:,} weights, {each / 2**30:.2f} GiB a checkpoint, {need / 2**30:.2f} GiB for those kept at once,"
        f" {free / 2**30:.2f} GiB free in {place}"
    )
    if need > free:
        raise ConfigError(f"disk: {words}; free space, lower output.keep ({config.output.keep}), or move output.dir")
    return f"disk: {words}"
