"""Cleaning, deduplication and chat rendering inside `mmdata.convert`: same result however the run was carried out."""

from __future__ import annotations

import gzip
import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from test_convert import digests

import mmdata
from mmdata.dedup.in_memory import find_duplicates
from mmdata.errors import DedupIndexMismatchError, InputError, UsageError
from mmdata.inspection import view_document

WORDS = (Path(__file__).read_text(encoding="utf-8") + "甲乙丙丁戊己庚辛壬癸子丑寅卯辰巳午未申酉戌亥").split()


class Killed(BaseException):
    """Stands for the end of the process."""


def near_copy(text: str, seed: int) -> str:
    words = text.split(" ")
    words[seed % len(words)] = f"edited{seed}"
    return " ".join(words)


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """150 records: 100 different texts, every other one followed later by an edited copy."""
    draw = random.Random(7)
    texts = [" ".join(draw.choices(WORDS, k=120)) for _ in range(100)]
    texts += [near_copy(text, number) for number, text in enumerate(texts[::2])]
    path = tmp_path / "copies.jsonl"
    lines = [json.dumps({"id": f"r{number}", "text": text}, ensure_ascii=False) for number, text in enumerate(texts)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def dropped(prefix: Path) -> list[dict[str, Any]]:
    with gzip.open(f"{prefix}_dropped.jsonl.gz", "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def test_near_duplicates_are_dropped_and_named(copies: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    report = mmdata.convert(copies, tmp_path / "out", tokenizer_folder, recipe="none", format="text")
    texts = [json.loads(line)["text"] for line in copies.read_text(encoding="utf-8").split("\n")[:-1]]
    kept_of, similarity = find_duplicates(texts)
    expected = [(n, int(kept), float(similarity[n])) for n, kept in enumerate(kept_of) if kept >= 0]
    drops = dropped(tmp_path / "out")
    found = [(d["line"] - 1, int(d["kept"].rsplit(":", 1)[1]) - 1, d["similarity"]) for d in drops]
    assert found == expected != []
    assert all(drop["stage"] == "dedup" and drop["similarity"] >= 0.8 for drop in drops)
    assert report.data["stages"]["dedup"]["dropped"] == len(drops)
    assert report.data["records"]["read"] == 150 == report.data["records"]["kept"] + len(drops)


@pytest.mark.parametrize("how", [{"workers": 2}, {"block_records": 1}, {"block_records": 4096}])
def test_deduplicated_bytes_do_not_depend_on_workers_or_blocks(
    copies: Path, corpus: Path, tokenizer_folder: Path, tmp_path: Path, how: dict[str, int]
) -> None:
    for name, options in (("one", {}), ("other", how)):
        mmdata.convert([copies, corpus], tmp_path / name / "out", tokenizer_folder, **options)
    assert digests(tmp_path / "one" / "out") == digests(tmp_path / "other" / "out")


def test_a_deduplicating_run_goes_on_from_every_commit(
    copies: Path, corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmdata.run.ledger import Ledger

    options: dict[str, Any] = {"block_records": 40, "split": "8,1,1"}
    mmdata.convert([copies, corpus], tmp_path / "whole" / "out", tokenizer_folder, **options)
    commit = Ledger.commit
    phases: list[str] = []
    stop_after = 0
    while True:
        stop_after += 3
        seen = 0

        def dying_commit(self: Ledger, state: Any) -> None:
            nonlocal seen
            commit(self, state)
            seen += 1
            if seen == stop_after:  # noqa: B023 - used within this round only
                phases.append(state["phase"])
                raise Killed

        prefix = tmp_path / f"stop{stop_after}" / "out"
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "commit", dying_commit)
            try:
                mmdata.convert([copies, corpus], prefix, tokenizer_folder, **options, commit_seconds=0.0)
                break
            except Killed:
                pass
        mmdata.convert([copies, corpus], prefix, tokenizer_folder, **options)
        assert digests(prefix) == digests(tmp_path / "whole" / "out"), phases[-1]
    assert {"sign", "kept"} <= set(phases)


def test_a_run_killed_while_deciding_decides_again(
    copies: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmdata.pipeline import dedup

    mmdata.convert(copies, tmp_path / "whole" / "out", tokenizer_folder)
    prefix = tmp_path / "killed" / "out"

    def dying(setup: Any, barrier: Any) -> None:
        next(iter(barrier.decide(list(setup.names))))
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(dedup, "write_decisions", dying)
        with pytest.raises(Killed):
            mmdata.convert(copies, prefix, tokenizer_folder)
    mmdata.convert(copies, prefix, tokenizer_folder)
    assert digests(prefix) == digests(tmp_path / "whole" / "out")


def test_an_index_wins_over_a_new_batch_and_is_filled_once(
    copies: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"recipe": "none", "dedup_index": str(tmp_path / "index")}
    lines = copies.read_text(encoding="utf-8").split("\n")[:-1]
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_text("\n".join(lines[:100]) + "\n", encoding="utf-8")
    second.write_text("\n".join(lines[100:]) + '\n{"text": "something that was never there before, at all"}\n', "utf-8")
    mmdata.convert(first, tmp_path / "a", tokenizer_folder, **options)
    report = mmdata.convert(second, tmp_path / "b", tokenizer_folder, **options)
    assert report.data["records"]["kept"] == 51 - report.data["stages"]["dedup"]["dropped"]
    assert report.data["stages"]["dedup"]["dropped"] >= 45
    assert all("first.jsonl:" in drop["kept"] for drop in dropped(tmp_path / "b"))
    with pytest.raises(DedupIndexMismatchError):
        mmdata.convert(second, tmp_path / "c", tokenizer_folder, **options, dedup_threshold=0.5)


@pytest.mark.parametrize("split", [None, "8,1,1"])
def test_a_batch_that_the_index_holds_already_gives_empty_shards_and_says_so(
    copies: Path, tokenizer_folder: Path, tmp_path: Path, split: str | None
) -> None:
    options: dict[str, Any] = {"recipe": "none", "dedup_index": str(tmp_path / "index"), "format": "text"}
    first = mmdata.convert(copies, tmp_path / "a", tokenizer_folder, **options)
    again = tmp_path / "again.jsonl"
    again.write_bytes(copies.read_bytes() + b"no JSON\n\n")
    told: list[str] = []
    report = mmdata.convert(again, tmp_path / "b", tokenizer_folder, split=split, notice=told.append, **options)
    records = report.data["records"]
    assert records["read"] == 151 and records["kept"] == 0 and records["rejected"] == {"bad-json": 1}
    assert sum(records["dropped"].values()) == 150 and first.data["records"]["kept"] > 0
    assert "nothing new: the index holds all 150 documents that were compared; shards are empty" in told
    ends = [""] if split is None else ["_train", "_valid", "_test"]
    for end in ends:
        shard = mmdata.IndexedDataset(tmp_path / f"b{end}_text_document")
        assert len(shard) == 0 and shard.manifest is not None and shard.manifest.documents == 0
        assert mmdata.verify_shard(tmp_path / f"b{end}_text_document", deep=True).ok
    joined = mmdata.merge_shards([tmp_path / "a_text_document", tmp_path / f"b{ends[0]}_text_document"], tmp_path / "j")
    assert joined.documents == first.data["documents"]["written"]


def test_a_batch_without_documents_is_an_error_even_with_an_index(tokenizer_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('no JSON\n{"text": ""}\n', encoding="utf-8")
    with pytest.raises(InputError, match="no documents left: 2 records read"):
        mmdata.convert(
            tmp_path / "in.jsonl", tmp_path / "a", tokenizer_folder, recipe="none", dedup_index=str(tmp_path / "index")
        )


def test_an_index_without_deduplication_is_refused(copies: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--dedup"):
        mmdata.convert(copies, tmp_path / "a", tokenizer_folder, dedup="none", dedup_index="x")


def test_personal_data_is_replaced_before_it_becomes_tokens(tokenizer_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    text = "患者张某，身份证号11010519491231002X，手机13812345678，于2024年3月15日入院，诊断为急性阑尾炎。" * 2
    source.write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n", encoding="utf-8")
    for pii, there in (("replace", False), ("off", True)):
        mmdata.convert(source, tmp_path / pii / "out", tokenizer_folder, recipe="zh", pii=pii)
        dataset = mmdata.IndexedDataset(tmp_path / pii / "out_text_document")
        decoded = mmdata.load_tokenizer(tokenizer_folder).decode(dataset[0])
        assert ("11010519491231002X" in decoded) == there == ("13812345678" in decoded)
        assert "2024年3月15日" in decoded


def test_chat_and_plain_records_share_a_shard_with_spans(tokenizer_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "mixed.jsonl"
    records = [
        {"instruction": "写一句话", "input": "", "output": "第一条 为了保护民事主体的合法权益。"},
        {"text": "The quick brown fox jumps over the lazy dog."},
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]},
        {"nothing": "known"},
    ]
    source.write_text("\n".join(json.dumps(r, ensure_ascii=False) for r in records) + "\n", encoding="utf-8")
    options: dict[str, Any] = {"recipe": "none", "dedup": "none", "chat_template": "chatml"}
    report = mmdata.convert(source, tmp_path / "out", tokenizer_folder, **options)
    assert report.data["records"]["rejected"] == {"unknown-format": 1}
    prefix = tmp_path / "out_text_document"
    dataset, tokenizer = mmdata.IndexedDataset(prefix), mmdata.load_tokenizer(tokenizer_folder)
    assert dataset.manifest is not None and dataset.manifest.loss == "spans"
    counted = []
    for number in range(len(dataset)):
        tokens = dataset[number]
        counted.append("".join(tokenizer.decode(tokens[a:b]) for a, b in dataset.loss_spans(number)))
    assert counted[0].startswith("第一条 为了保护民事主体的合法权益。") and counted[2].startswith("hello")
    assert dataset.loss_spans(1).tolist() == [[1, len(dataset[1])]]
    assert mmdata.verify_shard(prefix, deep=True).ok


def test_plain_records_alone_get_no_spans(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, recipe="none", dedup="none")
    assert not (tmp_path / "out_text_document_loss_spans.idx").exists()
    mmdata.convert(corpus, tmp_path / "text", tokenizer_folder, recipe="none", dedup="none", format="text")
    for ending in (".bin", ".idx"):
        pair = [(tmp_path / f"{name}_text_document{ending}").read_bytes() for name in ("out", "text")]
        assert pair[0] == pair[1]


@pytest.mark.parametrize("split", [None, "1,1"])
def test_the_pai_layout_holds_every_counted_token_once(
    tokenizer_folder: Path, tmp_path: Path, split: str | None
) -> None:
    source = tmp_path / "chat.jsonl"
    records = [{"instruction": f"question {n} " * (1 + n % 5), "output": f"answer {n}!"} for n in range(40)]
    source.write_text("\n".join(json.dumps(record) for record in records) + "\n", encoding="utf-8")
    options: dict[str, Any] = {
        "recipe": "none", "dedup": "none", "chat_template": "chatml", "max_length": 128, "split": split,
    }  # fmt: skip
    spans = mmdata.convert(source, tmp_path / "spans", tokenizer_folder, **options)
    pai = mmdata.convert(source, tmp_path / "pai", tokenizer_folder, **options, sft_layout="pai")
    counted, labelled, ends, sequences = [], [], 0, 0
    for prefix in spans.shards:
        dataset = mmdata.IndexedDataset(prefix)
        sequences += len(dataset)
        for number in range(len(dataset)):
            counted += [t for a, b in dataset.loss_spans(number) for t in dataset[number][a:b].tolist()]
    for prefix in pai.shards:
        dataset = mmdata.IndexedDataset(prefix)
        assert dataset.dtype.name == "int32" and mmdata.verify_shard(prefix, deep=True).ok
        assert dataset.manifest is not None and dataset.manifest.layout == "pai"
        for row in dataset:
            assert len(row) == 256
            labelled += [label for label in row[128:].tolist() if label != -100]
            ends += int((row[:128] < 0).sum())
    assert sorted(labelled) == sorted(counted) != []
    assert ends == sequences == 40
    shown = view_document(pai.shards[0], 0, mmdata.load_tokenizer(tokenizer_folder))
    assert "question" in shown.text and any(text.startswith("answer") for text, counts in shown.segments if counts)


def test_the_pai_layout_needs_a_row_length(tokenizer_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "chat.jsonl"
    source.write_text('{"instruction": "a", "output": "b"}\n', encoding="utf-8")
    with pytest.raises(UsageError, match="--max-length"):
        mmdata.convert(source, tmp_path / "o", tokenizer_folder, chat_template="chatml", sft_layout="pai")


@pytest.mark.parametrize("block_records", [1, 2, 100])
def test_long_plain_records_meet_the_same_limit_whatever_shares_their_block(
    tokenizer_folder: Path, tmp_path: Path, block_records: int
) -> None:
    source = tmp_path / "mixed.jsonl"
    long_text = "The quick brown fox jumps over the lazy dog. " * 40
    records = [{"text": long_text}, {"instruction": "a", "output": "b"}, {"text": long_text}, {"text": "short one"}]
    source.write_text("\n".join(json.dumps(record) for record in records) + "\n", encoding="utf-8")
    mmdata.convert(
        source, tmp_path / "out", tokenizer_folder, recipe="none", dedup="none", chat_template="chatml",
        max_length=64, too_long="truncate-right", block_records=block_records,
    )  # fmt: skip
    dataset = mmdata.IndexedDataset(tmp_path / "out_text_document")
    assert dataset.sequence_lengths.tolist()[0] == dataset.sequence_lengths.tolist()[2] == 64
    assert len(dataset) == 4


def test_compiling_kernels_is_announced_when_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    from mmdata import kernels
    from mmdata.dedup.params import DedupParams
    from mmdata.pipeline import stages

    said: list[str] = []
    told = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        told.set()

    monkeypatch.setattr(kernels, "NOTICE_AFTER", 0.0)
    monkeypatch.setattr(stages, "find_duplicates", lambda *arguments, native: told.wait(60))
    stages.warm_up(None, DedupParams(), say)
    assert said == [
        "preparing the cleaning and deduplication kernels (the first run on a machine compiles them, some ten seconds)"
    ]
