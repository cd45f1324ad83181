"""Programs and values of a batch become flat ids and counted ranges; per token only numpy works."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mmdata.chat.program import Program
from mmdata.chat.stretches import Indices, StretchEncoder, Tokens

Job = tuple[Program, list[Any]]
"""A program and the values of its slots."""


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

    def owned_by(self, owner: Indices) -> Sequences:
        return replace(self, owner=owner)

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
        def joined(name: str, kind: Any) -> Any:
            return np.concatenate([np.empty(0, kind), *(getattr(piece, name) for piece in pieces)])

        return Sequences(
            joined("tokens", np.int32),
            joined("lengths", np.int64),
            joined("spans", np.int32),
            joined("span_lengths", np.int64),
            joined("owner", np.int64),
        )


def assemble(encoder: StretchEncoder, jobs: Sequence[Job]) -> Sequences:
    """Encode a batch: one call to the tokenizer, then numpy. The owner of a sequence is its job's number."""
    if not jobs:
        return Sequences.concatenate([])
    texts: list[str] = []
    later: list[bool] = []
    for program, values in jobs:
        for number, plan in enumerate(program.plan):
            if plan is None:
                texts.append(program.stretches[number].text(values))
            else:
                texts.append(plan[0] + values[plan[1]] + plan[2])
        later += program.later
    batch = encoder.encode(texts, later)
    lengths = np.concatenate([program.item_lengths for program, _ in jobs])
    is_open = lengths < 0
    lengths[is_open] = batch.lengths
    is_text = np.repeat(is_open, lengths)
    tokens = np.empty(len(is_text), np.int32)
    tokens[is_text] = batch.tokens
    tokens[~is_text] = np.concatenate([program.fixed for program, _ in jobs])
    item_ends = np.cumsum(lengths)
    items = np.array([len(program.item_lengths) for program, _ in jobs])
    job_ends = item_ends[np.cumsum(items) - 1]
    job_lengths = np.diff(job_ends, prepend=0)
    edges = _Edges(encoder, jobs, texts, later)
    within = edges.tokens(batch.tokens, batch.lengths)
    edge_items = np.concatenate([program.edge_items for program, _ in jobs])
    edge_items += np.repeat(np.cumsum(items) - items, edges.counts)
    spans = (item_ends - lengths)[edge_items] + within - np.repeat(job_ends - job_lengths, edges.counts)
    return Sequences(tokens, job_lengths, spans.astype(np.int32), edges.counts, np.arange(len(jobs), dtype=np.int64))


class _Edges:
    """The ends of counted ranges of a batch, as tokens into their item."""

    def __init__(self, encoder: StretchEncoder, jobs: Sequence[Job], texts: list[str], later: list[bool]) -> None:
        self._encoder, self._jobs, self._texts, self._later = encoder, jobs, texts, later
        self.counts = np.array([len(program.edges) for program, _ in jobs], np.int64)
        stretches = np.array([len(program.plan) for program, _ in jobs], np.int64)
        inner = np.array([len(program.inner_edges) for program, _ in jobs], np.int64)
        self._job = np.repeat(np.arange(len(jobs)), inner)
        self._place = np.concatenate([program.inner_edges for program, _ in jobs])
        self._edge = self._place + (np.cumsum(self.counts) - self.counts)[self._job]
        first_text = np.cumsum(stretches) - stretches
        self._text = np.concatenate([program.inner_stretches for program, _ in jobs]) + first_text[self._job]

    def tokens(self, tokens: Tokens, lengths: Indices) -> Indices:
        """Tokens of its item before each edge.

        A token across an edge counts, as in transformers: a start takes the first token that ends behind it, an end
        all tokens that begin before it.
        """
        within = np.concatenate([program.edge_tokens for program, _ in self._jobs])
        if not len(self._edge):
            return within
        known = self._encoder.byte_lengths
        if known is None:
            within[self._edge] = self._slow(np.arange(len(self._edge)), np.zeros(len(self._edge), np.int64))
            return within
        token_ends = np.concatenate(([0], np.cumsum(known[tokens])))
        first = (np.cumsum(lengths) - lengths)[self._text]
        target = token_ends[first] + self._sizes()
        is_end = self._place % 2 == 1
        starts = np.searchsorted(token_ends[1:], target, side="right")
        found = np.where(is_end, np.searchsorted(token_ends[:-1], target, side="left"), starts) - first
        chosen = [self._texts[number] for number in self._text.tolist()]
        if not unicodedata.is_normalized("NFC", "".join(chosen)):
            # The tokenizer may have composed some of them: their bytes are not those of the text.
            odd = [i for i, text in enumerate(chosen) if not unicodedata.is_normalized("NFC", text)]
            found = self._slow(np.array(odd, np.int64), found)
        within[self._edge] = found
        return within

    def _sizes(self) -> Indices:
        """Bytes of its stretch before each inner edge."""
        sizes = np.concatenate([program.inner_sizes for program, _ in self._jobs])
        for i in np.flatnonzero(sizes < 0).tolist():
            sizes[i] = len(self._before(i).encode())
        return sizes

    def _before(self, number: int) -> str:
        program, values = self._jobs[int(self._job[number])]
        edge = program.edges[int(self._place[number])]
        return edge.before(values, program.stretches[edge.stretch])

    def _slow(self, numbers: Indices, found: Indices) -> Indices:
        """Places by the tokenizer's own offsets."""
        for number in numbers.tolist():
            text = int(self._text[number])
            first, count = self._encoder.positions(self._texts[text], self._later[text], len(self._before(number)))
            found[number] = count if self._place[number] % 2 else first
        return found
