"""Programs and values of a batch become flat ids and counted ranges; per token only numpy works."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.chat.program import Program
from mmdata.chat.stretches import Indices, StretchEncoder, Tokens
from mmdata.tokenizers.base import TokenBatch

_SLICED = 128  # tokens an item from which copying item by item takes less time than a mask of all tokens


@dataclass(slots=True)
class Jobs:
    """Sequences to be: the document of each, its program, the values of its slots, and the texts to encode."""

    owners: list[int] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    values: list[Sequence[Any]] = field(default_factory=list)
    texts: list[Sequence[str]] = field(default_factory=list)

    def add(self, owner: int, program: Program, values: Sequence[Any], texts: Sequence[str] | None = None) -> None:
        """One more; `texts` where they are made already."""
        self.owners.append(owner)
        self.programs.append(program)
        self.values.append(values)
        self.texts.append(program.texts(values) if texts is None else texts)

    @classmethod
    def of(cls, owner: int, program: Program, values: Sequence[Any]) -> Jobs:
        """A single one."""
        jobs = cls()
        jobs.add(owner, program, values)
        return jobs


@dataclass(frozen=True)
class Sequences:
    """Sequences back to back.

    tokens: int32, flat. lengths: int64. spans: int32, flat pairs. span_lengths: int64, numbers (two a range) of each
    sequence. owner: int64, the document of each sequence.
    """

    tokens: Tokens
    lengths: Indices
    spans: Tokens
    span_lengths: Indices
    owner: Indices

    def count_all(self, tail: int) -> Sequences:
        """Every token counts but the last `tail`; sequences that have ranges keep them."""
        bare = self.span_lengths == 0
        counts = np.where(bare, 2, self.span_lengths)
        at = (np.cumsum(counts) - counts)[bare]
        spans = np.zeros(int(counts.sum()), np.int32)
        mine = np.zeros(len(spans), bool)
        mine[at] = mine[at + 1] = True
        spans[~mine] = self.spans
        spans[at + 1] = self.lengths[bare] - tail
        return replace(self, spans=spans, span_lengths=counts)

    def without_first(self) -> Sequences:
        """Token 0 does not count; empty ranges go."""
        begins, ends = np.maximum(self.spans[0::2], 1), self.spans[1::2]
        solid = ends > begins
        of_span = np.repeat(np.arange(len(self.lengths)), self.span_lengths // 2)
        spans = np.stack([begins[solid], ends[solid]], axis=1).reshape(-1).astype(np.int32)
        counts = 2 * np.bincount(of_span[solid], minlength=len(self.lengths)).astype(np.int64)
        return replace(self, spans=spans, span_lengths=counts)

    def replace(self, indices: Indices, by: dict[int, Sequences]) -> Sequences:
        """The sequences with those at `indices` taken out, or replaced by others."""
        ends, span_ends = np.cumsum(self.lengths), np.cumsum(self.span_lengths)
        pieces, position = [], 0
        for index in [*indices.tolist(), len(self.lengths)]:
            if index > position:
                token = slice(int(ends[position - 1]) if position else 0, int(ends[index - 1]))
                span = slice(int(span_ends[position - 1]) if position else 0, int(span_ends[index - 1]))
                run = slice(position, index)
                pieces.append(
                    Sequences(
                        self.tokens[token],
                        self.lengths[run],
                        self.spans[span],
                        self.span_lengths[run],
                        self.owner[run],
                    )
                )
            if index in by:
                pieces.append(by[index])
            position = index + 1
        return Sequences.concatenate(pieces)

    @staticmethod
    def concatenate(pieces: Sequence[Sequences]) -> Sequences:
        """All sequences of `pieces` in order; no piece gives none, with the same dtypes."""

        def joined(name: str, kind: Any) -> Any:
            return np.concatenate([np.empty(0, kind), *(getattr(piece, name) for piece in pieces)])

        return Sequences(
            joined("tokens", np.int32),
            joined("lengths", np.int64),
            joined("spans", np.int32),
            joined("span_lengths", np.int64),
            joined("owner", np.int64),
        )


def assemble(encoder: StretchEncoder, jobs: Jobs) -> Sequences:
    """Encode a batch: one call to the tokenizer, then numpy."""
    if not jobs.owners:
        return Sequences.concatenate([])
    texts = list(chain.from_iterable(jobs.texts))
    table = _Table(jobs.programs)
    later, _ = table.gather("later")
    batch = encoder.encode(texts, later, list(chain.from_iterable([program.seams for program in jobs.programs])))
    lengths, items = table.gather("item_lengths")
    is_open = lengths < 0
    lengths[is_open] = batch.lengths
    item_ends = np.cumsum(lengths)
    tokens = _filled(lengths, item_ends - lengths, is_open, (batch.tokens, table.gather("fixed")[0]))
    job_ends = item_ends[np.cumsum(items) - 1]
    job_lengths = np.diff(job_ends, prepend=0)
    edge_items, counts = table.gather("edge_items")
    edge_items += np.repeat(np.cumsum(items) - items, counts)
    within = _Edges(encoder, jobs, texts, table).tokens(batch, later)
    spans = (item_ends - lengths)[edge_items] + within - np.repeat(job_ends - job_lengths, counts)
    return Sequences(tokens, job_lengths, spans.astype(np.int32), counts, np.array(jobs.owners, np.int64))


def _filled(lengths: Indices, starts: Indices, is_open: NDArray[np.bool_], parts: tuple[Tokens, Tokens]) -> Tokens:
    """Items back to back: the open ones from the first of `parts`, the others from the second, in order."""
    texts, fixed = parts
    if len(texts) < _SLICED * len(lengths):
        is_text = np.repeat(is_open, lengths)
        tokens = np.empty(len(is_text), np.int32)
        tokens[is_text], tokens[~is_text] = texts, fixed
        return tokens
    tokens, done = np.empty(len(texts) + len(fixed), np.int32), 0
    tokens[ragged(starts[~is_open], lengths[~is_open])] = fixed
    for start, length in zip(starts[is_open].tolist(), lengths[is_open].tolist(), strict=True):
        tokens[start : start + length] = texts[done : done + length]
        done += length
    return tokens


class _Table:
    """The arrays of a batch's programs, each program once, laid out for all jobs on request."""

    def __init__(self, each: Sequence[Program]) -> None:
        numbers = list(map(id, each))
        programs = dict(zip(numbers, each, strict=True))
        known = np.array(sorted(programs), np.int64)
        self._programs = [programs[number] for number in known.tolist()]
        self._which = np.searchsorted(known, np.array(numbers, np.int64))

    def gather(self, name: str) -> tuple[Any, Indices]:
        """Attribute `name` of each job's program, back to back, and how long each is."""
        arrays = [getattr(program, name) for program in self._programs]
        sizes = np.array([len(array) for array in arrays], np.int64)
        counts = sizes[self._which]
        starts = (np.cumsum(sizes) - sizes)[self._which]
        return np.concatenate(arrays)[ragged(starts, counts)], counts


