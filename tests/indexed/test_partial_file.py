"""The disk begins with a growing file early; what it says there is heard, and nothing is closed under its hands."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from mmdata.errors import DiskFullError
from mmdata.indexed import durable
from mmdata.indexed.durable import PartialFile

DEADLINE_S = 60.0


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "EARLY_BYTES", 1000)


@pytest.mark.usefixtures("early")
def test_what_was_written_reaches_the_disk_before_it_is_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda _: flushed.append(threading.current_thread() is threading.main_thread()))
    file = PartialFile.create(str(tmp_path / "a"), hashed=True)
    for _ in range(10):
        file.append(b"x" * 999)
        if file._early._thread is not None:
            file._early._thread.join(DEADLINE_S)
    assert flushed == [False] * 5, "one for each thousand bytes, when they are written"
    file.sync()
    assert flushed == [False] * 5 + [True]
    file.seal()
    assert (tmp_path / "a").read_bytes() == b"x" * 9990


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("then", ["append", "sync", "seal"])
def test_a_fault_met_early_is_raised_by_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    def full(_: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    file = PartialFile.create(str(tmp_path / "a"), hashed=False)
    file.append(b"x" * 1000)
    assert file._early._thread is not None
    file._early._thread.join(DEADLINE_S)
    steps = {"append": lambda: file.append(b"x" * 1000), "sync": file.sync, "seal": lambda: file.seal(durable=False)}
    for step in (then, "sync", "seal"):
        with pytest.raises(DiskFullError):
            steps[step]()
    file.discard()
    assert not (tmp_path / "a").exists()


@pytest.mark.usefixtures("early")
def test_where_no_thread_can_be_started_nothing_is_flushed_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    file = PartialFile.create(str(tmp_path / "a"), hashed=True)
    file.append(b"x" * 1000)
    file.append(b"y" * 1000)
    file.seal()
    assert (tmp_path / "a").read_bytes() == b"x" * 1000 + b"y" * 1000


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("way", ["close", "discard", "seal"])
def test_a_file_is_not_closed_while_it_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    begun, go_on, valid = threading.Event(), threading.Event(), []

    def slow(descriptor: int) -> None:
        begun.set()
        assert go_on.wait(DEADLINE_S)
        os.fstat(descriptor)  # raises when it is closed
        valid.append(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    file = PartialFile.create(str(tmp_path / "a"), hashed=False)
    file.append(b"x" * 1000)
    assert begun.wait(DEADLINE_S)
    threading.Timer(0.05, go_on.set).start()
    {"close": file.close, "discard": file.discard, "seal": lambda: file.seal(durable=False)}[way]()
    assert len(valid) == 1
