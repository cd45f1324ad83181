"""Files of a shard appear whole or not at all, the index last; nothing of another's is written over."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from small_shards import contents, names

from mmdata import errors
from mmdata.indexed import Manifest, ShardSet, ShardWriter
from mmdata.indexed.durable import PartialFile
from mmdata.indexed.spool import IndexSpool


def test_nothing_is_at_the_final_names_before_the_end(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        writer.add_document([1])
        assert not (tmp_path / "x.bin").exists() and not (tmp_path / "x.idx").exists()
    assert names(tmp_path) == {"x.bin", "x.idx"}


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        writer.add_document([1])
        raise RuntimeError
    assert names(tmp_path) == set()


def test_a_full_disk_leaves_nothing_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(errors.DiskFullError, match=r"x\.bin"), ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        writer.add_document([1])
        monkeypatch.setattr(os, "fsync", full)
    assert names(tmp_path) == set()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_write_to_a_full_device_is_our_error() -> None:
    file = PartialFile("/dev/full", open("/dev/full", "wb", buffering=0), 0, None)  # noqa: SIM115
    with pytest.raises(errors.DiskFullError, match="/dev/full"):
        file.append(b"x")
    file.close()


def test_a_writer_whose_write_failed_cannot_be_closed_or_checkpointed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ShardWriter(tmp_path / "x", vocab_size=100)
    writer.add_document([1])

    def full(self: IndexSpool, ends: Any) -> None:
        raise errors.DiskFullError("full")

    with monkeypatch.context() as patched, pytest.raises(errors.DiskFullError):
        patched.setattr(IndexSpool, "add_ends", full)
        writer.add_documents([2], [1])
    for end in (writer.close, writer.checkpoint):
        with pytest.raises(errors.OutputError, match="half way"):
            end()
    writer.abort()
    assert names(tmp_path) == set()


def test_existing_output_is_refused_and_stays(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        writer.add_document([1])
    with pytest.raises(errors.OutputExistsError, match="--overwrite"):
        ShardWriter(tmp_path / "x", vocab_size=100)
    assert contents(tmp_path / "x") == [[1]] and names(tmp_path) == {"x.bin", "x.idx"}


@pytest.mark.parametrize("ending", [".bin", ".idx", ".json", "_origin.idx", "_loss_spans.bin"])
def test_any_file_of_the_shard_counts_as_existing(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"x{ending}").write_bytes(b"")
    with pytest.raises(errors.OutputExistsError):
        ShardWriter(tmp_path / "x", vocab_size=100)


def test_output_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "x", vocab_size=100)
    (tmp_path / "x.idx").write_bytes(b"another's")
    with pytest.raises(errors.OutputExistsError):
        writer.close()
    assert (tmp_path / "x.idx").read_bytes() == b"another's" and not (tmp_path / "x.bin").exists()
    writer.abort()


def test_overwriting_removes_old_sidecars_and_manifest(tmp_path: Path) -> None:
    with ShardSet(tmp_path / "x", sidecars=["origin", "loss_spans"], vocab_size=100) as old:
        old.publish(Manifest())
    assert names(tmp_path) == {
        "x.bin", "x.idx", "x.json", "x_origin.bin", "x_origin.idx", "x_loss_spans.bin", "x_loss_spans.idx",
    }  # fmt: skip
    with ShardWriter(tmp_path / "x", vocab_size=100, overwrite=True) as writer:
        writer.add_document([3])
    assert names(tmp_path) == {"x.bin", "x.idx"} and contents(tmp_path / "x") == [[3]]


def test_index_is_the_last_to_get_its_name_and_the_first_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in ("first", "again"):
        shard_set = ShardSet(tmp_path / "x", sidecars=["origin"], vocab_size=100, overwrite=run == "again")
        events: list[str] = []
        rename, unlink = os.replace, os.unlink

        def spy_replace(source: Any, target: Any, rename: Any = rename, events: list[str] = events) -> None:
            events.append("+" + os.path.basename(target))
            rename(source, target)

        def spy_unlink(path: Any, unlink: Any = unlink, events: list[str] = events) -> None:
            unlink(path)
            events.append("-" + os.path.basename(path))

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", spy_replace)
            patched.setattr(os, "unlink", spy_unlink)
            shard_set.publish(Manifest())
        final = [event for event in events if ".partial" not in event]
        assert final[-5:] == ["+x.bin", "+x_origin.bin", "+x_origin.idx", "+x.json", "+x.idx"]
        assert (final[0] == "-x.idx") == (run == "again")


@pytest.mark.fsync
@pytest.mark.skipif(os.name != "posix", reason="reads descriptors' names")
def test_files_and_folder_are_flushed_by_fsync_before_the_index_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(descriptor: int) -> None:
        events.append("flush " + os.path.basename(os.path.realpath(f"/dev/fd/{descriptor}")))
        fsync(descriptor)

    def spy_replace(source: Any, target: Any) -> None:
        events.append("rename " + os.path.basename(target))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        writer.add_document([1])
    folder = f"flush {tmp_path.name}"
    assert events == ["flush x.bin.partial", "flush x.idx.partial", "rename x.bin", folder, "rename x.idx", folder]


def test_a_second_writer_takes_the_name_over_and_the_first_notices(tmp_path: Path) -> None:
    first = ShardWriter(tmp_path / "x", vocab_size=100)
    first.add_document([1])
    second = ShardWriter(tmp_path / "x", vocab_size=100)
    second.add_document([2, 2])
    with pytest.raises(errors.OutputReplacedError):
        first.close()
    first.abort()
    second.close()
    assert contents(tmp_path / "x") == [[2, 2]] and names(tmp_path) == {"x.bin", "x.idx"}


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a user whom permissions bind")
def test_unwritable_folder_is_our_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(errors.OutputError):
        ShardWriter(tmp_path / "x", vocab_size=100)
    tmp_path.chmod(0o700)


def test_output_below_a_file_is_our_error(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(errors.OutputError):
        ShardWriter(tmp_path / "f" / "x", vocab_size=100)


def test_folders_are_made_and_endings_taken_off(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "new" / "x.bin", vocab_size=100) as writer:
        writer.add_document([1])
    assert contents(tmp_path / "new" / "x") == [[1]]


def test_close_gives_counts_sizes_and_hashes(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        writer.add_documents(np.arange(90), [40, 0, 50])
        sealed = writer.close()
    assert (sealed.sequences, sealed.documents, sealed.tokens) == (2, 3, 90)
    for digest, ending in ((sealed.bin, ".bin"), (sealed.idx, ".idx")):
        data = (tmp_path / f"x{ending}").read_bytes()
        assert (digest.size, digest.xxh3_128) == (len(data), xxhash.xxh3_128_hexdigest(data))


def test_work_dir_holds_the_unfinished_files(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with ShardWriter(tmp_path / "out" / "x", vocab_size=100, work_dir=tmp_path / "work") as writer:
        writer.add_document([1])
        assert names(tmp_path / "out") == set() and len(names(tmp_path / "work")) == 3
    assert names(tmp_path / "out") == {"x.bin", "x.idx"} and names(tmp_path / "work") == set()


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a second file system")
def test_work_dir_on_another_file_system_is_copied_over(tmp_path: Path) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as work:
        with ShardWriter(tmp_path / "x", vocab_size=100, work_dir=work) as writer:
            writer.add_document([1, 2])
        assert os.listdir(work) == []
    assert contents(tmp_path / "x") == [[1, 2]] and names(tmp_path) == {"x.bin", "x.idx"}


def test_a_set_that_is_not_published_leaves_nothing(tmp_path: Path) -> None:
    with ShardSet(tmp_path / "x", sidecars=["origin"], vocab_size=100) as shard_set:
        shard_set.main.add_document([1])
    assert names(tmp_path) == set()


@pytest.mark.parametrize("prefix", ["", "out/", ".bin"])
def test_a_prefix_without_a_name_is_refused(prefix: str) -> None:
    with pytest.raises(errors.UsageError, match="names a folder"):
        ShardWriter(prefix, vocab_size=100)


def test_writing_to_a_remote_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="local paths"):
        ShardWriter("s3://bucket/x", vocab_size=100)
