"""What the default recipe does to real clean text and to real and made damage."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import ftfy
import pytest
from ftfy.fixes import uncurl_quotes

from mmdata.clean.columns import FTFY, LIGATURES
from mmdata.clean.measure import measure
from mmdata.clean.mojibake import SAFE, needs_ftfy
from mmdata.clean.pipeline import Cleaner, CleanResult
from mmdata.document import Document, Part

CLEAN = {
    "en_prose_0.jsonl": "text", "en_prose_1.jsonl.gz": "text", "zh_prose_0.jsonl": "text",
    "zh_prose_1.jsonl.gz": "text",
    "zh_medical.jsonl": "text", "zh_legal.jsonl.gz": "text", "instruct_en_alpaca.jsonl": "output",
    "instruct_en_gsm8k_original.jsonl": "answer", "instruct_zh_legal_qa.jsonl": "output",
    "instruct_zh_medical_alpaca.jsonl": "output", "instruct_en_zh_identity_alpaca.jsonl": "output",
}  # fmt: skip
# Repairs that are due wherever they fire: they change the form of a character, no word.
# Personal data is masked by request.
DUE = {"line_ends", "odd_spaces", "invisible", "fullwidth", "pii"}


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
    repaired = sum(count for step, count in result.changed.items() if step not in DUE)
    assert repaired <= 0.02 * len(texts), result.changed
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
    from mmdata.clean.mojibake import fix_mojibake

    for record in records(shared / "data/dirty.jsonl"):
        if record["defect"] == "none_expected" and "\x85" not in record["text"]:
            assert fix_mojibake(record["text"]) == record["text"]


def test_the_pre_check_sends_every_line_to_ftfy_that_ftfy_would_change(shared: Path) -> None:
    texts = [record["text"] for record in records(shared / "data/dirty.jsonl")]
    for name in ("zh_prose_0.jsonl", "en_prose_0.jsonl"):
        texts += [record["text"] for record in records(shared / "data" / name)[::10]]
    lines = sorted({line for text in texts for line in text.split("\n") if not line.isascii()})
    rows = measure(lines)
    import unicodedata

    for line, row in zip(lines, rows, strict=True):
        if ftfy.fix_text(line, SAFE) != unicodedata.normalize("NFC", line):
            assert needs_ftfy(line), line
            assert row[FTFY] or row[LIGATURES], line
