"""The ledger: what was committed is there after any end, two runs never share a folder, differences are named."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmdata.errors import DiskFullError, LedgerDamagedError, LedgerMismatchError, OutputError, WorkFolderBusyError
from mmdata.run import Ledger
from mmdata.run import ledger as ledger_module

FINGERPRINT = {
    "options": {"recipe": "none", "keys": ("text",)},
    "inputs": {"a.jsonl": {"size": 10, "mtime_ns": 1700000000000000000}, "b.jsonl": {"size": 5, "mtime_ns": 1}},
}


def test_the_last_committed_state_comes_back(tmp_path: Path) -> None:
    with Ledger(tmp_path / "out.work", FINGERPRINT) as ledger:
        assert ledger.last() is None
        ledger.commit({"position": {"offset": 1}})
        ledger.commit({"position": {"offset": 2}, "names": ("a", "头")})
        assert ledger.last() == {"position": {"offset": 2}, "names": ["a", "头"]}
    with Ledger(tmp_path / "out.work", FINGERPRINT) as ledger:
        assert ledger.last() == {"position": {"offset": 2}, "names": ["a", "头"]}
        ledger.commit({"position": {"offset": 3}})
    with Ledger(tmp_path / "out.work", FINGERPRINT) as ledger:
        assert ledger.last() == {"position": {"offset": 3}}


def test_a_torn_last_line_is_forgotten_at_any_cut_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    work = tmp_path / "work"
    with Ledger(work, FINGERPRINT) as ledger:
        ledger.commit({"n": 1})
        whole = ledger.path.read_bytes()
        ledger.commit({"n": 2})
        longer = ledger.path.read_bytes()
    ends = [at for at, letter in enumerate(longer) if letter == 0x0A]
    near_ends = {end + shift for end in ends for shift in (-1, 0, 1)}
    for size in sorted(near_ends | set(range(0, len(longer), 17))):
        (work / "ledger.jsonl").write_bytes(longer[:size])
        with Ledger(work, FINGERPRINT) as ledger:
            expected = None if size < len(whole) else {"n": 1} if size < len(longer) else {"n": 2}
            assert ledger.last() == expected, size
            ledger.commit({"n": 3})
        with Ledger(work, FINGERPRINT) as ledger:
            assert ledger.last() == {"n": 3}


@pytest.mark.parametrize("tail", [b"\0" * 40, b"\0" * 40 + b"\n", b'{"state": \n', b"{}\n"])
def test_a_last_line_that_was_not_all_written_is_forgotten(tmp_path: Path, tail: bytes) -> None:
    with Ledger(tmp_path, FINGERPRINT) as ledger:
        ledger.commit({"n": 1})
    with open(tmp_path / "ledger.jsonl", "ab") as stream:
        stream.write(tail)
    with Ledger(tmp_path, FINGERPRINT) as ledger:
        assert ledger.last() == {"n": 1}
        ledger.commit({"n": 2})
    with Ledger(tmp_path, FINGERPRINT) as ledger:
        assert ledger.last() == {"n": 2}


def test_damage_before_the_last_line_is_an_error(tmp_path: Path) -> None:
    with Ledger(tmp_path, FINGERPRINT) as ledger:
        for number in range(3):
            ledger.commit({"n": number})
    lines = (tmp_path / "ledger.jsonl").read_bytes().split(b"\n")
    lines[2] = b"garbage"
    (tmp_path / "ledger.jsonl").write_bytes(b"\n".join(lines))
    with pytest.raises(LedgerDamagedError, match=r"ledger\.jsonl:3: .*--overwrite"):
        Ledger(tmp_path, FINGERPRINT)
    with Ledger(tmp_path, FINGERPRINT, start_over=True) as ledger:
        assert ledger.last() is None


def test_another_command_or_changed_inputs_are_named_with_the_remedy(tmp_path: Path) -> None:
    with Ledger(tmp_path / "out.work", FINGERPRINT) as ledger:
        ledger.commit({"n": 1})
    changed = {
        "options": {"recipe": "zh", "keys": ["text"]},
        "inputs": {"a.jsonl": {"size": 12, "mtime_ns": 1700000000000000000}, "c.jsonl": {"size": 5, "mtime_ns": 1}},
    }
    with pytest.raises(LedgerMismatchError) as caught:
        Ledger(tmp_path / "out.work", changed)
    told = str(caught.value)
    assert told.startswith(f"{tmp_path / 'out.work'} holds an unfinished run that differs: ")
    assert "inputs.a.jsonl.size was 10, now is 12" in told
    assert "inputs.c.jsonl.size was absent, now is 5" in told
    assert "and 1 more" in told and "--overwrite" in told
    with pytest.raises(LedgerMismatchError, match=r'options\.recipe was "none", now is "zh"'):
        Ledger(tmp_path / "out.work", FINGERPRINT | {"options": changed["options"]})
    with Ledger(tmp_path / "out.work", FINGERPRINT) as ledger:
        assert ledger.last() == {"n": 1}


def test_a_ledger_of_another_version_is_refused(tmp_path: Path) -> None:
    with Ledger(tmp_path, FINGERPRINT) as ledger:
        header = json.loads(ledger.path.read_bytes().split(b"\n")[0])
    header["ledger"] = 99
    (tmp_path / "ledger.jsonl").write_text(json.dumps(header) + "\n", encoding="utf-8")
    with pytest.raises(LedgerMismatchError, match="ledger version 99"):
        Ledger(tmp_path, FINGERPRINT)


def test_two_runs_cannot_share_a_folder(tmp_path: Path) -> None:
    with (
        Ledger(tmp_path, FINGERPRINT) as ledger,
        pytest.raises(WorkFolderBusyError, match=rf"another run \(process {os.getpid()} on .*\) is writing here"),
    ):
        Ledger(tmp_path, FINGERPRINT)
    ledger.close()
    Ledger(tmp_path, FINGERPRINT).close()


HOLD = """
import sys, time
from mmdata.run import Ledger
ledger = Ledger(sys.argv[1], {"options": 1})
ledger.commit({"n": 7})
print("held", flush=True)
time.sleep(60)
"""


def test_a_lock_of_a_killed_run_is_no_hindrance(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline().strip() == b"held"
        with pytest.raises(WorkFolderBusyError, match=f"process {holder.pid} on"):
            Ledger(tmp_path, {"options": 1})
    finally:
        holder.kill()
        holder.communicate(timeout=30)
    with Ledger(tmp_path, {"options": 1}) as ledger:
        assert ledger.last() == {"n": 7}


def test_a_finished_run_leaves_no_folder_and_never_removes_what_is_not_its_own(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "out.work", FINGERPRINT)
    ledger.commit({"n": 1})
    ledger.finish()
    ledger.close()
    assert not (tmp_path / "out.work").exists()
    with Ledger(tmp_path / "out.work", FINGERPRINT) as ledger:
        (tmp_path / "out.work" / "spool").write_bytes(b"x")
        ledger.finish()
    assert os.listdir(tmp_path / "out.work") == ["spool"]


def test_a_long_ledger_is_rewritten_with_its_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "_COMPACT_BYTES", 2000)
    with Ledger(tmp_path, FINGERPRINT) as ledger:
        for number in range(300):
            ledger.commit({"n": number, "pad": "x" * 100})
            assert ledger.path.stat().st_size < 2500
    with Ledger(tmp_path, FINGERPRINT) as ledger:
        assert ledger.last() == {"n": 299, "pad": "x" * 100}


def test_a_full_disk_and_a_folder_that_cannot_be_made_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot be written"):
        Ledger(tmp_path / "file" / "out.work", FINGERPRINT)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Ledger(tmp_path / "work", FINGERPRINT) as ledger:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(DiskFullError, match="the disk is full"):
            ledger.commit({"n": 1})
        monkeypatch.undo()
        ledger.commit({"n": 2})
    with Ledger(tmp_path / "work", FINGERPRINT) as ledger:
        assert ledger.last() == {"n": 2}
