"""Hashes, hash sets and per-word arithmetic of the measuring pass.

Hashes are 64 bit, of UTF-8 bytes with ASCII letters folded to lower case. Tables are stamped with the document's
number instead of being cleared, so a small document costs a small part of the table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mmdata.clean import columns as c
from mmdata.kernel_loads import get, pointer
from mmdata.kernels import inlined, kernel

SEED = np.uint64(0x9E3779B97F4A7C15)
PRIME = np.uint64(0x100000001B3)
GRAM_BASE = np.uint64(0xD6E8FEB86659FD93)
GRAM = 10  # words of the sequences whose repetition is measured
GRAM_POWER = np.uint64(pow(int(GRAM_BASE), GRAM - 1, 1 << 64))
LOW_HALF = np.uint64(0xFFFFFFFF)

# The most frequent English function words but for a and i, which are words of many languages; Gopher's eight (arXiv
# 2112.11446, appendix A.1.1) are among them.
EN_STOPS = [
    "the",
    "be",
    "to",
    "of",
    "and",
    "that",
    "have",
    "with",
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


FOLD = np.uint64(0x2020202020202020)  # makes ASCII letters small and leaves digits as they are
LOW_BYTES = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
STIR = np.uint64(0xFF51AFD7ED558CCD)
STOP_SLOTS = 512  # slots of the stop word table


@inlined
def stop_slot(value: Any) -> Any:
    """Bits 6 to 14 of a word's hash, which no two stop words share (found by trial)."""
    return np.int64(value >> np.uint64(6)) & 511



@inlined
def mix(value: Any) -> Any:
    """A 64-bit finaliser: the shift and the multiplier of MurmurHash3's fmix64, first round."""
    value ^= value >> np.uint64(33)
    value *= STIR
    return value ^ (value >> np.uint64(33))


@inlined
def stir(value: Any) -> Any:
    """One step of the word hash: a multiplication, and the high half brought down."""
    value *= STIR
    return value ^ (value >> np.uint64(32))


def word_hash(word: str) -> int:
    """The hash the measuring pass gives to an ASCII word of at most eight letters."""
    value = int(SEED) ^ int.from_bytes(word.lower().encode(), "little")
    for _ in range(2):
        value = value * int(STIR) & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 32
    return value


def stop_table() -> npt.NDArray[np.uint64]:
    """A stop word's hash stands in its slot; every other slot holds 0."""
    table = np.zeros(STOP_SLOTS, np.uint64)
    for word in EN_STOPS:
        value = word_hash(word)
        slot = (value >> 6) & (STOP_SLOTS - 1)
        assert table[slot] == 0, f"{word} collides: choose other bits"
        table[slot] = value
    return table


@inlined
def seen_before(value: Any, stamp: Any, mask: Any, seen: Any) -> Any:
    """Add a hash to the document's set; True where it was there."""
    high = np.uint64(stamp) << np.uint64(32)
    value = mix(value)
    key = high | (value & LOW_HALF)
    slot = np.int64(value >> np.uint64(32)) & mask
    while get(seen, slot) >= high and get(seen, slot) != key:
        slot = (slot + 1) & mask
    found = get(seen, slot) == key
    seen[slot] = key
    return found


def count_logs() -> npt.NDArray[np.float64]:
    """logs[k] = k log2 k - (k - 1) log2 (k - 1) for k below 4,096: what the k-th occurrence of a word adds."""
    whole = np.arange(4096) * np.log2(np.maximum(np.arange(4096), 1))
    return np.diff(whole, prepend=0.0)


@inlined
def words_are_spread(words: Any, lengths: Any, count: Any, bounds: Any, buckets: Any, row: Any) -> Any:
    """Do 256 buckets of words prove that entropy and top word keep their limits? bounds: (entropy, top share).

    A bucket holds at least what its commonest word does, so its share of the words bounds the entropy from below
    (min-entropy) and its share of the characters bounds the top word's from above. Where both keep the limits, those
    bounds go to the columns: decisions are the same, and the exact count is saved.
    """
    for bucket in range(256):
        buckets[bucket] = 0
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


@inlined
def word_repeats(words: Any, lengths: Any, count: Any, stamp: Any, mask: Any, tables: Any, row: Any) -> None:
    """Distinct words, unigram entropy and the top word, from hashes; tables: (keys, counts, grams, logs)."""
    keys, counts, _, logs = tables
    high = np.uint64(stamp) << np.uint64(32)
    unique, top, mass = 0, 0, 0.0
    for i in range(count):
        key = high | (words[i] & LOW_HALF)
        slot = np.int64(words[i] >> np.uint64(32)) & mask
        while get(keys, slot) >= high and get(keys, slot) != key:
            slot = (slot + 1) & mask
        k = 1
        if get(keys, slot) == key:
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


@inlined
def gram_repeats(words: Any, lengths: Any, count: Any, stamp: Any, mask: Any, tables: Any, row: Any) -> None:
    """Characters of words covered by sequences of GRAM words that occurred before in the document.

    Every fifth sequence is stored and every sequence is looked up: a repeat of GRAM + 4 words or more is always seen,
    and each end of a repeat may be short of its coverage by up to four words.
    """
    grams, mask = tables[2], max(mask >> 2, 63)
    high = np.uint64(stamp) << np.uint64(32)
    gram, covered, repeated, phase = np.uint64(0), 0, 0, 0
    for i in range(min(count, GRAM - 1)):
        gram = gram * GRAM_BASE + words[i]
    for i in range(GRAM - 1, count):
        gram = gram * GRAM_BASE + words[i]
        value = gram ^ (gram >> np.uint64(29))
        gram -= words[i - GRAM + 1] * GRAM_POWER
        key = high | (value & LOW_HALF)
        slot = np.int64(value >> np.uint64(32)) & mask
        while get(grams, slot) >= high and get(grams, slot) != key:
            slot = (slot + 1) & mask
        if get(grams, slot) == key:
            for j in range(max(covered, i - GRAM + 1), i + 1):
                repeated += lengths[j]
            covered = i + 1
        elif phase == 0:
            grams[slot] = key
        phase = phase + 1 if phase < 4 else 0
    row[c.DUPLICATE_GRAM_CHARS] = repeated


@kernel
def repeat_batch(words: Any, lengths: Any, ends: Any, tables: Any, options: Any, out: Any) -> None:
    """Columns about repeated words and sequences of words; the words of document i end at ends[i, 0].

    tables: as in word_repeats. options: (first stamp, least entropy, largest share of the top word).
    """
    stamp, bounds, first = options[0], (options[1], options[2]), 0
    sets = (pointer(tables[0]), pointer(tables[1]), pointer(tables[2]), pointer(tables[3]))
    memory = np.empty(256, np.int64)
    buckets = pointer(memory)
    for i in range(ends.shape[0]):
        row, mask = pointer(out[i]), 255
        while mask < row[c.BYTES] // 2 + 255:
            mask = mask * 2 + 1
        mine, sizes, count = pointer(words[first:]), pointer(lengths[first:]), ends[i, 0] - first
        if bounds[0] < 0 or not words_are_spread(mine, sizes, count, bounds, buckets, row):
            word_repeats(mine, sizes, count, stamp + i, mask, sets, row)
        gram_repeats(mine, sizes, count, stamp + i, mask, sets, row)
        first = ends[i, 0]
    assert memory.size == 256  # keeps it alive
