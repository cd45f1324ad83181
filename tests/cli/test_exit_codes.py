"""One exit code for one kind of mistake, whatever the command: the table of docs/commands.md, run cell by cell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from byte_tokenizer import write_byte_tokenizer

from mmdata.cli import COMMANDS, main

Line = tuple[str, ...]
# A command's line with an input and an output in it.
LINES: dict[str, Callable[[str, str], Line]] = {
    "convert": lambda i, o: ("convert", i, "-o", o, "--tokenizer", "tok", "--recipe", "none", "--dedup", "none"),
    "tokenize": lambda i, o: ("tokenize", i, "-o", o, "--tokenizer", "tok"),
    "clean": lambda i, o: ("clean", i, "-o", o, "--recipe", "none"),
    "dedup": lambda i, o: ("dedup", i, "-o", o, "--method", "exact"),
    "decontaminate": lambda i, o: ("decontaminate", i, "--against", "eval.jsonl", "-o", o),
    "sample": lambda i, o: ("sample", i, "-n", "1", "-o", o, "--rest", "rest.jsonl"),
    "merge": lambda i, o: ("merge", i, "-o", o),
    "split": lambda i, o: ("split", i, "-o", o, "--max-tokens", "100"),
    "report": lambda i, o: ("report", i, "-o", o),
    "inspect": lambda i, o: ("inspect", i),
    "verify": lambda i, o: ("verify", i),
    "adopt": lambda i, o: ("adopt", i, "--tokenizer", "tok"),
    "recipe": lambda i, o: ("recipe", "check", i),
}
RECORDS = ("convert", "tokenize", "clean", "dedup", "decontaminate", "sample")
FILES = ("clean", "dedup", "decontaminate", "sample")
WRITERS = (*RECORDS, "merge", "split", "report")
ENDINGS = dict.fromkeys(FILES, ".jsonl") | {"report": ".html"}
WRONG_VALUES = [
    *((name, "--encoding", "klingon") for name in RECORDS),
    *((name, "--executor", "moon") for name in RECORDS),
    *((name, "--shard", "1/2") for name in RECORDS),
    *((name, "--ray-address", "there") for name in RECORDS),
    *((name, "--workers", "0") for name in RECORDS),
    *((name, "--on-error", "cry") for name in ("convert", "tokenize", "clean")),
    *((name, "--txt-document", "chapter") for name in RECORDS if name != "clean"),
    *((name, "--format", "latin") for name in RECORDS if name != "tokenize"),
    *((name, "--json-keys", "") for name in RECORDS),
    *((name, "--memory", size) for name in ("convert", "dedup", "sample") for size in ("0", "-1", "much")),
    *((name, "--threshold", "1.5") for name in ("dedup", "sample")),
    ("convert", "--dedup-threshold", "0"), ("convert", "--recipe", "atuo"), ("convert", "--pii", "hid"),
    ("convert", "--split", "a,b"), ("convert", "--map", "q"), ("convert", "--max-rejects", "some"),
    ("clean", "--recipe", "atuo"), ("clean", "--show", "-1"), ("clean", "--sample-drops", "-1"),
    ("dedup", "--keep", "best"), ("dedup", "--level", "word"), ("dedup", "--unit", "byte"),
    ("dedup", "--normalize", "accents"), ("decontaminate", "--ngram", "0"), ("decontaminate", "--against-format", "x"),
    ("sample", "-n", "0"), ("sample", "--rest", "out.jsonl"), ("split", "--ratio", "a,b"), ("split", "--seed", "x"),
    ("inspect", "--doc", "x"), ("recipe", "--jsn", "x"),
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("codes")
    write_byte_tokenizer(folder / "tok")
    words = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    lines = [json.dumps({"text": f"第{number}条 {words} {number}"}, ensure_ascii=False) for number in range(8)]
    lines.append(json.dumps({"text": "a record that shares nothing with the evaluation item, so that one is left"}))
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "eval.jsonl").write_text(json.dumps({"text": f"an evaluation item: {words}"}) + "\n", encoding="utf-8")
    (folder / "a-file").write_bytes(b"")
    for name in ("folder", "folder.jsonl", "folder.html"):
        (folder / name).mkdir()
    return folder


@pytest.fixture(scope="module")
def shards(place: Path) -> Path:
    """A shard and its report, as inputs of the commands on shards."""
    run(place, "tokenize", "in.jsonl", "-o", "s/a", "--tokenizer", "tok")
    return place


def run(place: Path, *arguments: str) -> int:
    """The exit code of `mmdata ARGUMENTS` in that folder; anything but an exit is raised."""
    before, argv = os.getcwd(), sys.argv
    os.chdir(place)
    sys.argv = ["mmdata", *arguments]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        os.chdir(before)
        sys.argv = argv
    raise AssertionError("main always ends by an exit")


def source(name: str) -> str:
    if name in RECORDS:
        return "in.jsonl"
    return {"recipe": "auto", "report": "s/a"}.get(name, "s/a_text_document")


def test_the_table_has_a_line_for_every_command() -> None:
    assert sorted(LINES) == sorted(COMMANDS)


@pytest.mark.parametrize("name", LINES)
def test_an_input_that_is_not_there_is_1_and_a_recipe_2(
    shards: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    missing = {"recipe": "nothing.yaml"}.get(name, "nothing.jsonl" if name in RECORDS else "nothing")
    assert run(shards, *LINES[name](missing, "out" + ENDINGS.get(name, ""))) == (2 if name == "recipe" else 1)
    said = "".join(capfd.readouterr())
    assert "nothing" in said and "Traceback" not in said


@pytest.mark.parametrize("name", LINES)
def test_an_unknown_option_is_2(shards: Path, name: str) -> None:
    assert run(shards, *LINES[name](source(name), "out" + ENDINGS.get(name, "")), "--nonsense") == 2


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("output", ["", "folder/", "new/"])
def test_an_output_without_a_file_name_is_2(
    shards: Path, name: str, output: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sorted(shards.rglob("*"))
    assert run(shards, *LINES[name](source(name), output)) == 2
    assert "folder" in capfd.readouterr().err
    assert sorted(shards.rglob("*")) == before


@pytest.mark.parametrize("name", [*FILES, "report"])
def test_an_output_that_is_a_folder_is_2(shards: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(shards, *LINES[name](source(name), "folder" + ENDINGS[name])) == 2
    assert "is a folder, not a file" in capfd.readouterr().err


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("output", ["out", "out.txt", "out.parquet", "out.jsonl.xz", ".jsonl"])
def test_an_output_of_another_ending_is_2(
    place: Path, name: str, output: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(place, *LINES[name]("in.jsonl", output)) == 2
    assert "must end in .jsonl" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["merge", "split"])
def test_a_shard_that_would_replace_its_input_is_not_written(shards: Path, name: str) -> None:
    before = (shards / "s" / "a_text_document.bin").read_bytes()
    output, other = ("s/a_text_document", ()) if name == "merge" else ("s/a", ("--overwrite",))
    code = run(shards, *LINES[name]("s/a_text_document", output), *other)
    assert code == (2 if name == "merge" else 0)
    assert (shards / "s" / "a_text_document.bin").read_bytes() == before


def test_a_manifest_is_only_replaced_when_told_to(shards: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(shards, *LINES["adopt"]("s/a_text_document", "")) == 1
    assert "--overwrite" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["convert", "tokenize"])
def test_a_prefix_whose_files_would_replace_an_input_is_2(place: Path, name: str) -> None:
    (place / "r_rejects.jsonl").write_bytes((place / "in.jsonl").read_bytes())
    assert run(place, *LINES[name]("r_rejects.jsonl", "r"), "--overwrite") == 2


@pytest.mark.parametrize("name", [*FILES, "report"])
def test_an_output_that_is_the_input_is_2(shards: Path, name: str) -> None:
    own = "s/a_report.json" if name == "report" else "in.jsonl"
    before = (shards / own).read_bytes()
    assert run(shards, *LINES[name](source(name), own), "--overwrite") == 2
    assert (shards / own).read_bytes() == before


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("folder", ["a-file", "/dev/null"])
def test_an_output_that_cannot_be_written_is_1(
    shards: Path, name: str, folder: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if os.name != "posix" and folder.startswith("/dev"):
        pytest.skip("no such device")
    assert run(shards, *LINES[name](source(name), f"{folder}/x/out{ENDINGS.get(name, '')}")) == 1
    said = capfd.readouterr().err
    assert said.count("mmdata: ") == 1 and folder in said


@pytest.mark.parametrize("name", WRITERS)
def test_an_existing_output_is_1_and_stays_until_overwrite(
    shards: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    line = LINES[name](source(name), f"made-{name}/new/out{ENDINGS.get(name, '')}")
    line = tuple(f"made-{name}/rest.jsonl" if word == "rest.jsonl" else word for word in line)
    assert run(shards, *line) == 0, capfd.readouterr().err
    capfd.readouterr()
    before = {path: path.read_bytes() for path in (shards / f"made-{name}").rglob("*") if path.is_file()}
    assert before
    assert run(shards, *line) == 1
    said = capfd.readouterr().err
    assert "exists" in said and "--overwrite" in said
    assert {path: path.read_bytes() for path in before} == before
    assert run(shards, *line, "--overwrite") == 0


@pytest.mark.parametrize(("name", "option", "value"), WRONG_VALUES)
def test_an_option_of_a_wrong_value_is_2(
    shards: Path, name: str, option: str, value: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sorted(shards.rglob("*"))
    line = LINES[name](source(name), "out" + ENDINGS.get(name, ""))
    if name == "split" and option == "--ratio":
        line = line[:-2]
    assert run(shards, *line, option, value) == 2, capfd.readouterr()
    said = capfd.readouterr().err
    assert "Traceback" not in said and said.count("mmdata: ") <= 1
    assert sorted(shards.rglob("*")) == before


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize(("content", "why"), [("", "the inputs are empty"), ("\n \n", "2 blank lines"),
                                              ('{"txt": "a"}\n[1]\n', "no documents left|2 rejected")])  # fmt: skip
def test_inputs_without_a_usable_record_are_1_and_nothing_is_written(
    place: Path, name: str, content: str, why: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "nothing.jsonl").write_text(content, encoding="utf-8")
    output = str(tmp_path / "out") + ENDINGS.get(name, "")
    line = [word.replace("rest.jsonl", str(tmp_path / "rest.jsonl")) for word in LINES[name]("IN", output)]
    assert run(place, *(str(tmp_path / "nothing.jsonl") if word == "IN" else word for word in line)) == 1
    said = capfd.readouterr()
    assert re.search(why, said.err)
    assert "Traceback" not in said.err and said.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["nothing.jsonl"]


def test_a_full_disk_behind_standard_output_is_1_in_one_line(place: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    command = [sys.executable, "-c", "from mmdata.cli import main; main()", "recipe", "show", "zh"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, cwd=place, stdout=full, stderr=subprocess.PIPE, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.decode().startswith("mmdata: No space left on device") and b"Traceback" not in done.stderr
