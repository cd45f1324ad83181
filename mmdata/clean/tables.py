"""What every Unicode character means to cleaning, as one lookup table.

`character_table()` gives one uint16 for each code point of the Basic Multilingual Plane: its class, its ftfy category
and a few marks. It is built from the `unicodedata` and codecs of the running Python (about 0.2 s, once a process) and
from ftfy's own published categories, so the pre-check follows the installed ftfy. Code points above U+FFFF are
classified by `entry` of mmdata.clean.scan_kernel. Traditional-only and simplified-only characters come from the Big5
and GB 2312 codecs: a character in one standard only is typical of that script; this misjudges a few hundred rare ones.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from ftfy.badness import MOJIBAKE_CATEGORIES

# Classes, bits 0-4. Numbers are columns of the measured histogram (see mmdata.clean.measure).
# Up to MARK a character continues a word, HAN and KANA are words of their own, then white space, then the rest.
LATIN, DIGIT, LETTER, HANGUL, WIDE_ALNUM, NUMBER, MARK, HAN, KANA, SPACE, WIDE_SPACE = range(11)
SYMBOL, ASCII_PUNCT, PUNCT, CONTROL, INVISIBLE, PRIVATE, REPLACEMENT, WIDE_PUNCT, JOINER = range(11, 20)
CLASSES = 20

CLASS_MASK = 31
FTFY_SHIFT = 5  # bits 5-8: ftfy category, 0 = none
NOT_NFC = 1 << 9
TRADITIONAL = 1 << 10
SIMPLIFIED = 1 << 11
GBK_TRACE = 1 << 12
TERMINAL = 1 << 13
ZH_STOP = 1 << 14
LIGATURE = 1 << 15

FTFY_NAMES = (
    "common", "c1", "bad", "law", "currency", "start_punctuation", "end_punctuation", "numeric", "kaomoji",
    "upper_accented", "lower_accented", "upper_common", "lower_common", "box",
)  # fmt: skip
FTFY_ALONE = 15  # one such character is enough to ask ftfy

# Han function words frequent in modern and classical prose; each is among the 22 stop words of FineWeb-2 `cmn_Hani`
# or the 20 most frequent characters of classical prose.
ZH_STOP_CHARACTERS = "的了是在不有和与與为為中一人也以而之其者于於上被由后後年月日"

# Marks that end a sentence or a line of prose in Chinese and English.
TERMINAL_MARKS = "。！？…；：”』」）》】.!?\"'’;:)]～—"

Table = npt.NDArray[np.uint16]


def _codec_members(encoding: str) -> set[int]:
    """Han code points that `encoding` can write."""
    found = set()
    for code in range(0x4E00, 0xA000):
        try:
            chr(code).encode(encoding)
        except UnicodeEncodeError:
            continue
        found.add(code)
    return found


def _class_of(code: int) -> int:
    """The class of one BMP code point; the explicit ranges are the character table of docs/cleaning.md."""
    char = chr(code)
    if code < 0x80:
        if char.isalpha():
            return LATIN
        if char.isdigit():
            return DIGIT
        if char in " \t\n\r":
            return SPACE
        return CONTROL if code < 0x20 or code == 0x7F else ASCII_PUNCT
    if 0x80 <= code <= 0x9F:
        return CONTROL
    if code in (0x200C, 0x200D) or 0xFE00 <= code <= 0xFE0F:
        return JOINER
    if code in INVISIBLE_CODES:
        return INVISIBLE
    if 0xD800 <= code <= 0xF8FF or 0xFDD0 <= code <= 0xFDEF or code >= 0xFFFE or 0xFFF9 <= code <= 0xFFFC:
        return PRIVATE
    if code == 0xFFFD:
        return REPLACEMENT
    if 0x3400 <= code <= 0x4DBF or 0x4E00 <= code <= 0x9FFF or 0xF900 <= code <= 0xFAFF or code in (0x3005, 0x3007):
        return HAN
    if code == 0x3000:
        return WIDE_SPACE
    if 0xFF10 <= code <= 0xFF19 or 0xFF21 <= code <= 0xFF3A or 0xFF41 <= code <= 0xFF5A:
        return WIDE_ALNUM
    if 0xFF01 <= code <= 0xFF5E:
        return WIDE_PUNCT
    return _class_by_category(char, code)


def _class_by_category(char: str, code: int) -> int:
    if 0x3041 <= code <= 0x30FF or 0x31F0 <= code <= 0x31FF or 0xFF66 <= code <= 0xFF9F:
        return KANA
    if 0xAC00 <= code <= 0xD7A3 or 0x1100 <= code <= 0x11FF or 0x3130 <= code <= 0x318F:
        return HANGUL
    category = unicodedata.category(char)
    if category[0] == "L":
        return LETTER
    if category[0] == "M":
        return MARK
    if category[0] == "N":
        return NUMBER
    if category[0] == "Z":
        return SPACE
    return PUNCT if category[0] == "P" else SYMBOL


# Zero-width, bidirectional and soft-hyphen characters with no meaning in plain prose (cleaning-facts: U+200B-200F,
# 202A-202E, 2060-2064, 2066-206F, FEFF, 00AD, 034F, 061C, 115F-1160, 17B4-17B5, 180E, 3164, FFA0). ZWJ and ZWNJ
# (U+200C-200D) are class JOINER: they stay inside emoji and scripts that need them. U+2028 and U+2029 become \n.
INVISIBLE_CODES = frozenset(
    [
        *(0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180E, 0x200B, 0x200E, 0x200F, 0xFEFF, 0x3164, 0xFFA0),
        *range(0x202A, 0x202F),
        *range(0x2060, 0x2065),
        *range(0x2066, 0x2070),
    ]
)


def _ftfy_categories() -> Table:
    """ftfy's character categories as numbers 1..14 (0 none, 15 suspicious on its own)."""
    import re

    table = np.zeros(65536, np.uint16)
    every = [chr(code) for code in range(0x80, 65536) if not 0xD800 <= code <= 0xDFFF]
    text = "".join(every)
    for number, name in enumerate(FTFY_NAMES, start=1):
        for match in re.finditer(f"[{MOJIBAKE_CATEGORIES[name]}]", text):
            table[ord(match.group())] = number
    for char in "ŒœÃÂÎÐЂўЎ":
        table[ord(char)] = FTFY_ALONE
    table[0x80:0xA0] = FTFY_ALONE
    return table


