"""Batches of one rank, step after step: torch's DataLoader over the sampler, with a place that is one integer.

Every rank gets the same number of steps of the same shape. Tensor peers get identical batches: each reads the same
mapped files, or the first reads and broadcasts. Only ranks that hold the first or last pipeline stage read tokens; the
others compute boundaries, positions and counts from the index alone, and hashes prove over the first steps that all
agree. Reading a step costs about 10 us a sample of 4,096 tokens; workers hide slow disks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from mmdata.samples.rows import SampleSet
from mmdata_train.batch import Batch
from mmdata_train.data.agreement import Digests, find_disagreement
from mmdata_train.data.broadcast import receive_step, send_step
from mmdata_train.data.open import TrainingData, unproven
from mmdata_train.data.step_reader import Request, StepReader
from mmdata_train.data_config import LoadingConfig
from mmdata_train.errors import BatchMismatch, SamplesExhausted
from mmdata_train.layout import Axis, ParallelLayout
from mmdata_train.sampler import ParallelSampler


@dataclass(frozen=True)
class Place:
    """Where this rank stands. groups: process groups by axis (`tensor`, `pipeline`); absent ones are not compared.

    loads_tokens: None decides by the pipeline coordinate; schedules that fold stages (first and last on one rank) say
    it themselves. device: of the collectives.
    """

    layout: ParallelLayout
    rank: int = 0
    groups: dict[str, Any] = field(default_factory=dict)
    loads_tokens: bool | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def reads(self) -> bool:
        """Whether this rank needs the tokens: it holds the embedding or the head."""
        if self.loads_tokens is not None:
            return self.loads_tokens
        return self.layout.is_first_stage(self.rank) or self.layout.is_last_stage(self.rank)


def _as_is(item: Any) -> Any:
    return item


def _own_group(worker: int) -> None:
    """A worker is no part of the rank's process group: Ctrl-C and SIGTERM end the run after a step, not its readers.

    It ends with its rank all the same, whose death it looks for.
    """
    if os.name == "posix":
        os.setpgid(0, 0)


class StepLoader:
    """An iterable of Batch from where the sampler stands, and the training loop's stream.

    `consumed` follows what was handed out, not what was read ahead. data: an open mix, or any sample set. global_batch:
    for a batch that grows, its size by `consumed`. vocab_size: the model's, against which ids are checked where the
    configuration or a missing manifest asks for it.
    """

    def __init__(
        self,
        data: TrainingData | SampleSet,
        sampler: ParallelSampler,
        place: Place,
        loading: LoadingConfig | None = None,
        *,
        global_batch: Callable[[int], int] | None = None,
        vocab_size: int | None = None,
    ) -> None:
        assert sampler.total <= len(data.samples if isinstance(data, TrainingData) else data)
        self.data = data
        self.sampler = sampler
        self.place = place
        self.loading = loading or LoadingConfig()
        self.consumed = sampler.consumed
        self._global_batch = global_batch
        self._reader = StepReader(data, place.reads, vocab_size if self._checks_ids() else None)
        self._checked = 0
        self._batches: Iterator[Batch] | None = None
        self._last: Request | None = None

    def _checks_ids(self) -> bool:
        if self.loading.verify_ids is not None:
            return self.loading.verify_ids
        return isinstance(self.data, TrainingData) and unproven(self.data.mix.shards)

    def next_batch(self, global_rows: int) -> Batch:
        """This rank's rows of the next `global_rows` samples: what the training loop asks for.

        Raises SamplesExhausted when no whole step is left, and what iterating raises.
        """
        expected = self._size_at(self.consumed)
        assert global_rows == expected, f"the loop takes {global_rows} samples, the loader gives {expected}"
        if self._batches is None:
            self._batches = iter(self)
        batch = next(self._batches, None)
        if batch is None:
            self.sampler.step_at(self.consumed)
            raise SamplesExhausted(f"no whole step is left after {self.consumed:,} samples")
        return batch

    def describe(self) -> list[str]:
        """The documents of the last batch of this rank, as `file:line` where known, else `shard document n`."""
        if self._last is None:
            return []
        samples: Any = self._reader.samples
        found = []
        for index in self._last.indices.tolist():
            for piece in samples.pieces(index) if index >= 0 else ():
                origin = piece.origin
                known = origin is not None and origin.path is not None
                found.append(f"{origin.path}:{origin.line}" if known else f"{piece.shard} document {piece.document}")
        return list(dict.fromkeys(found))

    def close(self) -> None:
        """End the reading workers; the loader may be iterated again."""
        self._batches = None

    def _size_at(self, consumed: int) -> int:
        return self.sampler.global_batch if self._global_batch is None else self._global_batch(consumed)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: `consumed`, `fingerprint`, and the phases of a mix."""
        if isinstance(self.data, TrainingData):
            return self.data.state(self.consumed)
        return self.sampler.state(self.consumed)

    def __iter__(self) -> Iterator[Batch]:
        """Steps until the samples end. Raises CorruptSampleError, TokenOutsideVocabularyError, BatchMismatch."""
        self._checked = 0
        for item in self._items():
            if "error" in item:
                raise item["kind"](item["error"])
            self._verify(item)
            self._last = item["request"]
            self.consumed = self._last.consumed
            yield Batch(item["tokens"], item["labels"], item["positions"], item["documents"], item.get("sources"))

    def _requests(self) -> Iterator[Request]:
        consumed, sampler = self.consumed, self.sampler
        while True:
            if self._size_at(consumed) != sampler.global_batch:
                sampler = replace(sampler, global_batch=self._size_at(consumed))
            try:
                step = sampler.step_at(consumed)
            except SamplesExhausted:
                return
            consumed = step.consumed
            yield Request(sampler.for_rank(step.indices, self.place.rank).reshape(-1).copy(), consumed)

    def _items(self) -> Iterator[dict[str, Any]]:
        group = self.place.groups.get("tensor")
        sends = self.loading.tensor_peers == "broadcast" and group is not None and self.place.reads
        if not sends:
            yield from self._read()
        elif self.place.layout.coordinates(self.place.rank).tensor == 0:
            for item in self._read():
                send_step(item, group, self.place.device)
                yield item
        else:
            samples = self._reader.samples
            for request in self._requests():
                shape = (len(request.indices), samples.seq_length)
                yield receive_step(shape, samples.isolates, group, self.place.device) | {"request": request}

    def _read(self) -> Iterator[dict[str, Any]]:
        workers = self.loading.workers
        pin = self.loading.pin_memory
        several: dict[str, Any] = {
            "prefetch_factor": self.loading.prefetch,
            "multiprocessing_context": self.loading.start_method,
            "worker_init_fn": _own_group,
        }
        loader: DataLoader[Any] = DataLoader(
            self._reader,  # type: ignore[arg-type]
            batch_size=None,
            sampler=self._requests(),
            num_workers=workers,
            collate_fn=_as_is,
            pin_memory=self.place.device.type == "cuda" if pin is None else pin,
            **(several if workers else {}),
        )
        yield from loader

    def _verify(self, item: dict[str, Any]) -> None:
        if self._checked >= self.loading.verify_steps:
            return
        self._checked += 1
        mine = Digests(item["token_digest"], item["index_digest"])
        axes: tuple[Axis, ...] = ("tensor", "pipeline")
        problem = None
        for axis in axes:
            group = self.place.groups.get(axis)
            if group is not None and self.place.layout.degree(axis) > 1:
                found = find_disagreement(mine, problem is not None, group, self.place.device)
                problem = problem or (f"{axis} group: {found}" if found else None)
        if problem is not None:
            raise BatchMismatch(
                f"step that ends at sample {item['request'].consumed:,}, {problem}; ranks read different files: put "
                "the shards on one shared disk, copy them again, or set data.loading.tensor_peers: broadcast"
            )
