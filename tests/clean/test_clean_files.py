"""The command: files in, files out, every record accounted for, the same bytes for any number of workers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mmdata.clean
from mmdata.clean.catalog import CATALOG
from mmdata.clean.cli import clean_command, recipe_group
from mmdata.clean.files import write_back
from mmdata.document import Document, Part
from mmdata.errors import InputRejectedError, OutputExistsError, UsageError

DOCS = Path(__file__).parent.parent.parent / "docs"
RECORDS = [
    {"id": 1, "text": "itâ€™s fine, 手机13800138000", "n": 12345678901234567890123},
    {"id": 2, "text": "一段干净的正文，不用修。", "extra": {"a": [1]}},
    {"id": 3, "text": ""},
    {"id": 4, "text": "\ufffd\ufffd坏了"},
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    lines = [json.dumps(record, ensure_ascii=False) for record in RECORDS]
    path.write_text("\n".join([*lines, "", "{broken", '{"other": 1}']) + "\n", encoding="utf-8")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.decode().split("\n") if line]


def test_every_record_is_kept_dropped_or_rejected_and_keeps_its_fields(source: Path, tmp_path: Path) -> None:
    report = mmdata.clean([source], tmp_path / "out.jsonl")  # type: ignore[operator]
    assert (report.records, report.kept, report.changed_documents, report.blank) == (6, 2, 1, 1)
    assert report.dropped == {"words": 1, "ruined": 1} and sum(report.rejected.values()) == 2
    assert report.records == report.kept + sum(report.dropped.values()) + sum(report.rejected.values())
    assert read(tmp_path / "out.jsonl") == [{**RECORDS[0], "text": "it’s fine, 手机<手机号>"}, RECORDS[1]]
    drops = read(tmp_path / "out_dropped.jsonl.gz")
    assert [(d["line"], d["stage"], d["reason"]) for d in drops] == [(3, "clean", "words"), (4, "clean", "ruined")]
    assert [r["line"] for r in read(tmp_path / "out_rejects.jsonl")] == [6, 7]


def test_two_workers_write_the_same_bytes(source: Path, tmp_path: Path) -> None:
    names = ("out.jsonl", "out_dropped.jsonl.gz", "out_rejects.jsonl")
    for workers, folder in ((1, "one"), (2, "two")):
        mmdata.clean.clean([source], tmp_path / folder / "out.jsonl", workers=workers)
    assert all((tmp_path / "one" / n).read_bytes() == (tmp_path / "two" / n).read_bytes() for n in names)


def test_a_dry_run_writes_nothing_and_an_existing_output_is_kept(source: Path, tmp_path: Path) -> None:
    report = mmdata.clean.clean([source], tmp_path / "out.jsonl", dry_run=True)
    assert report.kept == 2 and not (tmp_path / "out.jsonl").exists()
    (tmp_path / "out.jsonl").write_text("mine", encoding="utf-8")
    with pytest.raises(OutputExistsError):
        mmdata.clean.clean([source], tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8") == "mine"


def test_wrong_output_names_and_bad_records_are_errors(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"must end in \.jsonl"):
        mmdata.clean.clean([source], tmp_path / "out.txt")
    with pytest.raises(InputRejectedError, match=r"in\.jsonl:6"):
        mmdata.clean.clean([source], tmp_path / "out.jsonl", on_error="fail")
    assert not list(tmp_path.glob("out*"))


def test_the_commands_show_samples_and_recipes(source: Path, tmp_path: Path) -> None:
    arguments = [str(source), "-o", str(tmp_path / "out.jsonl"), "--show", "1", "--workers", "1", "--quiet"]
    shown = CliRunner().invoke(clean_command, arguments)
    assert shown.exit_code == 0 and "before: itâ€™s" in shown.output and "after:  it’s" in shown.output
    data = json.loads(CliRunner().invoke(clean_command, [*arguments, "--json", "--overwrite"]).stdout)
    assert data["kept"] == 2 and data["pii"] == {"mobile": 1}
    assert "mojibake" in CliRunner().invoke(recipe_group, ["show", "auto"]).output
    assert "fingerprint" in CliRunner().invoke(recipe_group, ["check", "zh"]).output


def test_texts_are_written_back_where_they_stood() -> None:
    record = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "id": 3}
    parts = (Part("messages[0].content", "user", "A"), Part("messages[1].content", "assistant", "B"))
    written = write_back(Document("p", 0, 1, None, record, parts))
    assert [message["content"] for message in written["messages"]] == ["A", "B"]
    assert record["messages"][0]["content"] == "a", "the record read is not changed"


def test_the_page_lists_every_step_with_its_defaults() -> None:
    page = (DOCS / "cleaning.md").read_text(encoding="utf-8")
    for step in CATALOG.values():
        given = ", ".join(f"{n}={json.dumps(p.default, ensure_ascii=False)}" for n, p in step.parameters.items())
        assert f"| `{step.name}` | {step.kind} | {step.summary} | {given} | {step.source} |" in page
    assert page.count("\n| `") - len(CATALOG) >= 11, "the survival table and the recipes"
