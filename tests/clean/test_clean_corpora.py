"""What the default recipe does to real clean text and to real and made damage."""

from __future__ import annotations

import gzip
import json
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import ftfy
import pytest
from ftfy.fixes import uncurl_quotes

from mmdata.clean.columns import FTFY, LIGATURES
from mmdata.clean.measure import measure
from mmdata.clean.mojibake import SAFE, fix_mojibake, needs_ftfy
from mmdata.clean.pipeline import Cleaner, CleanResult
from mmdata.document import Document, Part

CLEAN = {
    "en_prose_0.jsonl": "text", "en_prose_1.jsonl.gz": "text", "zh_prose_0.jsonl": "text",
    "zh_prose_1.jsonl.gz": "text",
    "zh_medical.jsonl": "text", "zh_legal.jsonl.gz": "text", "instruct_en_alpaca.jsonl": "output",
    "instruct_en_gsm8k_original.jsonl": "answer", "instruct_zh_legal_qa.jsonl": "output",
    "instruct_zh_medical_alpaca.jsonl": "output", "instruct_en_zh_identity_alpaca.jsonl": "output",
}  # fmt: skip
# Where more than 2 % of a file changed, each change is due: a novel's chapters end their lines with \\r\\n, and answers
# on law hold no-break spaces after article numbers and fullwidth digits; speeches hold Big5's quotation marks read as
# Latin-1, and manuals hold addresses. docs/cleaning-changes.md lists each.
DUE = {
    "en_prose_0.jsonl": {"mojibake": 1, "pii": 3}, "en_prose_1.jsonl.gz": {"mojibake": 2, "pii": 4},
    "zh_prose_0.jsonl": {"line_ends": 55}, "zh_prose_1.jsonl.gz": {"line_ends": 50},
    "instruct_zh_legal_qa.jsonl": {"odd_spaces": 14, "fullwidth": 7},
}  # fmt: skip


