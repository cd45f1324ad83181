"""The order of samples for any parallel layout, as a pure function of (seed, epoch, consumed).

`ParallelSampler` says which samples a step takes and which of them each data rank gets. It holds no iterator and no
permutation: the place in a run is one integer, `consumed`, and step, epoch and batch follow from it by arithmetic.
The default order does not depend on the data-parallel size, the micro-batch size or the global batch size, so a run
may resume under another layout and go on with the very next sample. Every rank gets the same number of micro-batches
of the same shape, always. No torch here. A step costs about 0.3 us a sample.

`order`:
- `default`: a new permutation each epoch when `shuffle`, else ascending. `consumed` = epoch x total + place in it.
- `single`: ascending, one pass: Megatron's MegatronPretrainingSampler.
- `cyclic`: Megatron's MegatronPretrainingRandomSampler. Its order depends on micro-batch and data-parallel size (and
  its seed is the epoch alone): kept for runs that began there.

A global batch G is cut as Megatron cuts it: micro-batch m of data rank r is the micro_batch items of G from
(m x data + r) x micro_batch on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmdata.samples.permutation import shuffled, torch_randperm
from mmdata_train.errors import ConfigError, LayoutError, SamplerError, SamplerStateError, SamplesExhausted
from mmdata_train.layout import ParallelLayout

Order = Literal["default", "single", "cyclic"]
Tail = Literal["drop", "pad"]
Indices = NDArray[np.int64]

PADDING = -1
_ORDER_VERSION = 1


class Step(NamedTuple):
    """One optimizer step: indices int64 [global_batch] (PADDING where nothing counts), and `consumed` after it."""

    indices: Indices
    consumed: int


@dataclass(frozen=True)
class ParallelSampler:
    """Which samples each step and each data rank takes.

    total: samples in the set. layout: the rank grid; only its `data` degree matters to the order of work, none to the
    default order of samples. micro_batch: samples a data rank takes at once. global_batch: samples a step; a multiple
    of micro_batch x layout.data. seed: of the permutations. consumed: where the run stands, 0 at its start.
    shuffle: False over GPTSamples and BlendedSamples, which are shuffled already.
    order: see the module. tail: what an epoch does with fewer samples than a global batch: `drop` leaves them out
    (other ones each epoch when shuffled), `pad` fills up with PADDING, which is loaded as an uncounted sample.
    epochs: how often the set is passed through; None means without end when shuffled or cyclic, else once.
    data_sharding: of the cyclic order: each data rank permutes a contiguous bucket of its own.

    Raises LayoutError or ConfigError on sizes that do not fit, SamplerError on fewer samples than one global batch.
    """

    total: int
    layout: ParallelLayout
    micro_batch: int
    global_batch: int
    seed: int = 1234
    consumed: int = 0
    shuffle: bool = True
    order: Order = "default"
    tail: Tail = "drop"
    epochs: int | None = None
    data_sharding: bool = True

    def __post_init__(self) -> None:
        for name in ("total", "micro_batch", "global_batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.consumed < 0:
            raise ConfigError(f"consumed is {self.consumed}; it must be at least 0")
        if self.epochs is not None and self.epochs < 1:
            raise ConfigError(f"epochs is {self.epochs}; it must be at least 1, or None")
        if self.order not in ("default", "single", "cyclic") or self.tail not in ("drop", "pad"):
            raise ConfigError(f"order {self.order!r} or tail {self.tail!r} is unknown: default|single|cyclic, drop|pad")
        if self.order == "cyclic" and self.tail == "pad":
            raise ConfigError("the cyclic order has no padded tail; use tail='drop' or the default order")
        self._check_batch()
        if self.tail == "drop" and self._epoch_size < self.global_batch and self.order != "cyclic":
            raise SamplerError(
                f"{self.total} samples do not fill one global batch of {self.global_batch}; lower the global batch "
                f"to at most {self.total}, or use tail='pad'"
            )

    def _check_batch(self) -> None:
        block = self.micro_batch * self.layout.data
        if self.global_batch % block:
            below, above = self.global_batch // block * block, (self.global_batch // block + 1) * block
            fits = " or ".join(str(size) for size in (below, above) if size)
            share = self.global_batch // self.layout.data if self.global_batch % self.layout.data == 0 else 0
            sizes = ", ".join(str(size) for size in range(1, share + 1) if share % size == 0)
            other = f"; micro-batches of {sizes} would fit" if sizes else ""
            raise LayoutError(
                f"global batch {self.global_batch} is not a multiple of micro-batch {self.micro_batch} x data-parallel "
                f"size {self.layout.data} = {block}; use {fits}{other}"
            )
        if self.order == "cyclic" and self.total < block:
            raise SamplerError(
                f"{self.total} samples do not fill one micro-batch of {self.micro_batch} on each of {self.layout.data} "
                f"data ranks; lower one of them"
            )
        if self.order == "cyclic" and self.consumed % self._epoch_size % block:
            raise SamplerStateError(
                f"consumed {self.consumed} is not a whole number of micro-batches of {block} into its epoch: the "
                "cyclic order cannot resume under another micro-batch or data-parallel size; use the default order"
            )

    @property
    def micro_batches(self) -> int:
        """Micro-batches each rank takes a step."""
        return self.global_batch // (self.micro_batch * self.layout.data)

    @property
    def _epoch_size(self) -> int:
        """What `consumed` grows by in one epoch."""
        if self.order != "cyclic":
            return self.total
        return self.total - self.total % (self.micro_batch * self.layout.data)

    @property
    def _epoch_limit(self) -> int | None:
        if self.epochs is not None:
            return self.epochs
        endless = self.order == "cyclic" or (self.order == "default" and self.shuffle)
        return None if endless else 1

    @property
    def steps(self) -> int | None:
        """Steps from the very start to the end of the last epoch; None when there is no end."""
        limit = self._epoch_limit
        if limit is None:
            return None
        if self.order == "cyclic":
            return limit * self._epoch_size // self.global_batch
        return limit * self._steps_per_epoch

    @property
    def _steps_per_epoch(self) -> int:
        full, rest = divmod(self.total, self.global_batch)
        return full + (1 if rest and self.tail == "pad" else 0)

    def consumed_at(self, step: int) -> int:
        """`consumed` before step number `step` (from 0) of a run that began at 0 with this global batch."""
        if self.order == "cyclic":
            return step * self.global_batch
        epoch, place = divmod(step, self._steps_per_epoch)
        return epoch * self.total + place * self.global_batch

    def step_at(self, consumed: int) -> Step:
        """The step that begins at `consumed`: a pure function of this sampler's values.

        Raises SamplesExhausted when the last epoch has no whole step left.
        """
        return self._cyclic_step(consumed) if self.order == "cyclic" else self._default_step(consumed)

    def _default_step(self, consumed: int) -> Step:
        epoch, place = divmod(consumed, self.total)
        left = self.total - place
        if left < self.global_batch and self.tail == "drop":
            epoch, place, left = epoch + 1, 0, self.total
        self._check_epoch(epoch, consumed)
        indices = np.full(self.global_batch, PADDING, dtype=np.int64)
        taken = min(left, self.global_batch)
        positions = np.arange(place, place + taken, dtype=np.int64)
        shuffle = self.shuffle and self.order == "default"
        indices[:taken] = shuffled(positions, self.total, self.seed, epoch) if shuffle else positions
        return Step(indices, epoch * self.total + place + taken)

    def _cyclic_step(self, consumed: int) -> Step:
        block = self.micro_batch * self.layout.data
        last = consumed + self.global_batch - block
        self._check_epoch(last // self._epoch_size, consumed)
        parts = [self._cyclic_block(place) for place in range(consumed, consumed + self.global_batch, block)]
        return Step(np.concatenate(parts), consumed + self.global_batch)

    def _cyclic_block(self, consumed: int) -> Indices:
        """One micro-batch of every data rank, rank after rank, as Megatron's random sampler yields them."""
        epoch, place = divmod(consumed, self._epoch_size)
        data, micro = self.layout.data, self.micro_batch
        if self.data_sharding:
            bucket = self.total // (micro * data) * micro
            here = torch_randperm(bucket, epoch)[place // data :][:micro]
            return np.concatenate([here + rank * bucket for rank in range(data)])
        order = torch_randperm(self.total // micro * micro, epoch)[place : place + micro * data]
        return order.reshape(micro, data).T.reshape(-1)

    def _check_epoch(self, epoch: int, consumed: int) -> None:
        limit = self._epoch_limit
        if limit is not None and epoch >= limit:
            raise SamplesExhausted(
                f"no whole step is left: {consumed} of {limit * self._epoch_size} samples are consumed ({limit} "
                f"epoch(s) of {self.total}, global batch {self.global_batch}); ask for more samples "
                "(data.num_samples) or fewer steps"
            )

    def for_rank(self, indices: Indices, rank: int) -> Indices:
        """The part of a step's `indices` that global `rank` loads, int64 [micro_batches, micro_batch].

        Ranks that differ only on the tensor, context or pipeline axis get the same part.
        """
        data = self.layout.coordinates(rank).data
        return indices.reshape(self.micro_batches, self.layout.data, self.micro_batch)[:, data]

    def iterate(self, rank: int = 0) -> Iterator[tuple[Indices, int]]:
        """From `consumed` to the end: `rank`'s int64 [micro_batches, micro_batch], and consumed after the step."""
        consumed = self.consumed
        while True:
            try:
                step = self.step_at(consumed)
            except SamplesExhausted:
                return
            consumed = step.consumed
            yield self.for_rank(step.indices, rank), consumed

    def __iter__(self) -> Iterator[Indices]:
        """The global batches, int64 [global_batch] each, from `consumed` to the end."""
        consumed = self.consumed
        while True:
            try:
                step = self.step_at(consumed)
            except SamplesExhausted:
                return
            consumed = step.consumed
            yield step.indices

    @property
    def fingerprint(self) -> str:
        """Names the order of samples: 32 hex digits over what decides it, and nothing else."""
        values: dict[str, Any] = {"version": _ORDER_VERSION, "total": self.total, "order": self.order}
        if self.order == "default":
            values |= {"shuffle": self.shuffle} | ({"seed": self.seed} if self.shuffle else {})
        if self.order == "cyclic":
            values |= {"micro_batch": self.micro_batch, "data": self.layout.data, "data_sharding": self.data_sharding}
        text = json.dumps(values, sort_keys=True)
        return hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest()

    def state(self, consumed: int | None = None) -> dict[str, Any]:
        """What a checkpoint keeps: {"consumed": int, "fingerprint": str}."""
        return {"consumed": self.consumed if consumed is None else consumed, "fingerprint": self.fingerprint}

    def resume(self, state: dict[str, Any]) -> ParallelSampler:
        """This sampler standing where `state` stood; its layout and batch sizes may differ from the saved run's.

        Raises SamplerStateError when the state belongs to another order of samples.
        """
        if state["fingerprint"] != self.fingerprint:
            raise SamplerStateError(
                f"the checkpoint's order of samples is {state['fingerprint']} and this run's is {self.fingerprint}: "
                "the number of samples, seed or order changed; restore them, or start a new phase of the data"
            )
        return replace(self, consumed=int(state["consumed"]))
