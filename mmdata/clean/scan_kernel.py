"""The walk over the UTF-8 bytes of a batch: one pass that fills nearly all columns and lists the words.

ASCII words are found 32 bytes at a time and hashed 8 bytes at a time; Han characters are read in runs. What is rare (a
number that could be personal data) is only noted, for mmdata.clean.pii_kernel to look at. What a usual text calls for
at every sign, run or line is `inlined`: a call hands over two dozen values and costs more than most of these parts do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmdata.clean import columns as c
from mmdata.clean import hashing_kernel as h
from mmdata.clean import signs_kernel as s
from mmdata.clean import tables as t
from mmdata.clean.hashing_kernel import PRIME, SEED
from mmdata.kernel_loads import ascii_word, get, load8, pointer
from mmdata.kernels import inlined, kernel

# For the five marks TRADITIONAL .. ZH_STOP (table entry >> 10, without LIGATURE): four 15-bit counters in one int64.
MARK_FIELDS = np.array(
    [(m & 1) | ((m >> 1) & 1) << 15 | ((m >> 2) & 1) << 30 | ((m >> 4) & 1) << 45 for m in range(64)], np.uint64
)
FIELD = 32000  # characters whose marks fit those counters


@inlined
def decode(data: Any, i: Any) -> Any:
    """The code point at byte i, which begins a character beyond ASCII, and its length in bytes."""
    block = np.int64(load8(data, i))
    lead, second, third = block & 255, (block >> 8) & 63, (block >> 16) & 63
    code, size = ((lead & 15) << 12) | (second << 6) | third, 3
    if lead < 0xE0:
        code, size = ((lead & 31) << 6) | second, 2
    elif lead >= 0xF0:
        code, size = ((lead & 7) << 18) | (second << 12) | (third << 6) | ((block >> 24) & 63), 4
    return code, size


@inlined
def entry(table: Any, code: Any) -> Any:
    """The character table's entry; above U+FFFF: Han extensions, private planes, noncharacters, else symbol."""
    info = get(table, min(code, 65535))
    if code >= 65536:
        info = t.SYMBOL | t.NOT_NFC  # rare: musical signs, compatibility ideographs, combining marks
        if 0x1F000 <= code < 0x1FB00:
            info = t.SYMBOL
        if code >= 0xF0000 or (code & 0xFFFE) == 0xFFFE or 0xE0000 <= code < 0xE0080:
            info = t.PRIVATE
        if 0x20000 <= code < 0x2F800 or 0x30000 <= code < 0x32400:
            info = t.HAN
    return info


@inlined
def han_run(data: Any, i: Any, line: Any, trace: Any, fill: Any, row: Any) -> Any:
    """Walk the consecutive Han and kana characters from byte i; each is a word. fill: as in scan, with the count.

    Returns the end, line and trace anew, and the number of words.
    """
    value, head, _, width, gap, wide, han, letters = line
    previous, run, _ = trace
    table, fields, words, lengths, count = fill
    first, kana, packed, marks = count, 0, np.uint64(0), 0
    head, width = head if width else i, width + gap
    while count - first < FIELD:
        block = np.int64(load8(data, i))
        code = ((block & 15) << 12) | ((block >> 2) & 0xFC0) | ((block >> 16) & 63)
        info = get(table, code)
        kind = info & 31
        if (block & 0xF0) != 0xE0 or (kind != t.HAN and kind != t.KANA):
            break
        kana += kind == t.KANA
        marks |= info
        packed += get(fields, info >> 10)
        run = run + 1 if code == previous else 1
        if run > row[c.LONGEST_RUN]:
            row[c.LONGEST_RUN] = run
        previous = code
        word = np.uint64(code)
        words[count] = h.mix(word * h.GRAM_BASE)
        lengths[count] = 1
        value = (value ^ word) * PRIME
        count += 1
        i += 3
    sums, found = np.int64(packed), count - first
    row[t.KANA] += kana
    row[t.HAN] += found - kana
    row[c.NOT_NFC] |= (marks >> 9) & 1
    row[c.TRADITIONAL] += sums & 0x7FFF
    row[c.SIMPLIFIED] += (sums >> 15) & 0x7FFF
    row[c.GBK_TRACES] += (sums >> 30) & 0x7FFF
    row[c.ZH_STOPS] += sums >> 45
    return i, (value, head, i - 3, width + found, 0, wide, han + found, letters), (previous, run, 0), count


