"""Programs and values of a batch become flat ids and counted ranges; per token only numpy works."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mmdata.chat.program import Edge, Program
from mmdata.chat.stretches import Indices, StretchEncoder, Tokens

Job = tuple[Program | None, list[Any], str]
"""A program with its values, or None and a plain text."""


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

    def count_all(self) -> Sequences:
        """Every token counts."""
        spans = np.zeros(2 * len(self.lengths), np.int32)
        spans[1::2] = self.lengths
        return replace(self, spans=spans, span_lengths=np.full(len(self.lengths), 2, np.int64))

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


def assemble(encoder: StretchEncoder, jobs: Sequence[Job], eod: list[int], force_eod: bool) -> Sequences:
    """Encode a batch. `eod`: ids behind every plain text, and behind conversations with `force_eod`."""
    if not jobs:
        return Sequences.concatenate([])
    batch = _Batch(encoder, eod, force_eod)
    for job in jobs:
        batch.add(*job)
    return batch.finish()


class _Batch:
    """Texts to encode and the plan of items around them."""

    def __init__(self, encoder: StretchEncoder, eod: list[int], force_eod: bool) -> None:
        self._encoder, self._force_eod = encoder, force_eod
        self._eod = np.array(eod, np.int32)
        self._eod_length = np.array([len(eod)] if eod else [], np.int64)
        self._texts: list[str] = []
        self._later: list[bool] = []
        self._lengths: list[Indices] = []
        self._fixed: list[Tokens] = []
        self._items = 0
        self._job_ends: list[int] = []
        self._edge_counts: list[int] = []
        self._edge_items: list[int] = []
        self._edge_tokens: list[int] = []
        # Edges inside a stretch: which edge, which text, bytes before it, the text before it (made when needed).
        self._inner: list[tuple[int, int, int, Edge, list[Any], Any]] = []

    def add(self, program: Program | None, values: list[Any], text: str) -> None:
        """Append one sequence."""
        if program is None:
            self._add_plain(text)
            return
        first_text, first_item = len(self._texts), self._items
        for stretch in program.stretches:
            self._texts.append(stretch.text(values))
            self._later.append(stretch.later)
        for edge in program.edges:
            if edge.stretch >= 0:
                stretch = program.stretches[edge.stretch]
                size = edge.constant if edge.constant >= 0 else len(edge.before(values, stretch).encode())
                place = (len(self._edge_items), first_text + edge.stretch, size, edge, values, stretch)
                self._inner.append(place)
            self._edge_items.append(first_item + edge.item)
            self._edge_tokens.append(edge.token)
        self._edge_counts.append(len(program.edges))
        self._lengths.append(program.item_lengths)
        self._fixed.append(program.fixed)
        self._items += len(program.item_lengths)
        self._end(self._force_eod)

    def _add_plain(self, text: str) -> None:
        self._texts.append(text)
        self._later.append(False)
        self._lengths.append(np.array([-1], np.int64))
        self._edge_items += [self._items, self._items + 1]
        self._edge_tokens += [0, 0]
        self._edge_counts.append(2)
        self._items += 1
        self._end(True)

    def _end(self, with_eod: bool) -> None:
        """Close a sequence. An item of its own is the place edges at the end point to."""
        tail = self._eod_length if with_eod and len(self._eod_length) else np.zeros(1, np.int64)
        self._lengths.append(tail)
        if with_eod and len(self._eod_length):
            self._fixed.append(self._eod)
        self._items += 1
        self._job_ends.append(self._items)

    def finish(self) -> Sequences:
        """Encode all texts, put them between the fixed ids, and place the edges."""
        batch = self._encoder.encode(self._texts, self._later)
        lengths = np.concatenate(self._lengths)
        open_items = lengths < 0
        lengths[open_items] = batch.lengths
        is_text = np.repeat(open_items, lengths)
        tokens = np.empty(len(is_text), np.int32)
        tokens[is_text] = batch.tokens
        tokens[~is_text] = np.concatenate([np.empty(0, np.int32), *self._fixed])
        ends = np.cumsum(lengths)
        job_ends = ends[np.array(self._job_ends) - 1]
        job_starts = np.concatenate(([0], job_ends[:-1]))
        edge_tokens = np.array(self._edge_tokens, np.int64)
        if self._inner:
            which = np.array([place[0] for place in self._inner])
            edge_tokens[which] = self._inner_tokens(batch.tokens, batch.lengths)
        counts = np.array(self._edge_counts, np.int64)
        item_starts = ends - lengths
        absolute = item_starts[np.array(self._edge_items, np.int64)] + edge_tokens
        spans = (absolute - np.repeat(job_starts, counts)).astype(np.int32)
        return Sequences(tokens, job_ends - job_starts, spans, counts, np.zeros(len(counts), np.int64))

    def _inner_tokens(self, tokens: Tokens, lengths: Indices) -> Indices:
        """Tokens of its stretch before each edge that lies inside one.

        A token across an edge counts, as in transformers: a start takes the first token that ends behind it, an end
        all tokens that begin before it.
        """
        texts = np.array([place[1] for place in self._inner])
        sizes = np.array([place[2] for place in self._inner], np.int64)
        is_end = np.array([place[0] % 2 for place in self._inner], bool)
        known = self._encoder.byte_lengths
        if known is None:
            return self._slow(range(len(self._inner)), np.zeros(len(texts), np.int64))
        token_ends = np.cumsum(known[tokens])
        token_starts = token_ends - known[tokens]
        first = np.cumsum(lengths) - lengths
        behind = np.concatenate((token_ends, [0]))
        base = np.where(first > 0, behind[first - 1], 0)
        target = base[texts] + sizes
        starts = np.searchsorted(token_ends, target, side="right") - first[texts]
        found = np.where(is_end, np.searchsorted(token_starts, target, side="left") - first[texts], starts)
        stops = np.where(first + lengths > 0, behind[first + lengths - 1], 0)
        odd = [
            number
            for number, text in enumerate(texts.tolist())
            if not _same_bytes(self._texts[text], int(stops[text] - base[text]))
        ]
        return self._slow(odd, found) if odd else found

    def _slow(self, numbers: Any, found: Indices) -> Indices:
        """Places by the tokenizer's own offsets, for texts it normalises."""
        for number in numbers:
            edge_number, text, _, edge, values, stretch = self._inner[number]
            offset = len(edge.before(values, stretch))
            first, count = self._encoder.positions(self._texts[text], self._later[text], offset)
            found[number] = count if edge_number % 2 else first
        return found


def _same_bytes(text: str, size: int) -> bool:
    """Whether the tokens' bytes, `size` of them, are those of the text: nothing was composed (NFC)."""
    return text.isascii() or (len(text.encode()) == size and unicodedata.is_normalized("NFC", text))
