"""A run that is killed anywhere goes on to the same bytes; a run that is stopped says so and loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_convert import PLAIN, digests

import mmdata
from mmdata.errors import DiskFullError, LedgerMismatchError

OPTIONS: dict[str, Any] = {**PLAIN, "split": "8,1,1", "max_tokens_per_shard": 4000, "block_records": 7}
DEADLINE_S = 120

SLOW_RUN = """
import signal, sys, time
import mmdata
from mmdata.run.progress import SilentProgress

class Slow(SilentProgress):
    def advance(self, **amounts):
        time.sleep(0.05)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    mmdata.convert(sys.argv[1], sys.argv[2], sys.argv[3], commit_seconds=0.0, workers=int(sys.argv[4]),
                   progress=Slow(), recipe="none", dedup="none", format="text", split="8,1,1",
                   max_tokens_per_shard=4000, block_records=7)
"""


class Killed(BaseException):
    """Stands for the end of the process."""


def start(script: Path, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(script), *map(str, arguments)], stderr=subprocess.PIPE)


@pytest.mark.parametrize("workers", [1, 2])
def test_kill_9_and_the_same_command_give_the_same_bytes(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, workers: int
) -> None:
    mmdata.convert(corpus, tmp_path / "whole" / "out", tokenizer_folder, **OPTIONS)
    script = tmp_path / "slow.py"
    script.write_text(SLOW_RUN, encoding="utf-8")
    prefix = tmp_path / "killed" / "out"
    ledger = Path(f"{prefix}.work") / "ledger.jsonl"
    process = start(script, corpus, prefix, tokenizer_folder, workers)
    deadline = time.monotonic() + DEADLINE_S
    while not (ledger.exists() and ledger.read_bytes().count(b"\n") > 5):
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline, "the run made no progress"
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert not list(prefix.parent.glob("out_*")), "an unfinished run shows nothing at its final names"
    mmdata.convert(corpus, prefix, tokenizer_folder, **{**OPTIONS, "block_records": None})
    assert digests(prefix) == digests(tmp_path / "whole" / "out") != {}
    assert not ledger.parent.exists()


def test_a_run_goes_on_from_every_checkpoint(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stops at each commit in turn, publication included, and continues."""
    from mmdata.run.ledger import Ledger

    mmdata.convert(corpus, tmp_path / "whole" / "out", tokenizer_folder, **OPTIONS)
    commit = Ledger.commit
    for stop_after in (1, 2, 9, 34, 35):
        left = stop_after

        def dying_commit(self: Ledger, state: Any) -> None:
            nonlocal left
            commit(self, state)
            left -= 1
            if left == 0:
                raise Killed

        prefix = tmp_path / f"stop{stop_after}" / "out"
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "commit", dying_commit)
            with pytest.raises(Killed):
                mmdata.convert(corpus, prefix, tokenizer_folder, **OPTIONS, commit_seconds=0.0)
        mmdata.convert(corpus, prefix, tokenizer_folder, **OPTIONS)
        assert digests(prefix) == digests(tmp_path / "whole" / "out")


@pytest.mark.parametrize("published", [0, 1, 3])
def test_a_publication_cut_short_is_finished(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: int
) -> None:
    from mmdata.indexed.shardset import ShardSet

    mmdata.convert(corpus, tmp_path / "whole" / "out", tokenizer_folder, **OPTIONS)
    publish, left = ShardSet.publish, published

    def dying_publish(self: ShardSet, manifest: Any = None) -> Any:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        return publish(self, manifest)

    prefix = tmp_path / "cut" / "out"
    with monkeypatch.context() as patch:
        patch.setattr(ShardSet, "publish", dying_publish)
        with pytest.raises(Killed):
            mmdata.convert(corpus, prefix, tokenizer_folder, **OPTIONS)
    mmdata.convert(corpus, prefix, tokenizer_folder, **OPTIONS)
    assert digests(prefix) == digests(tmp_path / "whole" / "out")


def test_an_unfinished_run_with_other_options_is_not_mixed_in(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmdata.indexed.shardset import ShardSet

    with monkeypatch.context() as patch:
        patch.setattr(ShardSet, "publish", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **OPTIONS)
    with pytest.raises(LedgerMismatchError, match="seed was 1234"):
        mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **OPTIONS, seed=7)
    mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **OPTIONS, seed=7, overwrite=True)
    mmdata.convert(corpus, tmp_path / "fresh" / "out", tokenizer_folder, **OPTIONS, seed=7)
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh" / "out")


def test_a_full_disk_leaves_nothing_and_a_rerun_succeeds(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmdata.indexed.writer import ShardWriter

    with monkeypatch.context() as patch:
        def full(*_: Any, **__: Any) -> None:
            raise DiskFullError("out.bin: the disk is full or the quota is used up; free space and run again")

        patch.setattr(ShardWriter, "add_documents", full)
        with pytest.raises(DiskFullError):
            mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **OPTIONS)
    assert not list(tmp_path.glob("out_*"))
    mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, **OPTIONS)


@pytest.mark.skipif(os.name != "posix", reason="signals are sent the POSIX way")
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_within_two_seconds_and_leaves_no_process(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, workers: int
) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW_RUN, encoding="utf-8")
    prefix = tmp_path / "out"
    ledger = Path(f"{prefix}.work") / "ledger.jsonl"
    process = start(script, corpus, prefix, tokenizer_folder, workers)
    deadline = time.monotonic() + DEADLINE_S
    while not (ledger.exists() and ledger.read_bytes().count(b"\n") > 2):
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline, "the run made no progress"
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=60)  # the promise is 2 s; the machine may be busy
    finally:
        process.kill()
    assert process.returncode != 0
    assert not list(tmp_path.glob("out_*"))
