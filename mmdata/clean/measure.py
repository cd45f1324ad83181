"""One pass over UTF-8 bytes that measures a batch of documents: character classes, words, lines, and suspicions.

`measure(texts, starts)` returns one int64 row a document; mmdata.clean.columns names the columns. Rules compare
columns with limits; repairs run only on documents whose columns say that there may be something to repair. Speed:
see docs/cleaning.md. Columns are exact except that equal 64-bit hashes count as equal words or lines. They depend on
nothing but the text.

A word here is one Han or kana character, or one run of other letters and digits (so 第12条 has 3 words).
Han characters beyond the Basic Multilingual Plane count as characters, not as words.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdata.clean import columns as c
from mmdata.clean import hashing_kernel as h
from mmdata.clean import tables as t
from mmdata.clean.pii_kernel import spot_batch
from mmdata.clean.scan_kernel import MARK_FIELDS, scan_batch

Matrix = npt.NDArray[np.int64]

_PAD = b"\n" * 63  # with the line feed of `join`: what kernels may read before the first and behind the last text
_CHUNK = 1 << 17  # bytes measured at once: the text and its words then stay in the processor's caches
_KEPT = 1 << 22  # bytes of the largest batch whose scratch arrays are kept for the next one

NO_STARTS = np.zeros(65536, np.uint8)
EXACT = (-1.0, 0.0)


class _Scratch(threading.local):
    """Arrays that kernels write into, kept from batch to batch: fresh pages cost as much as the work itself.

    Each document gets a stamp of its own, so that hash tables need no clearing. size: bytes they are made for.
    """

    def __init__(self) -> None:
        self.size, self.stamp = 0, 1

    def drop(self) -> None:
        """Give the memory back after an unusually large batch."""
        self.__dict__.clear()
        self.size, self.stamp = 0, 1

    def fit(self, size: int, documents: int) -> None:
        """Make the arrays at least large enough for a batch of so many bytes and documents."""
        if size > self.size or self.stamp + documents >= 1 << 31:
            self.size, self.stamp = size, 1
            self.words, self.lengths = np.empty(size, np.uint64), np.empty(size, np.int32)
            self.spots, self.stops = np.empty(size, np.int64), np.empty(size, np.int64)
            slots = 256
            while slots < size // 2 + 256:
                slots *= 2
            self.seen, self.keys = np.zeros(slots, np.uint64), np.zeros(slots, np.uint64)
            self.counts, self.grams = np.zeros(slots, np.int32), np.zeros(slots, np.uint64)


_scratch = _Scratch()


def utf8(text: str) -> bytes:
    """The text in UTF-8, lone surrogates passed through as three bytes each."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def join_batch(parts: list[bytes]) -> tuple[npt.NDArray[np.uint8], Matrix]:
    """All texts, line feeds before and behind each, in one uint8 array, and their len(parts) + 1 offsets."""
    offsets = np.full(len(parts) + 1, len(_PAD) + 1, np.int64)
    np.cumsum([len(part) + 1 for part in parts], out=offsets[1:])
    offsets[1:] += len(_PAD) + 1
    return np.frombuffer(b"\n".join((_PAD, *parts, _PAD)), np.uint8), offsets


@lru_cache(maxsize=1)
def _constants() -> tuple[Any, Any, Any, Any]:
    return t.character_table(), t.pair_table().view(np.uint8), h.stop_table(), h.count_logs()


def _measure_batch(parts: list[bytes], starts: npt.NDArray[np.uint8], bounds: tuple[float, float], out: Matrix) -> None:
    data, offsets = join_batch(parts)
    characters, pairs, stops, logs = _constants()
    scratch, ends = _scratch, np.empty((len(parts), 2), np.int64)
    scratch.fit(max(data.size, 2 * _CHUNK), len(parts))
    stamp, scratch.stamp = scratch.stamp, scratch.stamp + len(parts)
    fill = (scratch.words, scratch.lengths, scratch.spots, scratch.stops, ends)
    lookup = (characters, pairs, stops, starts, MARK_FIELDS, h.LOW_BYTES)
    scan_batch(data, offsets, lookup, fill, (scratch.seen, stamp), out)
    spot_batch(data, scratch.spots, scratch.stops, ends, out)
    tables = (scratch.keys, scratch.counts, scratch.grams, logs)
    h.repeat_batch(scratch.words, scratch.lengths, ends, tables, (stamp, *bounds), out)
    if scratch.size > _KEPT:
        scratch.drop()


def measure(
    texts: list[str], line_starts: npt.NDArray[np.uint8] = NO_STARTS, bounds: tuple[float, float] = EXACT
) -> Matrix:
    """Rows of COLUMNS int64 counts, one for each text.

    line_starts: what marks hashes of the first bytes of boilerplate lines (see mmdata.clean.lines.line_starts); zeros
    find none. bounds: (least entropy in bits, largest share of the top
    word) that anybody will ask about; where both hold for certain, ENTROPY is a lower and TOP_WORD_CHARS an upper
    bound, and UNIQUE_WORDS is 0. EXACT counts in any case.
    """
    return measure_utf8([utf8(text) for text in texts], line_starts, bounds)


def measure_utf8(parts: list[bytes], line_starts: npt.NDArray[np.uint8], bounds: tuple[float, float]) -> Matrix:
    """As `measure`, of texts that are in UTF-8 already (see `utf8`)."""
    out = np.zeros((len(parts), c.COLUMNS), np.int64)
    first, size = 0, 0
    for i, part in enumerate(parts):
        size += len(part)
        if size >= _CHUNK or i + 1 == len(parts):
            _measure_batch(parts[first : i + 1], line_starts, bounds, out[first : i + 1])
            first, size = i + 1, 0
    return out
