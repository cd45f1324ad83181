"""From the `data` section to open sample sets, with everything refused that must not reach the first step.

Wrong tokenizer, a vocabulary beyond the model's, shards that disagree or have changed: each an error with both values.
Needs no torch and no process group: every rank does it for itself, and the index cache saves it the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import ShardsDifferError
from mmdata.indexed.reader import IndexedDataset
from mmdata.samples.cache import key_of
from mmdata.samples.chain import ChainedSamples
from mmdata.samples.entries import Entry, resolve
from mmdata.samples.mix import Mix, Resume, resume_mix, start_mix
from mmdata.samples.packed import PackedSamples
from mmdata.samples.rows import Indices
from mmdata.samples.split import split_range
from mmdata_train.data_config import DataConfig, DataEntry
from mmdata_train.errors import ConfigError, DataError, SamplerStateError
from mmdata_train.host_memory import check_index


@dataclass(frozen=True)
class ModelFacts:
    """What the data must fit. vocab_size: of the model's embedding. tokenizer: fingerprint of the run's tokenizer."""

    vocab_size: int | None = None
    tokenizer: str | None = None


class Share(NamedTuple):
    """What one source gives to the last phase: draws, and its shares of samples, tokens and counted tokens (0 to 1).

    filled: which share of its positions holds tokens; the rest is padding. passes: how often the phase goes through it.
    token_count, counted_count: expected tokens and counted tokens of its samples.
    """

    path: str
    draws: int
    samples: float
    tokens: float
    counted: float
    filled: float
    passes: float
    token_count: int
    counted_count: int


class TrainingData:
    """The open training mix with what loaders and checkpoints ask of it."""

    def __init__(self, mix: Mix, config: DataConfig, warnings: Sequence[str] = ()) -> None:
        self.mix = mix
        self.config = config
        self.warnings = [*warnings, *mix.notes]
        self.sources = list(dict.fromkeys(use.path for phase in mix.phases for use in phase.sets))

    @property
    def samples(self) -> ChainedSamples:
        """The samples of all phases, in the order the run takes them."""
        return self.mix.samples

    @property
    def fingerprint(self) -> str:
        """Names everything that decides which samples a run sees, save how long it is and what its phases are."""
        return options_fingerprint(self.config)

    def state(self, consumed: int) -> dict[str, Any]:
        """What a checkpoint keeps: `consumed`, `fingerprint` and the phases of the mix."""
        return {"consumed": consumed, "fingerprint": self.fingerprint, "phases": self.mix.state()}

    def source_of(self, indices: Indices) -> NDArray[np.int64]:
        """Which of `sources` each sample comes from, int64 [n]; -1 for padding."""
        parts, local = self.samples.locate(indices)
        result = np.full(len(parts), -1, dtype=np.int64)
        for number in np.unique(parts).tolist():
            here = parts == number
            sets, _ = self.mix.blends[number].locate(local[here])
            names = [self.sources.index(use.path) for use in self.mix.phases[number].sets]
            result[here] = np.where(sets < 0, -1, np.array(names, dtype=np.int64)[sets])
        return result

    def shares(self) -> list[Share]:
        """What each source gives to the last phase; tokens and counted tokens are expected values of its samples."""
        blend, phase = self.mix.blend, self.mix.phases[-1]
        draws = blend.drawn(phase.size)
        each = np.array([_content(one) for one in blend.sets])
        content = each * draws[:, None]
        filled = (each[:, 0] / blend.seq_length).tolist()
        totals = np.maximum(content.sum(axis=0), 1e-9)
        result = []
        for number, (use, count) in enumerate(zip(phase.sets, draws.tolist(), strict=True)):
            tokens, counted = (content[number] / totals).tolist()
            whole = [round(value) for value in content[number].tolist()]
            passes = count / _samples_of_pass(blend.sets[number])
            part = float(count / draws.sum())
            result.append(Share(use.path, int(count), part, tokens, counted, filled[number], passes, *whole))
        return result


def options_fingerprint(config: DataConfig) -> str:
    """32 hex digits over the options that decide the order and cut of samples."""
    options = config.options("train", None)
    names = ("seq_length", "seed", "split", "mode", "reset_positions", "reset_attention", "weigh_by")
    facts: dict[str, Any] = {name: getattr(options, name) for name in names}
    return key_of(facts | {"kind": "data", "order": config.order, "tail": config.tail})


def _samples_of_pass(samples: Any) -> float:
    """Samples of one pass over a set's documents; not whole where samples are cut out of a stream."""
    if isinstance(samples, ChainedSamples):
        return _samples_of_pass(samples.sets[0])
    if isinstance(samples, PackedSamples):
        return float(len(samples.bins))
    used = split_range(samples.split, samples.subset, len(samples.group))
    tokens = int(samples.group.lengths[used.start : used.stop].sum(dtype=np.int64))
    return max(1.0, float(tokens)) / float(samples.seq_length)


def _content(samples: Any) -> tuple[float, float]:
    """Expected tokens and counted tokens of one sample of a set."""
    if isinstance(samples, ChainedSamples):
        return _content(samples.sets[0])
    group = samples.group
    tokens = sum(shard.token_count for shard in group.shards)
    counted = tokens - len(group) if isinstance(samples, PackedSamples) or samples.reset_attention else tokens
    if group.has_spans:
        counted = sum(_span_tokens(shard) for shard in group.shards)
    width = float(samples.seq_length)
    if isinstance(samples, PackedSamples):
        width = float(samples.bins.lengths.sum()) / len(samples.bins)
    return width, width * counted / max(tokens, 1)


