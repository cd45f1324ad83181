"""Repairs of single characters: controls, invisible characters, widths, normal form, line ends, odd spaces.

Each function returns the text as it is when it has nothing to repair. The classes come from mmdata.clean.tables, which
is the explicit table docs/cleaning.md prints. All are `str.translate` or one regular expression: linear in the text.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from mmdata.clean.tables import INVISIBLE_CODES

_DELETED: dict[int, str | None] = {code: None for code in range(0x20) if code not in (9, 10, 13)}
_DELETED[0x7F] = None
_C0 = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_C1 = re.compile("[\x80-\x9f]")
_LONE_C1 = re.compile("(?<![\x80-\U0010ffff])[\x80-\x9f](?![\x80-\U0010ffff])")
_LONE_SURROGATE = re.compile("(?<![\ud800-\udbff])[\udc00-\udfff]|[\ud800-\udbff](?![\udc00-\udfff])")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPES = re.compile("\x1b\\[[0-9;?]*[ -/]*[@-~]")

_INVISIBLE = re.compile("[" + "".join(re.escape(chr(code)) for code in sorted(INVISIBLE_CODES)) + "]")
# A joiner stays after an emoji (or its variation selector) and between letters of scripts that shape with it.
_JOINERS = re.compile(
    "[\u200c\u200d](?<![\u0600-\u08ff\u0900-\u0dff\u0e00-\u109f\u1780-\u18af\u2600-\u27bf\ufe0f\U0001f000-\U0001faff].)"
)  # the character before is looked at behind the joiner: so a search jumps from joiner to joiner
_PRIVATE = re.compile(
    "[\ud800-\udfff\ue000-\uf8ff\ufdd0-\ufdef\ufff9-\ufffc\ufffe\uffff\U000e0000-\U000e007f\U000f0000-\U0010ffff"
    + "".join(chr(plane << 16 | low) for plane in range(1, 15) for low in (0xFFFE, 0xFFFF))
    + "]"
)
_PERHAPS_PRIVATE = re.compile("[\ud800-\uf8ff\ufdd0-\ufdef\ufff9-\uffff\U0001fffe-\U0010ffff]")  # few ranges, so fast
_WIDE_ALNUM = {code: code - 0xFEE0 for code in [*range(0xFF10, 0xFF1A), *range(0xFF21, 0xFF3B), *range(0xFF41, 0xFF5B)]}
_WIDE_ALL: dict[int, int] = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}
_HAN_OR_KANA = re.compile("[\u3005\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_WIDE_WORD = re.compile("[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a]+")
_WIDE_SIGN = re.compile("[\uff01-\uff5e\u3000]")
_ALNUM = re.compile("[0-9A-Za-z\uff10-\uff19\uff21-\uff3a\uff41-\uff5a]")
_ODD_SPACES = "\u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u202f\u205f"


def remove_controls(text: str) -> str:
    """Without C0 (save tab and line ends), DEL, terminal escapes, lone surrogates, and lone C1 characters beside them.

    Runs before the encoding repairs. A C1 character between ASCII characters is noise where the text has C0 noise
    too; next to other characters beyond ASCII it is half of a wrong decoding and stays for the repair.
    """
    text = _ESCAPES.sub("", text)
    if _SURROGATE.search(text):
        text = _LONE_SURROGATE.sub("", text)
    if _C0.search(text):
        text = _LONE_C1.sub("", text).translate(_DELETED)
    return text


def settle_c1(text: str) -> str:
    """What is left of C1 characters after the encoding repairs, read as Windows-1252 or removed where it has none.

    The WHATWG encoding standard reads Latin-1 so: \\x85 is an ellipsis, \\x92 an apostrophe.
    """
    return _C1.sub(lambda match: match.group().encode("latin-1").decode("cp1252", "ignore"), text)


def remove_invisible(text: str) -> str:
    """Without zero-width, bidirectional, soft-hyphen, private-use characters, noncharacters and lone surrogates.

    Zero-width joiners and non-joiners stay after emoji and letters of Arabic and Indic scripts, where they show.
    """
    text = _JOINERS.sub("", _INVISIBLE.sub("", text))
    return _PRIVATE.sub("", text) if _PERHAPS_PRIVATE.search(text) else text


def fold_fullwidth(text: str) -> str:
    """Fullwidth letters and digits become ASCII; fullwidth punctuation and U+3000 only in lines without Han or kana.

    Chinese punctuation in Chinese lines, and U+3000 at the beginning of a line, stay.
    """
    text = _WIDE_WORD.sub(lambda match: match.group().translate(_WIDE_ALNUM), text)
    if not _WIDE_SIGN.search(text):
        return text
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if line.isascii() or _HAN_OR_KANA.search(line):
            continue
        if _WIDE_SIGN.search(line) and _ALNUM.search(line):
            body = line.lstrip("\u3000")
            lines[i] = line[: len(line) - len(body)] + body.translate(_WIDE_ALL)
    return "\n".join(lines)


def normalize_nfc(text: str) -> str:
    """Unicode normal form C. Never NFKC, which would turn ㎡ into m2, ① into 1 and 2⁴ into 24."""
    return unicodedata.normalize("NFC", order_marks(text))


MARK_RUN = 64


@lru_cache(maxsize=1)
def combining_marks() -> frozenset[str]:
    """Characters with a combining class; looks through 126,000 characters, so once."""
    return frozenset(char for char in map(chr, range(0x300, 0x1F000)) if unicodedata.combining(char))


@lru_cache(maxsize=1)
def _long_mark_runs() -> re.Pattern[str]:
    marks = "".join(map(re.escape, sorted(combining_marks())))
    return re.compile(f"[{marks}]{{{MARK_RUN},}}")


def order_marks(text: str) -> str:
    """The text with runs of 64 combining marks and more in canonical order, which is the same text to Unicode.

    `unicodedata.normalize` orders marks by insertion: half a million of them in a row would take an hour. Runs that
    are in order already cost it linear time.
    """
    if combining_marks().isdisjoint(text[::MARK_RUN]):  # a run that long has one there
        return text
    return _long_mark_runs().sub(lambda match: "".join(sorted(match.group(), key=unicodedata.combining)), text)


def normalize_line_ends(text: str) -> str:
    """\\r\\n, \\r, U+2028 and U+2029 become \\n."""
    for end in ("\r\n", "\r", "\u2028", "\u2029"):
        text = text.replace(end, "\n")
    return text


def normalize_spaces(text: str) -> str:
    """No-break and typographic spaces become U+0020; U+3000 stays."""
    for space in _ODD_SPACES:
        text = text.replace(space, " ")
    return text
