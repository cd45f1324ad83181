"""Hashes, hash sets and per-word arithmetic of the measuring pass.

Hashes are 64 bit, of UTF-8 bytes with ASCII letters folded to lower case. Tables are stamped with the document's
number instead of being cleared, so a small document costs a small part of the table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mmdata.clean import columns as c
from mmdata.kernels import kernel

SEED = np.uint64(0x9E3779B97F4A7C15)
PRIME = np.uint64(0x100000001B3)
GRAM_BASE = np.uint64(0xD6E8FEB86659FD93)
GRAM = 10  # words of the sequences whose repetition is measured

# The most frequent English function words; Gopher's eight (arXiv 2112.11446, appendix A.1.1) are among them.
EN_STOPS = [
    "the",
    "be",
    "to",
    "of",
    "and",
    "that",
    "have",
    "with",
    "a",
    "in",
    "is",
    "it",
    "for",
    "on",
    "as",
    "was",
    "are",
    "by",
    "this",
    "i",
    "you",
    "not",
    "or",
    "at",
    "from",
    "his",
    "but",
    "they",
    "an",
    "he",
    "she",
    "which",
    "we",
    "had",
    "were",
    "if",
    "will",
    "what",
    "so",
    "there",
    "their",
    "been",
    "has",
    "when",
    "who",
    "more",
    "no",
    "out",
    "do",
    "can",
]

# Shape bits of a word: 1 a character beyond ASCII, 2 a letter, 4 a vowel, 8 a digit; 0: the byte is in no word.
WORD_BYTES = np.zeros(256, np.uint8)
for _byte in range(128):
    if chr(_byte).isalpha():
        WORD_BYTES[_byte] = 6 if chr(_byte) in "aeiouyAEIOUY" else 2
    elif chr(_byte).isdigit():
        WORD_BYTES[_byte] = 8


@kernel
def mix(value: Any) -> Any:
    """A 64-bit finaliser: the shift and the multiplier of MurmurHash3's fmix64, first round."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    return value ^ (value >> np.uint64(33))


def word_hash(word: str) -> int:
    """The hash the measuring pass gives to an ASCII word, before mixing."""
    value = int(SEED)
    for byte in word.encode():
        value = ((value ^ (byte | 32)) * int(PRIME)) & 0xFFFFFFFFFFFFFFFF
    return value


def stop_table() -> npt.NDArray[np.uint64]:
    """4,096 slots; a stop word's unmixed hash stands at its lowest 12 bits, which no two of EN_STOPS share."""
    table = np.zeros(4096, np.uint64)
    for word in EN_STOPS:
        value = word_hash(word)
        assert table[value & 4095] == 0, f"{word} collides: choose other bits"
        table[value & 4095] = value
    return table


@kernel
def seen_before(value: Any, stamp: int, mask: int, seen: Any) -> bool:
    """Add a hash to the document's set; True where it was there."""
    high = np.uint64(stamp) << np.uint64(32)
    value = mix(value)
    key = high | (value & np.uint64(0xFFFFFFFF))
    slot = np.int64(value >> np.uint64(32)) & mask
    while seen[slot] >= high and seen[slot] != key:
        slot = (slot + 1) & mask
    found = seen[slot] == key
    seen[slot] = key
    return bool(found)


@kernel
def count_logs() -> Any:
    """logs[k] = k log2 k - (k - 1) log2 (k - 1) for k below 4,096: what the k-th occurrence of a word adds."""
    logs = np.zeros(4096, np.float64)
    for k in range(2, 4096):
        logs[k] = k * np.log2(k) - (k - 1) * np.log2(k - 1)
    return logs


@kernel
def words_are_spread(words: Any, lengths: Any, count: int, bounds: Any, buckets: Any, row: Any) -> bool:
    """Do 256 buckets of words prove that entropy and top word keep their limits? bounds: (entropy, top share).

    A bucket holds at least what its commonest word does, so its share of the words bounds the entropy from below
    (min-entropy) and its share of the characters bounds the top word's from above. Where both keep the limits, those
    bounds go to the columns: decisions are the same, and the exact count is saved.
    """
    buckets[:] = 0
    for i in range(count):
        buckets[words[i] & np.uint64(255)] += (np.int64(lengths[i]) << 32) + 1
    most, chars = 1, 0
    for bucket in range(256):
        most = max(most, buckets[bucket] & 0xFFFFFFFF)
        chars = max(chars, buckets[bucket] >> 32)
    if count == 0 or np.log2(count / most) < bounds[0] + 1e-5 or chars > bounds[1] * row[c.WORD_CHARS]:
        return False
    row[c.ENTROPY], row[c.TOP_WORD_CHARS] = np.int64(np.log2(count / most) * 1e6), chars
    return True


@kernel
def word_repeats(words: Any, lengths: Any, count: int, stamp: int, mask: int, tables: Any, row: Any) -> None:
    """Distinct words, unigram entropy and the top word, from hashes; tables: (keys, counts, grams, logs)."""
    keys, counts, _, logs = tables
    high, low = np.uint64(stamp) << np.uint64(32), np.uint64(0xFFFFFFFF)
    unique, top, mass = 0, 0, 0.0
    for i in range(count):
        word = words[i]
        key = high | (word & low)
        slot = np.int64(word >> np.uint64(32)) & mask
        while keys[slot] >= high and keys[slot] != key:
            slot = (slot + 1) & mask
        k = 1
        if keys[slot] == key:
            k = counts[slot] + 1
            mass += logs[min(k, 4095)]
        else:
            keys[slot] = key
            unique += 1
        counts[slot] = k
        top = max(top, k * lengths[i])
    row[c.UNIQUE_WORDS], row[c.TOP_WORD_CHARS] = unique, top
    if count:
        row[c.ENTROPY] = np.int64((np.log2(count) - mass / count) * 1e6 + 0.5)


@kernel
def gram_repeats(words: Any, lengths: Any, count: int, stamp: int, mask: int, tables: Any, row: Any) -> None:
    """Characters of words covered by sequences of GRAM words that occurred before in the document.

    Every fifth sequence is stored and every sequence is looked up: a repeat of GRAM + 4 words or more is always seen,
    and each end of a repeat may be short of its coverage by up to four words.
    """
    grams = tables[2]
    mask = max(mask >> 2, 63)
    high, low = np.uint64(stamp) << np.uint64(32), np.uint64(0xFFFFFFFF)
    power = np.uint64(1)
    for _ in range(GRAM):
        power *= GRAM_BASE
    gram, covered, repeated, phase = np.uint64(0), 0, 0, 0
    for i in range(min(count, GRAM - 1)):
        gram = gram * GRAM_BASE + words[i]
    for i in range(GRAM - 1, count):
        gram = gram * GRAM_BASE + words[i]
        if i >= GRAM:
            gram -= words[i - GRAM] * power
        value = gram ^ (gram >> np.uint64(29))
        key = high | (value & low)
        slot = np.int64(value >> np.uint64(32)) & mask
        while grams[slot] >= high and grams[slot] != key:
            slot = (slot + 1) & mask
        if grams[slot] == key:
            for j in range(max(covered, i - GRAM + 1), i + 1):
                repeated += lengths[j]
            covered = i + 1
        elif phase == 0:
            grams[slot] = key
        phase = phase + 1 if phase < 4 else 0
    row[c.DUPLICATE_GRAM_CHARS] = repeated
