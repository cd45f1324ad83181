"""Rules that read the text again: ruins, compressibility, bad words. Called only where the recipe asks for them."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mmdata.clean import mojibake
from mmdata.errors import BoilerplateListError
from mmdata.kernels import kernel


def ruined_value(text: str, suspicious: bool = True) -> float:
    """Share of the text lost: U+FFFD and its traces per character, or 1 for UTF-8 read as GBK with bytes lost.

    suspicious: False skips the second question (the measuring pass found too few characters of such text).
    """
    if suspicious:
        repaired, recovered = mojibake.utf8_read_as_gbk(text)
        if repaired is None and recovered > mojibake.RUIN_SHARE:
            return 1.0
    return mojibake.ruined_share(text)


@kernel
def compressed_size(data: Any) -> Any:
    """Bytes an LZ4-like greedy parse of `data` needs: 3 for a match of 4 bytes or more within 64 KiB, 1 for a literal.

    A fixed rule of our own, so that a decision never changes with a library's version. Linear.
    """
    table = np.full(1 << 14, -1, np.int64)
    size, i, n = 0, 0, data.size
    while i + 4 <= n:
        word = np.uint32(data[i]) | np.uint32(data[i + 1]) << 8 | np.uint32(data[i + 2]) << 16
        word |= np.uint32(data[i + 3]) << 24
        slot = np.int64((np.uint64(word) * np.uint64(2654435761) >> np.uint64(18)) & np.uint64(16383))
        j = table[slot]
        table[slot] = i
        length = 0
        if j >= 0 and i - j < 65536:
            while i + length < n and data[j + length] == data[i + length] and length < 65536:
                length += 1
        if length >= 4:
            size, i = size + 3, i + length
        else:
            size, i = size + 1, i + 1
    return size + n - i


def compression_ratio(text: str) -> float:
    """UTF-8 bytes per compressed byte; prose has 1.3 to 2.5, a repeated sentence far more."""
    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    return float(data.size / max(compressed_size(data), 1)) if data.size else 0.0


@lru_cache(maxsize=8)
def _bad_words(path: str) -> tuple[frozenset[str], re.Pattern[str] | None]:
    try:
        entries = [line.strip().lower() for line in Path(path).read_text(encoding="utf-8").split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        raise BoilerplateListError(f"bad_words: cannot read {path!r}: {error}") from error
    entries = [entry for entry in entries if entry and not entry.startswith("#")]
    # Han has no word edges: one character alone (性) stands in a tenth of all documents, so it needs two.
    unspaced = [entry for entry in entries if re.search("[\u3040-\u30ff\u3400-\u9fff]", entry) and len(entry) > 1]
    spaced = frozenset(entry for entry in entries if not re.search("[\u3040-\u30ff\u3400-\u9fff]", entry))
    pattern = re.compile("|".join(map(re.escape, sorted(unspaced, key=len, reverse=True)))) if unspaced else None
    return spaced, pattern


def bad_word_share(text: str, path: str) -> float:
    """Bad words per word: whole words and phrases of two or three (Latin), substrings of two or more (Han)."""
    spaced, pattern = _bad_words(path)
    lower = text.lower()
    words = re.findall("[^\\W_]+(?:['’-][^\\W_]+)*", lower)
    phrases = [" ".join(words[i : i + n]) for n in (1, 2, 3) for i in range(len(words) - n + 1)]
    hits = sum(phrase in spaced for phrase in phrases) + (len(pattern.findall(lower)) if pattern else 0)
    units = len(re.findall("[\u3040-\u30ff\u3400-\u9fff]|[^\\W_\u3040-\u30ff\u3400-\u9fff]+", lower))
    return hits / max(units, 1)
