"""Token rows and their summed losses, on one device or in any layout: what perplexity and choices are made of.

A row holds one or several texts that do not see each other. `WholeScorer` runs a whole model on each rank;
`EngineScorer` runs the engine's parts, tensor and pipeline parallel. Both are collectives when there are several ranks
and give every rank every sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from mmdata_train.batch import Batch
from mmdata_train.loss import IGNORED
from mmdata_train.model.config import ModelConfig
from mmdata_train.model.decoder import Decoder
from mmdata_train.step import Engine

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Row:
    """int64 arrays of one length: tokens, the target of each (IGNORED: none), positions, number of the text."""

    tokens: Ids
    labels: Ids
    positions: Ids
    documents: Ids


MakeRow = Callable[[], Row]
"""Reads a row: only the ranks that need it do."""


class RowScorer(Protocol):
    """Sums of negative log-likelihoods, nats, of rows no longer than `seq_length`."""

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""

    @property
    def seq_length(self) -> int:
        """The longest row."""

    @property
    def rows(self) -> int:
        """Rows of one call."""

    def score(self, rows: Sequence[MakeRow]) -> list[float]:
        """One sum a row, for at most `rows` rows; the same on every rank."""


def score_all(scorer: RowScorer, rows: Iterable[MakeRow]) -> Iterator[float]:
    """The sums of any number of rows, in order. Every rank must ask for all of them."""
    stream = iter(rows)
    while batch := list(islice(stream, scorer.rows)):
        yield from scorer.score(batch)


def one_text(tokens: Sequence[int], first_target: int) -> Row:
    """A row of one text: targets are its tokens from number `first_target` (at least 1) on."""
    ids = np.asarray(tokens, dtype=np.int64)
    labels = ids[1:].copy()
    labels[: first_target - 1] = IGNORED
    size = len(labels)
    return Row(ids[:-1], labels, np.arange(size), np.zeros(size, dtype=np.int64))


def make_batch(rows: Sequence[Row], count: int, width: int) -> Batch:
    """`count` rows of `width` positions; what is missing is padding, a text of its own that counts nowhere."""
    shape = (count, width)
    tokens, positions = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    labels, documents = np.full(shape, IGNORED, dtype=np.int64), np.full(shape, -1, dtype=np.int64)
    for place, row in enumerate(rows):
        size = len(row.tokens)
        for whole, part in ((tokens, row.tokens), (labels, row.labels), (positions, row.positions)):
            whole[place, :size] = part
        documents[place, :size] = row.documents
    return Batch(*(torch.from_numpy(array) for array in (tokens, labels, positions, documents)))


def share_of(total: int, rank: int, ranks: int) -> slice:
    """Which of `total` rows a data rank takes: equal shares in order, the last ones shorter."""
    each = -(-total // ranks)
    return slice(min(rank * each, total), min((rank + 1) * each, total))


@dataclass(slots=True)
class WholeScorer:
    """A whole decoder on this rank. rows: of one call over all ranks."""

    decoder: Decoder
    seq_length: int
    rows: int

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        return self.decoder.config

    @torch.inference_mode()
    def score(self, rows: Sequence[MakeRow]) -> list[float]:
        """One sum of nats a row; ranks share the rows, all get all sums. A collective."""
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        rank = dist.get_rank() if dist.is_initialized() else 0
        own = share_of(len(rows), rank, ranks)
        sums = torch.zeros(len(rows), dtype=torch.float64)
        if own.stop > own.start:
            made = [make() for make in rows[own]]
            batch = make_batch(made, len(made), max(len(row.tokens) for row in made)).to(self.device)
            _, nll = self.decoder(batch.tokens, batch.positions, documents=batch.documents, labels=batch.labels)
            sums[own] = nll.double().cpu()
        if ranks > 1:
            sums = _sum_over_ranks(sums, self.device)
        return [float(value) for value in sums]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.decoder.parameters()).device


def _sum_over_ranks(values: Tensor, device: torch.device) -> Tensor:
    moved = values.to(device)
    dist.all_reduce(moved)
    return moved.cpu()


@dataclass(slots=True)
class EngineScorer:
    """The engine's parts in their layout. rows: of one call over all data ranks, a multiple of their number."""

    engine: Engine
    rows: int

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        return self.engine.model.config

    @property
    def seq_length(self) -> int:
        """Tokens of a row; shorter ones are padded."""
        return self.engine.seq_length

    @torch.no_grad()
    def score(self, rows: Sequence[MakeRow]) -> list[float]:
        """One sum of nats a row; data ranks share the rows, all ranks get all sums. A collective."""
        mesh = self.engine.model.mesh
        each = self.rows // mesh.layout.data
        own = slice(mesh.data_rank * each, (mesh.data_rank + 1) * each)
        batch = make_batch([make() for make in rows[own]], each, self.seq_length).to(mesh.device)
        self.engine.model.train(False)
        nll = self.engine.executor(each).evaluate(batch)
        self.engine.model.reshard()
        sums = torch.zeros(self.rows, dtype=torch.float64, device=mesh.device)
        if nll is not None and mesh.rank_on("tensor") == 0:
            sums[own] = nll.double()
        return [float(value) for value in mesh.sum(sums)[: len(rows)].cpu()]
