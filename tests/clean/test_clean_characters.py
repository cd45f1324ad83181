"""The table of characters in docs/cleaning.md is what the repairs do, for every code point there is."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from mmdata.clean.characters import (
    fold_fullwidth,
    normalize_line_ends,
    normalize_nfc,
    normalize_spaces,
    remove_controls,
    remove_invisible,
    settle_c1,
)

PAGE = Path(__file__).parents[2] / "docs/cleaning.md"


def settled(text: str) -> str:
    """The steps of the table, in the order of the recipe."""
    text = remove_invisible(settle_c1(remove_controls(normalize_line_ends(text))))
    return normalize_spaces(fold_fullwidth(text))


def documented() -> dict[int, str]:
    """What each code point of the table becomes, as the table says."""
    table = PAGE.read_text(encoding="utf-8").partition("## Characters that change")[2].partition("\n## ")[0]
    found: dict[int, str] = {}
    for row in re.findall(r"(?m)^\| (U\+[^|]+) \| [^|]+ \| ([^|]+) \| [^|]+ \|$", table):
        for first, last in re.findall(r"U\+([0-9A-F]{4,6})(?:-([0-9A-F]{4,6}))?", row[0]):
            for code in range(int(first, 16), int(last or first, 16) + 1):
                found[code] = {"nothing": "", "U+000A": "\n", "U+0020": " "}.get(row[1], "other")
                if row[1] == "ASCII":
                    found[code] = " " if code == 0x3000 else chr(code - 0xFEE0)
                if row[1].startswith("as in"):
                    found[code] = bytes([code]).decode("cp1252", "ignore")
    for plane in range(1, 17):
        found |= {plane << 16 | low: "" for low in (0xFFFE, 0xFFFF)}
    return found


def test_every_code_point_becomes_what_the_table_of_characters_says() -> None:
    table = documented()
    assert len(table) > 137_000 and "other" not in table.values()
    wrong = [code for code in range(0x110000) if settled(f"a{chr(code)}b") != f"a{table.get(code, chr(code))}b"]
    assert [f"U+{code:04X}" for code in wrong] == []


def test_a_long_run_of_combining_marks_is_normalised_as_unicode_says() -> None:
    text = "e" + "\u0301\u0316\u0327" * 400 + "x\u0344" + "\u0301\u0316" * 100
    assert normalize_nfc(text) == unicodedata.normalize("NFC", text)
