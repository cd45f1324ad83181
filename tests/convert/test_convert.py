"""`mmdata.convert` accounts for every record and writes what Megatron would, whatever the workers and blocks."""

from __future__ import annotations

import gzip
import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

import mmdata
from mmdata.errors import InputError, InputRejectedError, OutputExistsError, TooManyRejectsError, UsageError
from mmdata.pipeline.warm import sample_texts
from mmdata.reading.inputs import find_inputs
from mmdata.records import RecordOptions

PLAIN: dict[str, Any] = {"recipe": "none", "dedup": "none", "format": "text"}
SAME_EVERY_RUN = ("_text_document*", "_rejects.jsonl", "_dropped.jsonl.gz")


def digests(prefix: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for pattern in SAME_EVERY_RUN:
        for path in sorted(prefix.parent.glob(prefix.name + pattern)):
            found[path.name.removeprefix(prefix.name)] = sha256(path.read_bytes()).hexdigest()
    return found


def expected_documents(corpus: Path, folder: Path) -> list[list[int]]:
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    documents: list[list[int]] = []
    for path in sorted(corpus.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").split("\n"):
            try:
                text = json.loads(line)["text"]
            except ValueError:
                continue
            if text:
                documents.append([*reference.encode(text).ids, reference.token_to_id("<|endoftext|>")])
    return documents


def test_every_record_is_accounted_for(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    report = mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **PLAIN)
    records = report.data["records"]
    # Two files of 120 lines, each with lines 40, 80, 120 bad, 50 and 100 blank, 59 and 119 empty.
    assert records == {
        "read": 236, "kept": 226, "dropped": {"encode:empty": 4}, "rejected": {"bad-json": 6}, "blank": 4,
    }  # fmt: skip
    assert json.loads((tmp_path / "out_report.json").read_text(encoding="utf-8"))["records"] == records
    assert "records read 236 = kept 226 + dropped 4 + rejected 6" in report.summary()


def test_documents_are_the_reference_tokens_with_eod(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **PLAIN)
    dataset = mmdata.IndexedDataset(tmp_path / "out_text_document")
    assert [document.tolist() for document in dataset] == expected_documents(corpus, tokenizer_folder)
    assert dataset.dtype == np.uint16
    assert mmdata.verify_shard(tmp_path / "out_text_document", deep=True).ok


def test_rejects_and_drops_name_place_and_reason(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **PLAIN)
    lines = (tmp_path / "out_rejects.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    rejects = [json.loads(line) for line in lines]
    assert [(Path(r["path"]).name, r["line"]) for r in rejects] == [
        (f"part-{part}.jsonl", line) for part in range(2) for line in (40, 80, 120)
    ]
    assert all(set(r) == {"path", "line", "reason", "excerpt"} for r in rejects)
    with gzip.open(tmp_path / "out_dropped.jsonl.gz", "rt", encoding="utf-8") as stream:
        drops = [json.loads(line) for line in stream]
    assert [(d["line"], d["stage"], d["reason"]) for d in drops] == [
        (line, "encode", "empty") for _ in range(2) for line in (59, 119)
    ]


def test_origin_leads_back_to_the_line(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **PLAIN)
    dataset = mmdata.IndexedDataset(tmp_path / "out_text_document")
    reference = tokenizers.Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    for number in (0, 57, 113, 114, len(dataset) - 1):
        origin = dataset.origin(number)
        assert origin is not None and origin.path is not None
        line = (corpus / origin.path).read_text(encoding="utf-8").split("\n")[origin.line - 1]
        assert json.loads(line)["text"] == reference.decode(dataset[number][:-1].tolist(), skip_special_tokens=False)


@pytest.mark.parametrize("how", [{"workers": 2}, {"workers": 5}, {"block_records": 1}, {"block_bytes": 777}])
def test_bytes_do_not_depend_on_workers_or_blocks(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, how: dict[str, int]
) -> None:
    split = {"split": "8,1,1", "max_tokens_per_shard": 4000}
    for name, options in (("one", {}), ("other", how)):
        mmdata.convert(corpus, tmp_path / name / "out", tokenizer_folder, **PLAIN, **options)
        mmdata.convert(corpus, tmp_path / name / "cut", tokenizer_folder, **PLAIN, **options, **split)
    for prefix in ("out", "cut"):
        assert digests(tmp_path / "one" / prefix) == digests(tmp_path / "other" / prefix) != {}


def test_split_and_rolls_hold_every_document_once(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    report = mmdata.convert(
        corpus, tmp_path / "cut", tokenizer_folder, **PLAIN, split="8,1,1", max_tokens_per_shard=4000
    )
    found = []
    for prefix in report.shards:
        dataset = mmdata.IndexedDataset(prefix)
        assert dataset.token_count <= 4000
        found += [document.tolist() for document in dataset]
    assert sorted(found) == sorted(expected_documents(corpus, tokenizer_folder))
    assert any("_train_00001_" in prefix for prefix in report.shards)
    assert any("_valid_00000_" in prefix for prefix in report.shards)


def test_split_by_order_gives_contiguous_ranges(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    report = mmdata.convert(corpus, tmp_path / "cut", tokenizer_folder, **PLAIN, split="8,1,1", split_by="order")
    found = [document.tolist() for prefix in report.shards for document in mmdata.IndexedDataset(prefix)]
    assert found == expected_documents(corpus, tokenizer_folder)
    assert [Path(prefix).name for prefix in report.shards] == [
        f"cut_{name}_text_document" for name in ("train", "valid", "test")
    ]
    assert all(mmdata.verify_shard(prefix, deep=True).ok for prefix in report.shards)


def test_each_json_key_becomes_its_own_shard(tokenizer_folder: Path, tmp_path: Path) -> None:
    lines = [{"title": f"t{n}", "body": f"body {n}"} for n in range(5)]
    lines += [{"title": "no body"}, {"title": "", "body": "x"}]
    source = tmp_path / "a.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    report = mmdata.convert(source, tmp_path / "out", tokenizer_folder, **PLAIN, json_keys=("title", "body"))
    assert report.data["records"]["rejected"] == {"missing-key": 1}
    assert report.data["records"]["dropped"] == {"encode:empty": 1}
    assert [len(mmdata.IndexedDataset(tmp_path / f"out_{key}_document")) for key in ("title", "body")] == [5, 5]


def test_an_existing_output_is_kept_without_overwrite(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    options = {**PLAIN, "max_tokens_per_shard": 2000}
    first = mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **options)
    before = digests(tmp_path / "out")
    with pytest.raises(OutputExistsError, match="--overwrite"):
        mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **options)
    options["max_tokens_per_shard"] = 20000
    second = mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **options, overwrite=True)
    assert len(second.shards) < len(first.shards)
    left = sorted(path.stem for path in tmp_path.glob("out_*_document.idx"))
    assert left == sorted(Path(prefix).name for prefix in second.shards), "stale shards of the earlier run stay"
    assert before


def test_on_error_fail_stops_at_the_first_with_its_place(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputRejectedError, match=r"part-0\.jsonl:40: "):
        mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **PLAIN, on_error="fail")
    assert not list(tmp_path.glob("out*")), "nothing is left, the work folder included"


@pytest.mark.parametrize(("limit", "fails"), [("5", True), ("6", False), ("2%", True), ("3%", False)])
def test_max_rejects_bounds_skipping(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, limit: str, fails: bool
) -> None:
    if fails:
        with pytest.raises(TooManyRejectsError, match="rejected"):
            mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **PLAIN, max_rejects=limit)
        assert not list(tmp_path.glob("out_*"))
    else:
        mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **PLAIN, max_rejects=limit)


