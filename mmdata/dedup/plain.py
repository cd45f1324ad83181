"""The kernels again without numba: the same bits from regular expressions, Python integers and numpy.

About a hundred times slower for words, ten for permutations. Used where numba is missing (and said so in the log and
the report), by the sha1 item hash, which needs the words themselves, and by the tests as an independent second path.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup.word_table import RUN, SINGLE, WHITE_SPACE, word_table

U64 = NDArray[np.uint64]

MASK = (1 << 64) - 1
WORD_MULTIPLIER = 0xC4CEB9FE1A85EC53
MIX_MULTIPLIER = 0xFF51AFD7ED558CCD
SHINGLE_BASE = 0x9E3779B97F4A7C15
PERMUTATION_BLOCK = 1024


def class_of(kind: int) -> str:
    """The code points of `kind` as the inside of a regular-expression class."""
    inside = np.flatnonzero(word_table() == kind)
    breaks = np.flatnonzero(np.diff(inside) != 1) + 1
    groups = np.split(inside, breaks)
    return "".join(f"\\U{group[0]:08x}-\\U{group[-1]:08x}" for group in groups)


@lru_cache(maxsize=1)
def word_pattern() -> re.Pattern[str]:
    """Matches one word."""
    return re.compile(f"[{class_of(SINGLE)}]|[{class_of(RUN)}]+")


def split_words(text: str) -> list[str]:
    """The words of a text: one Han (or kana, Thai, ...) character, or one run of other letters, marks and numbers."""
    return word_pattern().findall(text)


def split_chars(text: str) -> list[str]:
    """The characters of a text, every run of white space as one space, none at the ends."""
    return list(re.sub(f"[{WHITE_SPACE}]+", " ", text).strip(" "))


def _mix(x: int) -> int:
    x ^= x >> 32
    x = x * MIX_MULTIPLIER & MASK
    return x ^ (x >> 29)


@lru_cache(maxsize=1 << 16)
def char_hash(char: str) -> int:
    """The 64-bit hash of one character of the `char` unit."""
    return _mix(ord(char) * WORD_MULTIPLIER & MASK)


@lru_cache(maxsize=1 << 16)
def unit_hash(word: str) -> int:
    """The 64-bit hash of one word or character, as the compiled kernel computes it."""
    if len(word) == 1 and word_table()[ord(word)] == SINGLE:
        return char_hash(word)
    data = word.encode("utf-8", "surrogatepass")
    h = 0
    whole = len(data) // 8 * 8
    for i in range(0, whole, 8):
        h = (h ^ int.from_bytes(data[i : i + 8], "big")) * WORD_MULTIPLIER & MASK
        h ^= h >> 32
    rest = data[whole:]
    h = (h ^ int.from_bytes(rest, "big") ^ (len(rest) << 56)) * WORD_MULTIPLIER & MASK
    return _mix(h)


def shingle_hashes(units: U64, size: int) -> U64:
    """The hash of every window of `size` units; fewer units than that are one shingle; none gives none."""
    if len(units) == 0:
        return units
    width = min(len(units), size)
    s = np.zeros(len(units) - width + 1, dtype=np.uint64)
    for i in range(width):
        s = s * np.uint64(SHINGLE_BASE) + units[i : i + len(s)]
    s ^= s >> np.uint64(32)
    s *= np.uint64(MIX_MULTIPLIER)
    return s ^ (s >> np.uint64(29))


def rolling_shingles(text: str, chars: bool, size: int) -> U64:
    """Shingle hashes of one text, repeats included."""
    values = [char_hash(c) for c in split_chars(text)] if chars else [unit_hash(w) for w in split_words(text)]
    return shingle_hashes(np.array(values, dtype=np.uint64), size)


def sha1_shingles(text: str, chars: bool, size: int) -> U64:
    """The first 8 bytes, little-endian, of SHA-1 of each shingle; its low 32 bits are datasketch's `sha1_hash32`.

    Words are joined by one space, characters by nothing.
    """
    units = split_chars(text) if chars else split_words(text)
    if not units:
        return np.zeros(0, dtype=np.uint64)
    width = min(len(units), size)
    joiner = "" if chars else " "
    pieces = (joiner.join(units[i : i + width]) for i in range(len(units) - width + 1))
    digests = b"".join(hashlib.sha1(p.encode("utf-8", "surrogatepass")).digest()[:8] for p in pieces)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def distinct(hashes: U64) -> U64:
    """First occurrences, in order."""
    _, first = np.unique(hashes, return_index=True)
    return hashes[np.sort(first)]


def _fmix32(h: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """MurmurHash3's finalizer for 32 bits."""
    h = h ^ (h >> np.uint32(16))
    h = h * np.uint32(0x85EBCA6B)
    h = h ^ (h >> np.uint32(13))
    h = h * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def _fmix64(h: U64) -> U64:
    """MurmurHash3's finalizer for 64 bits."""
    h = h ^ (h >> np.uint64(33))
    h = h * np.uint64(0xFF51AFD7ED558CCD)
    h = h ^ (h >> np.uint64(33))
    h = h * np.uint64(0xC4CEB9FE1A85EC53)
    return h ^ (h >> np.uint64(33))


def signature(hashes: U64, scheme: str, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """One signature in the scheme's dtype; no hashes give all ones (of 32 bits for affine32 and legacy)."""
    dtype = np.dtype(np.uint32 if scheme == "affine32" else np.uint64)
    out = np.full(len(a), MASK if scheme == "affine64" else 0xFFFFFFFF, dtype=dtype)
    values: NDArray[Any]
    if scheme == "affine32":
        values = _fmix32(hashes.astype(np.uint32))
    elif scheme == "affine64":
        values = _fmix64(hashes)
    else:
        values = hashes & np.uint64(0xFFFFFFFF)
    for low in range(0, len(values), PERMUTATION_BLOCK):
        table = values[low : low + PERMUTATION_BLOCK, None] * a + b
        if scheme == "legacy":
            table = table % np.uint64((1 << 61) - 1) & np.uint64(0xFFFFFFFF)
        np.minimum(out, table.min(axis=0), out=out)
    return out


def band_keys(signatures: NDArray[Any], bands: int, rows: int) -> U64:
    """One 64-bit key for each document and band."""
    wide = signatures.astype(np.uint64)
    out = np.empty((len(wide), bands), dtype=np.uint64)
    multiplier = np.uint64(WORD_MULTIPLIER)
    for band in range(bands):
        h = np.full(len(wide), _mix((band + 1) * WORD_MULTIPLIER & MASK), dtype=np.uint64)
        for k in range(band * rows, (band + 1) * rows):
            h = (h ^ wide[:, k]) * multiplier
            h ^= h >> np.uint64(32)
        h ^= h >> np.uint64(32)
        h *= np.uint64(MIX_MULTIPLIER)
        out[:, band] = h ^ (h >> np.uint64(29))
    return out