def _span_tokens(shard: IndexedDataset) -> int:
    spans = shard.sidecar("loss_spans")
    assert spans is not None
    flat = np.concatenate(spans[:]) if spans.is_remote else spans.tokens
    return int(flat[1::2].sum(dtype=np.int64) - flat[::2].sum(dtype=np.int64))


def open_training(
    config: DataConfig,
    num_samples: int | None,
    cache_dir: Path | None,
    *,
    facts: ModelFacts = ModelFacts(),
    state: Mapping[str, Any] | None = None,
) -> TrainingData:
    """Open the training mix, from the start or from a checkpoint's `state`.

    num_samples: steps x global batch, used where the section does not say. Raises ConfigError without entries,
    SamplerStateError when the state was made with other options, ShardsDifferError, ShardChangedError, DataError.
    """
    if not config.train:
        raise ConfigError("data.train is empty; name at least one shard, folder or glob")
    entries = [resolve(path, weight) for path, weight in config.entries]
    options = config.options("train", cache_dir)
    wanted = config.num_samples if config.num_samples is not None else num_samples
    if wanted is not None:
        check_index(
            wanted, "train.steps x train.global_batch_size" if config.num_samples is None else "data.num_samples"
        )
    if state is None:
        mix = start_mix(entries, wanted, options)
    else:
        found = options_fingerprint(config)
        if state["fingerprint"] != found:
            raise SamplerStateError(
                f"the checkpoint's data options have the fingerprint {state['fingerprint']} and this run's {found}: "
                "seq_length, seed, split, mode, resets, weigh_by, order or tail changed; restore them, or start anew"
            )
        resume = Resume(state["phases"], int(state["consumed"]), config.new_phase)
        mix = resume_mix(resume, entries, wanted, options)
    return TrainingData(mix, config, check_shards(mix.shards, facts))


def open_validation(
    config: DataConfig,
    cache_dir: Path | None,
    facts: ModelFacts = ModelFacts(),
) -> dict[str, TrainingData]:
    """The validation sets by name, each one pass over its samples; empty when the section names none.

    Without `valid`, a `split` with a share for it gives one set, `valid`, over all training entries.
    """
    if not config.validation_names:
        return {}
    if config.valid:
        named = {name: [resolve(path)] for name, path in config.valid.items()}
    else:
        named = {name: [resolve(path) for path, _ in config.entries] for name in config.validation_names}
    split = None if config.valid else config.split
    result = {}
    for name, entries in named.items():
        mix = _one_pass(entries, config, split, cache_dir)
        result[name] = TrainingData(mix, config, check_shards(mix.shards, facts))
    return result


def _one_pass(entries: Sequence[Entry], config: DataConfig, split: str | None, cache_dir: Path | None) -> Mix:
    options = replace(config.options("train" if split is None else "valid", cache_dir), split=split)
    return start_mix(entries, None, options)


def check_shards(shards: Sequence[IndexedDataset], facts: ModelFacts) -> list[str]:
    """Refuse shards that do not fit tokenizer or model; returns what is only worth a warning.

    Raises ShardsDifferError on another tokenizer, with both fingerprints, and DataError on a vocabulary beyond the
    model's embedding.
    """
    bare = []
    for shard in shards:
        manifest = shard.manifest
        if manifest is None or manifest.tokenizer_fingerprint is None:
            bare.append(shard.prefix)
        if manifest is None:
            continue
        if facts.tokenizer and manifest.tokenizer_fingerprint not in (None, facts.tokenizer):
            raise ShardsDifferError(
                f"{shard.prefix} was made with the tokenizer {manifest.tokenizer_fingerprint}, but this run's is "
                f"{facts.tokenizer}; use that tokenizer, or convert the data again with this one"
            )
        if facts.vocab_size and manifest.vocab_size and manifest.vocab_size > facts.vocab_size:
            raise DataError(
                f"{shard.prefix} has a vocabulary of {manifest.vocab_size:,} tokens, but the model has "
                f"{facts.vocab_size:,}; use the model's tokenizer, or a model with a larger embedding"
            )
    if not bare:
        return []
    return [
        f"{len(bare)} shards have no manifest that names their tokenizer (such as {bare[0]}); their ids are checked "
        f"against the model's vocabulary in every batch; `mmdata adopt {bare[0]} --tokenizer T` ends this"
    ]


def samples_for_epochs(config: DataConfig, epochs: float, cache_dir: Path | None) -> int:
    """Samples in so many passes over all training entries, rounded up: what `train.epochs` means.

    Raises ConfigError for more than an index can hold, and what open_training raises.
    """
    plain = replace(config, train=tuple(DataEntry(path=path) for path, _ in config.entries))
    return check_index(epochs * len(open_training(plain, None, cache_dir).samples), f"train.epochs {epochs:g}")


def unproven(shards: Sequence[IndexedDataset]) -> bool:
    """Whether any shard's ids are not known to lie inside a vocabulary."""
    return any(shard.manifest is None or shard.manifest.vocab_size is None for shard in shards)
