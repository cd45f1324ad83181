"""A command killed with SIGKILL at any durable step goes on to the bytes of a run that was not."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import mmdata.dedup
from mmdata.dedup import DedupIndex, DedupParams, DedupRun
from mmdata.dedup.file_run import FileRun
from mmdata.dedup.files import FilePass
from mmdata.dedup.index import IndexBatch
from mmdata.dedup.key_log import KeyLog
from mmdata.dedup.sampling import SamplingCourse
from mmdata.errors import (
    DedupFieldError,
    DedupIndexChangedError,
    DedupStateError,
    DiskFullError,
    LedgerMismatchError,
    OutputExistsError,
    WorkFolderBusyError,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked copy of this process")
Command = Callable[[Path], Any]


def text(number: int, words: int = 40) -> str:
    return " ".join(f"w{number}x{i}" for i in range(words))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """JSON lines with rejects, blank lines and Chinese, and an array: 130 records, a third of them near-duplicates."""
    folder = tmp_path_factory.mktemp("inputs")
    lines = []
    for i in range(100):
        stem = i if i % 3 else i // 2
        body = f"{text(stem)} 第{stem}条 公司应当承担违约责任\nshared line of boilerplate, number {i % 4}\n{i}"
        lines.append(json.dumps({"id": i, "text": body, "source": "ab"[i % 2]}, ensure_ascii=False))
        if i % 17 == 0:
            lines += ["", "{bad"]
    a, b = folder / "a.jsonl", folder / "b.json"
    a.write_text("\n".join(lines), encoding="utf-8")
    b.write_text(json.dumps([{"text": text(i) + " z", "source": "c"} for i in range(40, 70)]), encoding="utf-8")
    (folder / "eval.jsonl").write_text(
        "".join(json.dumps({"text": text(i, 20)}) + "\n" for i in (5, 8, 55)), encoding="utf-8"
    )
    return [a, b]


OFTEN: dict[str, Any] = {"commit_seconds": 0, "block_bytes": 1500}


def commands(inputs: list[Path]) -> dict[str, Command]:
    evaluation = inputs[0].parent / "eval.jsonl"
    return {
        "dedup": lambda f: mmdata.dedup(inputs, f / "o.jsonl.gz", keep="longest", index=f / "index", **OFTEN),
        "sample": lambda f: mmdata.dedup.sample(inputs, f / "t.jsonl", f / "r.jsonl.zst", n=9, by="source", **OFTEN),
        "decontaminate": lambda f: mmdata.dedup.decontaminate(inputs, evaluation, f / "o.jsonl", **OFTEN),
        "lines": lambda f: mmdata.dedup.remove_repeated(inputs, f / "o.jsonl", shortest=10, **OFTEN),
    }


def killed_at(step: int, command: Command, folder: Path) -> bool:
    """Run in a copy of this process that is killed at its step-th fsync or rename; False when it ended before."""
    # What tests before this one left in memory is neither looked through nor copied in the child.
    gc.freeze()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            left = [step]

            def counted(real: Callable[..., Any]) -> Callable[..., Any]:
                def call(*args: Any, **kwargs: Any) -> Any:
                    left[0] -= 1
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*args, **kwargs)

                return call

            os.fsync, os.replace = counted(os.fsync), counted(os.replace)
            command(folder)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    gc.unfreeze()
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    return status != 0


def files(folder: Path) -> dict[str, bytes]:
    """Every file by name; folders' names where the command saw them are the same in all runs."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in (".lock", "index.json"):
            found[str(path.relative_to(folder))] = path.read_bytes().replace(str(folder).encode(), b"F")
    return found


def told(report: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(report).items() if "output" not in name}


@pytest.mark.parametrize("name", ["dedup", "sample", "decontaminate", "lines"])
def test_a_command_killed_anywhere_goes_on_to_the_same_bytes_and_counts(
    name: str, inputs: list[Path], tmp_path: Path
) -> None:
    command = commands(inputs)[name]
    whole = tmp_path / "whole"
    expected, wanted = told(command(whole)), files(whole)
    assert expected["records"] > expected["kept" if name != "sample" else "rest"] > 20
    step, kills = 2, 0
    while True:
        folder = tmp_path / f"killed{step}"
        if not killed_at(step, command, folder):
            break
        ended = kills % 3 == 0 and not killed_at(5, command, folder)  # and once more, unless there is little left to do
        assert ended or told(command(folder)) == expected, step
        assert files(folder) == wanted, step
        kills += 1
        step += 11
    assert kills >= 6


