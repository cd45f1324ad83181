"""Repeated lines and paragraphs leave, the first stays, short ones stay, and what is emptied is accounted for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from mmdata.dedup.repeated import remove_repeated
from mmdata.errors import DedupParameterError

FOOTER = "版权所有，未经许可不得转载，违者必究，特此声明如上。"


def run(tmp_path: Path, texts: list[str], **options: object) -> tuple[list[str], object]:
    path = tmp_path / "in.jsonl"
    lines = [json.dumps({"text": text, "n": i}, ensure_ascii=False) + "\n" for i, text in enumerate(texts)]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    report = remove_repeated(path, tmp_path / "out.jsonl", overwrite=True, **options)
    written = (tmp_path / "out.jsonl").read_bytes().split(b"\n")[:-1]
    return [json.loads(line)["text"] for line in written], report


def test_later_occurrences_of_a_line_leave_and_short_lines_stay(tmp_path: Path) -> None:
    texts = [f"甲的正文\n{FOOTER}\n谢谢", f"乙的正文\n{FOOTER} \n谢谢", FOOTER, "丙"]
    found, report = run(tmp_path, texts)
    assert found == [texts[0], "乙的正文\n谢谢", "丙"]
    assert (report.records, report.kept, report.changed, report.emptied) == (4, 3, 1, 1)
    assert (report.units, report.removed) == (3, 2)
    dropped = json.loads(gzip.decompress((tmp_path / "out_dropped.jsonl.gz").read_bytes()))
    assert (dropped["line"], dropped["reason"]) == (3, "repeated_lines")


def test_paragraphs_are_compared_whole(tmp_path: Path) -> None:
    block = "The first line of a notice\nand its second line."
    texts = [f"one\n\n{block}\n\nend", f"{block}\n\ntwo", "The first line of a notice\nalone here"]
    assert run(tmp_path, texts, level="paragraph")[0] == [texts[0], "two", texts[2]]


@pytest.mark.parametrize("options", [{"block_bytes": 50}, {"memory": 64}])
def test_blocks_and_memory_change_nothing(tmp_path: Path, options: dict[str, int]) -> None:
    texts = [f"line {i % 50} is long enough to compare\nown line number {i} of this corpus" for i in range(300)]
    assert run(tmp_path, texts, **options)[0] == run(tmp_path, texts)[0]
    assert run(tmp_path, texts)[0][60] == "own line number 60 of this corpus"


def test_an_unknown_level_is_named(tmp_path: Path) -> None:
    with pytest.raises(DedupParameterError, match="'sentence'"):
        run(tmp_path, ["a"], level="sentence")
