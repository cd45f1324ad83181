"""What a run leaves alone, keeps to itself, and can be told when it is run again."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from test_convert import PLAIN, digests

import mmdata
from mmdata.convert import plan
from mmdata.errors import (
    CheckpointError,
    InputError,
    InputRejectedError,
    LedgerMismatchError,
    OutputExistsError,
    UsageError,
)
from mmdata.jsonl import find_inputs
from mmdata.pipeline.conversion import Conversion, RunOptions
from mmdata.pipeline.options import ConvertOptions
from mmdata.pipeline.warm import fitting_workers
from mmdata.run.ledger import Ledger


class Killed(BaseException):
    """Stands for the end of the process."""


def run_until(commits: int, monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> None:
    """A conversion that ends like a killed one after so many commits."""
    commit, left = Ledger.commit, commits

    def dying_commit(self: Ledger, state: Any) -> None:
        nonlocal left
        commit(self, state)
        left -= 1
        if left == 0:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Ledger, "commit", dying_commit)
        mmdata.convert(*arguments, **options, commit_seconds=0.0)


@pytest.mark.parametrize("end", ["train", "valid_00001", "00000"])
def test_overwriting_leaves_the_shard_of_a_longer_prefix(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, end: str
) -> None:
    mmdata.convert(corpus, tmp_path / "o" / f"law_{end}", tokenizer_folder, **PLAIN)
    before = digests(tmp_path / "o" / f"law_{end}")
    mmdata.convert(corpus, tmp_path / "o" / "law", tokenizer_folder, **PLAIN)
    mmdata.convert(corpus, tmp_path / "o" / "law", tokenizer_folder, **PLAIN, overwrite=True)
    assert digests(tmp_path / "o" / f"law_{end}") == before != {}


def test_a_split_over_the_shard_of_a_longer_prefix_needs_overwrite(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    mmdata.convert(corpus, tmp_path / "o" / "law_train", tokenizer_folder, **PLAIN)
    with pytest.raises(OutputExistsError, match=r"law_train_text_document\.idx"):
        mmdata.convert(corpus, tmp_path / "o" / "law", tokenizer_folder, **PLAIN, split="9,1")


def test_the_key_of_hashed_personal_data_is_in_no_file(tokenizer_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "write to bob@example.com"}\n', encoding="utf-8")
    options = {**PLAIN, "pii": "hash", "pii_key": "a-very-secret-key"}
    mmdata.convert(source, tmp_path / "o" / "out", tokenizer_folder, **options)
    written = [path for path in (tmp_path / "o").iterdir() if path.is_file()]
    assert len(written) > 5
    assert not [path.name for path in written if b"a-very-secret-key" in path.read_bytes()]


def test_a_split_by_order_names_its_parts_under_a_prefix_that_sounds_like_one(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    report = mmdata.convert(
        corpus, tmp_path / "law_train_text_v2", tokenizer_folder, **PLAIN, split="8,1,1", split_by="order"
    )
    assert [shard["split"] for shard in report.data["outputs"]] == ["train", "valid", "test"]


@pytest.mark.parametrize("lost", ["*_rejects.jsonl.partial", "*.bin.partial"])
def test_overwrite_starts_anew_where_the_unfinished_run_is_damaged(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    arguments, options = (corpus, tmp_path / "o" / "out", tokenizer_folder), {**PLAIN, "block_records": 7}
    run_until(2, monkeypatch, *arguments, **options)
    for path in (tmp_path / "o" / "out.work").glob(lost):
        path.unlink()
    with pytest.raises((LedgerMismatchError, CheckpointError)) as caught:
        mmdata.convert(*arguments, **options)
    assert "--overwrite starts from the beginning" in caught.value.__notes__
    mmdata.convert(*arguments, **options, overwrite=True)
    mmdata.convert(corpus, tmp_path / "whole" / "out", tokenizer_folder, **options)
    assert digests(tmp_path / "o" / "out") == digests(tmp_path / "whole" / "out") != {}


def test_an_unfinished_run_cannot_be_given_another_index(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, options = (corpus, tmp_path / "o" / "out", tokenizer_folder), {**PLAIN, "dedup": "exact"}
    run_until(3, monkeypatch, *arguments, **options)
    with pytest.raises(LedgerMismatchError, match="dedup_index was null, now is"):
        mmdata.convert(*arguments, **options, dedup_index=str(tmp_path / "index"))


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_the_manifest_does_not_depend_on_blocks_for_arrays_and_tables(
    tokenizer_folder: Path, tmp_path: Path, kind: str
) -> None:
    texts = [f"{number} 第一条 words" for number in range(60)]
    source = tmp_path / f"a.{kind}"
    if kind == "json":
        source.write_text(json.dumps([{"text": text} for text in texts]), encoding="utf-8")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"text": texts}), source)
    mmdata.convert(source, tmp_path / "x" / "out", tokenizer_folder, **PLAIN)
    mmdata.convert(source, tmp_path / "y" / "out", tokenizer_folder, **PLAIN, block_records=7)
    assert digests(tmp_path / "x" / "out") == digests(tmp_path / "y" / "out") != {}
    name = "out_text_document.json"
    assert (tmp_path / "x" / name).read_bytes() == (tmp_path / "y" / name).read_bytes()


def test_drops_of_standard_input_have_their_text_and_those_of_files_none(
    tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(json.dumps({"text": f"text {number % 3}"}) + "\n" for number in range(6))
    source = tmp_path / "a.jsonl"
    source.write_text(lines, encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    mmdata.convert([source, "-"], tmp_path / "out", tokenizer_folder, **{**PLAIN, "dedup": "exact"})
    with gzip.open(tmp_path / "out_dropped.jsonl.gz", "rt", encoding="utf-8") as file:
        drops = [json.loads(line) for line in file]
    assert [(drop["line"], drop.get("text")) for drop in drops if drop["path"] != "-"] == [(n, None) for n in (4, 5, 6)]
    at_input = [(drop["line"], drop["text"]) for drop in drops if drop["path"] == "-"]
    assert at_input == [(number + 1, f"text {number % 3}") for number in range(6)]


def test_a_plan_makes_no_folder(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    plan(corpus, tmp_path / "new" / "sub" / "out", tokenizer_folder, **PLAIN)
    assert not (tmp_path / "new").exists()


def test_a_json_key_that_is_no_file_name_is_refused(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'a/b': a key becomes part of a file name"):
        mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **PLAIN, json_keys=("a/b",))


def test_shards_of_other_keys_of_an_earlier_run_are_refused_or_removed(tokenizer_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "one", "title": "two", "body": "three"}\n', encoding="utf-8")
    prefix = tmp_path / "o" / "out"
    mmdata.convert(source, prefix, tokenizer_folder, **PLAIN, json_keys=("title", "body"))
    with pytest.raises(OutputExistsError, match=r"out_(title|body)_document"):
        mmdata.convert(source, prefix, tokenizer_folder, **PLAIN)
    mmdata.convert(source, prefix, tokenizer_folder, **PLAIN, overwrite=True)
    shards = {path.name for path in prefix.parent.glob("out_*_document.*")}
    assert shards == {f"out_text_document{ending}" for ending in (".bin", ".idx", ".json")}


@pytest.mark.parametrize("options", [{}, {"pii": "replace"}, {"recipe": "auto"}])
def test_a_key_that_hashes_nothing_is_refused(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="--pii-key is for hashed personal data"):
        mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **{**PLAIN, **options}, pii_key="k")


def test_ids_and_texts_in_the_dropped_file_are_masked(
    tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.dumps({"id": "bob@example.com", "text": "call 13800138000\nor write to ann@example.org"}) + "\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(2 * line.encode())))
    mmdata.convert("-", tmp_path / "out", tokenizer_folder, **{**PLAIN, "dedup": "exact"})
    with gzip.open(tmp_path / "out_dropped.jsonl.gz", "rt", encoding="utf-8") as file:
        (drop,) = [json.loads(line) for line in file]
    assert (drop["id"], drop["text"]) == ("<email>", "call <digits>\nor write to <email>")


def test_rejects_before_an_interruption_count_for_a_run_that_is_to_fail_at_the_first(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, options = (corpus, tmp_path / "out", tokenizer_folder), {**PLAIN, "block_records": 50}
    run_until(2, monkeypatch, *arguments, **options)
    with pytest.raises(InputRejectedError, match="rejected before this run was interrupted"):
        mmdata.convert(*arguments, **options, on_error="fail")


@pytest.mark.parametrize("dedup", ["none", "minhash"])
def test_an_input_whose_hash_cannot_be_taken_is_named(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dedup: str
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("mmdata.pipeline.digests.digest_file", broken)
    with pytest.raises(InputError, match=r"part-0\.jsonl cannot be read: Input/output error"):
        mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **PLAIN | {"dedup": dedup})


def test_a_small_input_takes_one_worker_where_nobody_named_a_number(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("conversion", "warm"):
        monkeypatch.setattr(f"mmdata.pipeline.{module}.available_cores", lambda: 4)
    report = mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **PLAIN, workers=None)
    assert report.data["run"]["workers"] == 1
    assert any(text.startswith("workers: 1") for text in report.data["run"]["notices"])
    monkeypatch.setattr("mmdata.pipeline.warm.SMALL_INPUT", 0)
    assert fitting_workers(find_inputs([corpus])) == 4


def test_a_run_that_ended_while_another_loaded_is_not_replaced_unasked(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    """Two commands to one prefix: the second sees the first at work, and opens the work folder when it is done."""
    target = str(tmp_path / "out")
    first, second = (
        Conversion([corpus], target, tokenizer_folder, ConvertOptions(**PLAIN), RunOptions()) for _ in range(2)
    )
    first.execute()
    before = digests(tmp_path / "out")
    with pytest.raises(OutputExistsError, match="--overwrite"):
        second.execute()
    assert digests(tmp_path / "out") == before != {}
    assert not (tmp_path / "out.work").exists()
