"""Rare places of the measuring pass: markup, numbers that could be personal data, odd spaces, line ends.

Called for signs, lines and words with digits, not for every character. A trigger may be too high (the repair then
finds nothing) and never too low: tests compare each trigger with the repair it guards.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmdata.clean import columns as c
from mmdata.clean.hashing_kernel import PRIME, SEED, WORD_BYTES, seen_before
from mmdata.clean.tables import DIGIT, TERMINAL
from mmdata.kernels import kernel

NUMBER_DIGITS = 10  # fewest digits of a telephone, card or identity number
SHORT_HAN = 12  # about as wide as 30 Latin letters, FineWeb's short line
SHORT_OTHER = 30

# Slots of the state array that the pass and these functions share.
GROUP_DIGITS, GROUP_END, PARAGRAPH, PARAGRAPH_CHARS, BLANKS, REPEATS, LAST_LINE, STATE = 0, 1, 2, 3, 4, 5, 6, 8


@kernel
def markup_at(data: Any, i: int, stop: int) -> bool:
    """Does a character reference or a tag begin at `&` or `<`, byte i?"""
    follow = data[i + 1] if i + 1 < stop else 10
    if data[i] == 0x3C:
        return bool(WORD_BYTES[follow] & 6 or follow == 0x2F or follow == 0x21 or follow == 0x3F)
    j = i + 1
    while j < min(stop, i + 34):
        if data[j] == 0x3B:
            return j > i + 1
        if not (WORD_BYTES[data[j]] or data[j] == 0x23):
            return False
        j += 1
    return False


@kernel
def sign(data: Any, i: int, start: int, stop: int, row: Any) -> None:
    """An ASCII character that is neither letter, digit, space, tab nor line feed."""
    byte = data[i]
    if byte == 0x26 or byte == 0x3C:
        row[c.MARKUP] += markup_at(data, i, stop)
    elif byte == 0x40:
        row[c.PII] += i > start and i + 1 < stop and data[i - 1] > 32 and WORD_BYTES[data[i + 1]] != 0
    elif byte == 0x23:
        row[c.HASHES] += 1
    elif byte == 0x7B:
        row[c.CURLY] += 1
    elif byte == 0x2E:
        dots = i >= start + 2 and data[i - 1] == 0x2E and data[i - 2] == 0x2E
        row[c.ELLIPSES] += dots and (i < start + 3 or data[i - 3] != 0x2E)
    elif byte == 0x3A:
        row[c.PII] += i + 2 < stop and data[i + 1] == 0x3A and WORD_BYTES[data[i + 2]] == 8
    elif byte == 13:
        row[c.RETURNS] += 1
    elif byte < 32 or byte == 127:
        row[c.C0] += 1
        row[c.ESCAPES] += byte == 0x1B


@kernel
def wide_sign(code: int, row: Any) -> None:
    """A character beyond ASCII that is a space or a sign with a column of its own."""
    if code == 0x2026:
        row[c.ELLIPSES] += 1
    elif code == 0x221A:
        row[c.FTFY] += 1
    elif code == 0x2028 or code == 0x2029 or code == 0x85:
        row[c.RETURNS] += 1
    elif code == 0xA0 or 0x2000 <= code <= 0x200A or code == 0x202F or code == 0x205F or code == 0x1680:
        row[c.ODD_SPACES] += 1


@kernel
def keyword_before(data: Any, start: int, i: int) -> bool:
    """Does a keyword of a number (号 號 话 話 机 機 码 碼 真) end within 9 bytes before byte i, on the same line?"""
    j = i - 1
    while j >= start + 2 and j >= i - 12:
        if data[j] == 10:
            return False
        if data[j] < 0xC0 and data[j] >= 0x80 and data[j - 2] >= 0xE0:
            code = (np.int64(data[j - 2] & 15) << 12) | (np.int64(data[j - 1] & 63) << 6) | np.int64(data[j] & 63)
            if (code == 0x53F7 or code == 0x8BDD or code == 0x673A or code == 0x7801 or code == 0x771F
                    or code == 0x865F or code == 0x8A71 or code == 0x6A5F or code == 0x78BC):  # fmt: skip
                return True
        j -= 1
    return False


@kernel
def mrn_before(data: Any, start: int, i: int) -> bool:
    """Do the letters MRN, or a word ending in rd (as in `record number`), stand within 14 bytes before byte i?"""
    for j in range(max(start, i - 14), i - 1):
        if data[j] == 0x52 and data[j + 1] == 0x4E:
            return True
        if data[j] == 0x72 and data[j + 1] == 0x64 and data[j + 2] == 0x20:
            return True
    return False


@kernel
def number_word(data: Any, start: int, first: int, last: int, state: Any, row: Any) -> None:
    """A word with digits, bytes [first, last): could it be part of a telephone number, address, passport or plate?"""
    digits, capitals = 0, 0
    for j in range(first, last):
        digits += WORD_BYTES[data[j]] == 8
        capitals += 65 <= data[j] <= 90
    row[DIGIT] += digits
    near = first - state[GROUP_END] <= 3
    for j in range(max(start, first - 3), first):
        if j >= state[GROUP_END]:
            near &= data[j] == 32 or data[j] == 0x2D or data[j] == 0x28 or data[j] == 0x29 or data[j] >= 0xE0 or (
                0x80 <= data[j] < 0xC0
            )  # fmt: skip
    state[GROUP_DIGITS] = state[GROUP_DIGITS] + digits if near else digits
    state[GROUP_END] = last
    found = state[GROUP_DIGITS] >= NUMBER_DIGITS
    found |= digits >= 7 and (capitals > 0 or data[last] == 0x2A)
    if data[last] == 0x2E and digits == last - first and digits <= 3 and WORD_BYTES[data[last + 1]] == 8:
        dots, j = 0, first
        while WORD_BYTES[data[j]] == 8 or data[j] == 0x2E:
            dots += data[j] == 0x2E
            j += 1
        found |= dots >= 3
    if data[last] == 0x3A or (first > start and data[first - 1] == 0x3A):
        found |= data[last + 1] == 0x3A or (first - 1 > start and data[first - 2] == 0x3A)
        colons, j = 0, first
        while WORD_BYTES[data[j]] or data[j] == 0x3A:
            colons += data[j] == 0x3A
            j += 1
        found |= colons >= 5
    back = first - 1 if data[first - 1] == 32 else first
    dotted = data[first - 1] == 0xB7 or data[first - 1] == 0xA2 or (back < first and 65 <= data[back - 1] <= 90)
    plate = last - first >= 5 and ((capitals > 0 and data[first - 1] >= 0x80) or dotted)
    if found or plate or mrn_before(data, start, first) or keyword_before(data, start, first):
        row[c.PII] += 1


@kernel
def long_word(data: Any, first: int, last: int, size: int, row: Any) -> None:
    """Length columns, and the longest run of one byte, of a word of more than 20 characters."""
    row[c.LONGEST_WORD] = max(row[c.LONGEST_WORD], size)
    row[c.LONG_WORD_CHARS] += size if size > 40 else 0
    run = 1
    for j in range(first + 1, last):
        run = run + 1 if data[j] == data[j - 1] else 1
        if run > row[c.LONGEST_RUN]:
            row[c.LONGEST_RUN] = run


@kernel
def special_word(data: Any, start: Any, first: Any, last: Any, size: Any, state: Any, row: Any) -> None:
    """A word with a digit, or of more than 20 characters: bytes [first, last), size characters."""
    if size > 20:
        long_word(data, first, last, size, row)
    for j in range(first, last):
        if WORD_BYTES[data[j]] == 8:
            number_word(data, start, first, last, state, row)
            break


@kernel
def line_start_hash(data: Any, head: int) -> Any:
    """16 bits of a line's first 4 bytes (6 beyond ASCII) with letters folded; mmdata.clean.lines.line_starts agrees."""
    value: Any = 0
    for j in range(head, head + (6 if data[head] >= 0xE0 else 4)):
        byte = np.int64(data[j])
        value = value * 31 + (byte | 32 if 65 <= byte <= 90 else byte)
    return (value ^ (value >> 16)) & 0xFFFF


