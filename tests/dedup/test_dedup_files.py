"""The commands over files: accounts add up, bytes do not depend on workers or blocks, and the index works over runs."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mmdata.dedup
from mmdata.dedup.cli import decontaminate_command, dedup_command, sample_command
from mmdata.dedup.corpus import plan_dedup
from mmdata.errors import (
    DedupFieldError,
    DedupIndexError,
    DedupIndexMismatchError,
    DedupParameterError,
    DedupSpaceError,
    OutputError,
    OutputExistsError,
    UsageError,
)


def write(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8", newline="\n")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.split(b"\n") if line]


def text(number: int, words: int = 60) -> str:
    return " ".join(f"w{number}x{i}" for i in range(words))


@pytest.fixture
def corpus(tmp_path: Path) -> list[Path]:
    """Two files with duplicates within and across, a rejected record, a blank line and an empty text."""
    first = [{"id": f"a{i}", "text": text(i), "source": "news" if i % 2 else "books"} for i in range(40)]
    first += [{"id": "a-empty", "text": "……", "source": "books"}]
    second = [{"id": f"b{i}", "text": text(i) + " tail", "source": "web"} for i in range(0, 40, 4)]
    second += [{"id": "b-new", "text": text(99), "source": "web"}, {"no": "text"}]
    a, b = write(tmp_path / "a.jsonl", first), write(tmp_path / "b.jsonl", second)
    b.write_bytes(b.read_bytes() + b"\n   \n" + b'{"text":   "kept as it stands"}\r\n')
    return [a, b]


def test_every_record_is_accounted_for_and_kept_lines_are_the_inputs_bytes(corpus: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out" / "unique.jsonl"
    report = mmdata.dedup(corpus, out)
    assert (report.records, report.kept, report.dropped, report.rejected, report.blank) == (54, 43, 10, 1, 2)
    lines = out.read_bytes().split(b"\n")
    wanted = corpus[0].read_bytes().split(b"\n")[:41]
    assert lines[:41] == wanted
    assert lines[42] == b'{"text":   "kept as it stands"}' and lines[43:] == [b""]
    dropped = read(tmp_path / "out" / "unique_dropped.jsonl.gz")
    assert [d["id"] for d in dropped] == [f"b{i}" for i in range(0, 40, 4)]
    assert dropped[1] == {
        "path": str(corpus[1]), "line": 2, "id": "b4", "stage": "dedup", "reason": "near_duplicate",
        "value": 56 / 57, "limit": 0.8, "kept": f"{corpus[0]}:5", "similarity": 56 / 57,
    }  # fmt: skip
    assert [r["line"] for r in read(tmp_path / "out" / "unique_rejects.jsonl")] == [12]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "unique.jsonl", "unique_dropped.jsonl.gz", "unique_rejects.jsonl", "unique_report.json",
    ]  # fmt: skip


def test_the_report_counts_clusters_sources_and_pairs(corpus: list[Path], tmp_path: Path) -> None:
    statistics = mmdata.dedup(corpus, tmp_path / "u.jsonl").statistics
    assert statistics["cluster_sizes"] == {"2": 10}
    assert statistics["never_compared"] == 1
    assert [(s["documents"], s["dropped"]) for s in statistics["sources"]] == [(41, 0), (12, 10)]
    assert statistics["matrix"] == [{"dropped_from": str(corpus[1]), "kept_in": str(corpus[0]), "documents": 10}]
    pair = statistics["pairs"][0]
    assert pair["exact"] == 56 / 57 and abs(pair["estimated"] - pair["exact"]) < 0.15
    assert pair["dropped_text"].startswith("w0x0 ") and pair["kept"] == f"{corpus[0]}:1"
    assert json.loads((tmp_path / "u_report.json").read_bytes())["statistics"]["cluster_sizes"] == {"2": 10}


def test_private_data_in_sampled_pairs_is_masked(tmp_path: Path) -> None:
    body = "写信给 zhang.san@pku.edu.cn 或者拨打 13812345678 联系我们 谢谢大家的支持与配合"
    path = write(tmp_path / "in.jsonl", [{"text": body}, {"text": body}])
    pair = mmdata.dedup(path, tmp_path / "u.jsonl").statistics["pairs"][0]
    assert "zhang" not in json.dumps(pair) and "138123" not in json.dumps(pair)


def test_private_data_reaches_neither_drop_file_nor_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "写信给 zhang.san@pku.edu.cn\n或者拨打 13812345678 联系我们 谢谢大家的支持与配合"
    rows = [{"id": "zhang.san@pku.edu.cn", "text": body}] * 2
    data = write(tmp_path / "in.jsonl", rows).read_bytes()
    for source in ("-", tmp_path / "in.jsonl"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        mmdata.dedup(source, tmp_path / "u.jsonl", index=tmp_path / "index", overwrite=True)
        (dropped, *_) = read(tmp_path / "u_dropped.jsonl.gz")
        assert "zhang" not in json.dumps(dropped) and "138123" not in json.dumps(dropped)
        assert source != "-" or dropped["text"].count("\n") == 1
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
    mmdata.dedup.decontaminate("-", tmp_path / "in.jsonl", tmp_path / "c.jsonl")
    assert "zhang" not in json.dumps(read(tmp_path / "c_dropped.jsonl.gz"))
    assert not any(b"zhang" in path.read_bytes() for path in (tmp_path / "index").rglob("ids"))


def test_sampled_pairs_keep_their_line_feeds(tmp_path: Path) -> None:
    body = "第一条 本法自公布之日起施行。\n第二条 电话 13812345678\t备注"
    path = write(tmp_path / "in.jsonl", [{"text": body}, {"text": body}])
    pair = mmdata.dedup(path, tmp_path / "u.jsonl").statistics["pairs"][0]
    wanted = "第一条 本法自公布之日起施行。\n第二条 电话 <digits>\\u0009备注"
    assert pair["dropped_text"] == pair["kept_text"] == wanted


@pytest.mark.parametrize("options", [{"workers": 2}, {"block_bytes": 700}, {"memory": 1 << 12}])
def test_bytes_do_not_depend_on_workers_blocks_or_memory(
    corpus: list[Path], tmp_path: Path, options: dict[str, Any]
) -> None:
    mmdata.dedup(corpus, tmp_path / "one" / "u.jsonl", keep="longest")
    mmdata.dedup(corpus, tmp_path / "two" / "u.jsonl", keep="longest", **options)
    for name in ("u.jsonl", "u_dropped.jsonl.gz", "u_rejects.jsonl"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_standard_input_gives_the_same_records_and_the_texts_of_the_dropped(
    corpus: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = corpus[0].read_bytes() + corpus[1].read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
    report = mmdata.dedup("-", tmp_path / "u.jsonl")
    assert (report.kept, report.dropped) == (43, 10)
    dropped = read(tmp_path / "u_dropped.jsonl.gz")
    assert dropped[0]["text"] == text(0) + " tail" and dropped[0]["kept"] == "-:1"


@pytest.mark.parametrize(
    ("policy", "kept"),
    [("first", "old"), ("longest", "long"), ("newest", "new"), ("score:quality", "good"), ("field:rank", "old")],
)
def test_the_keeper_policy_chooses_the_copy(tmp_path: Path, policy: str, kept: str) -> None:
    base = text(1, 80)
    records: list[dict[str, Any]] = [
        {"id": "old", "text": base, "date": "2019-05-01", "quality": 0.2, "rank": 3},
        {"id": "long", "text": base + " and more", "quality": "0.3", "rank": 3.0},
        {"id": "new", "text": base, "date": "2024-01-31T08:00:00+08:00", "quality": 0.1},
        {"id": "good", "text": base, "date": 1000.5, "quality": 0.9, "rank": None},
    ]
    report = mmdata.dedup(write(tmp_path / "in.jsonl", records), tmp_path / "u.jsonl", keep=policy)
    assert report.kept == 1
    assert read(tmp_path / "u.jsonl")[0]["id"] == kept


def test_a_keeper_field_that_is_neither_number_nor_date_names_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", [{"text": "a", "d": 1}, {"text": "b", "d": "last week"}])
    with pytest.raises(DedupFieldError, match=r"in\.jsonl:2: .*'last week'"):
        mmdata.dedup(path, tmp_path / "u.jsonl", keep="newest:d")
    with pytest.raises(DedupParameterError, match="keeper policy 'best'"):
        mmdata.dedup(path, tmp_path / "u.jsonl", keep="best")
    assert not list(tmp_path.glob("u*"))


def test_an_index_used_twice_keeps_nothing_the_second_time(corpus: list[Path], tmp_path: Path) -> None:
    index = tmp_path / "index"
    first = mmdata.dedup(corpus[:1], tmp_path / "one.jsonl", index=index)
    second = mmdata.dedup(corpus[1:], tmp_path / "two.jsonl", index=index)
    third = mmdata.dedup(corpus, tmp_path / "three.jsonl", index=index)
    assert (first.kept, second.kept, second.dropped) == (41, 2, 10)
    # Only the document without words is never compared.
    assert (third.kept, third.dropped) == (1, 52)
    dropped = read(tmp_path / "three_dropped.jsonl.gz")
    assert dropped[0]["kept"] == f"{corpus[0]}:1" and dropped[0]["similarity"] == 1.0
    assert third.statistics["matrix"][0]["kept_in"] == "index"
    with pytest.raises(DedupIndexMismatchError, match=r"threshold 0\.8 there, 0\.7 here"):
        mmdata.dedup(corpus, tmp_path / "four.jsonl", index=index, threshold=0.7)


def test_exact_deduplication_keeps_numbers_apart_under_any_normalisation(tmp_path: Path) -> None:
    texts = ["第12条 罚款。", "第12条罚款", "第13条罚款", "ABC, abc", "abc ABC", "1.5 mg", "15 mg", "", ""]
    path = write(tmp_path / "in.jsonl", [{"text": t} for t in texts])
    plain = mmdata.dedup(path, tmp_path / "u.jsonl", method="exact")
    assert (plain.kept, plain.dropped, plain.statistics["never_compared"]) == (9, 0, 2)
    steps = ("case", "punctuation", "space")
    normal = mmdata.dedup(path, tmp_path / "v.jsonl", method="exact", normalize=steps)
    assert [d["line"] for d in read(tmp_path / "v_dropped.jsonl.gz")] == [5]
    assert normal.dropped == 1
    assert read(tmp_path / "v_dropped.jsonl.gz")[0]["reason"] == "exact_duplicate"


def test_nothing_is_left_behind_after_a_failure(tmp_path: Path, corpus: list[Path]) -> None:
    (tmp_path / "u.jsonl").write_text("mine", encoding="utf-8")
    with pytest.raises(OutputExistsError):
        mmdata.dedup(corpus, tmp_path / "u.jsonl")
    with pytest.raises(UsageError, match="did you mean 'threshold'"):
        mmdata.dedup(corpus, tmp_path / "v.jsonl", treshold=0.5)
    with pytest.raises(UsageError, match="is an input too"):
        mmdata.dedup(corpus, corpus[0], overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl", "u.jsonl"]


def test_places_that_cannot_be_written_are_named_before_any_work(corpus: list[Path], tmp_path: Path) -> None:
    taken = corpus[0]
    with pytest.raises(OutputError, match=r"a\.jsonl is no folder, but .* needs one there"):
        mmdata.dedup(corpus, taken / "o.jsonl")
    with pytest.raises(DedupIndexError, match=r"a\.jsonl: a file, where the index needs a folder"):
        mmdata.dedup(corpus, tmp_path / "o.jsonl", index=taken / "index")
    with pytest.raises(DedupIndexError, match="not empty and no deduplication index"):
        mmdata.dedup(corpus, tmp_path / "o.jsonl", index=tmp_path)
    with pytest.raises(UsageError, match="written twice"):
        mmdata.dedup.sample(corpus, tmp_path / "o.jsonl", tmp_path / "o.jsonl", n=3)
    with pytest.raises(DedupParameterError, match="'sauce': no record has this field"):
        mmdata.dedup.sample(corpus, tmp_path / "o.jsonl", tmp_path / "r.jsonl", n=3, by="sauce")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]


def test_a_plan_is_printed_and_checked_against_the_disk(
    corpus: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_dedup(corpus, tmp_path / "u.jsonl")
    assert any("20 bands x 6 rows" in line for line in plan["lines"])
    assert any(line.split() == ["similarity", "0.80:", "0.9977"] for line in plan["lines"])
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("mmdata.dedup.plan.shutil.disk_usage", lambda folder: usage)
    with pytest.raises(DedupSpaceError, match="are free"):
        mmdata.dedup(corpus, tmp_path / "u.jsonl")


def test_sampling_is_stratified_reproducible_and_keeps_near_duplicates_out_of_the_rest(
    corpus: list[Path], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"n": 13, "by": "source", "seed": 5}
    report = mmdata.dedup.sample(corpus, tmp_path / "t.jsonl", tmp_path / "r.jsonl", **options)
    assert {name: row["sampled"] for name, row in report.strata.items()} == {"None": 1, "books": 5, "news": 5, "web": 2}
    test, rest = read(tmp_path / "t.jsonl"), read(tmp_path / "r.jsonl")
    assert len(test) == 13 and report.records == 13 + report.rest + report.dropped + report.rejected
    stems = {record["text"].removesuffix(" tail") for record in test}
    assert not stems & {record["text"].removesuffix(" tail") for record in rest}
    assert report.dropped == len(read(tmp_path / "r_dropped.jsonl.gz")) > 0
    assert {d["reason"] for d in read(tmp_path / "r_dropped.jsonl.gz")} == {"near_duplicate_of_test"}
    again = {**options, "workers": 2, "block_bytes": 600}
    mmdata.dedup.sample(corpus, tmp_path / "t2.jsonl", tmp_path / "r2.jsonl", **again)
    assert (tmp_path / "t2.jsonl").read_bytes() == (tmp_path / "t.jsonl").read_bytes()
    assert (tmp_path / "r2.jsonl").read_bytes() == (tmp_path / "r.jsonl").read_bytes()
    other = mmdata.dedup.sample(corpus, tmp_path / "t3.jsonl", tmp_path / "r3.jsonl", **{**options, "seed": 6})
    assert other.sampled == 13 and (tmp_path / "t3.jsonl").read_bytes() != (tmp_path / "t.jsonl").read_bytes()
    with pytest.raises(DedupParameterError, match="only 52 documents"):
        mmdata.dedup.sample(corpus, tmp_path / "t4.jsonl", tmp_path / "r4.jsonl", n=53)


def test_decontamination_finds_long_short_and_chinese_items_and_reports_coverage(tmp_path: Path) -> None:
    question = " ".join(f"q{i}" for i in range(20))
    chinese = "某公司拖欠货款应当承担何种违约责任"
    evaluation = [
        {"text": question}, {"text": "What is the capital of France in 1990?"}, {"text": "too short"},
        {"text": chinese}, {"text": " ".join(f"z{i}" for i in range(30))},
    ]  # fmt: skip
    train = [
        {"text": "before " + question.upper() + " after"},
        {"text": "so, what is the CAPITAL of France in 1990, he asked"},
        {"text": "too short"},
        {"text": "问：" + chinese + "？答：见合同法。"},
        {"text": " ".join(f"q{i}" for i in range(14)) + " partly"},
        {"text": "nothing to see here at all, dear reader of many many words indeed"},
    ]
    paths = write(tmp_path / "train.jsonl", train), write(tmp_path / "eval.jsonl", evaluation)
    report = mmdata.dedup.decontaminate(paths[0], paths[1], tmp_path / "c.jsonl")
    assert (report.records, report.kept, report.dropped, report.contaminated) == (6, 2, 4, 4)
    assert [r["text"] for r in read(tmp_path / "c.jsonl")] == [train[2]["text"], train[5]["text"]]
    assert [(i["grams"], i["coverage"], i["documents"]) for i in report.items] == [
        (8, 1.0, 2), (1, 1.0, 1), (0, None, 0), (5, 1.0, 1), (18, 0.0, 0),
    ]  # fmt: skip
    dropped = read(tmp_path / "c_dropped.jsonl.gz")
    assert [(d["line"], d["value"], d["kept"]) for d in dropped] == [
        (1, 8, f"{paths[1]}:1"), (2, 1, f"{paths[1]}:2"), (4, 5, f"{paths[1]}:4"), (5, 2, f"{paths[1]}:1"),
    ]  # fmt: skip
    lenient = mmdata.dedup.decontaminate(paths[0], paths[1], tmp_path / "d.jsonl", min_grams=3, block_bytes=200)
    assert lenient.dropped == 2
    seen = mmdata.dedup.decontaminate(paths[0], paths[1], tmp_path / "e.jsonl", report_only=True)
    assert (seen.kept, seen.dropped, seen.contaminated) == (6, 0, 4)
    with pytest.raises(DedupParameterError, match="nothing to look for"):
        mmdata.dedup.decontaminate(paths[0], write(tmp_path / "s.jsonl", [{"text": "hi"}]), tmp_path / "f.jsonl")


def test_decontamination_never_replaces_its_evaluation_set(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", [{"text": text(1)}])
    evaluation = write(tmp_path / "x.jsonl", [{"text": text(2)}])
    before = evaluation.read_bytes()
    with pytest.raises(UsageError, match="is an input too"):
        mmdata.dedup.decontaminate([train], evaluation, evaluation, overwrite=True)
    assert evaluation.read_bytes() == before


def test_commands_print_one_json_result_and_the_dry_run_prints_the_curve(corpus: list[Path], tmp_path: Path) -> None:
    names = ["--workers", "1", *(str(path) for path in corpus)]
    run = CliRunner()
    out = ["-o", str(tmp_path / "u.jsonl"), "--quiet"]
    dry = run.invoke(dedup_command, [*names, *out, "--dry-run"], catch_exceptions=False)
    assert "0.9977" in dry.stdout and not (tmp_path / "u.jsonl").exists()
    done = run.invoke(dedup_command, [*names, *out, "--json", "--keep", "longest"], catch_exceptions=False)
    assert json.loads(done.stdout)["dropped"] == 10
    sampled = ["-o", str(tmp_path / "t.jsonl"), "--rest", str(tmp_path / "r.jsonl"), "-n", "3", "--json", "--quiet"]
    assert json.loads(run.invoke(sample_command, [*names, *sampled], catch_exceptions=False).stdout)["sampled"] == 3
    against = [
        "--workers",
        "1",
        "--against",
        str(corpus[1]),
        "-o",
        str(tmp_path / "c.jsonl"),
        "--json",
        "--quiet",
        "--report-only",
    ]
    with pytest.raises(DedupParameterError, match="unreadable evaluation record"):
        run.invoke(decontaminate_command, [str(corpus[0]), *against], catch_exceptions=False)
    against[3] = str(corpus[0])
    result = run.invoke(decontaminate_command, [str(corpus[1]), *against], catch_exceptions=False)
    assert json.loads(result.stdout)["contaminated"] == 10
    level = run.invoke(
        dedup_command, [*names, *out, "--json", "--overwrite", "--level", "line"], catch_exceptions=False
    )
    assert json.loads(level.stdout)["removed"] == 0
    with pytest.raises(DedupParameterError, match="level 'word'"):
        run.invoke(dedup_command, [*names, *out, "--overwrite", "--level", "word"], catch_exceptions=False)
    with pytest.raises(UsageError, match="--memory"):
        run.invoke(dedup_command, [*names, *out, "--memory", "lots"], catch_exceptions=False)


def test_every_command_shows_an_example() -> None:
    for command in (dedup_command, decontaminate_command, sample_command):
        assert "Example: mmdata " in CliRunner().invoke(command, ["--help"]).output