def test_a_killed_run_does_not_begin_again(inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = commands(inputs)["dedup"]
    read: list[str] = []
    signed, lines = FilePass.signed, FilePass.lines

    def note_signed(self: FilePass, start: Any) -> Iterator[Any]:
        for result in signed(self, start):
            read.append("sign")
            yield result

    def note_lines(self: FilePass, *args: Any) -> Iterator[Any]:
        for result in lines(self, *args):
            read.append("write")
            yield result

    monkeypatch.setattr(FilePass, "signed", note_signed)
    monkeypatch.setattr(FilePass, "lines", note_lines)
    command(tmp_path / "whole")
    blocks = read.count("sign")
    phases = set()
    for step in (60, 100, 10**6):
        read.clear()
        if killed_at(step, command, tmp_path / str(step)):
            command(tmp_path / str(step))
            phases.add((0 < read.count("sign") < blocks, read.count("write") < blocks))
    assert (True, False) in phases
    # Killed while writing: nothing is signed again, and only the rest is written.
    states: list[dict[str, Any]] = []
    real = FileRun._write

    def stop(self: FileRun, state: dict[str, Any]) -> None:
        states.append(state)
        if len(states) == 1:
            with monkeypatch.context() as patch:
                patch.setattr(
                    FilePass, "lines", lambda s, *a: (x for i, x in enumerate(lines(s, *a)) if i < 3 or 1 / 0)
                )
                real(self, state)
        real(self, state)

    monkeypatch.setattr(FileRun, "_write", stop)
    with pytest.raises(ZeroDivisionError):
        command(tmp_path / "parted")
    read.clear()
    command(tmp_path / "parted")
    assert (read.count("sign"), read.count("write")) == (0, blocks - 3)
    assert files(tmp_path / "parted") == files(tmp_path / "whole")


def test_an_unfinished_run_is_only_replaced_on_request_and_may_be_cut_and_spread_anew(
    inputs: list[Path], tmp_path: Path
) -> None:
    command = commands(inputs)["dedup"]
    command(tmp_path / "whole")
    folder = tmp_path / "killed"
    assert killed_at(40, command, folder)
    with pytest.raises(LedgerMismatchError, match="threshold"):
        mmdata.dedup(inputs, folder / "o.jsonl.gz", keep="longest", threshold=0.7)
    (folder / "o.jsonl.gz").write_bytes(b"somebody's")
    with pytest.raises(OutputExistsError):
        command(folder)
    (folder / "o.jsonl.gz").unlink()
    again = mmdata.dedup(
        inputs, folder / "o.jsonl.gz", keep="longest", index=folder / "index", block_bytes=900, memory=1 << 13
    )
    assert files(folder) == files(tmp_path / "whole") and again.records > 0
    other = tmp_path / "other"
    assert killed_at(40, command, other)
    (other / "o.work" / "scratch" / "barrier" / "spool").write_bytes(b"")
    with pytest.raises(DedupStateError, match="start anew") as caught:
        command(other)
    assert caught.value.__notes__ == ["--overwrite starts from the beginning"]
    mmdata.dedup(inputs, other / "o.jsonl.gz", keep="longest", index=other / "index", overwrite=True, **OFTEN)
    assert files(other) == files(tmp_path / "whole")


def test_a_fault_of_the_records_leaves_nothing_behind_even_after_commits(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    rows = [{"text": text(i), "day": i} for i in range(40)] + [{"text": "last", "day": "yesterday"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(DedupFieldError, match="41"):
        mmdata.dedup(path, tmp_path / "o.jsonl", keep="newest:day", **OFTEN)
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("place", ["sign", "log", "decide", "index"])
def test_a_full_disk_is_named_and_the_same_command_goes_on_when_there_is_space(
    place: str, inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    command = commands(inputs)["sample" if place == "log" else "dedup"]
    command(tmp_path / "whole")
    targets: dict[str, tuple[Any, str]] = {
        "sign": (KeyLog, "append"), "log": (SamplingCourse, "take"), "decide": (DedupRun, "_sorted_keys"),
        "index": (IndexBatch, "add"),
    }  # fmt: skip
    folder = tmp_path / "full"
    with monkeypatch.context() as patch:
        patch.setattr(*targets[place], full)
        with pytest.raises(DiskFullError, match="the disk is full"):
            command(folder)
    assert not list(folder.glob("*_report.json"))
    command(folder)
    assert files(folder) == files(tmp_path / "whole")


def test_two_runs_on_one_output_or_one_index_at_once_are_told_apart(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    decide, seen = FileRun._decide, []

    def meanwhile(self: FileRun, barrier: Any) -> Any:
        state = decide(self, barrier)
        if not seen:
            seen.append(1)
            with pytest.raises(WorkFolderBusyError):
                mmdata.dedup(inputs[0], tmp_path / "o.jsonl", index=index, threshold=0.4)
            mmdata.dedup(inputs[1], tmp_path / "other.jsonl", index=index, threshold=0.4)
        return state

    monkeypatch.setattr(FileRun, "_decide", meanwhile)
    with pytest.raises(DedupIndexChangedError, match="run the command again"):
        mmdata.dedup(inputs[0], tmp_path / "o.jsonl", index=index, threshold=0.4)
    report = mmdata.dedup(inputs[0], tmp_path / "o.jsonl", index=index, threshold=0.4)
    matrix = {row["kept_in"] for row in report.statistics["matrix"]}
    assert "index" in matrix, "the second attempt decides against what the other run added"
    kept = len(files(tmp_path)["o.jsonl"].split(b"\n")) - 1
    others = len(files(tmp_path)["other.jsonl"].split(b"\n")) - 1
    assert DedupIndex(index, DedupParams(threshold=0.4)).documents == kept + others
