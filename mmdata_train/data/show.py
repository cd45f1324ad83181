"""What a rank trains on, in words: first batches decoded, shares of the sources, the documents of any step.

The same code path as training reads by, without process groups: any rank of any layout can be shown on any machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import mmdata
from mmdata.errors import TokenizerNotFoundError
from mmdata_train.batch import Batch
from mmdata_train.config import TrainConfig
from mmdata_train.counting import Done, samples_of_steps
from mmdata_train.data.open import ModelFacts, TrainingData, open_training, samples_for_epochs
from mmdata_train.data.prepare import prepare_data
from mmdata_train.data_config import LoadingConfig
from mmdata_train.errors import ConfigError, SamplesExhausted
from mmdata_train.layout import ParallelLayout
from mmdata_train.loader import Place, StepLoader
from mmdata_train.lora.tokens import plan_tokens, write_extended
from mmdata_train.loss import IGNORED
from mmdata_train.run_folder import RUN_CHECKPOINTS, latest_checkpoint, read_state
from mmdata_train.sampler import PADDING, ParallelSampler
from mmdata_train.session import model_config, model_folder
from mmdata_train.trainer import global_rows_at

_SHOWN_TOKENS = 64

_log = logging.getLogger(__name__)


class Decoder(Protocol):
    """What decoding asks of a tokenizer."""

    def decode(self, ids: Any) -> str:
        """The text of token ids."""


@dataclass(frozen=True)
class DataRun:
    """The data side of a run: the open mix, the order of samples, and the global batch by `consumed`."""

    data: TrainingData
    sampler: ParallelSampler
    rows_at: Callable[[int], int]

    @property
    def layout(self) -> ParallelLayout:
        """The ranks the samples are dealt to."""
        return self.sampler.layout


@dataclass(frozen=True)
class TracedSample:
    """One sample of a step. data_rank, micro_batch: who trained on it, when. pieces: its documents, in order."""

    sample: int
    data_rank: int
    micro_batch: int
    source: str
    pieces: list[dict[str, Any]]


def open_run(config: TrainConfig, world_size: int | None = None, *, as_run: bool = False) -> DataRun:
    """The data of a configuration as training would open it, from its first step.

    world_size: ranks; None takes as few as the configuration allows. as_run: with the phases of the latest checkpoint
    in `output.dir`, if there is one: what the run really saw. Raises ConfigError, and what open_training raises.
    """
    cache = Path(config.output.dir) / "cache"
    section = prepare_data(config.data, cache, tokenizer_path(config))
    parallel = config.parallel
    smallest = parallel.tensor * parallel.pipeline * parallel.context * (parallel.data or 1)
    layout = parallel.layout(smallest if world_size is None else world_size)
    global_batch = config.train.global_batch_size
    found = latest_checkpoint(Path(config.output.dir) / RUN_CHECKPOINTS) if as_run else None
    state = None if found is None else read_state(found)
    wanted = None
    if config.train.steps is not None:
        wanted = samples_of_steps(config.train, config.train.steps, Done.of(state))
    elif config.train.epochs is not None and section.num_samples is None:
        wanted = samples_for_epochs(section, config.train.epochs, cache)
    behind = None if state is None else state["data"]
    data = open_training(section, wanted, cache, facts=model_facts(config), state=behind)
    sampler = ParallelSampler(
        len(data.samples),
        layout,
        config.train.micro_batch_size,
        global_batch,
        seed=section.seed,
        shuffle=False,
        order=section.order,
        tail=section.tail,
    )
    return DataRun(data, sampler, partial(global_rows_at, config.train))


def tokenizer_path(config: TrainConfig) -> str | None:
    """Where the run's tokenizer is: as configured, else the model folder; None where neither is given.

    With added_tokens a copy that knows them, which this makes in the output folder. Raises ConfigError where it cannot.
    """
    where = config.tokenizer or model_folder(config)
    if not config.added_tokens:
        return where
    added = plan_tokens(where, config.added_tokens)
    return str(write_extended(str(where), added, Path(config.output.dir) / "tokenizer"))


def open_tokenizer(config: TrainConfig) -> Any:
    """The run's tokenizer: as configured, else the model folder's; None, with a warning, where that has none.

    Raises TokenizerNotFoundError when the configured one is not there.
    """
    where = tokenizer_path(config)
    if where is None:
        return None
    try:
        return mmdata.load_tokenizer(where, engine="huggingface")
    except TokenizerNotFoundError:
        if config.tokenizer is not None:
            raise
        _log.warning("%s holds no tokenizer: whether the shards were made with the model's cannot be checked", where)
        return None


def model_facts(config: TrainConfig) -> ModelFacts:
    """What the data must fit, from the configuration. Raises what opening tokenizer or model raises."""
    tokenizer = open_tokenizer(config)
    return ModelFacts(model_config(config).vocab_size, None if tokenizer is None else tokenizer.fingerprint)


def share_lines(data: TrainingData) -> Iterator[str]:
    """The warnings, then each source's share of samples, tokens and counted tokens, and how full its rows are."""
    yield from (f"warning: {text}" for text in data.warnings)
    yield f"{'samples':>10} {'share':>7} {'tokens':>7} {'counted':>7} {'filled':>7} {'passes':>7}  source"
    for share in data.shares():
        values = (f"{value:7.2%}" for value in (share.samples, share.tokens, share.counted, share.filled))
        yield f"{share.draws:10,} {' '.join(values)} {share.passes:7.2f}  {share.path}"