@inlined
def word_hash(data: Any, i: Any, size: Any, low: Any) -> Any:
    """The hash of `size` ASCII letters and digits from byte i, case folded; low: LOW_BYTES. Twin: h.word_hash."""
    block = (load8(data, i) | h.FOLD) & get(low, min(size, 8))
    value = h.stir(SEED ^ block)
    block = (load8(data, i + 8) | h.FOLD) & get(low, min(max(size - 8, 0), 8))
    value = h.stir(value ^ block)
    at = 16
    while at < size:
        block = (load8(data, i + at) | h.FOLD) & get(low, min(size - at, 8))
        value = h.stir(value ^ block)
        at += 8
    return value


@kernel
def extend_run(data: Any, i: Any, value: Any, category: Any, lookup: Any, row: Any) -> Any:
    """Continue a word at byte i with letters of any script; category: ftfy's, of the character before.

    Returns the hash, the end, the numbers of characters beyond ASCII and of ASCII ones, and the last ftfy category.
    """
    table, pairs = lookup[0], lookup[1]
    beyond, plain = 0, 0
    while True:
        code, size = get(data, i), 1
        if code >= 0x80:
            code, size = decode(data, i)
        info = entry(table, code)
        kind, now = info & 31, (info >> 5) & 15
        if kind > t.MARK:
            break
        if size > 1:
            row[kind] += 1
            row[c.NOT_NFC] |= (info >> 9) & 1
            row[c.LIGATURES] |= (info >> 15) & 1
            row[c.FTFY] += pairs[(category << 4) | now] | (now == t.FTFY_ALONE)
            beyond += 1
        else:
            plain += 1
        category = now
        value = (value ^ np.uint64(code)) * PRIME
        i += size
    return (h.mix(value) if beyond else value), i, beyond, plain, category


@inlined
def word(data: Any, i: Any, found: Any, line: Any, trace: Any, context: Any) -> Any:
    """The word at byte i and one space behind it. found: what ascii_word gave; context: (lookup, fill, row, spot).

    Returns the end, line and trace anew, and the number of spots.
    """
    size, digits, vowels = found
    value, head, _, width, gap, wide, han, letters = line
    lookup, fill, row, spot = context
    if size == 32:
        size, digits, vowels = rest_of_word(data, i, size, digits, vowels)
    end, plain, beyond, category = i + size, size, 0, trace[2] * (size == 0)
    key = word_hash(data, i, size, lookup[5])
    if get(data, end) >= 0xC2:
        key, end, beyond, more, category = extend_run(data, end, key, category, lookup, row)
        plain += more
        digits |= more
    size = plain + beyond
    if size > 20:
        s.long_word(data, i, end, size, row)
    if digits:
        spots, stops = fill[2], fill[3]
        spots[spot] = i
        stops[spot] = end
        spot += 1
    usual = (digits == 0) & (beyond == 0) & (size >= 4)
    row[c.ASCII_WORDS] += usual
    row[c.CONSONANT_WORDS] += usual & (vowels == 0)
    row[c.EN_STOPS] += get(lookup[2], h.stop_slot(key)) == key
    row[c.LATIN_WORDS] += 1
    row[c.LATIN_WORD_CHARS] += size
    row[t.LATIN] += plain
    words, lengths, count = fill[0], fill[1], fill[4]
    words[count] = key
    lengths[count] = size
    space = np.int64(get(data, end) == 32)
    row[t.SPACE] += space
    category = 0 if space else category
    head, width = head if width else i, width + gap + size
    line = ((value ^ key) * PRIME, head, end - 1, width, space, wide, han, letters + size)
    return end + space, line, (0, 0, category), spot


@kernel
def rest_of_word(data: Any, i: Any, size: Any, digits: Any, vowels: Any) -> Any:
    """Size, digits and vowels of a word of 32 letters and digits or more, whose first 32 are known."""
    more = size
    while more == 32:
        more, also, others = ascii_word(data, i + size)
        size, digits, vowels = size + more, digits | also, vowels | others
    return size, digits, vowels


@inlined
def mark(data: Any, i: Any, char: Any, line: Any, trace: Any, context: Any) -> Any:
    """A space or a sign; char: (code, table entry). Returns line and trace anew, and the number of spots."""
    code, info = char
    value, head, tail, width, gap, wide, han, letters = line
    previous, run, category = trace
    lookup, fill, row, spot, state, start = context
    kind, now = info & 31, (info >> 5) & 15
    row[kind] += 1
    row[c.NOT_NFC] |= (info >> 9) & 1
    if now | category:
        row[c.FTFY] += lookup[1][(category << 4) | now] | (now == t.FTFY_ALONE)
    if code > 127:
        s.wide_sign(code, row)
    if kind == t.SPACE or kind == t.WIDE_SPACE:
        row[c.RETURNS] += code == 13
        if width:
            gap += 1
            wide |= kind == t.WIDE_SPACE
            if code == 32 and get(data, i - 1) == 32 and get(data, i - 2) == 32 and get(data, i - 3) != 32:
                row[c.SPACE_RUNS] += s.prose_run(data, i, head, state)
        return (value, head, tail, width, gap, wide, han, letters), (previous, run, now), spot
    if code == 0x40:
        spots, stops = fill[2], fill[3]
        spots[spot] = i
        stops[spot] = i
        spot += 1
    elif code < 128:
        s.sign(data, i, start, code, row)
    run = run + 1 if code == previous else 1
    row[c.LONGEST_RUN] = max(row[c.LONGEST_RUN], run)
    head, wide = head if width else i, wide | (kind == t.WIDE_PUNCT)
    line = ((value ^ np.uint64(code)) * PRIME, head, i, width + gap + 1, 0, wide, han, letters)
    return line, (code, run, now), spot


