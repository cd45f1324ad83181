"""Writing JSON lines: atomic, exact, the same bytes for the same records, also when continued after a kill."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path

import pytest
import zstandard
from reading_samples import Read

from mmdata.errors import DiskFullError, LedgerMismatchError, OutputError, OutputExistsError
from mmdata.jsonl import JsonlWriter
from mmdata.reading.writer import MEMBER_BYTES, encode_record

RECORDS = [{"id": number, "text": f"{number * 2654435761 % 2**32:x} 头痛 " * 20} for number in range(3000)]
SUFFIXES = ["", ".gz", ".zst"]


def decompress(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    return data


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_written_is_read_back(tmp_path: Path, read: Read, suffix: str) -> None:
    path = tmp_path / f"out.jsonl{suffix}"
    with JsonlWriter(path) as writer:
        for record in RECORDS:
            writer.write(record)
        assert not path.exists()
    assert writer.lines == len(RECORDS)
    assert [document.record for document in read(path).documents] == RECORDS
    assert decompress(path) == b"".join(encode_record(record) + b"\n" for record in RECORDS)
    assert os.listdir(tmp_path) == [path.name]


def test_gzip_carries_no_time_stamp_and_is_cut_into_members(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl.gz"
    with JsonlWriter(path) as writer:
        for record in RECORDS:
            writer.write(record)
    data = path.read_bytes()
    assert data[:10] == bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255])
    whole = sum(len(encode_record(record)) + 1 for record in RECORDS)
    assert data.count(data[:10]) == whole // MEMBER_BYTES + 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_empty_output_is_a_valid_file(tmp_path: Path, read: Read, suffix: str) -> None:
    path = tmp_path / f"out.jsonl{suffix}"
    with JsonlWriter(path):
        pass
    assert decompress(path) == b""
    assert read(path).records == 0


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kept", [0, 1, 700, 2999, 3000])
def test_a_killed_run_continues_to_the_same_bytes(tmp_path: Path, suffix: str, kept: int) -> None:
    straight = tmp_path / f"straight.jsonl{suffix}"
    with JsonlWriter(straight) as writer:
        for record in RECORDS:
            writer.write(record)
    path = tmp_path / f"out.jsonl{suffix}"
    killed = JsonlWriter(path)
    for record in RECORDS[:kept]:
        killed.write(record)
    state = json.loads(json.dumps(killed.checkpoint()))
    for record in RECORDS[kept : kept + 900]:
        killed.write(record)
    killed.suspend()
    with JsonlWriter(path, state=state) as writer:
        assert writer.lines == kept
        for record in RECORDS[kept:]:
            writer.write(record)
    assert path.read_bytes() == straight.read_bytes()


def test_checkpoints_do_not_change_the_bytes(tmp_path: Path) -> None:
    for name, every in (("a.jsonl.gz", 10**9), ("b.jsonl.gz", 7)):
        with JsonlWriter(tmp_path / name) as writer:
            for number, record in enumerate(RECORDS):
                writer.write(record)
                if number % every == every - 1:
                    writer.checkpoint()
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stop"), JsonlWriter(tmp_path / "out.jsonl") as writer:
        writer.write({"text": "a"})
        raise RuntimeError("stop")
    assert os.listdir(tmp_path) == []


def test_an_existing_file_stays_unless_overwriting(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"old")
    with pytest.raises(OutputExistsError, match="--overwrite"):
        JsonlWriter(path)
    with JsonlWriter(path, overwrite=True) as writer:
        writer.write({"text": "new"})
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b'{"text":"new"}\n'


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"the folder .*absent does not exist; create it first"):
        JsonlWriter(tmp_path / "absent" / "out.jsonl")


def test_a_temporary_file_shorter_than_its_state_is_refused(tmp_path: Path) -> None:
    writer = JsonlWriter(tmp_path / "out.jsonl")
    for record in RECORDS:
        writer.write(record)
    state = writer.checkpoint()
    writer.suspend()
    (tmp_path / "out.jsonl.partial").write_bytes(b"")
    with pytest.raises(LedgerMismatchError, match="has 0 bytes, fewer than"):
        JsonlWriter(tmp_path / "out.jsonl", state=state)


def test_a_temporary_file_that_is_gone_is_said(tmp_path: Path) -> None:
    with JsonlWriter(tmp_path / "a.jsonl") as writer:
        state = writer.checkpoint()
    with pytest.raises(LedgerMismatchError, match=r"b\.jsonl\.partial of the unfinished run is gone"):
        JsonlWriter(tmp_path / "b.jsonl", state=state)


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with (
        pytest.raises(DiskFullError, match="the disk is full; free space"),
        JsonlWriter(tmp_path / "o.jsonl") as writer,
    ):
        writer.write({"text": "a"})
        monkeypatch.setattr(os, "fsync", full)
        writer.checkpoint()
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_device_is_said_when_the_last_bytes_go_out(tmp_path: Path) -> None:
    os.symlink("/dev/full", tmp_path / "out.jsonl.partial")
    with pytest.raises(DiskFullError), JsonlWriter(tmp_path / "out.jsonl") as writer:
        writer.write({"text": "a"})
    assert os.listdir(tmp_path) == []


def test_records_are_written_exactly() -> None:
    deep: dict[str, object] = {"n": 10**30}
    for _ in range(500):
        deep = {"d": deep}
    for record in ({"b": 1, "a": "头\u2028\x00"}, {"n": 2**64}, deep):
        assert json.loads(encode_record(record)) == record
    assert encode_record({"b": 1, "a": "头\u2028"}) == '{"b":1,"a":"头\u2028"}'.encode()
