"""Cutting a very long text where the cut provably changes no id.

Hugging Face holds about 60 bytes for each byte it encodes and SentencePiece 30, so a document of 200 MB would take
12 or 6 GB at once. Two kinds of tokenizer can be given a text in pieces; others get it whole.

`line`: byte-level BPE with one of the split patterns below and no normaliser but NFC. A line feed between a letter,
digit or mark of punctuation and an ASCII letter or Han character always ends one word and never joins the next: no
alternative of these patterns matches past a lone line feed into a letter, matches ending there do not depend on what
follows, and NFC composes nothing across it.

`space`: BPE over text whose spaces become `▁`, with one `▁` put in front and nothing else normalised (Llama 2).
When no piece of the vocabulary holds a `▁` after another character, no merge ever crosses from a word to the space
behind it, so both sides are merged apart. The piece after the cut is given without that space: the one put in front
stands in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.tokenizers.base import Encoder, TokenBatch
from mmdata.tokenizers.rank_encodings import ENCODINGS

PIECE_CHARACTERS = 1 << 20
# What stands before `keep` ends a piece; the next one starts after the whole match.
_CUTS = {
    "line": re.compile(r"(?<=[A-Za-z0-9\u4e00-\u9fff.,;:!?。，；：！？])(?P<keep>\n)(?=[A-Za-z\u4e00-\u9fff])"),
    "space": re.compile(r"(?<=[^ \u2581])(?P<keep>) (?=.)", re.DOTALL),
}
_LLAMA_NORMALIZER = [
    {"type": "Prepend", "prepend": "\u2581"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
]
_KNOWN = {encoding.pattern for encoding in ENCODINGS.values()}


def pattern_allows_cuts(pattern: str) -> bool:
    """Whether a split pattern is one of those the module docstring speaks of."""
    return pattern in _KNOWN


def cut_for(header: Mapping[str, Any], pieces: Iterable[str]) -> str | None:
    """`line`, `space` or None for a tokenizer.json's header (kind, normaliser, pre-tokenizer) and its vocabulary."""
    if header.get("kind") != "BPE":
        return None
    normalizer, splitter = header.get("normalizer"), header.get("pre_tokenizer")
    if normalizer is None or normalizer.get("type") == "NFC":
        return "line" if splitter and _splits_as_known(splitter) else None
    if splitter is None and normalizer.get("normalizers") == _LLAMA_NORMALIZER and spaces_only_lead(pieces):
        return "space"
    return None


def _splits_as_known(splitter: Mapping[str, Any]) -> bool:
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


def spaces_only_lead(pieces: Iterable[str]) -> bool:
    """Whether `▁` is a piece and no piece holds one behind another character."""
    found = False
    for piece in pieces:
        found = found or piece == "\u2581"
        if "\u2581" in piece.lstrip("\u2581"):
            return False
    return found


def pieces_of(text: str, cut: str, size: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Consecutive pieces of `text`, each at least `size` characters but the last; `cut`: `line` or `space`."""
    start = 0
    while (place := _CUTS[cut].search(text, start + size)) is not None:
        yield text[start : place.end("keep")]
        start = place.end()
    yield text[start:]


def encode_in_pieces(encoder: Encoder, texts: Sequence[str], cut: str, size: int = PIECE_CHARACTERS) -> TokenBatch:
    """`encoder.encode_batch(texts)`, the long ones piece by piece."""
    if max(map(len, texts), default=0) <= 2 * size:
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
        rows = [encoder.encode_batch([piece]).tokens for piece in pieces_of(text, cut, size)]
        tokens.extend(rows)
        lengths.append(np.array([sum(map(len, rows))], np.int64))
    flush()
    return TokenBatch(
        np.concatenate(tokens) if tokens else np.empty(0, np.int32),
        np.concatenate(lengths) if lengths else np.empty(0, np.int64),
    )