@lru_cache(maxsize=1)
def character_table() -> Table:
    """uint16 of length 65,536: class (bits 0-4), ftfy category (5-8) and marks (9-15) of each BMP code point."""
    from ftfy.chardata import LIGATURES

    table = np.array([_class_of(code) for code in range(65536)], np.uint16)
    table |= _ftfy_categories() << FTFY_SHIFT
    big5, gb2312 = _codec_members("big5"), _codec_members("gb2312")
    table[sorted(big5 - gb2312)] |= TRADITIONAL
    table[sorted(gb2312 - big5)] |= SIMPLIFIED
    for first in range(0xE4, 0xEA):
        for second in range(0x80, 0xC0):
            char = bytes([first, second]).decode("gb18030", "replace")
            if len(char) == 1 and 0x4E00 <= ord(char) < 0xA000:
                table[ord(char)] |= GBK_TRACE
    table[[ord(char) for char in "锟烫屯"]] |= GBK_TRACE
    for code in range(0x80, 65536):
        if not 0xD800 <= code <= 0xDFFF:
            char = chr(code)
            if unicodedata.combining(char) or not unicodedata.is_normalized("NFC", char) or 0x1160 <= code <= 0x11FF:
                table[code] |= NOT_NFC
    for marks, bit in ((TERMINAL_MARKS, TERMINAL), (ZH_STOP_CHARACTERS, ZH_STOP)):
        table[[ord(char) for char in marks]] |= bit
    table[[code for code in LIGATURES if code < 65536]] |= LIGATURE
    for code in _composing_starters():
        table[code] |= NOT_NFC
    table.setflags(write=False)
    return table


def _composing_starters() -> list[int]:
    """Non-combining characters that may still compose with the one before (NFC_Quick_Check=Maybe), found by trial."""
    found = []
    for code in [*range(0x9BE, 0xE00), *range(0x102E, 0x1030), *range(0x1B35, 0x1B36)]:
        if not unicodedata.combining(chr(code)) and unicodedata.category(chr(code)) in ("Mc", "Mn"):
            found.append(code)
    return found


@lru_cache(maxsize=1)
def pair_table() -> npt.NDArray[np.bool_]:
    """(16, 16) bool: may a character of ftfy category i followed by one of category j be part of a `BADNESS_RE` match?

    False only for pairs that no alternative of the expression contains: a test searches every pair of characters.
    """
    table = np.ones((16, 16), np.bool_)
    table[0, :] = table[:, 0] = False
    number = {name: i for i, name in enumerate(FTFY_NAMES, start=1)}
    quiet = [number[name] for name in ("common", "start_punctuation", "end_punctuation")]
    for i in quiet:
        for j in quiet:
            table[i, j] = False
    for group in (("lower_common", "upper_common"), ("lower_accented", "kaomoji"), ("upper_accented", "kaomoji")):
        for a in group:
            for b in group:
                table[number[a], number[b]] = False
    table[number["common"], number["numeric"]] = False
    table[number["upper_accented"], number["kaomoji"]] = True  # the degree sign after a capital
    for letters in ("lower_common", "upper_common"):
        for mark in ("common", "start_punctuation", "numeric", "law"):
            table[number[mark], number[letters]] = False
    table[FTFY_ALONE, :] = table[:, FTFY_ALONE] = True
    table.setflags(write=False)
    return table
