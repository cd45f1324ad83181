"""Sequences longer than allowed: cut at one side, or conversations split between exchanges.

truncate-left loses the beginning, system message and all; truncate-right loses the end of the last answer. Ranges are
clipped along; what is left without a counted token is dropped by the caller.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from mmdata.chat.assemble import Sequences

TooLong = Literal["drop", "truncate-left", "truncate-right", "split-turns", "error"]
TOO_LONG = ("drop", "truncate-left", "truncate-right", "split-turns", "error")


def truncate(made: Sequences, limit: int, left: bool) -> Sequences:
    """Every sequence cut to `limit` tokens, at its beginning when `left`, else at its end."""
    lengths = np.minimum(made.lengths, limit)
    lost = made.lengths - lengths
    starts = np.cumsum(made.lengths) - made.lengths
    position = np.arange(len(made.tokens)) - np.repeat(starts, made.lengths)
    keep = position >= np.repeat(lost, made.lengths) if left else position < np.repeat(lengths, made.lengths)
    of_span = np.repeat(np.arange(len(lengths)), made.span_lengths // 2)
    shift = lost[of_span] if left else 0
    ends = np.minimum(made.spans[1::2] - shift, lengths[of_span])
    begins = np.maximum(made.spans[0::2] - shift, 1)
    return Sequences(made.tokens[keep], lengths, *_ranges(begins, ends, of_span, len(lengths)), made.owner)


def _ranges(begins: Any, ends: Any, of_span: Any, count: int) -> tuple[Any, Any]:
    """Flat spans and their counts, empty ranges left out."""
    solid = ends > begins
    flat = np.stack([begins[solid], ends[solid]], axis=1).astype(np.int32).reshape(-1)
    return flat, 2 * np.bincount(of_span[solid], minlength=count).astype(np.int64)


def exchanges(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """The system messages at the start, and the exchanges: a question and all up to the next."""
    head = 0
    while head < len(messages) and messages[head]["role"] == "system":
        head += 1
    turns: list[list[dict[str, Any]]] = []
    for message in messages[head:]:
        if message["role"] == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return messages[:head], turns
