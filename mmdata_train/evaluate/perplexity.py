"""Perplexity of shards and texts: the sum of negative log-likelihoods over the number of counted tokens.

Every text is read by itself. One longer than the context is read in windows that overlap, and each of its tokens is
counted exactly once, with at least seq_length - stride tokens before it; nothing is cut off at the end. Of a shard with
loss spans only the tokens in the spans count. Short texts share rows, which changes no number. Reads shards by mapped
file; each rank only its own rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from mmdata.indexed.reader import IndexedDataset
from mmdata_train.evaluate.rows import Ids, MakeRow, Row, RowScorer, score_all
from mmdata_train.loss import IGNORED


class Window(NamedTuple):
    """Inputs start ... start + size - 1 of a text; targets from number `counted` on count."""

    text: int
    start: int
    size: int
    counted: int


class Texts(Protocol):
    """Texts by number, as ids with the targets that count."""

    def lengths(self) -> Ids:
        """Tokens of each text, int64."""

    def read(self, text: int) -> tuple[Ids, Any]:
        """(ids, bool mask of the tokens that count as targets; the first one never does)."""


@dataclass(frozen=True, slots=True)
class ShardTexts:
    """The sequences of a shard, the first `limit` of them; begin: ids put before each."""

    shard: IndexedDataset
    begin: tuple[int, ...] = ()
    limit: int | None = None

    def lengths(self) -> Ids:
        """Tokens of each text with `begin`, int64 [texts]."""
        return self.shard.sequence_lengths[: self.limit].astype(np.int64) + len(self.begin)

    def read(self, text: int) -> tuple[Ids, Any]:
        """(ids int64, mask bool) of one text, `begin` in front; the loss spans of the shard decide what counts."""
        ids = np.concatenate([np.asarray(self.begin, dtype=np.int64), self.shard[text].astype(np.int64)])
        if not self.shard.has_loss_spans:
            return ids, _all_but_first(len(ids), max(1, len(self.begin)))
        counted = np.zeros(len(ids), dtype=bool)
        for start, stop in self.shard.loss_spans(text).tolist():
            counted[start + len(self.begin) : stop + len(self.begin)] = True
        return ids, counted


@dataclass(frozen=True, slots=True)
class EncodedTexts:
    """Texts held as ids; begin: how many of the first ids of each are no text."""

    texts: Sequence[Sequence[int]]
    begin: int = 0

    def lengths(self) -> Ids:
        """Tokens of each text, int64 [texts]."""
        return np.array([len(ids) for ids in self.texts], dtype=np.int64)

    def read(self, text: int) -> tuple[Ids, Any]:
        """(ids int64, mask bool) of one text; all but what stands before it count."""
        ids = np.asarray(self.texts[text], dtype=np.int64)
        return ids, _all_but_first(len(ids), max(1, self.begin))


def _all_but_first(size: int, first: int) -> Any:
    counted = np.ones(size, dtype=bool)
    counted[:first] = False
    return counted


def windows(lengths: Ids, seq_length: int, stride: int) -> Iterator[Window]:
    """Windows that count every token but the first of each text once, in order."""
    for text, tokens in enumerate(lengths.tolist()):
        if tokens < 2:
            continue
        start, counted = 0, 1
        while counted < tokens:
            size = min(seq_length, tokens - 1 - start)
            yield Window(text, start, size, counted)
            counted = start + size + 1
            # The last window is moved back so that its tokens see as much as those of the others.
            start = min(start + stride, max(0, tokens - 1 - seq_length))


def pack_windows(found: Iterator[Window], seq_length: int) -> Iterator[list[Window]]:
    """Neighbouring windows that fit a row together."""
    row: list[Window] = []
    used = 0
    for window in found:
        if row and used + window.size > seq_length:
            yield row
            row, used = [], 0
        row.append(window)
        used += window.size
    if row:
        yield row


def make_row(texts: Texts, row: Sequence[Window]) -> Row:
    """The tokens of a row's windows."""
    tokens, labels, positions, documents = [], [], [], []
    for number, window in enumerate(row):
        ids, counted = texts.read(window.text)
        stop = window.start + window.size
        targets = np.where(counted, ids, IGNORED)[window.start + 1 : stop + 1].copy()
        targets[: window.counted - window.start - 1] = IGNORED
        tokens.append(ids[window.start : stop])
        labels.append(targets)
        positions.append(np.arange(window.size))
        documents.append(np.full(window.size, number))
    return Row(*(np.concatenate(part).astype(np.int64) for part in (tokens, labels, positions, documents)))


@dataclass(frozen=True, slots=True)
class Likelihood:
    """nll: nats, summed over `tokens` counted tokens."""

    nll: float
    tokens: int

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nll / self.tokens


def measure(scorer: RowScorer, texts: Texts, seq_length: int, stride: int | None = None) -> Likelihood:
    """The likelihood of all texts in contexts of seq_length tokens (at most the scorer's); stride: half of it if None.

    A collective over the scorer's ranks. Texts of one token count nothing.
    """
    assert seq_length <= scorer.seq_length
    step = stride or max(1, seq_length // 2)
    lengths = texts.lengths()

    def makers() -> Iterator[MakeRow]:
        for row in pack_windows(windows(lengths, seq_length, step), seq_length):
            yield partial(make_row, texts, row)

    return Likelihood(math.fsum(score_all(scorer, makers())), count_targets(texts))


def count_targets(texts: Texts) -> int:
    """Targets that count in all texts."""
    if isinstance(texts, ShardTexts) and not texts.shard.has_loss_spans:
        lengths = texts.lengths()
        return int(np.maximum(lengths - max(1, len(texts.begin)), 0).sum())
    return sum(int(texts.read(text)[1].sum()) for text in range(len(texts.lengths())))
