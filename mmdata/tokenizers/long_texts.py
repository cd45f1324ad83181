"""Cutting a very long text where the cut provably changes no id.

Hugging Face holds about 60 bytes for each byte it encodes, so a document of 200 MB would take 12 GB at once. With the
split patterns below and no normaliser but NFC, a line feed between a letter, digit or mark of punctuation and an ASCII
letter or Han character always ends one word and never joins the next: no alternative of these patterns matches past
a lone line feed into a letter, matches ending there do not depend on what follows, and NFC composes nothing across it.
Other tokenizers get the text whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.tokenizers.base import Encoder, TokenBatch
from mmdata.tokenizers.rank_encodings import ENCODINGS

PIECE_CHARACTERS = 1 << 20
_CUT = re.compile(r"(?<=[A-Za-z0-9\u4e00-\u9fff.,;:!?。，；：！？])\n(?=[A-Za-z\u4e00-\u9fff])")
_KNOWN = {encoding.pattern for encoding in ENCODINGS.values()}


def pattern_allows_cuts(pattern: str) -> bool:
    """Whether a split pattern is one of those the module docstring speaks of."""
    return pattern in _KNOWN


def header_allows_cuts(header: Mapping[str, Any]) -> bool:
    """The same question for a tokenizer.json's header (normaliser, pre-tokenizer)."""
    normalizer, splitter = header.get("normalizer"), header.get("pre_tokenizer") or {}
    if normalizer is not None and normalizer.get("type") != "NFC":
        return False
    if splitter.get("type") == "ByteLevel":
        return bool(splitter.get("use_regex", True)) and not splitter.get("add_prefix_space")
    steps = splitter.get("pretokenizers") or []
    return (
        len(steps) == 2
        and steps[0].get("type") == "Split"
        and steps[0].get("behavior") == "Isolated"
        and not steps[0].get("invert")
        and pattern_allows_cuts((steps[0].get("pattern") or {}).get("Regex") or "")
        and steps[1].get("type") == "ByteLevel"
        and not steps[1].get("use_regex", True)
        and not steps[1].get("add_prefix_space")
    )


def pieces_of(text: str, size: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Consecutive pieces of `text`, each at least `size` characters but the last, cut only after a safe line feed."""
    start = 0
    while (cut := _CUT.search(text, start + size)) is not None:
        yield text[start : cut.end()]
        start = cut.end()
    yield text[start:]


def encode_in_pieces(encoder: Encoder, texts: Sequence[str], size: int = PIECE_CHARACTERS) -> TokenBatch:
    """`encoder.encode_batch(texts)`, the long ones piece by piece."""
    if all(len(text) <= 2 * size for text in texts):
        return encoder.encode_batch(texts)
    tokens: list[NDArray[np.int32]] = []
    lengths: list[NDArray[np.int64]] = []
    short: list[str] = []

    def flush() -> None:
        if short:
            batch = encoder.encode_batch(short)
            tokens.append(batch.tokens)
            lengths.append(batch.lengths)
            short.clear()

    for text in texts:
        if len(text) <= 2 * size:
            short.append(text)
            continue
        flush()
        rows = [encoder.encode_batch([piece]).tokens for piece in pieces_of(text, size)]
        tokens.extend(rows)
        lengths.append(np.array([sum(map(len, rows))], np.int64))
    flush()
    return TokenBatch(
        np.concatenate(tokens) if tokens else np.empty(0, np.int32),
        np.concatenate(lengths) if lengths else np.empty(0, np.int64),
    )
