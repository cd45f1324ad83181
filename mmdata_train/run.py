"""A whole run on this rank: data, engine, checkpoints, loop. Called alike on every rank.

Order matters: raw files are converted before any process group exists, everything that can be refused without other
ranks is refused next, data is opened before the model is built, and a checkpoint found in the output folder is
continued.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mmdata_train.batch import Batch
from mmdata_train.beginning import Beginning, settle
from mmdata_train.checkpoint import Checkpointer
from mmdata_train.config import TrainConfig
from mmdata_train.config_checks import check_run
from mmdata_train.config_io import dump_yaml, to_mapping
from mmdata_train.counting import Done, check_supply, count_steps, samples_of_steps
from mmdata_train.course import course_lines, notices
from mmdata_train.data.open import TrainingData, open_training, open_validation, samples_for_epochs
from mmdata_train.data.prepare import prepare_data
from mmdata_train.data.show import model_facts, share_lines, tokenizer_path
from mmdata_train.explain import Watched, explained
from mmdata_train.export.origin import origin_of_run
from mmdata_train.loader import Place, StepLoader
from mmdata_train.lora.start import holds_adapters
from mmdata_train.mesh import Mesh, joined_ranks, pick_device, require_devices
from mmdata_train.metrics import Meter, RunLog
from mmdata_train.needs import Machine, check_needs
from mmdata_train.parallelize import ModelParts
from mmdata_train.parity import Curve
from mmdata_train.proof import prove, reference_if_needed
from mmdata_train.run_folder import RUN_CHECKPOINTS, only_run
from mmdata_train.sampler import ParallelSampler
from mmdata_train.session import model_config, open_engine
from mmdata_train.slices import TENSOR_AXIS
from mmdata_train.trainer import RunSummary, Trainer, ValidationSet, global_rows_at

logger = logging.getLogger("mmdata_train")


def open_data(config: TrainConfig, state: Mapping[str, Any] | None) -> tuple[TrainingData, int]:
    """The training mix and the number of steps: as configured, or derived from `epochs` (1 unless given).

    state: of the checkpoint that is continued: its samples are behind the run, the rest follows from the batch of now.
    """
    cache = config.output.dir / "cache"
    training, done = config.train, Done.of(state)
    if training.steps is not None:
        wanted: int | None = samples_of_steps(training, training.steps, done)
    else:
        epochs = 1.0 if training.epochs is None else training.epochs
        wanted = config.data.num_samples or samples_for_epochs(config.data, epochs, cache)
    behind = None if state is None else state["data"]
    data = open_training(config.data, wanted, cache, facts=model_facts(config), state=behind)
    if training.steps is None:
        return data, count_steps(training, len(data.samples), done)
    check_supply(config, len(data.samples), done)
    return data, training.steps


def with_shards(config: TrainConfig) -> TrainConfig:
    """`config` with raw files under `data` converted and replaced by their shards: see prepare_data for what it raises.

    To be called before any process group exists: no collective waits for tokenization.
    """
    return replace(config, data=prepare_data(config.data, config.output.dir / "cache", tokenizer_path(config)))


@contextlib.contextmanager
def own_output(config: TrainConfig) -> Iterator[None]:
    """Make the run's folder, and keep other runs out of it while the block runs; rank 0 holds the lock.

    Raises OutputError where it cannot be written to, CheckpointError where another run writes: before hours of
    training, not after.
    """
    rank = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))
    with only_run(config.output.dir) if rank == 0 else contextlib.nullcontext():
        yield


def check_before_ranks(config: TrainConfig, world_size: int) -> int:
    """Convert raw files, build the sample index and refuse what `world_size` ranks would all refuse; returns the steps.

    Called once by the process that starts the ranks, so that the user reads one message instead of one from each.
    Raises ConfigError, DataError, ModelError, CheckpointError and what prepare_data raises.
    """
    begun = settle(config)
    check_run(begun.model, config.parallel, config.train, config.data.seq_length, world_size)
    require_devices(world_size)
    check_needs(config, begun.model, world_size, Machine.here(world_size))
    with own_output(config):
        return open_data(with_shards(config), begun.state)[1]


def _log(config: TrainConfig, steps: int, first: bool) -> RunLog:
    facts = to_mapping(config)
    # The options of a conversion may hold the key that hashes personal data.
    facts["data"].pop("convert")
    output = config.output
    return RunLog(output.dir, steps, first, output.tensorboard, config.train.log_every, output.wandb, facts)


def _loader(config: TrainConfig, mesh: Mesh, model: ModelParts, data: TrainingData, **options: Any) -> StepLoader:
    training = config.train
    sampler = ParallelSampler(
        len(data.samples), mesh.layout, training.micro_batch_size, training.global_batch_size, seed=config.data.seed,
        shuffle=False, order=config.data.order, tail=options.pop("tail", config.data.tail),
        consumed=options.pop("consumed", 0), epochs=options.pop("epochs", None),
    )  # fmt: skip
    groups = {
        axis: mesh.group(axis)
        for axis in (TENSOR_AXIS, "pipeline")
        if (mesh.layout.tensor if axis == TENSOR_AXIS else mesh.layout.pipeline) > 1
    }
    ends = 0 in model.stages or model.num_stages - 1 in model.stages
    place = Place(mesh.layout, dist.get_rank(), groups, loads_tokens=ends, device=mesh.device)
    loading = options.pop("loading", config.data.loading)
    return StepLoader(data, sampler, place, loading, vocab_size=model.config.vocab_size, **options)


def _validation(config: TrainConfig, mesh: Mesh, model: ModelParts) -> list[ValidationSet]:
    sets = open_validation(config.data, config.output.dir / "cache", model_facts(config))
    # Read in this process: a pass is short, and starting workers for each would cost more than it saves.
    quiet = replace(config.data.loading, workers=0, verify_steps=0)

    def passes(data: TrainingData) -> Callable[[], Iterable[Batch]]:
        return partial(_loader, config, mesh, model, data, tail="pad", epochs=1, loading=quiet)

    return [ValidationSet(name, passes(data)) for name, data in sets.items()]


def finetune(config: TrainConfig) -> RunSummary:
    """Train as configured; continues the run in `output.dir` where there is one. A collective over all ranks.

    Raises ConfigError, DataError, ModelError, AdapterError, CheckpointError, StepError, MemoryExhaustedError,
    RankError, OutputError, and ParityError before the first step where the layout does not train like one process.
    """
    # Before raw files are converted, which may take hours: model, targets, the adapter or checkpoint to start from.
    begun = settle(config)
    world = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
    check_run(begun.model, config.parallel, config.train, config.data.seq_length, world)
    check_needs(config, begun.model, world, Machine.here(world))
    with own_output(config):
        return _finetune(config, begun)


def _finetune(config: TrainConfig, begun: Beginning) -> RunSummary:
    prepared = with_shards(begun.config)
    reference = reference_if_needed(prepared)
    device = pick_device()
    with joined_ranks(device.type, config.parallel.timeout_minutes), explained(prepared) as watched:
        mesh = _proved_mesh(prepared, device, reference)
        return _run(prepared, begun.found, begun.state, mesh, as_given=dump_yaml(config), watched=watched)


def _proved_mesh(config: TrainConfig, device: torch.device, reference: Curve | None) -> Mesh:
    """The groups of the run, on which its layout was compared with one process if it was not before."""
    check_run(model_config(config), config.parallel, config.train, config.data.seq_length, dist.get_world_size())
    mesh = Mesh.make(config.parallel, device)
    prove(config, mesh, reference)
    return mesh


def _run(
    config: TrainConfig,
    found: Path | None,
    state: dict[str, Any] | None,
    mesh: Mesh,
    *,
    as_given: str,
    watched: Watched,
) -> RunSummary:
    folder = config.output.dir
    data, steps = open_data(config, state)
    start = None if found is not None else config.start_from
    fill = found is None and start is None
    engine = open_engine(config, seq_length=config.data.seq_length, total_steps=steps, fill=fill, mesh=mesh)
    watched.engine = engine
    first = dist.get_rank() == 0
    origin = origin_of_run(config, tokenizer_path(config), engine.model.config, data.mix.shards, str(mesh.layout))
    checkpointer = Checkpointer(
        folder / RUN_CHECKPOINTS, config.output.keep, config.output.async_save, origin=origin.to_state()
    )
    if first:
        (folder / "config.yaml").write_text(as_given, encoding="utf-8")
        for line in (*share_lines(data), *course_lines(config.train, data, steps), str(mesh.layout)):
            logger.info("%s", line)
        for line in notices(config, engine.model.config, steps):
            logger.warning("%s", line)
    stream = _loader(
        config, mesh, engine.model, data, consumed=0 if state is None else int(state["consumed"]),
        global_batch=partial(global_rows_at, config.train),
    )  # fmt: skip
    trainer = Trainer(
        engine=engine,
        stream=stream,
        checkpointer=checkpointer,
        log=_log(config, steps, first),
        meter=Meter(
            engine.model.config,
            config.data.seq_length,
            mesh.layout.world_size,
            mesh.device,
            config.train.peak_tflops,
            frozen=config.lora is not None,
        ),
        output=config.output,
        validation=_validation(config, mesh, engine.model),
        sources=data.sources,
        loaded=isinstance(config.model, str) or config.start_from is not None,
    )
    if start is not None and (config.lora is None or holds_adapters(start)):
        checkpointer.load(engine, start, weights_only=True)
        logger.info("starting from the weights of %s at step 0", start)
    if found is not None:
        trainer.resume(checkpointer.load(engine, found))
        logger.info("continuing %s at step %d", found, trainer.step)
    try:
        return trainer.run()
    finally:
        stream.close()
