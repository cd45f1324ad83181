"""Checks across sections: layout against model, batch and sequence. Every message lists the values that would work."""

from __future__ import annotations

import importlib.metadata

from mmdata_train.config import ParallelConfig, TrainingConfig
from mmdata_train.errors import ConfigError, LayoutError
from mmdata_train.limits import divisors
from mmdata_train.model.config import ModelConfig
from mmdata_train.schedules import SCHEDULES, micro_batches_fit


def check_tensor(model: ModelConfig, parallel: ParallelConfig, seq_length: int) -> None:
    """Every split dimension divides by the tensor degree. Raises LayoutError."""
    sizes = {
        "num_heads": model.num_heads,
        "num_kv_heads": model.num_kv_heads,
        "intermediate_size": model.intermediate_size,
        "vocab_multiple": model.vocab_multiple,
    }
    if parallel.splits_sequence:
        sizes["data.seq_length"] = seq_length
    fits = divisors(*sizes.values())
    for name, size in sizes.items():
        if size % parallel.tensor:
            where = name if "." in name else f"model.{name}"
            raise LayoutError(
                f"parallel.tensor {parallel.tensor} does not divide {where} {size}; for this model use one of {fits}"
            )


def check_pipeline(model: ModelConfig, parallel: ParallelConfig, micro_batches: int) -> None:
    """Layers, stages and micro-batches fit the schedule. Raises LayoutError."""
    if parallel.pipeline == 1:
        return
    layers, stages = model.num_layers, parallel.stages
    if parallel.stage_layers is not None:
        given = parallel.stage_layers
        if len(given) != stages or sum(given) != layers or min(given) < 0:
            raise LayoutError(
                f"parallel.stage_layers {list(given)} has {len(given)} stages and {sum(given)} layers; it needs"
                f" {stages} stages that add up to {layers}"
            )
    elif stages > layers:
        raise LayoutError(
            f"pipeline {parallel.pipeline} x virtual_stages {parallel.virtual_stages} = {stages} stages but the model"
            f" has {layers} layers; use at most {layers} stages"
        )
    rule = SCHEDULES[parallel.schedule]
    if not micro_batches_fit(rule, micro_batches, parallel.pipeline):
        limit = 4 * max(micro_batches, parallel.pipeline)
        fits = [m for m in range(1, limit + 1) if micro_batches_fit(rule, m, parallel.pipeline)][:6]
        raise LayoutError(
            f"schedule {parallel.schedule} over {parallel.pipeline} ranks cannot run {micro_batches} micro-batches;"
            f" numbers that work: {', '.join(map(str, fits))} ... (global_batch_size / micro_batch_size / data)"
        )


def check_zero(parallel: ParallelConfig, data: int) -> None:
    """Sharding over data ranks: group size, and stages whose gradients would be wrong. Raises LayoutError."""
    size = parallel.shard_size
    if size is not None and data % size:
        raise LayoutError(f"parallel.shard_size {size} does not divide data {data}; use one of {divisors(data)}")
    if size is not None and parallel.zero_stage == 0 and size > 1:
        raise LayoutError("parallel.zero_stage 0 shards nothing; remove shard_size or use zero_stage 1")
    splits = parallel.pipeline > 1 and SCHEDULES[parallel.schedule].splits_backward
    if splits and parallel.zero_stage >= 2 and data > 1:
        raise LayoutError(
            f"schedule {parallel.schedule} splits the backward pass, which computes wrong gradients on parameters or"
            f" gradients sharded between micro-batches (zero_stage {parallel.zero_stage}); nearest that works:"
            " zero_stage 1, or schedule interleaved"
        )


def check_compile(parallel: ParallelConfig, training: TrainingConfig) -> None:
    """Compiled layers only where gradients were found exact, or are about to be. Raises LayoutError."""
    if not training.compile:
        return
    version = importlib.metadata.version("torch")
    if parallel.tensor > 1 and not parallel.parity_check:
        raise LayoutError(
            f"train.compile with parallel.tensor {parallel.tensor}: compiled tensor-parallel layers get wrong gradients"
            f" on some torch versions (this is {version}), so they need the parity check; nearest that works:"
            " parallel.parity_check: true (leave --no-parity out), compile: false, or tensor: 1"
        )
    if parallel.pipeline > 1 and SCHEDULES[parallel.schedule].splits_backward:
        raise LayoutError(
            f"train.compile with schedule {parallel.schedule}: a split backward pass cannot be compiled;"
            " nearest that works: compile: false, or schedule interleaved"
        )


def check_run(
    model: ModelConfig, parallel: ParallelConfig, training: TrainingConfig, seq_length: int, world_size: int
) -> int:
    """All of the above for one run; returns the number of micro-batches of a step on each data rank."""
    data = parallel.layout(world_size).data
    micro_batches = training.micro_batches(data)
    check_tensor(model, parallel, seq_length)
    check_pipeline(model, parallel, micro_batches)
    check_zero(parallel, data)
    check_compile(parallel, training)
    _check_rampup(model, parallel, training, data)
    if model.positions == "learned" and seq_length > model.max_positions:
        raise ConfigError(
            f"data.seq_length {seq_length} is beyond the model's {model.max_positions} learned positions;"
            " use at most as many"
        )
    return micro_batches


def _check_rampup(model: ModelConfig, parallel: ParallelConfig, training: TrainingConfig, data: int) -> None:
    ramp = training.batch_rampup
    if ramp is None:
        return
    span = training.global_batch_size - ramp.start
    if span <= 0:
        raise ConfigError(
            f"train.batch_rampup.start {ramp.start} must be below global_batch_size {training.global_batch_size}"
        )
    if span % ramp.increment:
        raise ConfigError(
            f"train.batch_rampup: from {ramp.start}, steps of {ramp.increment} do not reach global_batch_size"
            f" {training.global_batch_size}; use an increment of {', '.join(map(str, divisors(span)))}"
        )
    for size in range(ramp.start, training.global_batch_size + 1, ramp.increment):
        check_pipeline(model, parallel, training.micro_batches(data, size))
