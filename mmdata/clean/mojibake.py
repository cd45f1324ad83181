"""Repairs text that was decoded with the wrong encoding, and recognises what is beyond repair.

Four repairs, in this order: GBK bytes read as Latin-1 and Big5 quotation marks read so (ftfy knows neither), ftfy with
Chinese-safe settings, and a few one-letter cases that ftfy's own list of known failures names. ftfy costs about 0.4 s
a megabyte, so only lines that its badness expression matches reach it; the result equals `ftfy.fix_text(text, SAFE)`
(a test compares them).
Does not cover Shift-JIS, EUC-KR or KOI8-R read as Latin-1.
"""

from __future__ import annotations

import re
from functools import lru_cache

import ftfy
import numpy as np
from ftfy import TextFixerConfig
from ftfy.badness import BADNESS_RE
from ftfy.chardata import LIGATURES

from mmdata.clean import columns
from mmdata.clean.characters import order_marks
from mmdata.clean.measure import measure
from mmdata.clean.tables import FTFY_ALONE, FTFY_NAMES, FTFY_SHIFT, PRIVATE, character_table

# Chinese-safe: no width folding, no quote folding (ftfy's defaults turn ，！（） into ASCII); references, line ends and
# control characters have steps of their own; NFC, never NFKC (㎎ ① ² would lose their meaning).
SAFE = TextFixerConfig(
    unescape_html=False, remove_terminal_escapes=True, fix_encoding=True, restore_byte_a0=True,
    replace_lossy_sequences=True, decode_inconsistent_utf8=True, fix_c1_controls=False, fix_latin_ligatures=True,
    fix_character_width=False, uncurl_quotes=False, fix_line_breaks=False, fix_surrogates=True,
    remove_control_chars=False, normalization="NFC", explain=False,
)  # fmt: skip

