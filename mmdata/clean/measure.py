"""One pass over UTF-8 bytes that measures a batch of documents: character classes, words, lines, and suspicions.

`measure(texts, starts)` returns one int64 row a document; mmdata.clean.columns names the columns. Rules compare
columns with limits; repairs run only on documents whose columns say that there may be something to repair. Speed:
see docs/cleaning.md. Columns are exact except that equal 64-bit hashes count as equal words or lines. They depend on
nothing but the text.

A word here is one Han or kana character, or one run of other letters and digits (so 第12条 has 3 words).
Han characters beyond the Basic Multilingual Plane count as characters, not as words.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdata.clean import columns as c
from mmdata.clean import hashing_kernel as h
from mmdata.clean import signs_kernel as s
from mmdata.clean import tables as t
from mmdata.clean.hashing_kernel import PRIME, SEED, WORD_BYTES
from mmdata.kernels import kernel

Matrix = npt.NDArray[np.int64]

ONE, TWO, THREE, LOW4, LOW6 = (np.uint64(number) for number in (1, 2, 3, 15, 63))

# For the five marks TRADITIONAL .. ZH_STOP (table entry >> 10, without LIGATURE): four 15-bit counters in one int64.
MARK_FIELDS = np.array(
    [(m & 1) | ((m >> 1) & 1) << 15 | ((m >> 2) & 1) << 30 | ((m >> 4) & 1) << 45 for m in range(64)], np.int64
)


@kernel
def astral_info(code: Any) -> Any:
    """The table entry of a code point above U+FFFF: Han extensions, private planes, noncharacters, else symbol."""
    if 0x20000 <= code < 0x2F800 or 0x30000 <= code < 0x32400:
        return t.HAN
    if code >= 0xF0000 or (code & 0xFFFE) == 0xFFFE or 0xE0000 <= code < 0xE0080:
        return t.PRIVATE
    if 0x1F000 <= code < 0x1FB00:
        return t.SYMBOL
    return t.SYMBOL | t.NOT_NFC  # rare: musical signs, compatibility ideographs, combining marks


@kernel
def decode(data: Any, i: Any) -> Any:
    """The code point at byte i and its length in bytes."""
    lead = np.int64(data[i])
    if lead < 0x80:
        return lead, 1
    if lead < 0xE0:
        return ((lead & 31) << 6) | (np.int64(data[i + 1]) & 63), 2
    middle = (np.int64(data[i + 1]) & 63) << 6 | (np.int64(data[i + 2]) & 63)
    if lead < 0xF0:
        return ((lead & 15) << 12) | middle, 3
    return ((lead & 7) << 18) | (middle << 6) | (np.int64(data[i + 3]) & 63), 4


@kernel
def extend_run(data: Any, i: Any, value: Any, category: Any, lookup: Any, row: Any) -> Any:
    """Continue a word at byte i with letters of any script; category: ftfy's, of the character before.

    Returns the hash, the end, the numbers of characters beyond ASCII and of ASCII ones, and the last ftfy category.
    """
    table, pairs = lookup[0], lookup[1]
    beyond, plain = 0, 0
    while True:
        code, size = decode(data, i)
        info = np.int64(table[code]) if code < 65536 else astral_info(code)
        kind = info & 31
        if kind > t.MARK:
            return value, i, beyond, plain, category
        now = (info >> 5) & 15
        if size > 1:
            row[kind] += 1
            row[c.NOT_NFC] |= (info >> 9) & 1
            row[c.LIGATURES] |= (info >> 15) & 1
            row[c.FTFY] += pairs[category, now] or now == t.FTFY_ALONE
            beyond += 1
        else:
            plain += 1
        category = now
        value = (value ^ np.uint64(code)) * PRIME
        i += size


@kernel
def other(data: Any, i: Any, code: Any, info: Any, bounds: Any, row: Any) -> None:
    """Marks and columns of a character that is neither Han nor in a word nor a space."""
    if code < 128:
        s.sign(data, i, bounds[0], bounds[1], row)
        return
    row[c.NOT_NFC] |= (info >> 9) & 1
    s.wide_sign(code, row)


@kernel
def sign_columns(pairs: Any, before: Any, info: Any, row: Any) -> Any:
    """Class and ftfy columns of a character outside words; returns its ftfy category."""
    now = (info >> 5) & 15
    row[c.FTFY] += pairs[before, now] or now == t.FTFY_ALONE
    row[info & 31] += 1
    return now


@kernel
def mark(data: Any, i: Any, code: Any, info: Any, place: Any, bounds: Any, row: Any) -> Any:
    """A space or a sign; place: (line hash, width, gap, last visible byte, wide, previous code point, its run)."""
    value, width, gap, tail, wide, previous, run = place
    kind = info & 31
    if kind == t.SPACE or kind == t.WIDE_SPACE:
        wide |= kind == t.WIDE_SPACE and width > 0
        gap += width > 0
        if code > 127 or code == 13:
            other(data, i, code, info, bounds, row)
        return value, width, gap, tail, wide, previous, run
    run, wide = run + 1 if code == previous else 1, wide | (kind == t.WIDE_PUNCT)
    row[c.LONGEST_RUN] = max(row[c.LONGEST_RUN], run)
    other(data, i, code, info, bounds, row)
    value = (value ^ np.uint64(code)) * PRIME
    return value, width + gap + 1, 0, i, wide, code, run


@kernel
def han_run(data: Any, i: Any, line: Any, table: Any, words: Any, lengths: Any, count: int, row: Any) -> Any:
    """Walk consecutive Han and kana characters from byte i; each is a word.

    line: (line hash, previous code point, its run). Returns end, number of words, line hash, previous, run.
    """
    value, previous, run = line
    first, longest, packed, kana = count, row[c.LONGEST_RUN], 0, 0
    marks: Any = 0
    at = np.uint64(i)
    while count - first < 32000:  # the packed counters below have 15 bits each
        lead = np.uint64(data[at])
        if lead < 0xE3 or lead > 0xEF:
            break
        code = (lead & LOW4) << np.uint64(12) | (np.uint64(data[at + ONE]) & LOW6) << np.uint64(6)
        code |= np.uint64(data[at + TWO]) & LOW6
        info = np.int64(table[code])
        kind = info & 31
        if kind != t.HAN and kind != t.KANA:
            break
        kana += kind == t.KANA
        marks |= info
        packed += MARK_FIELDS[info >> 10]
        run = run + 1 if np.int64(code) == previous else 1
        longest = max(longest, run)
        previous = np.int64(code)
        words[count] = h.mix(code * h.GRAM_BASE)
        lengths[count] = 1
        value = (value ^ code) * PRIME
        count += 1
        at += THREE
    row[c.LONGEST_RUN] = longest
    row[t.KANA] += kana
    row[t.HAN] += count - first - kana
    row[c.NOT_NFC] |= (marks >> 9) & 1
    row[c.TRADITIONAL] += packed & 0x7FFF
    row[c.SIMPLIFIED] += (packed >> 15) & 0x7FFF
    row[c.GBK_TRACES] += (packed >> 30) & 0x7FFF
    row[c.ZH_STOPS] += packed >> 45
    return np.int64(at), count, value, previous, run


@kernel
def scan(data: Any, bounds: Any, lookup: Any, words: Any, lengths: Any, sets: Any, row: Any) -> Any:
    """Walk one document, bytes bounds[0] to bounds[1], where \\n must stand; returns its number of words.

    lookup: (characters, pairs, stop words, line starts); sets: (stamp, mask, seen lines, state, shapes).
    """
    table, pairs, stops, shapes = lookup[0], lookup[1], lookup[2], sets[4]
    i: Any = bounds[0]
    zero: Any = 0
    tail, previous, run, width, plain, han, letters, head, count = zero, zero, zero, zero, zero, zero, zero, zero, zero
    value, category, word_chars, stop_words, spaces, wide, gap = SEED, zero, zero, zero, zero, 0, zero
    while i <= bounds[1]:
        code, size = (np.int64(data[i]), 1) if data[i] < 0x80 else decode(data, i)
        info = np.int64(table[code]) if code < 65536 else astral_info(code)
        kind = info & 31
        if width == 0 and kind != t.SPACE and kind != t.WIDE_SPACE:
            head, gap = i, 0
        if kind <= t.MARK:
            word, at, shape, part = SEED, np.uint64(i), 0, WORD_BYTES[data[i]]
            while part:
                shape |= part
                word = (word ^ np.uint64(data[at] | np.uint8(32))) * PRIME
                at += ONE
                part = WORD_BYTES[data[at]]
            end: Any = np.int64(at)
            chars, category = end - i, category if end == i else zero
            plain += chars
            if data[end] >= 0xC2:
                word, end, beyond, more, category = extend_run(data, end, word, category, lookup, row)
                chars, plain, shape = chars + beyond + more, plain + more, shape | (1 if beyond else 0)
            words[count], lengths[count] = h.mix(word), chars
            shapes[shape + (16 if chars >= 4 else 0)] += 1
            if chars <= 5 and shape & 9 == 0:
                stop_words += stops[word & np.uint64(4095)] == word
            elif shape & 9 or chars > 20:
                s.special_word(data, i, end, chars, row)
            width, tail, letters, gap, previous = width + gap + chars, end - 1, letters + chars, 0, 0
            count, word_chars, value, i = count + 1, word_chars + chars, (value ^ word) * PRIME, end
            if data[end] == 32 and WORD_BYTES[data[end + 1]]:
                i, gap, spaces = end + 1, 1, spaces + 1
            continue
        if kind <= t.KANA and size == 3:
            before, line = count, (value, previous, run)
            i, count, value, previous, run = han_run(data, i, line, table, words, lengths, count, row)
            han, width = han + count - before, width + gap + count - before
            tail, gap, category = i - 3, 0, 0
            continue
        if code == 32 and width > 0 and data[i - 1] == 32 and data[i - 2] == 32 and data[i - 3] != 32:
            row[c.SPACE_RUNS] += s.prose_run(data, i, head, sets[3])
        category = sign_columns(pairs, category, info, row)
        if code == 10:
            ended = (value, head, tail, width, han, letters, wide, i, i == bounds[1])
            s.close_line(data, ended, lookup, sets, row)
            value, width, han, letters, wide, gap, previous = SEED, 0, 0, 0, 0, 0, 0
        else:
            place = (value, width, gap, tail, wide, previous, run)
            value, width, gap, tail, wide, previous, run = mark(data, i, code, info, place, bounds, row)
        i += size
    row[t.LATIN], row[c.LATIN_WORD_CHARS], row[c.WORDS] = plain - row[t.DIGIT], word_chars, count
    row[c.EN_STOPS], row[t.SPACE] = stop_words, row[t.SPACE] + spaces - 1
    return count


@kernel
def close_document(shapes: Any, row: Any) -> None:
    """Derive the word columns that come from shapes (low 4 bits: see WORD_BYTES; 16: four characters or more)."""
    for shape in range(32):
        n = shapes[shape]
        row[c.LATIN_WORDS] += n
        row[c.DIGIT_WORDS] += n if shape & 15 == 8 else 0
        if shape >= 16 and shape & 9 == 0:
            row[c.ASCII_WORDS] += n
            row[c.CONSONANT_WORDS] += n if shape & 4 == 0 else 0
        shapes[shape] = 0
    row[c.WORD_CHARS] = row[c.LATIN_WORD_CHARS] + row[t.HAN] + row[t.KANA]
    for kind in range(t.CLASSES):
        row[c.CHARS] += row[kind]


@kernel
def measure_batch(data: Any, offsets: Any, lookup: Any, bounds: Any, out: Any) -> None:
    """Fill out[i] for document i = data[offsets[i]:offsets[i+1] - 1]; scratch is reused between documents."""
    longest = 0
    for i in range(offsets.size - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    size = 256
    while size < longest // 2 + 256:
        size *= 2
    words, lengths = np.empty(longest + 1, np.uint64), np.empty(longest + 1, np.int32)
    tables = (np.zeros(size, np.uint64), np.zeros(size, np.int32), np.zeros(size, np.uint64), h.count_logs())
    buckets = np.zeros(256, np.int64)
    seen, state, shapes = np.zeros(size, np.uint64), np.zeros(s.STATE, np.int64), np.zeros(32, np.int64)
    for i in range(offsets.size - 1):
        row, stop = out[i], offsets[i + 1] - 1
        row[c.BYTES] = stop - offsets[i]
        mask = 255
        while mask < row[c.BYTES] // 2 + 255:
            mask = mask * 2 + 1
        state[:] = 0
        sets = (i + 1, mask, seen, state, shapes)
        count = scan(data, (offsets[i], stop), lookup, words, lengths, sets, row)
        close_document(shapes, row)
        if bounds[0] < 0 or not h.words_are_spread(words, lengths, count, bounds, buckets, row):
            h.word_repeats(words, lengths, count, i + 1, mask, tables, row)
        h.gram_repeats(words, lengths, count, i + 1, mask, tables, row)


def encode_batch(texts: list[str]) -> tuple[npt.NDArray[np.uint8], Matrix]:
    """UTF-8 of all texts, each ended by a line feed, in one uint8 array, and their len(texts) + 1 offsets."""
    try:
        parts = [text.encode() for text in texts]
    except UnicodeEncodeError:
        parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(part) + 1 for part in parts], out=offsets[1:])
    return np.frombuffer(b"\n".join(parts) + b"\n" * 64, np.uint8), offsets


@lru_cache(maxsize=1)
def _constants() -> tuple[Any, Any, Any]:
    return t.character_table(), t.pair_table(), h.stop_table()


NO_STARTS = np.zeros(65536, np.bool_)


EXACT = (-1.0, 0.0)
_CHUNK = 1 << 18  # characters measured at once: the bytes then stay in the processor's second-level cache


def measure(
    texts: list[str], line_starts: npt.NDArray[np.bool_] = NO_STARTS, bounds: tuple[float, float] = EXACT
) -> Matrix:
    """Rows of COLUMNS int64 counts, one for each text.

    line_starts: bool of length 65,536 marking hashes of the first bytes of boilerplate lines (see
    mmdata.clean.lines.line_starts); all False finds none. bounds: (least entropy in bits, largest share of the top
    word) that anybody will ask about; where both hold for certain, ENTROPY is a lower and TOP_WORD_CHARS an upper
    bound, and UNIQUE_WORDS is 0. EXACT counts in any case.
    """
    out = np.zeros((len(texts), c.COLUMNS), np.int64)
    first, size = 0, 0
    for i, text in enumerate(texts):
        size += len(text)
        if size >= _CHUNK or i + 1 == len(texts):
            data, offsets = encode_batch(texts[first : i + 1])
            measure_batch(data, offsets, (*_constants(), line_starts), bounds, out[first : i + 1])
            first, size = i + 1, 0
    return out
