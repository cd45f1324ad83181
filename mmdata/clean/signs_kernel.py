"""Rare places of the measuring pass: markup, numbers that could be personal data, odd spaces, line ends.

Called for signs, lines and words with digits, not for every character. A trigger may be too high (the repair then
finds nothing) and never too low: tests compare each trigger with the repair it guards.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmdata.clean import columns as c
from mmdata.clean.hashing_kernel import FOLD, PRIME, SEED, STIR, WORD_BYTES, seen_before
from mmdata.clean.tables import TERMINAL
from mmdata.kernel_loads import get, load8
from mmdata.kernels import inlined, kernel

SHORT_HAN = 12  # about as wide as 30 Latin letters, FineWeb's short line
SHORT_OTHER = 30
START_SIZES = (8, 6, 4, 3)  # bytes of a boilerplate line's beginning that are compared

# Slots of the state array that the pass and these functions share.
RUN_HEAD, PARAGRAPH, PARAGRAPH_CHARS, BLANKS, REPEATS, LAST_LINE, STATE = range(7)


@kernel
def markup_at(data: Any, i: int) -> bool:
    """Does a character reference or a tag begin at `&` or `<`, byte i? A line feed stands behind the text."""
    follow = data[i + 1]
    if data[i] == 0x3C:
        return bool(WORD_BYTES[follow] & 6 or follow == 0x2F or follow == 0x21 or follow == 0x3F)
    j = i + 1
    while j < i + 34:
        if data[j] == 0x3B:
            return j > i + 1
        if not (WORD_BYTES[data[j]] or data[j] == 0x23):
            return False
        j += 1
    return False


@inlined
def sign(data: Any, i: Any, start: Any, byte: Any, row: Any) -> None:
    """An ASCII character that is neither letter, digit, white space nor @."""
    if byte == 0x2E:
        if get(data, i - 1) == 0x2E and i >= start + 2:
            row[c.ELLIPSES] += data[i - 2] == 0x2E and (i < start + 3 or data[i - 3] != 0x2E)
    elif byte == 0x26:
        row[c.REFERENCES] += markup_at(data, i)
    elif byte == 0x3C:
        row[c.TAGS] += markup_at(data, i)
        row[c.OFFICE] += data[i + 1] == 0x6F and data[i + 2] == 0x3A
    elif byte == 0x23:
        row[c.HASHES] += 1
    elif byte == 0x7B:
        row[c.CURLY] += 1
    elif byte < 32 or byte == 127:
        row[c.C0] += 1
        row[c.ESCAPES] += byte == 0x1B


@inlined
def wide_sign(code: Any, row: Any) -> None:
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
def prose_run(data: Any, i: Any, head: Any, state: Any) -> bool:
    """Could the run of spaces whose third is byte i stand between words of a prose line? head: first visible byte.

    What mmdata.clean.lines.collapse_space_runs asks of a line, letters beyond ASCII taken for granted; a line's second
    run is not judged again, so the cost is linear.
    """
    before = data[i - 3]
    after = i + 1
    while data[after] == 32:
        after += 1
    if not (WORD_BYTES[before] & 2 or before >= 0x80 or before == 0x2C or before == 0x3B):
        return False
    if not (WORD_BYTES[data[after]] & 2 or data[after] >= 0x80):
        return False
    if state[RUN_HEAD] == head + 1:
        return False
    j = head
    while data[j - 1] != 10:
        j -= 1
    if data[j] == 32 or i - 2 - j < 20:
        return False
    state[RUN_HEAD] = head + 1
    letters, others = 0, 0
    while data[j] != 10:
        byte = data[j]
        if byte == 0x7C or byte == 9 or byte == 0x7B or byte == 0x7D or 0x3C <= byte <= 0x3E or byte == 0x23:
            return False
        if byte == 0x60 or (byte == 0x2D and (data[j + 1] == 0x2D or data[j + 1] == 0x3E)):
            return False
        letter = WORD_BYTES[byte] & 2 != 0 or byte >= 0xC0
        letters += letter
        others += not letter and byte < 0x80 and byte != 32
        j += 1
    return bool(10 * letters > 7 * (letters + others))


def start_key(beginning: bytes) -> tuple[int, int]:
    """(slot, bit) of the table of line starts for a beginning of at least 3 bytes: by the longest size it fills."""
    bit, size = next((bit, size) for bit, size in enumerate(START_SIZES) if len(beginning) >= size)
    value = int.from_bytes(beginning[:size], "little") | int(FOLD) & (1 << 8 * size) - 1
    return (value * int(STIR) & (1 << 64) - 1) >> 48, 1 << bit


@inlined
def begins_like_boilerplate(data: Any, head: Any, table: Any) -> Any:
    """Does a beginning of the table hash like the line at byte head? Letters are folded, by setting one bit a byte."""
    value, found = load8(data, head) | FOLD, 0
    found |= table[(value * STIR) >> np.uint64(48)] & 1
    found |= table[((value & np.uint64(0xFFFFFFFFFFFF)) * STIR) >> np.uint64(48)] & 2
    found |= table[((value & np.uint64(0xFFFFFFFF)) * STIR) >> np.uint64(48)] & 4
    found |= table[((value & np.uint64(0xFFFFFF)) * STIR) >> np.uint64(48)] & 8
    return found != 0


@inlined
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


@inlined
def long_tail(data: Any, i: Any) -> Any:
    """Do the blanks before the line feed of byte i hold a tab, or are they three spaces or more?"""
    last, third = data[i - 1] == 9 or data[i - 2] == 9, data[i - 3] == 9 or data[i - 3] == 32
    return last or (data[i - 2] == 32 and third)


@inlined
def close_line(data: Any, line: Any, place: Any, lookup: Any, sets: Any, row: Any) -> None:
    """End of a line; line: as in scan; place: (byte of the line feed, does the document end there).

    sets: (the document's stamp, mask of its table, seen lines, state).
    """
    value, head, tail, width, _, wide, han, letters = line
    i, end = place
    stamp, mask, seen, state = sets
    if width == 0:
        state[BLANKS] += 1
    if width == 0 or end:
        row[c.BLANK_RUN] = max(row[c.BLANK_RUN], state[BLANKS])
    if width:
        if data[i - 1] == 9 or data[i - 1] == 32:
            row[c.TAILS] += long_tail(data, i)
        row[c.LINES] += 1
        row[c.LINE_CHARS] += width
        row[c.SHORT_LINES] += width <= (SHORT_HAN if han else SHORT_OTHER)
        row[c.WIDE_LINES] += wide != 0 and han == 0
        if begins_like_boilerplate(data, head, lookup[3]):
            row[c.BOILERPLATE_LAST] = row[c.LINES]
            if row[c.BOILERPLATE_FIRST] == 0:
                row[c.BOILERPLATE_FIRST] = row[c.LINES]
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
