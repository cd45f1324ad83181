"""What a training mix is made of, as plain values, and how many samples of each entry a stretch of the run needs.

A plan is JSON and goes into checkpoints. Making one opens shards and builds their indices, since how many samples an
epoch gives is known only then.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from mmdata.errors import BlendError
from mmdata.samples.blend import shares_of
from mmdata.samples.chain import ChainedSamples
from mmdata.samples.entries import Entry
from mmdata.samples.gpt import GPTSamples
from mmdata.samples.order import blend_index
from mmdata.samples.packed import PackedSamples
from mmdata.samples.shards import ShardGroup
from mmdata.samples.split import Subset

Mode = Literal["gpt", "packed"]
WeighBy = Literal["sample", "token", "epoch"]

# Megatron's --mid-level-dataset-surplus: sets are built a little longer than their share.
_SURPLUS = 0.005


@dataclass(frozen=True)
class MixOptions:
    """What all entries of a mix share; the fields mean what they mean in GPTSamples.

    mode: `gpt` cuts a stream of documents, `packed` puts whole documents into rows; chat shards are always packed.
    weigh_by: whether weights are shares of samples (Megatron), of tokens, or numbers of epochs.
    """

    seq_length: int = 2048
    seed: int = 1234
    split: str | None = None
    subset: Subset = "train"
    mode: Mode = "gpt"
    reset_positions: bool = False
    reset_attention: bool = False
    weigh_by: WeighBy = "sample"
    cache_dir: str | os.PathLike[str] | None = None


@dataclass(frozen=True)
class SetUse:
    """One entry in one phase. segments: samples of each index built over it (of a packed set: one number).

    offset: samples drawn from it in earlier phases. fingerprint: of its shards' content.
    """

    path: str
    weight: float | None
    mode: Mode
    shards: tuple[str, ...]
    fingerprint: str
    segments: tuple[int | None, ...]
    offset: int = 0

    @property
    def key(self) -> str:
        """The same key: the same samples in the same order."""
        return f"{self.mode}:{self.fingerprint}"


@dataclass(frozen=True)
class Phase:
    """A stretch of the run with one mix: samples [start, start + size), drawn from `sets`."""

    start: int
    size: int
    draws: int | None
    weights: tuple[float, ...] | None
    sets: tuple[SetUse, ...]


def megatron_sizes(weights: Sequence[float], size: int) -> tuple[list[int], int]:
    """How many samples Megatron builds of each set, and how many it draws, for a blend of `size` samples."""
    shares = shares_of(weights).tolist()
    targets = [math.ceil(size * share) for share in shares]
    return [math.ceil(target * (1 + _SURPLUS)) for target in targets], sum(targets)


class SetOpener:
    """Opens shards and builds the samples over them, each once."""

    def __init__(self, options: MixOptions) -> None:
        self.options = options
        self._groups: dict[tuple[str, ...], ShardGroup] = {}
        self._sets: dict[tuple[Any, ...], GPTSamples | PackedSamples | ChainedSamples] = {}

    def group(self, shards: tuple[str, ...]) -> ShardGroup:
        """The shards as one."""
        if shards not in self._groups:
            self._groups[shards] = ShardGroup(list(shards))
        return self._groups[shards]

    def samples(self, use: SetUse) -> GPTSamples | PackedSamples | ChainedSamples:
        """The samples of one entry; segment k of a gpt set is an index of its own with seed + k."""
        key = (use.shards, use.mode, use.segments)
        if key not in self._sets:
            self._sets[key] = self._build(use)
        return self._sets[key]

    def _build(self, use: SetUse) -> GPTSamples | PackedSamples | ChainedSamples:
        options, group = self.options, self.group(use.shards)
        length, seed = options.seq_length, options.seed
        where: dict[str, Any] = {"split": options.split, "subset": options.subset, "cache_dir": options.cache_dir}
        if use.mode == "packed":
            return PackedSamples(group, length, use.segments[0], seed, **where)
        where_gpt = where | {"reset_positions": options.reset_positions, "reset_attention": options.reset_attention}
        parts = [
            GPTSamples(group, length, count, seed + number, **where_gpt) for number, count in enumerate(use.segments)
        ]
        return parts[0] if len(parts) == 1 else ChainedSamples(parts)


@dataclass(frozen=True)
class Past:
    """What earlier phases did. drawn: samples taken of each set. segments: the indices built over it. Both by key."""

    drawn: dict[str, int] = field(default_factory=dict)
    segments: dict[str, tuple[int | None, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Demand:
    """What a phase asks of its sets. weights: None draws by size, exhaustively. draws: how many in all.

    builds: samples each set's first index is built for (None: one epoch). needs: samples each must give (None: all).
    """

    weights: tuple[float, ...] | None
    draws: int | None
    builds: list[int | None]
    needs: list[int | None]


class Planner:
    """Decides how many samples of each entry a phase needs."""

    def __init__(self, opener: SetOpener) -> None:
        self.opener = opener
        self.options = opener.options

    def phase(self, entries: Sequence[Entry], size: int | None, start: int, past: Past) -> Phase:
        """The phase that begins at sample `start` and gives `size` samples (None: what there is)."""
        given = [entry.weight is not None for entry in entries]
        if not entries or any(given) != all(given):
            raise BlendError("give every entry of the blend a weight, or none of them")
        uses = [self._use(entry) for entry in entries]
        if len({use.key for use in uses}) < len(uses):
            raise BlendError("two entries of the blend are the same shards; give them once, with the summed weight")
        demand = self._demand(uses, size)
        uses = [
            self._supplied(replace(use, offset=past.drawn.get(use.key, 0)), build, need, past.segments.get(use.key))
            for use, build, need in zip(uses, demand.builds, demand.needs, strict=True)
        ]
        total = demand.draws
        if total is None:
            total = sum(self._length(use) - use.offset for use in uses)
        return Phase(start, total if size is None else min(size, total), demand.draws, demand.weights, tuple(uses))

    def _use(self, entry: Entry) -> SetUse:
        group = self.opener.group(entry.shards)
        mode: Mode = "packed" if group.has_spans else self.options.mode
        return SetUse(entry.path, entry.weight, mode, entry.shards, group.fingerprint, ())

    def _demand(self, uses: list[SetUse], size: int | None) -> _Demand:
        weights = [use.weight for use in uses if use.weight is not None]
        none: list[int | None] = [None] * len(uses)
        if not weights:
            return self._demand_by_size(uses, size, none)
        shares_of(weights)
        if self.options.weigh_by == "epoch":
            return self._demand_by_epochs(uses, weights, size)
        if size is None:
            raise BlendError("a blend with weights needs data.num_samples, or a number of steps")
        if self.options.weigh_by == "token":
            weights = [w / self._tokens_a_sample(use) for w, use in zip(weights, uses, strict=True)]
        return self._weighted(weights, size)

    def _demand_by_epochs(self, uses: list[SetUse], weights: list[float], size: int | None) -> _Demand:
        """Weights are numbers of epochs, which fix the draws of each set; the order is that of their shares."""
        counts = [max(1, round(weight * self._epoch(use))) for weight, use in zip(weights, uses, strict=True)]
        if size is not None and size > sum(counts):
            raise BlendError(f"the epochs give {sum(counts):,} samples, but the run needs {size:,}; raise the weights")
        return self._weighted([float(count) for count in counts], sum(counts) if size is None else size)

    def _demand_by_size(self, uses: list[SetUse], size: int | None, none: list[int | None]) -> _Demand:
        if size is None:
            return _Demand(None, None, none, none)
        if len(uses) == 1:
            return self._weighted([1.0], size)
        epochs = [float(self._epoch(use)) for use in uses]
        if size > sum(epochs):
            return self._weighted(epochs, size)
        return _Demand(tuple(epochs), size, none, _draw_counts(epochs, size))

    def _weighted(self, weights: list[float], size: int) -> _Demand:
        if len(weights) == 1:
            return _Demand((1.0,), size, [size], [size])
        builds, draws = megatron_sizes(weights, size)
        # Megatron normalises the weights here and once more in the blend: the last bit may decide a draw.
        shares = shares_of(weights).tolist()
        return _Demand(tuple(shares), draws, list(builds), _draw_counts(shares, draws))

    def _supplied(
        self, use: SetUse, build: int | None, need: int | None, known: tuple[int | None, ...] | None
    ) -> SetUse:
        """The use with indices that hold `need` samples behind its offset; known indices stay as they are."""
        use = replace(use, segments=known or (build,))
        left = self._length(use) - use.offset
        missing = (0 if left else self._epoch(use)) if need is None else need - left
        if missing <= 0:
            return use
        if use.mode == "packed":
            return replace(use, segments=(use.offset + left + missing,))
        return replace(use, segments=(*use.segments, missing))

    def _length(self, use: SetUse) -> int:
        return len(self.opener.samples(use))

    def _epoch(self, use: SetUse) -> int:
        """Samples of one pass."""
        return self._length(replace(use, segments=(None,)))

    def _tokens_a_sample(self, use: SetUse) -> float:
        one = self.opener.samples(replace(use, segments=(None,)))
        if isinstance(one, PackedSamples):
            return float(one.bins.lengths.sum()) / len(one.bins)
        return float(self.options.seq_length)


def _draw_counts(weights: Sequence[float], draws: int) -> list[int | None]:
    datasets, _ = blend_index(shares_of(weights), draws)
    counts: list[int | None] = np.bincount(datasets, minlength=len(weights)).tolist()
    return counts