def records(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def run(texts: list[str], recipe: str = "auto") -> CleanResult:
    documents = [Document("a", 0, i, None, {}, (Part("text", "text", text),)) for i, text in enumerate(texts)]
    return Cleaner(recipe).clean_documents(documents)


@pytest.mark.parametrize("name", list(CLEAN))
def test_98_percent_of_every_clean_file_survive_and_2_percent_at_most_change(name: str, shared: Path) -> None:
    texts = [record[CLEAN[name]] for record in records(shared / "data" / name)]
    result = run(texts)
    assert len(result.kept) >= 0.98 * len(texts), result.dropped
    due = DUE.get(name, {})
    assert {step: result.changed[step] for step in due} == due
    assert result.changed_documents - sum(due.values()) <= 0.02 * len(texts), result.changed
    if name.startswith(("en", "zh")):
        assert result.languages[name[:2]] == len(result.kept)


REPAIRABLE = (
    "mojibake", "utf8_as_latin1", "utf8_as_cp1252", "utf8_as_cp1252_quotes", "gbk_as_latin1", "fullwidth", "zero_width",
    "control_chars", "repeated_line", "html_entities", "whitespace", "nfd", "web_boilerplate",
)  # fmt: skip


def same(kind: str, got: str, want: str) -> bool:
    """Equal, compared as each kind can be: quotes straightened for ftfy's own cases, blank lines aside, and so on."""
    if kind == "repeated_line":
        return [x for x in got.split("\n") if x.strip()] == [x for x in want.split("\n") if x.strip()]
    if kind == "fullwidth":
        return list(filter(str.isalnum, got)) == list(filter(str.isalnum, want))
    if kind == "mojibake":
        got, want = uncurl_quotes(got).replace("\xa0", " "), uncurl_quotes(want).replace("\xa0", " ")
    return got.rstrip() == want.rstrip()


def test_95_percent_of_every_repairable_kind_are_repaired(shared: Path) -> None:
    dirty = [r for r in records(shared / "data/dirty.jsonl") if r["defect"] in REPAIRABLE]
    recipe = Cleaner("auto").recipe
    only = type(recipe)("repairs", tuple(step for step in recipe.steps if step.kind == "repair"))
    documents = [Document("a", 0, i, None, {}, (Part("text", "text", r["text"]),)) for i, r in enumerate(dirty)]
    kept = Cleaner(only).clean_documents(documents).kept
    total, right = Counter[str](), Counter[str]()
    for record, document in zip(dirty, kept, strict=True):
        total[record["defect"]] += 1
        right[record["defect"]] += same(record["defect"], document.text, record["clean"])
    assert {kind: right[kind] for kind in total if right[kind] < 0.95 * total[kind]} == {}


def test_what_cannot_be_repaired_is_dropped_or_repaired_whole(shared: Path) -> None:
    lost = ("utf8_as_gb18030_lossy", "replacement_char")
    dirty = [r for r in records(shared / "data/dirty.jsonl") if r["defect"] in lost]
    result = run([r["text"] for r in dirty])
    assert result.dropped["ruined"] >= 41
    assert all(document.text == dirty[document.line]["clean"] for document in result.kept)


def test_made_up_personal_data_is_found(shared: Path) -> None:
    dirty = [r for r in records(shared / "data/dirty.jsonl") if r["defect"] == "pii_made_up"]
    kept = run([r["text"] for r in dirty]).kept
    for mark in ("<手机号>", "<邮箱>", "<身份证号>"):
        assert sum(mark in document.text for document in kept) >= 0.95 * len(dirty)


def test_text_that_only_looks_broken_is_not_touched_by_the_encoding_repairs(shared: Path) -> None:
    for record in records(shared / "data/dirty.jsonl"):
        if record["defect"] == "none_expected" and "\x85" not in record["text"]:
            assert fix_mojibake(record["text"]) == record["text"]


def clean_texts(shared: Path) -> list[str]:
    """Every clean document."""
    return [record[key] for name, key in CLEAN.items() for record in records(shared / "data" / name)]


def test_the_pre_check_sends_every_line_to_ftfy_that_ftfy_would_change(shared: Path) -> None:
    """On every line beyond ASCII of every clean and every dirty document."""
    texts = clean_texts(shared) + [record["text"] for record in records(shared / "data/dirty.jsonl")]
    lines = sorted({line for text in texts for line in text.split("\n") if not line.isascii()})
    rows = measure(lines)
    sent = [needs_ftfy(line) for line in lines]
    noted = (rows[:, FTFY] > 0) | (rows[:, LIGATURES] > 0)
    quiet = [line for line, one in zip(lines, sent, strict=True) if not one]
    assert len(quiet) > 30_000 and len(lines) - len(quiet) > 300, "both sides are on trial"
    assert [line for line, one, column in zip(lines, sent, noted, strict=True) if one and not column] == []
    assert [line for line in quiet if ftfy.fix_text(line, SAFE) != unicodedata.normalize("NFC", line)] == []


def test_the_encoding_repair_equals_ftfy_on_every_clean_line(shared: Path) -> None:
    """But for what ftfy does not know: Big5's marks and GBK read as Latin-1, which stand in no other clean line."""
    lines = {line for text in clean_texts(shared) for line in text.split("\n") if needs_ftfy(line)}
    ours = {line: fix_mojibake(line) for line in lines}
    different = {line for line in lines if ours[line] != ftfy.fix_text(line, SAFE)}
    assert different and all("¡¦" in line or "¡§" in line or "¡¨" in line for line in different)
    assert not any(mark in ours[line] for line in different for mark in ("¡¦", "¡§", "¡¨", "¡X"))


def test_cleaning_what_is_clean_changes_nothing(shared: Path) -> None:
    dirty = [record["text"] for record in records(shared / "data/dirty.jsonl")]
    once = run([*dirty, *clean_texts(shared)[::10], "第一行&#13;&#10;第二行&#13;第三行，都是正文。"])
    twice = Cleaner("auto").clean_documents(once.kept)
    assert [document.text for document in twice.kept] == [document.text for document in once.kept]
    assert once.kept[-1].text == "第一行\n第二行\n第三行，都是正文。"