def batch_lines(run: DataRun, rank: int, steps: int, decoder: Decoder | None) -> Iterator[str]:
    """The first batches of a global rank; with a decoder as text, else as ids. Targets that count are in « »."""
    where = run.layout.coordinates(rank)
    yield f"rank {rank} of {run.layout.world_size}: {where}"
    loader = StepLoader(
        run.data,
        run.sampler,
        Place(run.layout, rank),
        LoadingConfig(workers=0, verify_steps=0),
        global_batch=run.rows_at,
    )
    for step, batch in enumerate(islice(loader, steps)):
        yield f"step {step}: {int(batch.counted()):,} of {batch.labels.numel():,} targets count"
        for row in range(batch.tokens.shape[0]):
            yield from _row_lines(run, batch, row, decoder, loader.place.reads)


def _row_lines(run: DataRun, batch: Batch, row: int, decoder: Decoder | None, has_tokens: bool) -> Iterator[str]:
    source = int(batch.sources[row]) if batch.sources is not None else PADDING
    name = "padding" if source < 0 else run.data.sources[source]
    documents = 1 if batch.documents is None else int(batch.documents[row].max()) + 1
    yield f"  row {row}: {documents} document(s) that see themselves, from {name}"
    if not has_tokens:
        yield "    (a middle pipeline stage: no tokens)"
        return
    tokens, labels = batch.tokens[row].numpy(), batch.labels[row].numpy()
    if decoder is None:
        shown = " ".join(str(token) for token in tokens[:_SHOWN_TOKENS].tolist())
        yield f"    {shown}{' ...' if len(tokens) > _SHOWN_TOKENS else ''}"
        return
    yield f"    {marked_text(tokens, labels, decoder)}"


def marked_text(tokens: Any, labels: Any, decoder: Decoder) -> str:
    """The row as one line of text, stretches of counted targets within « » (a token counts where it is the target)."""
    counted = np.concatenate(([False], labels[:-1] != IGNORED))
    borders = np.flatnonzero(np.diff(counted.astype(np.int8))) + 1
    pieces = []
    for begin, end in zip([0, *borders.tolist()], [*borders.tolist(), len(tokens)], strict=True):
        text = decoder.decode(tokens[begin:end].tolist()).replace("\n", "\\n")
        pieces.append(f"«{text}»" if counted[begin] else text)
    return "".join(pieces)


def trace_step(run: DataRun, step: int) -> list[TracedSample]:
    """Which documents were in step number `step` (from 0), with original file and line where the shard knows them.

    The batch sizes must have been those of this configuration from the start. Raises ConfigError on a step that does
    not exist.
    """
    consumed = _consumed_at(run.rows_at, max(step, 0))
    try:
        found = replace(run.sampler, global_batch=run.rows_at(consumed)).step_at(consumed)
    except SamplesExhausted:
        found = None
    if step < 0 or found is None:
        steps = _steps_in(run.rows_at, run.sampler.total)
        raise ConfigError(f"step {step} does not exist: the run has steps 0 to {steps - 1}")
    return trace_samples(run, found.indices)


def _consumed_at(rows_at: Callable[[int], int], step: int) -> int:
    """Samples taken before a step, batch ramp-up included."""
    consumed = 0
    for _ in range(step):
        consumed += rows_at(consumed)
    return consumed


def _steps_in(rows_at: Callable[[int], int], samples: int) -> int:
    """Whole steps in so many samples."""
    steps = consumed = 0
    while consumed + rows_at(consumed) <= samples:
        steps, consumed = steps + 1, consumed + rows_at(consumed)
    return steps


def trace_samples(run: DataRun, indices: Any) -> list[TracedSample]:
    """The documents of the samples of one step, int64 [global_batch], in their order."""
    layout, sampler = run.layout, run.sampler
    sources = run.data.source_of(indices).tolist()
    traced = []
    for place, sample in enumerate(indices.tolist()):
        if sample < 0:
            continue
        block, _ = divmod(place, sampler.micro_batch)
        pieces = [
            piece._asdict() | {"origin": piece.origin._asdict() if piece.origin else None}
            for piece in run.data.samples.pieces(sample)
        ]
        micro_batch, data_rank = divmod(block, layout.data)
        traced.append(TracedSample(sample, data_rank, micro_batch, run.data.sources[sources[place]], pieces))
    return traced


def trace_lines(run: DataRun, step: int) -> Iterator[str]:
    """`trace_step` for people: a line a sample, a line a document."""
    for sample in trace_step(run, step):
        place = f"data rank {sample.data_rank}, micro-batch {sample.micro_batch}"
        yield f"sample {sample.sample:,} ({place}) {sample.source}"
        for piece in sample.pieces:
            origin = piece["origin"]
            known = f"{origin['path']}:{origin['line']}" if origin else "origin unknown"
            tokens = f"tokens {piece['offset']:,} to {piece['offset'] + piece['length']:,}"
            yield f"  {piece['shard']} document {piece['document']:,} {tokens}  {known}"