_LIGATURE = re.compile("[" + "".join(chr(code) for code in LIGATURES) + "]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile("\033\\[")
_LOSSY_QUOTE = re.compile("â€\ufffd")
_HIGH_RUN = re.compile("[\x80-\xff]+")
_MAC_LETTER = re.compile("(?<=[A-Za-z])√([†°¢£§•¶ß®©™´¨≠ÆØ∞±≤≥¥µ∂∑∏π∫ªºΩæø])(?=[A-Za-z]|\\s|$)")
_BIG5_MARKS = {"¡¥": "‘", "¡¦": "’", "¡§": "“", "¡¨": "”", "¡X": "—", "¡K": "…"}
_BIG5_MARK = re.compile("¡[¥¦§¨XK]")
_CYRILLIC_PAIR = re.compile("(?<=[A-Za-z])Г[©Ё«Є®Їґ±ІіјЎ°ў§ё]")
_MAC_IN_WORD = re.compile("(?<=[a-z])[\x80-\x9f](?=[a-z])")


_QUIET = tuple(FTFY_NAMES.index(name) + 1 for name in ("common", "start_punctuation", "end_punctuation"))


def fix_mojibake(text: str) -> str:
    """Text with wrong decodings undone; text without suspicious sequences comes back as it is."""
    if not suspect().search(text):
        return text
    lines = text.split("\n")
    chinese = is_gbk_as_latin1(text, fewest=8)
    numbers = [i for i, line in enumerate(lines) if suspect().search(line)]
    rows = measure([lines[i] for i in numbers])
    counts = rows[:, [columns.FTFY, columns.LIGATURES, columns.ESCAPES, PRIVATE]].sum(axis=1).tolist()
    for i, suspicious in zip(numbers, counts, strict=True):
        if chinese or is_gbk_as_latin1(lines[i], fewest=24):
            lines[i] = _from_gbk(lines[i])
        elif suspicious:
            lines[i] = _fix_line(lines[i])
    return "\n".join(lines)


@lru_cache(maxsize=1)
def suspect() -> re.Pattern[str]:
    """One of these characters stands in every line that a repair here may change.

    ftfy's categories other than its ordinary punctuation (no pair of those matches its expression, see
    mmdata.clean.tables.pair_table), Latin ligatures, surrogates, escapes, and the marks of the one-letter cases.
    """
    category = (character_table() >> FTFY_SHIFT) & 15
    loud = [number for number in range(1, FTFY_ALONE + 1) if number not in _QUIET]
    codes = {int(code) for code in np.flatnonzero(np.isin(category, loud))} | set(LIGATURES) | {0x1B, 0x221A, 0x413}
    codes |= set(range(0x80, 0x100))
    return re.compile("[" + "".join(re.escape(chr(code)) for code in sorted(codes)) + "\ud800-\udfff]")


def needs_ftfy(line: str) -> bool:
    """Could `ftfy.fix_text(line, SAFE)` differ from NFC of the line? True on every line where it does (a test)."""
    return bool(
        BADNESS_RE.search(line) or _LIGATURE.search(line) or _SURROGATE.search(line) or _ESCAPE.search(line)
    )  # fmt: skip


def _fix_line(line: str) -> str:
    if "¡" in line and _only_big5_marks(line):
        return _BIG5_MARK.sub(lambda m: _BIG5_MARKS[m.group()], line)
    if needs_ftfy(line):
        line = _LOSSY_QUOTE.sub("”", line)  # of E2 80 xx only E2 80 9D has a last byte that Windows-1252 lacks
        if _MAC_IN_WORD.search(line) and not _only_quotes(line):
            line = _MAC_IN_WORD.sub(lambda m: m.group().encode("latin-1").decode("mac_roman"), line)
        # Arabic digits read as Windows-1252 lose their no-break space (D9 A0): give it back before ftfy looks.
        line = ftfy.fix_text(re.sub("Ù (?=Ù)", "Ù\xa0", order_marks(line)), SAFE)
    if "√" in line:
        line = _MAC_LETTER.sub(_decode_mac, line)
    if "Г" in line and _CYRILLIC_PAIR.search(line) and not re.search("[а-я]", line):
        line = re.sub("Г ", "à ", _CYRILLIC_PAIR.sub(_decode_cyrillic, line))
    return line


def _only_big5_marks(line: str) -> bool:
    """Is everything beyond ASCII Big5 quotation marks and dashes read as Latin-1, one mark at least beyond doubt?

    ftfy does not know Big5. Typed in Taiwan, English text holds these marks and nothing else: America¡¦s, ¡§war¡¨.
    """
    rest = _BIG5_MARK.sub("", line)
    return rest.isascii() and any(mark in line for mark in ("¡¥", "¡¦", "¡§", "¡¨"))


def _only_quotes(line: str) -> bool:
    """Are all C1 characters inside words Windows-1252 quotation marks, as in don\\x92t?"""
    return all(match.group() in "\x91\x92\x93\x94" for match in _MAC_IN_WORD.finditer(line))


def _decode_mac(match: re.Match[str]) -> str:
    return match.group().encode("mac_roman").decode("utf-8", "replace")


def _decode_cyrillic(match: re.Match[str]) -> str:
    return match.group().encode("cp1251").decode("utf-8", "replace")


def is_gbk_as_latin1(text: str, fewest: int) -> bool:
    """Is this Chinese whose GBK bytes were read as Latin-1? Needs `fewest` characters beyond ASCII.

    It is when nearly all characters beyond ASCII stand in even runs, four or more at a time on average, and 60 % of
    the pairs are among GB 2312's 3,755 common characters or its punctuation: European text has no such runs.
    """
    runs = _HIGH_RUN.findall(text)
    high = sum(map(len, runs))
    if high < fewest or high < 4 * len(runs) or high < 0.9 * sum(1 for char in text if char > "\x7f"):
        return False
    even = [run for run in runs if len(run) % 2 == 0]
    if sum(map(len, even)) < 0.9 * high:
        return False
    if 2 * len("".join(even).encode("latin-1").decode("utf-8", "ignore")) > 0.8 * high:
        return False  # UTF-8 of Greek or Cyrillic letters has even runs too: that is ftfy's business
    pairs = [run[i : i + 2] for run in even for i in range(0, len(run), 2)]
    common = sum(("\xb0" <= pair[0] <= "\xd7" or "\xa1" <= pair[0] <= "\xa3") and pair[1] >= "\xa1" for pair in pairs)
    return bool(common >= 0.6 * len(pairs))


def _from_gbk(line: str) -> str:
    """The line's Latin-1 bytes read as GB 18030, or the line as it is where they are not."""
    try:
        return line.encode("latin-1").decode("gb18030")
    except UnicodeError:
        return line


def utf8_read_as_gbk(text: str) -> tuple[str | None, float]:
    """Text whose UTF-8 bytes were read as GB 18030: the repaired text where no byte was lost, and the share recovered.

    Returns (None, share of Han characters recovered per Han character) where bytes were lost: share is near 0 for
    real Chinese, whose GB 18030 bytes are not UTF-8, and above 0.3 for ruins.
    """
    data = text.encode("gb18030", "ignore")
    han = sum("\u4e00" <= char <= "\u9fff" for char in text)
    recovered = data.decode("utf-8", "ignore")
    share = sum("\u4e00" <= char <= "\u9fff" for char in recovered) / max(han, 1)
    try:
        whole = text.encode("gb18030").decode("utf-8")
    except UnicodeError:
        return None, share
    return (whole if share > RUIN_SHARE else None), share


def repair_utf8_read_as_gbk(text: str) -> str:
    """The text turned back where it is UTF-8 read as GBK and no byte was lost, else as it is."""
    return utf8_read_as_gbk(text)[0] or text


RUIN_SHARE = 0.3  # real Chinese has 0.00, text of UTF-8 read as GBK 0.4 and more
_RUINS = re.compile("锟斤拷|烫烫烫|屯屯屯|\ufffd")


def ruined_share(text: str) -> float:
    """Share of characters lost to U+FFFD and its traces (锟斤拷 is U+FFFD twice, read as GBK; 烫烫烫 and 屯屯屯 are
    uninitialised memory)."""
    return sum(len(match) for match in _RUINS.findall(text)) / max(len(text), 1)