@kernel
def line_end(data: Any, head: int, tail: int, table: Any, row: Any) -> None:
    """Count a bullet at byte head, and an ellipsis or a terminal mark whose first byte is data[tail]."""
    first: Any = np.int64(data[head])
    code: Any = np.int64(data[tail])
    if code >= 0xE0:
        code = ((code & 15) << 12) | (np.int64(data[tail + 1] & 63) << 6) | np.int64(data[tail + 2] & 63)
    if first >= 0xE0:
        first = ((first & 15) << 12) | (np.int64(data[head + 1] & 63) << 6) | np.int64(data[head + 2] & 63)
    middle_dot = first == 0xC2 and data[head + 1] == 0xB7
    square = 0x25A0 <= first <= 0x25FF
    row[c.BULLET_LINES] += first == 0x2022 or first == 0x2D or first == 0x2A or middle_dot or square
    dots = tail >= 2 and code == 0x2E and data[tail - 1] == 0x2E and data[tail - 2] == 0x2E
    row[c.ELLIPSIS_LINES] += dots or code == 0x2026
    row[c.TERMINAL_LINES] += (table[code & 0xFFFF] & TERMINAL) != 0


@kernel
def close_line(data: Any, line: Any, lookup: Any, sets: Any, row: Any) -> None:
    """End of a line: (hash, bytes of the first and last visible character, width, ...); sets as in scan."""
    value, head, tail, width, han, letters, wide, i, end = line
    stamp, mask, seen, state, _ = sets
    row[c.TAILS] += data[i - 1] == 9 or (data[i - 1] == 32 and data[i - 2] == 32 and data[i - 3] == 32)
    if width == 0:
        state[BLANKS] += 1
    if width == 0 or end:
        row[c.BLANK_RUN] = max(row[c.BLANK_RUN], state[BLANKS])
    if width:
        row[c.LINES] += 1
        row[c.LINE_CHARS] += width
        row[c.SHORT_LINES] += width <= (SHORT_HAN if han else SHORT_OTHER)
        row[c.WIDE_LINES] += wide != 0 and han == 0
        row[c.BOILERPLATE_STARTS] += lookup[3][line_start_hash(data, head)]
        line_end(data, head, tail, lookup[0], row)
        if seen_before(value, stamp, mask, seen):
            row[c.DUPLICATE_LINES] += 1
            row[c.DUPLICATE_LINE_CHARS] += width
        state[REPEATS] = state[REPEATS] + 1 if np.int64(value) == state[LAST_LINE] else 1
        if state[REPEATS] > row[c.REPEATED_RUN] and han + letters >= 2:
            row[c.REPEATED_RUN] = state[REPEATS]
        state[LAST_LINE] = np.int64(value)
        state[PARAGRAPH] = np.int64((np.uint64(state[PARAGRAPH]) ^ value) * PRIME)
        state[PARAGRAPH_CHARS] += width
        state[BLANKS] = 0
    if (width == 0 or end) and state[PARAGRAPH_CHARS]:
        row[c.PARAGRAPHS] += 1
        if seen_before(np.uint64(state[PARAGRAPH]) + SEED, stamp, mask, seen):
            row[c.DUPLICATE_PARAGRAPHS] += 1
            row[c.DUPLICATE_PARAGRAPH_CHARS] += state[PARAGRAPH_CHARS]
        state[PARAGRAPH], state[PARAGRAPH_CHARS] = 0, 0
