"""`mmdata clean` after a kill goes on to the same bytes; chat records keep their structure."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import mmdata.clean
from mmdata.chat.formats import chat_parser
from mmdata.cli import group
from mmdata.errors import InputReadError, LedgerMismatchError
from mmdata.reading.sources import ByteSource

PHONE = "我的手机是13800138000，请\u200b联系"
SCRIPT = """
import os, signal, sys
import mmdata.clean
from mmdata.clean import files

take, seen = files._write, []
def write(writers, outcome):
    take(writers, outcome)
    seen.append(1)
    if len(seen) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
files._write = write
mmdata.clean.clean([sys.argv[1]], sys.argv[2], commit_seconds=0, block_bytes=4096)
"""


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.mark.skipif(os.name == "nt", reason="kill -9 is for POSIX")
def test_a_killed_run_goes_on_to_the_same_bytes_and_counts(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    rows = [{"id": i, "text": f"第{i}条 正文，手机1380013{i:04}" if i % 7 else "\ufffd\ufffd"} for i in range(600)]
    source.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows) + "{bad\n", encoding="utf-8")
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    expected = mmdata.clean.clean([source], whole / "out.jsonl", block_bytes=4096)
    parted.mkdir()
    script = [sys.executable, "-c", SCRIPT, str(source), str(parted / "out.jsonl")]
    assert subprocess.run(script, timeout=300, check=False).returncode == -9
    assert (parted / "out.work" / "ledger.jsonl").exists() and not (parted / "out.jsonl").exists()
    with pytest.raises(LedgerMismatchError, match="keys"):
        mmdata.clean.clean([source], parted / "out.jsonl", keys=("id",))
    report = mmdata.clean.clean([source], parted / "out.jsonl", block_bytes=4096)
    assert outputs(parted) == outputs(whole)
    assert not (parted / "out.work").exists()
    left, right = report.as_json(), expected.as_json()
    for name in ("seconds", "output"):
        left.pop(name), right.pop(name)
    assert left == right
    assert left["records"] == 601 == left["kept"] + sum(left["dropped"].values()) + sum(left["rejected"].values())


def test_a_run_whose_input_could_not_be_read_on_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in.jsonl"
    rows = [{"id": i, "text": f"第{i}条 正文"} for i in range(600)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    expected = mmdata.clean.clean([source], tmp_path / "whole" / "out.jsonl", block_bytes=4096)
    read = ByteSource._read

    class Failing:
        def read(self, size: int) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def close(self) -> None:
            """Nothing."""

    def read_some(self: ByteSource, size: int) -> bytes:
        if self.consumed >= 16_384:
            self._stream.close()
            self._stream = Failing()  # type: ignore[assignment]
        return read(self, min(size, 4096))

    target = tmp_path / "parted" / "out.jsonl"
    with monkeypatch.context() as failing, pytest.raises(InputReadError, match="reading failed at byte 16384"):
        failing.setattr(ByteSource, "_read", read_some)
        mmdata.clean.clean([source], target, commit_seconds=0, block_bytes=4096)
    assert (tmp_path / "parted" / "out.work" / "ledger.jsonl").exists() and not target.exists()
    report = mmdata.clean.clean([source], target, block_bytes=4096)
    assert outputs(tmp_path / "parted") == outputs(tmp_path / "whole")
    assert report.records == expected.records == 600
    assert not (tmp_path / "parted" / "out.work").exists()


CHATS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("alpaca", {"instruction": PHONE, "input": "", "output": "好", "id": 1},
     {"instruction": "我的手机是<手机号>，请联系", "input": "", "output": "好", "id": 1}),
    ("sharegpt", {"conversations": [{"from": "human", "value": PHONE}, {"from": "gpt", "value": "好"}], "src": "x"},
     {"conversations": [{"from": "human", "value": "我的手机是<手机号>，请联系"}, {"from": "gpt", "value": "好"}],
      "src": "x"}),
    ("messages", {"messages": [{"role": "system", "content": "a\u200bb"}, {"role": "user", "content": PHONE},
                               {"role": "assistant", "content": "好"}]},
     {"messages": [{"role": "system", "content": "a\u200bb"}, {"role": "user", "content": "我的手机是<手机号>，请联系"},
                   {"role": "assistant", "content": "好"}]}),
    ("messages", {"messages": [
        {"role": "user", "content": "查"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": {"tel": "13800138000", "n": 1}}}]},
        {"role": "tool", "content": "有"}, {"role": "assistant", "content": "好"}]},
     {"messages": [
        {"role": "user", "content": "查"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": {"tel": "<手机号>", "n": 1}}}]},
        {"role": "tool", "content": "有"}, {"role": "assistant", "content": "好"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("format", "record", "expected"), CHATS)
def test_message_texts_are_cleaned_and_the_structure_stays(
    format: str, record: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(record) + "\n", encoding="utf-8")
    for chosen in (format, "auto"):
        out = tmp_path / f"{chosen}.jsonl"
        mmdata.clean.clean([source], out, format=chosen, parser=partial(chat_parser, chosen))
        assert json.loads(out.read_text(encoding="utf-8")) == expected


def test_the_command_cleans_conversations(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps(CHATS[1][1]) + "\n", encoding="utf-8")
    result = CliRunner().invoke(group, ["clean", str(source), "-o", str(out), "--format", "sharegpt"])
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text(encoding="utf-8")) == CHATS[1][2]