@inlined
def scan(data: Any, bounds: Any, lookup: Any, fill: Any, sets: Any, row: Any) -> Any:
    """Walk one document; bounds: (first byte, last byte, which is a line feed, words and spots so far).

    lookup: (characters, pairs, stop words, line starts, MARK_FIELDS, LOW_BYTES); fill: (words, lengths, spots, ends of
    spots); sets: as in close_line; all pointers. Returns the numbers of words and spots. The walk carries line: (hash,
    bytes of the first and the last visible character, width, white space since, fullwidth signs, Han characters, other
    letters), and trace: (previous character, its run, its ftfy category).
    """
    table = lookup[0]
    i, stop, count, spot = bounds
    start, state, none = i, sets[3], count - count  # a literal 0 would make numba compile every part twice
    line, trace = (SEED, i, i, none, none, none, none, none), (none, none, none)
    while i <= stop:
        size, digits, vowels, info = 0, 0, 0, 0
        code, length = get(data, i), 1
        if code < 0x80:
            info = get(table, code)
            if info & 31 <= t.DIGIT:
                size, digits, vowels = ascii_word(data, i)
        else:
            code, length = decode(data, i)
            info = entry(table, code)
        kind = info & 31
        if kind <= t.MARK:
            context = (lookup, (fill[0], fill[1], fill[2], fill[3], count), row, spot)
            i, line, trace, spot = word(data, i, (size, digits, vowels), line, trace, context)
            count += 1
        elif (kind == t.HAN or kind == t.KANA) and length == 3:
            i, line, trace, count = han_run(data, i, line, trace, (table, lookup[4], fill[0], fill[1], count), row)
        elif code == 10:
            row[t.SPACE] += 1
            s.close_line(data, line, (i, i == stop), lookup, sets, row)
            line, trace = (SEED, i, i, none, none, none, none, none), (none, none, none)
            i += 1
        else:
            context2 = (lookup, fill, row, spot, state, start)
            line, trace, spot = mark(data, i, (code, info), line, trace, context2)
            i += length
    return count, spot


@kernel
def scan_batch(data: Any, offsets: Any, lookup: Any, fill: Any, sets: Any, out: Any) -> None:
    """Fill out[i] for document i = data[offsets[i]:offsets[i+1] - 1], but for what the other kernels count.

    fill: (words, lengths, spots, ends of spots, ends), where ends[i] are the numbers of words and spots up to the end
    of document i. sets: (seen lines, first stamp).
    """
    seen, stamp, text = pointer(sets[0]), sets[1], pointer(data)
    tables = (pointer(lookup[0]), pointer(lookup[1]), pointer(lookup[2]), pointer(lookup[3]), pointer(lookup[4]),
              pointer(lookup[5]))  # fmt: skip
    lists, ends = (pointer(fill[0]), pointer(fill[1]), pointer(fill[2]), pointer(fill[3])), fill[4]
    memory = np.zeros(s.STATE, np.int64)
    state = pointer(memory)
    count = spot = offsets[0] - offsets[0]
    for i in range(offsets.size - 1):
        row, stop = pointer(out[i]), offsets[i + 1] - 1
        row[c.BYTES] = stop - offsets[i]
        mask = 255
        while mask < row[c.BYTES] // 2 + 255:
            mask = mask * 2 + 1
        memory[:] = 0
        first = count
        bounds = (offsets[i], stop, count, spot)
        count, spot = scan(text, bounds, tables, lists, (stamp + i, mask, seen, state), row)
        ends[i, 0], ends[i, 1] = count, spot
        row[t.SPACE] -= 1
        row[c.WORDS] = count - first
        row[c.WORD_CHARS] = row[c.LATIN_WORD_CHARS] + row[c.WORDS] - row[c.LATIN_WORDS]
        for kind in range(t.CLASSES):
            row[c.CHARS] += row[kind]
    assert memory.size == s.STATE  # keeps it alive