@pytest.mark.parametrize("content", ["", "\n\n", '{"text": ""}\n', '{"body": "x"}\n'])
def test_nothing_to_write_is_an_error_that_says_why(tokenizer_folder: Path, tmp_path: Path, content: str) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match="no documents left"):
        mmdata.convert(source, tmp_path / "out", tokenizer_folder, **PLAIN)
    assert not list(tmp_path.glob("out_*"))


@pytest.mark.parametrize("limit", [None, "1", "10%"])
def test_a_run_that_fails_on_rejects_shows_the_first(tokenizer_folder: Path, tmp_path: Path, limit: str | None) -> None:
    good = '{"text": "a"}\n' if limit else ""
    (tmp_path / "in.jsonl").write_text(good + "\nbad one\nbad two\n", encoding="utf-8")
    place = f"in.jsonl:{3 if limit else 2}: unexpected character at column 1 (bad one)"
    with pytest.raises(InputError, match=re.escape(place)):
        mmdata.convert(tmp_path / "in.jsonl", tmp_path / "out", tokenizer_folder, max_rejects=limit, **PLAIN)


def test_an_input_is_never_the_output(tokenizer_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "out_rejects.jsonl"
    source.write_text('{"text": "x"}\n', encoding="utf-8")
    with pytest.raises((UsageError, OutputExistsError)):
        mmdata.convert(source, tmp_path / "out", tokenizer_folder, **PLAIN, overwrite=True)
    assert source.read_text(encoding="utf-8") == '{"text": "x"}\n'


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"on_eror": "skip"}, "on_error"), ({"dtype": "int16"}, "uint16"), ({"split": "1,2,3,4"}, "train,valid,test"),
        ({"split": "a"}, "969,30,1"), ({"json_keys": ()}, "keys"), ({"max_rejects": "x"}, "0.5%"),
    ],
)  # fmt: skip
def test_a_wrong_option_names_what_would_be_right(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, options: dict[str, Any], hint: str
) -> None:
    with pytest.raises(UsageError, match=hint):
        mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **{**PLAIN, **options})


