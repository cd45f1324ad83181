"""Repeated n-grams of a list of words, as Gopher's table A1 is computed by datatrove; linear in the words.

Words are numbered, so equal n-grams have equal 64-bit polynomial hashes and different ones collide with probability
below 1e-10 for a document of a million words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mmdata.clean.hashing_kernel import GRAM_BASE, mix
from mmdata.kernels import kernel

Numbers = npt.NDArray[np.uint64]
Lengths = npt.NDArray[np.int64]


def number_words(words: list[str]) -> tuple[Numbers, Lengths]:
    """A number from 1 for each distinct word in order of appearance, and the length of each word in characters."""
    seen: dict[str, int] = {}
    numbers = np.array([seen.setdefault(word, len(seen) + 1) for word in words], np.uint64)
    return numbers, np.array([len(word) for word in words], np.int64)


@kernel
def _slots(count: int) -> int:
    size = 64
    while size < 2 * count:
        size *= 2
    return size


@kernel
def _gram(numbers: Any, i: int, n: int) -> Any:
    value = np.uint64(n)
    for j in range(i, i + n):
        value = value * GRAM_BASE + mix(numbers[j])
    return mix(value) | np.uint64(1)


@kernel
def top_ngram_chars(numbers: Any, lengths: Any, n: int) -> Any:
    """Characters (joined by spaces) of the commonest n-gram times its count; the first to appear wins ties."""
    total = numbers.size - n + 1
    if total <= 0:
        return 0
    size = _slots(total)
    keys, counts, first = np.zeros(size, np.uint64), np.zeros(size, np.int64), np.zeros(size, np.int64)
    mask = np.uint64(size - 1)
    for i in range(total):
        key = _gram(numbers, i, n)
        slot = key >> np.uint64(1) & mask
        while keys[slot] != 0 and keys[slot] != key:
            slot = (slot + np.uint64(1)) & mask
        if keys[slot] == 0:
            keys[slot], first[slot] = key, i
        counts[slot] += 1
    best, start = 0, 0
    for slot in range(size):
        if counts[slot] > best or (counts[slot] == best and best and first[slot] < start):
            best, start = counts[slot], first[slot]
    return (lengths[start : start + n].sum() + n - 1) * best


@kernel
def duplicate_ngram_chars(numbers: Any, lengths: Any, n: int) -> Any:
    """Characters of n-grams seen before; after a hit the walk goes on behind it, so nothing is counted twice."""
    total = numbers.size - n + 1
    if total <= 0:
        return 0
    size = _slots(total)
    keys = np.zeros(size, np.uint64)
    mask = np.uint64(size - 1)
    chars, i = 0, 0
    while i < total:
        key = _gram(numbers, i, n)
        slot = key >> np.uint64(1) & mask
        while keys[slot] != 0 and keys[slot] != key:
            slot = (slot + np.uint64(1)) & mask
        if keys[slot] == key:
            chars += lengths[i : i + n].sum()
            i += n
        else:
            keys[slot] = key
            i += 1
    return chars
