"""Exact duplicates: a 128-bit hash of the text, optionally normalised.

The first 64 bits are the document's only key, the last 64 its only shingle, so that exact deduplication runs through
the very machinery of near-duplicates: keeper policies, index, report. Costs about 3 GB/s plus the normalisation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

PUNCTUATION = re.compile(r"(?<!\d)(?:[^\w\s]|_)|(?:[^\w\s]|_)(?!\d)")
"""Everything that is neither letter, digit nor white space, unless it stands between two digits (1.5, 2024-03)."""


def normalize(text: str, steps: Sequence[str]) -> str:
    """Apply `punctuation` (removed, but kept between digits: numbers stay), `case` (lower) and `space` (collapsed)."""
    if "punctuation" in steps:
        text = PUNCTUATION.sub("", text)
    if "case" in steps:
        text = text.lower()
    if "space" in steps:
        text = " ".join(text.split())
    return text


def text_hashes(texts: Sequence[str]) -> NDArray[np.uint64]:
    """xxh3-128 of each text's UTF-8, shape (n, 2): the key and what verifies it."""
    digests = b"".join(xxhash.xxh3_128_digest(text.encode("utf-8", "surrogatepass")) for text in texts)
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64).reshape(len(texts), 2)