def test_a_dtype_too_small_for_the_vocabulary_is_refused(corpus: Path, shared: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="uint16"):
        mmdata.convert(corpus, tmp_path / "out", shared / "tokenizers" / "qwen3", **PLAIN, dtype="uint16")


@pytest.mark.peer
def test_megatron_writes_the_same_bytes(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    torch = pytest.importorskip("torch")
    mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **PLAIN)
    builder = indexed.IndexedDatasetBuilder(str(tmp_path / "peer.bin"), dtype=np.uint16)
    for document in expected_documents(corpus, tokenizer_folder):
        builder.add_document(torch.tensor(document), [len(document)])
    builder.finalize(str(tmp_path / "peer.idx"))
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"out_text_document{ending}").read_bytes() == (tmp_path / f"peer{ending}").read_bytes()


@pytest.mark.parametrize(
    ("record", "options", "texts"),
    [
        ({"text": "甲乙"}, {}, ["甲乙"]),
        ({"text": "甲乙"}, {"format": "text"}, ["甲乙"]),
        ({"body": "甲乙"}, {"keys": ("body",)}, ["甲乙"]),
        ({"messages": [{"role": "user", "content": "问"}, {"role": "assistant", "content": "答"}]}, {}, ["问\n答"]),
        ({"instruction": "问", "input": "", "output": "答"}, {"format": "alpaca"}, ["问\n答"]),
        ({"q": "问", "a": "答"}, {"mapping": (("q", "user"), ("a", "assistant"))}, ["问\n答"]),
        ({"other": 1}, {}, []),
    ],
)
def test_engine_is_checked_on_texts_of_the_run_in_every_format(
    record: dict[str, Any], options: dict[str, Any], texts: list[str], tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text("not JSON\n" + json.dumps(record) + "\n", encoding="utf-8")
    wanted = RecordOptions(**{"keys": ("text",), "format": "auto", "mapping": ()} | options)
    assert sample_texts(find_inputs([tmp_path / "a.jsonl"])[0], "utf-8", wanted, "reject") == texts
