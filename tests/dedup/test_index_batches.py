"""A batch that is made again finds itself in the index: it gives the same bytes, or is replaced where it changed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import mmdata
from mmdata.dedup import DedupIndex, DedupParams
from mmdata.errors import DedupIndexError, OutputError


def write(path: Path, numbers: range, tail: str = "") -> Path:
    rows = [{"text": " ".join(f"w{n}x{i}" for i in range(40)) + tail} for n in numbers]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def outputs(folder: Path, stem: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob(f"{stem}*")) if path.is_file()}


def state_of(index: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(index.rglob("*")) if path.is_file()}


def test_the_same_command_again_gives_the_same_bytes_and_leaves_the_index_alone(tmp_path: Path) -> None:
    index, notices = tmp_path / "index", []
    write(tmp_path / "a.jsonl", range(30))
    write(tmp_path / "b.jsonl", range(20, 50), " tail")
    write(tmp_path / "c.jsonl", range(40, 60))
    options: dict[str, Any] = {"index": index, "notice": notices.append}
    kept = [mmdata.dedup(tmp_path / f"{n}.jsonl", tmp_path / f"out-{n}.jsonl", **options).kept for n in "abc"]
    assert kept == [30, 20, 10]
    before = outputs(tmp_path, "out-b"), state_of(index)
    again = mmdata.dedup(tmp_path / "b.jsonl", tmp_path / "out-b.jsonl", **options, overwrite=True)
    assert again.kept == 20 and "holds this very batch already" in "\n".join(notices)
    assert (outputs(tmp_path, "out-b"), state_of(index)) == before
    os.remove(tmp_path / "out-b.jsonl")
    os.remove(tmp_path / "out-b_report.json")
    os.remove(tmp_path / "out-b_dropped.jsonl.gz")
    os.remove(tmp_path / "out-b_rejects.jsonl")
    mmdata.dedup(tmp_path / "b.jsonl", tmp_path / "out-b.jsonl", **options)
    assert (outputs(tmp_path, "out-b"), state_of(index)) == before
    # For another output they are new documents, and all are known.
    assert mmdata.dedup(tmp_path / "b.jsonl", tmp_path / "other.jsonl", **options).kept == 0


def test_a_changed_batch_replaces_what_its_output_held_before(tmp_path: Path) -> None:
    index, source, out = tmp_path / "index", tmp_path / "a.jsonl", tmp_path / "out.jsonl"
    mmdata.dedup(write(source, range(30)), out, index=index)
    mmdata.dedup(write(tmp_path / "b.jsonl", range(30, 40)), tmp_path / "out-b.jsonl", index=index)
    changed = mmdata.dedup(write(source, range(10, 35), " tail"), out, index=index, overwrite=True)
    # Documents 30 to 34 are the other batch's; 10 to 29 would be their own earlier versions' duplicates.
    assert (changed.kept, changed.dropped) == (20, 5)
    stored = DedupIndex(index, DedupParams()).stored
    assert [(one.output, one.documents, one.replaced) for one in stored] == [
        ("../out.jsonl", 30, True), ("../out-b.jsonl", 10, False), ("../out.jsonl", 20, False),
    ]  # fmt: skip
    gone = mmdata.dedup(write(tmp_path / "c.jsonl", range(12)), tmp_path / "out-c.jsonl", index=index)
    assert (gone.kept, gone.dropped) == (10, 2), "documents 0 to 9 are nowhere any more"


def test_a_moved_folder_keeps_its_batches(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    write(home / "a.jsonl", range(10))
    mmdata.dedup(home / "a.jsonl", home / "out" / "a.jsonl", index=home / "index")
    home.rename(tmp_path / "moved")
    home = tmp_path / "moved"
    again = mmdata.dedup(home / "a.jsonl", home / "out" / "a.jsonl", index=home / "index", overwrite=True)
    assert (again.kept, again.dropped) == (10, 0)


def test_convert_made_again_with_an_index_gives_the_same_shard(tmp_path: Path) -> None:
    model = tokenizers.models.WordLevel({"<unk>": 0, "<|endoftext|>": 1, "tail": 2}, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    source = write(tmp_path / "a.jsonl", range(20))
    arguments = (source, tmp_path / "out", tmp_path / "tokenizer.json")
    options: dict[str, Any] = {"recipe": "none", "dedup_index": str(tmp_path / "index")}
    first = mmdata.convert(*arguments, **options)
    shard = outputs(tmp_path, "out_text")
    again = mmdata.convert(*arguments, **options, overwrite=True)
    assert again.data["records"]["kept"] == first.data["records"]["kept"] == 20
    assert outputs(tmp_path, "out_text") == shard
    assert DedupIndex(tmp_path / "index", DedupParams()).documents == 20
    other = mmdata.convert(write(source, range(10, 30)), *arguments[1:], **options, overwrite=True)
    assert other.data["records"]["kept"] == 20


def test_an_unwritable_index_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    mmdata.dedup(write(tmp_path / "a.jsonl", range(3)), tmp_path / "o.jsonl", index=index)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != index)  # root may write anywhere
    with pytest.raises(OutputError, match="index: not writable"):
        mmdata.dedup(tmp_path / "a.jsonl", tmp_path / "p.jsonl", index=index)
    assert not list(tmp_path.glob("p*"))


def test_what_a_killed_first_run_left_is_no_foreign_folder_and_other_things_are(tmp_path: Path) -> None:
    index = tmp_path / "index"
    (index / "run-00000001.partial").mkdir(parents=True)
    (index / ".lock").touch()
    mmdata.dedup(write(tmp_path / "a.jsonl", range(3)), tmp_path / "o.jsonl", index=index)
    assert sorted(path.name for path in index.iterdir()) == [".lock", "index.json", "run-00000001"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run-notes.txt").touch()
    with pytest.raises(DedupIndexError, match="no deduplication index"):
        mmdata.dedup(tmp_path / "a.jsonl", tmp_path / "p.jsonl", index=tmp_path / "other")
