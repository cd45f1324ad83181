"""The command line: help with examples, exit codes, one JSON result on standard output, messages without tracebacks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest
from byte_tokenizer import write_byte_tokenizer

from mmdata.cli import COMMANDS, group


def commands() -> dict[str, click.Command]:
    return {name: getattr(import_module(module), attribute) for name, (module, attribute, _) in COMMANDS.items()}


def run(*arguments: object, cwd: Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", "from mmdata.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    write_byte_tokenizer(folder / "tok")
    lines = [json.dumps({"text": f"document {number} 第{number}条"}, ensure_ascii=False) for number in range(30)]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\nbad\n", encoding="utf-8")
    return folder


def test_help_lines_of_the_group_are_those_of_the_commands() -> None:
    for name, command in commands().items():
        assert COMMANDS[name][2] == command.get_short_help_str(limit=71 if "..." in COMMANDS[name][2] else 200), name


def test_every_command_has_help_with_an_example() -> None:
    for name, command in commands().items():
        assert command.help and "Example:" in command.help, name
        assert f"mmdata {name}" in command.help, name
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.help or isinstance(parameter.type, click.Choice), f"{name}: {parameter.name}"


def test_the_group_lists_every_command() -> None:
    text = group.get_help(click.Context(group))
    for name in COMMANDS:
        assert f"\n  {name} " in text


def test_help_and_import_need_no_numpy_numba_or_torch(tmp_path: Path) -> None:
    code = (
        "import sys, mmdata, mmdata.cli, click;"
        "mmdata.cli.group.get_help(click.Context(mmdata.cli.group));"
        "assert not {'numpy', 'numba', 'torch', 'tokenizers'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=240)


def test_convert_prints_one_json_result_and_talks_on_standard_error(place: Path) -> None:
    done = run("convert", "a.jsonl", "-o", "out/a", "--tokenizer", "tok", "--recipe", "none", "--json", cwd=place)
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    assert result["records"]["read"] == 31 and result["records"]["rejected"] == {"bad-json": 1}
    assert b"engine" in done.stderr


def test_shard_commands_work_on_what_convert_wrote(place: Path) -> None:
    run("tokenize", "a.jsonl", "-o", "s/a", "--tokenizer", "tok", "--quiet", cwd=place)
    for ending in (".bin", ".idx"):
        shutil.copy(place / f"s/a_text_document{ending}", place / f"s/foreign{ending}")
    for arguments, expected in [
        (("verify", "--deep", "s/a_text_document"), "sound"),
        (("inspect", "s/a_text_document"), "30 documents"),
        (("inspect", "s/a_text_document", "--doc", "3", "--decode"), "document 3 第3条"),
        (("inspect", "s/a_text_document", "--source", "a.jsonl:4"), "documents [3]"),
        (("inspect", "s/a_text_document", "--search", "第7条"), "document 7"),
        (("merge", "s/a_text_document", "s/a_text_document", "-o", "s/twice_text_document"), "60 documents"),
        (("split", "s/a_text_document", "-o", "s/cut", "--ratio", "8,1,1"), "s/cut_train_text_document"),
        (("adopt", "s/foreign", "--tokenizer", "tok"), "end-of-document token appended to every document"),
        (("report", "s/a", "-o", "s/page.html"), "page.html"),
    ]:
        done = run(*arguments, cwd=place)
        assert done.returncode == 0, (arguments, done.stderr.decode())
        assert expected in done.stdout.decode(), arguments


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("convert", "none.jsonl", "-o", "x", "--tokenizer", "tok"), 1, "none.jsonl"),
        (("convert", "a.jsonl", "-o", "x", "--tokenizer", "nowhere"), 1, "nowhere"),
        (("convert", "a.jsonl", "-o", "x", "--tokenizer", "tok", "--dedup", "minhsh"), 2, "minhash"),
        (("convert", "a.jsonl", "-o", "x", "--tokenizer", "tok", "--recipe", "atuo"), 2, "auto"),
        (("convert", "a.jsonl", "-o", "x", "--tokenizer", "tok", "--executor", "ray"), 2, "ray"),
        (("convert", "a.jsonl", "-o", "x", "--tokenizer", "tok", "--shard", "0/2"), 2, "shard"),
        (("convert", "a.jsonl", "-o", "x"), 2, "--tokenizer"),
        (("verify", "nowhere_text_document"), 1, "nowhere_text_document"),
        (("no-such-command",), 2, "no-such-command"),
        (("split", "x", "-o", "y", "--max-tokens", "0"), 2, "max-tokens"),
    ],
)
def test_mistakes_get_one_message_and_the_right_exit_code(
    place: Path, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    done = run(*arguments, cwd=place)
    assert done.returncode == code, done.stderr.decode()
    said = (done.stderr + done.stdout).decode()
    assert expected in said and "Traceback" not in said
    assert not list(place.glob("x_*"))


def test_debug_adds_the_traceback_and_keeps_the_exit_code(place: Path) -> None:
    mistake = ("convert", "missing.jsonl", "-o", "d/a", "--tokenizer", "tok")
    plain, debug = run(*mistake, cwd=place), run("--debug", *mistake, cwd=place)
    assert b"Traceback" not in plain.stderr and plain.stderr.count(b"\n") == 1
    assert b"Traceback (most recent call last)" in debug.stderr
    assert b"InputError: there is no file or folder missing.jsonl" in debug.stderr
    assert plain.returncode == debug.returncode == 1


def test_what_a_folder_holds_beside_its_inputs_is_told_and_reported(place: Path) -> None:
    folder = place / "mixed"
    folder.mkdir()
    shutil.copy(place / "a.jsonl", folder)
    for name in ("notes.docx", "b.csv"):
        (folder / name).write_bytes(b"x")
    command = ("tokenize", "mixed", "-o", "mixed-out/a", "--tokenizer", "tok", "--json")
    done = run(*command, cwd=place)
    told = "mixed: 2 files left out, such as mixed/b.csv; read are .jsonl"
    assert done.stderr.decode().count(told) == 1
    report = json.loads(done.stdout)
    assert report["left_out"] == [{"folder": "mixed", "files": 2, "example": "mixed/b.csv"}]
    assert any(notice.startswith(told) for notice in report["run"]["notices"])
    assert run(*command, "--quiet", "--overwrite", cwd=place).stderr == b""


def test_standard_input_is_converted_and_its_drops_keep_their_text(place: Path) -> None:
    text = '{"text": "from a pipe, the first line of it"}\n{"text": ""}\n'
    done = run("convert", "-", "-o", "pipe/p", "--tokenizer", "tok", "--recipe", "none", "--json", "--quiet",
               cwd=place, stdin=text.encode())  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["records"]["kept"] == 1


def test_dry_run_writes_nothing(place: Path) -> None:
    done = run("convert", "a.jsonl", "-o", "dry/d", "--tokenizer", "tok", "--dry-run", cwd=place)
    assert done.returncode == 0 and b"dry/d_text_document" in done.stdout
    assert b"20 bands x 6 rows" in done.stdout
    assert not list(place.glob("dry/*"))


@pytest.mark.parametrize("flags", [("--input-files", "--output-prefix", "--vocab-file", "--dataset-impl"),
                                   ("--input_files", "--output_prefix", "--vocab_file", "--dataset_impl")])  # fmt: skip
def test_the_guides_merge_command_runs_as_written(place: Path, flags: tuple[str, ...], tmp_path: Path) -> None:
    script = Path(__file__).parent.parent.parent / "tools" / "merge_and_split_data.py"
    files, prefix, vocab, impl = flags
    tokenizer = place / "tok" / "tokenizer.json"
    base = [sys.executable, script, files, place / "a.jsonl", prefix, tmp_path / "m", vocab, tokenizer]
    done = subprocess.run([*base, impl, "mmap"], capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b"end of document: <|endoftext|>" in done.stderr
    assert (tmp_path / "m_text_document.idx").exists()
    done = subprocess.run([*base, impl, "mmap", "--split", "8,1,1", "--overwrite"], capture_output=True, timeout=240)
    assert done.returncode == 0 and (tmp_path / "m_train_text_document.idx").exists()
    done = subprocess.run([*base, impl, "lazy"], capture_output=True, timeout=240, check=False)
    assert done.returncode == 2 and b"mmap" in done.stderr


def test_dedup_and_sample_read_conversations(tmp_path: Path) -> None:
    turn = [{"role": "user", "content": "说说肝癌的治疗"}, {"role": "assistant", "content": "手术与系统治疗。"}]
    lines = [json.dumps({"messages": turn}, ensure_ascii=False)] * 2
    lines += [json.dumps({"messages": [turn[0], {"role": "assistant", "content": f"答案{n}" * 9}]}) for n in range(6)]
    (tmp_path / "chat.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = run("dedup", "chat.jsonl", "--format", "auto", "-o", "unique.jsonl", "--json", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["dropped"] == 1
    kept = (tmp_path / "unique.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    assert [json.loads(line) for line in kept] == [json.loads(line) for line in lines[1:]]


def test_decontaminate_recognises_the_format_of_evaluation_records(tmp_path: Path) -> None:
    secret = " ".join(f"word{n}" for n in range(20))
    train = [{"text": f"before {secret} after"}, {"text": "nothing of the kind " * 5}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(one) + "\n" for one in train), encoding="utf-8")
    evaluations: dict[str, dict[str, object]] = {
        "alpaca": {"instruction": "Say it.", "input": "", "output": secret},
        "messages": {"messages": [{"role": "user", "content": secret}, {"role": "assistant", "content": "yes"}]},
        "text": {"text": secret},
    }
    for name, record in evaluations.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
        command = ("decontaminate", "train.jsonl", "--against", f"{name}.jsonl", "-o", f"{name}_out.jsonl")
        done = run(*command, "--json", "--quiet", "--workers", "1", cwd=tmp_path)
        assert done.returncode == 0, done.stderr.decode()
        assert json.loads(done.stdout)["contaminated"] == 1
    command = ("decontaminate", "train.jsonl", "--against", "alpaca.jsonl", "-o", "keys_out.jsonl", "--json", "--quiet")
    done = run(*command, "--against-keys", "output", "--workers", "1", cwd=tmp_path)
    assert json.loads(done.stdout)["contaminated"] == 1, "keys that are named are those of text records"
    done = run(*command, "--against-format", "text", "--workers", "1", cwd=tmp_path)
    assert done.returncode != 0 and b"unreadable evaluation record" in done.stderr
