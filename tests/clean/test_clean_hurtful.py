"""Texts of a megabyte and more that are made to hurt: what becomes of each, and that it takes linear time.

Every text goes through in one process of its own that has a deadline of some hundred times what it needs; one step
that is quadratic in one of these texts would need hours.
"""

from __future__ import annotations

import json
import subprocess
import sys

HURTFUL = {
    "addresses": ("a@a.a.", 170_000), "base64": ("QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo0NTY3", 25_000),
    "no space": ("中", 1_700_000), "references": ("&lt;", 250_000), "tags": ("<p", 500_000),
    "comments": ("<!--", 250_000), "half a tag": ("<a &lt ", 140_000), "mojibake": ("Ã©Ã ", 200_000),
    "GBK as Latin-1": ("ÎÒ", 250_000),
    "cards": ("4111 1111 1111 1111 ", 50_000), "colons": ("1:2:", 250_000), "versions": ("1.", 500_000),
    "at signs": ("@", 1_000_000), "credentials": ("://a:", 200_000), "runs of spaces": ("word   ", 140_000),
    "spaces": (" ", 1_000_000), "blank lines": (" \n", 500_000), "tails": ("a" + " " * 50, 20_000),
    "lines": ("a\n", 500_000),
    "boilerplate": ("Home\n", 200_000), "returns": ("\r", 1_000_000), "escapes": ("\x1b[", 500_000),
    "combining marks": ("\u0301\u0316", 250_000), "joiners": ("\u200c", 300_000), "fullwidth": ("！ａ", 160_000),
    "lost": ("\ufffd", 300_000), "mixed words": ("A1b2", 250_000), "dashes": ("1-", 500_000), "groups": ("a:", 500_000),
}  # fmt: skip
DROPPED = {
    "addresses": "top_word_chars", "base64": "longest_word", "no space": "character_run_share", "references": "words",
    "tags": "top_word_chars", "comments": "words", "half a tag": "top_word_chars", "mojibake": "top_word_chars",
    "GBK as Latin-1": "character_run_share", "cards": "letter_share", "colons": "letter_share",
    "versions": "letter_share", "at signs": "words", "credentials": "top_word_chars",
    "runs of spaces": "top_word_chars",
    "spaces": "words", "blank lines": "words", "tails": "top_word_chars", "lines": "duplicate_lines",
    "boilerplate": "", "returns": "words", "escapes": "words", "combining marks": "longest_word", "joiners": "words",
    "fullwidth": "top_word_chars", "lost": "ruined", "mixed words": "longest_word", "dashes": "letter_share",
    "groups": "top_word_chars",
}  # fmt: skip
DEADLINE = 300  # seconds; all of it takes about eight

PROGRAM = """
import json, sys
from collections import Counter
from mmdata.clean.pii import NAMES, PiiOptions, mask_pii
from mmdata.clean.pipeline import Cleaner
from mmdata.document import Document, Part

cleaner, options = Cleaner("auto"), PiiOptions(dict.fromkeys(NAMES, "replace"))
for name, (piece, times) in json.load(sys.stdin).items():
    text, found = piece * times, Counter()
    result = cleaner.clean_documents([Document("a", 0, 1, None, {}, (Part("text", "text", text),))])
    reason = result.drops[0].reason if result.drops else ""
    masked = mask_pii(text, options, found)
    print(json.dumps([name, reason, [d.text for d in result.kept], masked == text, found]), flush=True)
"""


def test_texts_made_to_hurt_are_judged_within_a_deadline_that_quadratic_work_would_break() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(HURTFUL), capture_output=True, text=True, timeout=DEADLINE
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {name: rest for name, *rest in map(json.loads, done.stdout.strip().split("\n"))}
    assert {name: reason for name, (reason, *_) in rows.items()} == DROPPED
    assert rows["boilerplate"][1] == ["Home\n"], "the line is kept once"
    assert {name for name, row in rows.items() if not row[2]} == set(), "none of them holds personal data"
    assert all(not row[3] for row in rows.values())