class _Edges:
    """The ends of counted ranges of a batch, as tokens into their item."""

    def __init__(self, encoder: StretchEncoder, jobs: Jobs, texts: list[str], table: _Table) -> None:
        self._encoder, self._jobs, self._texts = encoder, jobs, texts
        self._within: Indices
        self._within, counts = table.gather("edge_tokens")
        self._place, inner = table.gather("inner_edges")
        self._sizes = table.gather("inner_sizes")[0]
        self._prefix_lengths, self._prefixes = table.gather("prefix_lengths")[0], table.gather("prefixes")[0]
        stretches = table.gather("later")[1]
        self._job = np.repeat(np.arange(len(jobs.owners)), inner)
        self._edge = self._place + (np.cumsum(counts) - counts)[self._job]
        self._text = table.gather("inner_stretches")[0] + (np.cumsum(stretches) - stretches)[self._job]

    def tokens(self, batch: TokenBatch, later: Any) -> Indices:
        """Tokens of its item before each edge.

        A token across an edge counts, as in transformers: a start takes the first token that ends behind it, an end
        all tokens that begin before it. Where a stretch begins with the very ids of the fixed text before the edge, no
        token lies across and the edge is behind them; only the others are looked up.
        """
        within = self._within
        if not len(self._edge):
            return within
        if not self._encoder.joins_bytes:
            within[self._edge] = self._by_offsets(np.arange(len(self._edge)), later)
            return within
        first = np.cumsum(batch.lengths) - batch.lengths
        places = ragged(first[self._text], self._prefix_lengths)
        # A prefix that reaches beyond its stretch is cut short by the end of the batch at worst.
        same = batch.tokens[np.minimum(places, max(0, len(batch.tokens) - 1))] == self._prefixes
        of_edge = np.repeat(np.arange(len(self._edge)), self._prefix_lengths)
        fits = np.bincount(of_edge[same], minlength=len(self._edge)) == self._prefix_lengths
        fits &= (self._prefix_lengths > 0) & (self._prefix_lengths <= batch.lengths[self._text])
        found = self._prefix_lengths
        others = np.flatnonzero(~fits)
        if len(others):
            found[others] = self._by_bytes(others, batch, first, later)
        within[self._edge] = found
        return within

    def _by_bytes(self, numbers: Indices, batch: TokenBatch, first: Indices, later: Any) -> Indices:
        """Places of some of the edges through the bytes of the tokens."""
        owner = self._text[numbers]
        lengths = batch.lengths[owner]
        sizes = self._sizes[numbers]
        for i in np.flatnonzero(sizes < 0).tolist():
            sizes[i] = len(self._before(int(numbers[i])).encode())
        token_ends = np.cumsum(self._encoder.byte_lengths(batch.tokens[ragged(first[owner], lengths)]))
        token_ends = np.concatenate(([0], token_ends))
        begin = np.cumsum(lengths) - lengths
        target = token_ends[begin] + sizes
        starts = np.searchsorted(token_ends[1:], target, side="right")
        is_end = self._place[numbers] % 2 == 1
        found: Indices = np.where(is_end, np.searchsorted(token_ends[:-1], target, side="left"), starts) - begin
        # The tokenizer may have composed some of them (NFC): their bytes are not those of the text.
        texts = [self._texts[number] for number in owner.tolist()]
        odd = [i for i, text in enumerate(texts) if not unicodedata.is_normalized("NFC", text)]
        if odd:
            found[odd] = self._by_offsets(numbers[odd], later)
        return found

    def _before(self, number: int) -> str:
        job = int(self._job[number])
        program, values = self._jobs.programs[job], self._jobs.values[job]
        edge = program.edges[int(self._place[number])]
        return edge.before(values, program.stretches[edge.stretch])

    def _by_offsets(self, numbers: Indices, later: Any) -> Indices:
        """Places of some of the edges by the tokenizer's own offsets."""
        found = np.empty(len(numbers), np.int64)
        for i, number in enumerate(numbers.tolist()):
            text = int(self._text[number])
            first, count = self._encoder.positions(self._texts[text], bool(later[text]), len(self._before(number)))
            found[i] = count if self._place[number] % 2 else first
        return found


def ragged(starts: Indices, counts: Indices) -> Indices:
    """The ranges `starts[i]` to `starts[i] + counts[i]`, back to back."""
    shift = starts - (np.cumsum(counts) - counts)
    places: Indices = np.repeat(shift, counts) + np.arange(int(counts.sum()))
    return places
