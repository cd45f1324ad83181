"""A checkpoint of a writer goes on to the bytes of a run that was never stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_shards import contents, names

from mmdata import errors
from mmdata.indexed import Manifest, ShardSet, ShardWriter


def add_range(writer: ShardWriter, start: int, stop: int) -> None:
    for number in range(start, stop):
        writer.add_document(list(range(number % 7 + 1)), lengths=None if number % 3 else [number % 7 + 1])


def test_resuming_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "whole", vocab_size=100) as whole:
        add_range(whole, 0, 300)
    writer = ShardWriter(tmp_path / "x", vocab_size=100)
    add_range(writer, 0, 120)
    state = writer.checkpoint()
    add_range(writer, 120, 200)
    writer.abort()
    resumed = ShardWriter.resume(tmp_path / "x", state, vocab_size=100)
    assert resumed.documents == 120
    add_range(resumed, 120, 300)
    resumed.close()
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"x{ending}").read_bytes() == (tmp_path / f"whole{ending}").read_bytes()


KILLED = """
import json, os, signal, sys
from mmdata.indexed import ShardSet
shard_set = ShardSet(sys.argv[1], sidecars=["origin"], vocab_size=100, work_dir=sys.argv[2])
for number in range(50):
    shard_set.main.add_document([number % 100] * (number % 9))
    shard_set.sidecars["origin"].add_document([0, number + 1, 0, 0])
    if number == 30:
        print(json.dumps(shard_set.checkpoint()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs kill -9")
def test_resuming_after_kill_9_gives_the_bytes_of_an_uninterrupted_run(tmp_path: Path) -> None:
    import json

    command = [sys.executable, "-c", KILLED, str(tmp_path / "x"), str(tmp_path / "work")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "x.bin").exists()
    state = json.loads(done.stdout)
    for prefix, first in ((tmp_path / "x", 31), (tmp_path / "whole", 0)):
        if first:
            shard_set = ShardSet.resume(prefix, state, vocab_size=100, work_dir=tmp_path / "work")
        else:
            shard_set = ShardSet(prefix, sidecars=["origin"], vocab_size=100)
        for number in range(first, 50):
            shard_set.main.add_document([number % 100] * (number % 9))
            shard_set.sidecars["origin"].add_document([0, number + 1, 0, 0])
        shard_set.publish()
    for ending in (".bin", ".idx", "_origin.bin", "_origin.idx"):
        assert (tmp_path / f"x{ending}").read_bytes() == (tmp_path / f"whole{ending}").read_bytes()
    assert names(tmp_path / "work") == set()


@pytest.mark.parametrize("stop_at", range(1, 6))
def test_a_publication_cut_short_is_taken_back_by_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    shard_set = ShardSet(tmp_path / "x", sidecars=["origin"], vocab_size=100, work_dir=tmp_path / "work")
    shard_set.main.add_document([1, 2])
    shard_set.sidecars["origin"].add_document([0, 1, 0, 0])
    state = shard_set.checkpoint()
    rename, left = os.replace, [stop_at]

    def cut_short(source: Any, target: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        rename(source, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "replace", cut_short)
        shard_set.publish(Manifest())
    assert not (tmp_path / "x.idx").exists()
    resumed = ShardSet.resume(tmp_path / "x", state, vocab_size=100, work_dir=tmp_path / "work", overwrite=True)
    resumed.main.add_document([3])
    resumed.sidecars["origin"].add_document([0, 2, 0, 0])
    resumed.publish(Manifest())
    assert contents(tmp_path / "x") == [[1, 2], [3]]
    assert names(tmp_path) == {"work", "x.bin", "x.idx", "x.json", "x_origin.bin", "x_origin.idx"}
    assert names(tmp_path / "work") == set()


def test_an_exception_after_a_checkpoint_keeps_the_unfinished_files(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        writer.add_document([1])
        state = writer.checkpoint()
        raise RuntimeError
    assert not (tmp_path / "x.bin").exists()
    resumed = ShardWriter.resume(tmp_path / "x", state, vocab_size=100)
    resumed.close()
    assert contents(tmp_path / "x") == [[1]]


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    def state_of(prefix: Path) -> dict[str, Any]:
        writer = ShardWriter(prefix, vocab_size=100)
        writer.add_document([1, 2, 3])
        state = writer.checkpoint()
        writer.abort()
        return state

    state = state_of(tmp_path / "x")
    with pytest.raises(errors.CheckpointError, match="uint16"):
        ShardWriter.resume(tmp_path / "x", state, vocab_size=100_000)
    with pytest.raises(errors.CheckpointError):
        ShardWriter.resume(tmp_path / "x", {"bin_bytes": 6}, vocab_size=100)
    with pytest.raises(errors.CheckpointError, match="add up"):
        ShardWriter.resume(tmp_path / "x", {**state, "bin_bytes": 4}, vocab_size=100)
    (tmp_path / "x.bin.partial").write_bytes(b"\x01\x00\x02\x00\x04\x00")
    with pytest.raises(errors.CheckpointError, match="not those of the checkpoint"):
        ShardWriter.resume(tmp_path / "x", state, vocab_size=100)
    (tmp_path / "x.bin.partial").write_bytes(b"\x01\x00")
    with pytest.raises(errors.CheckpointError, match="2 bytes"):
        ShardWriter.resume(tmp_path / "x", state, vocab_size=100)
    (tmp_path / "x.bin.partial").unlink()
    with pytest.raises(errors.CheckpointError, match="gone"):
        ShardWriter.resume(tmp_path / "x", state, vocab_size=100)
    (tmp_path / "x.lengths.partial").unlink()
    with pytest.raises(errors.CheckpointError, match="lengths"):
        ShardWriter.resume(tmp_path / "x", state, vocab_size=100)
