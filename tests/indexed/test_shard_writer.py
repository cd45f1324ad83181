"""Writing: ranges and sums are checked, files appear whole or not at all, a checkpoint goes on to the same bytes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from small_shards import EXAMPLE_BIN, EXAMPLE_IDX, contents

from mmdata import errors
from mmdata.indexed import IndexedDataset, Manifest, ShardSet, ShardWriter
from mmdata.indexed.durable import PartialFile
from mmdata.indexed.spool import IndexSpool


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# Ranges and sums.


@pytest.mark.parametrize("token", [70000, 65536, -100, -1, 1000])
@pytest.mark.parametrize("kind", ["list", "int64", "int32", "torch"])
def test_token_outside_the_vocabulary_is_refused_and_never_wraps(tmp_path: Path, token: int, kind: str) -> None:
    tokens: Any = [1, token, 2]
    if kind == "torch":
        tokens = pytest.importorskip("torch").tensor(tokens)
    elif kind != "list":
        tokens = np.array(tokens, kind)
    with ShardWriter(tmp_path / "x", vocab_size=1000) as writer:
        writer.add_document([5])
        with pytest.raises(errors.TokenRangeError, match=f"token 1 of this call is {token}"):
            writer.add_document(tokens)
        with pytest.raises(errors.TokenRangeError):
            writer.add_documents(tokens, [3])
        writer.add_document([6])
    assert contents(tmp_path / "x") == [[5], [6]]


@pytest.mark.parametrize("source", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", ">i4"])
def test_every_integer_dtype_is_taken_and_checked(tmp_path: Path, source: str) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        writer.add_document(np.array([0, 99], source))
        with pytest.raises(errors.TokenRangeError):
            writer.add_document(np.array([100], source))
        if np.dtype(source).kind == "i":
            with pytest.raises(errors.TokenRangeError):
                writer.add_document(np.array([-1], source))
    assert contents(tmp_path / "x") == [[0, 99]]


def test_a_small_signed_dtype_is_not_mistaken_for_a_large_token(tmp_path: Path) -> None:
    with (
        ShardWriter(tmp_path / "x", vocab_size=65499) as writer,
        pytest.raises(errors.TokenRangeError, match="is -100"),
    ):
        writer.add_document(np.array([-100], np.int16))


def test_tokens_that_are_no_integers_are_refused(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        for tokens in ([1.5], [True], ["a"], [2**70], [None]):
            with pytest.raises(errors.TokenRangeError, match="not integers"):
                writer.add_document(tokens)
        with pytest.raises(errors.LengthMismatchError, match="shape"):
            writer.add_document([[1, 2], [3, 4]])


def test_without_a_vocabulary_the_dtype_is_the_limit(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x") as writer:
        writer.add_document([-(2**31), 2**31 - 1])
        with pytest.raises(errors.TokenRangeError):
            writer.add_document([2**31])
    assert contents(tmp_path / "x") == [[-(2**31), 2**31 - 1]]


def test_vocabulary_that_does_not_fit_the_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="65535"):
        ShardWriter(tmp_path / "x", vocab_size=65537, dtype="uint16")
    with pytest.raises(errors.UsageError):
        ShardWriter(tmp_path / "x", vocab_size=10, dtype="float32")
    with pytest.raises(errors.UsageError):
        ShardWriter(tmp_path / "x", vocab_size=0)
    assert names(tmp_path) == set()
    with ShardWriter(tmp_path / "x", vocab_size=65536, dtype=np.uint16) as writer:
        writer.add_document([65535])
    assert contents(tmp_path / "x") == [[65535]]


@pytest.mark.parametrize(
    "lengths", [[2], [2, 2], [], [4, -1], [1.5, 1.5], [[3]], [2**31 + 3]], ids=lambda value: str(value)
)
def test_lengths_must_add_up_to_the_tokens(tmp_path: Path, lengths: Any) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        for add in (writer.add_document, writer.add_documents):
            with pytest.raises((errors.LengthMismatchError, errors.SequenceTooLongError)):
                add([1, 2, 3], lengths)
        writer.add_document([7, 8])
    assert contents(tmp_path / "x") == [[7, 8]]


@pytest.mark.parametrize("documents", [[1], [3], [1, 2], [2, -1, 1], []])
def test_documents_must_add_up_to_the_sequences(tmp_path: Path, documents: list[int]) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer, pytest.raises(errors.LengthMismatchError):
        writer.add_documents([1, 2, 3], [1, 2], documents)


def test_bulk_and_single_adding_give_the_same_bytes(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    lengths = generator.integers(0, 9, 500)
    tokens = generator.integers(0, 60000, lengths.sum())
    with ShardWriter(tmp_path / "bulk", vocab_size=60000) as bulk:
        bulk.add_documents(tokens, lengths)
    with ShardWriter(tmp_path / "single", vocab_size=60000) as single:
        for part in np.split(tokens, np.cumsum(lengths)[:-1]):
            single.add_document(part)
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"bulk{ending}").read_bytes() == (tmp_path / f"single{ending}").read_bytes()


def test_bulk_documents_of_several_sequences_make_the_worked_example(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "ex", vocab_size=1000) as writer:
        writer.add_documents(np.arange(1, 6, dtype=np.int32), [3, 1, 1], documents=[1, 0, 2])
    assert (tmp_path / "ex.bin").read_bytes() == EXAMPLE_BIN
    assert (tmp_path / "ex.idx").read_bytes() == EXAMPLE_IDX


def test_counts_are_right_at_any_time_and_arrays_may_be_reused(tmp_path: Path) -> None:
    scratch = np.zeros(3, np.uint16)
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        for number in range(5000):
            scratch[:] = number % 90
            writer.add_document(scratch[: number % 4])
            if number % 1000 == 0:
                full, rest = divmod(number + 1, 4)
                tokens = full * 6 + sum(range(rest))
                assert (writer.documents, writer.tokens) == (number + 1, tokens)
                assert writer.sequences == number + 1 - full - (rest > 0)
    assert contents(tmp_path / "x") == [[n % 90] * (n % 4) for n in range(5000) if n % 4]


def test_strided_and_read_only_arrays_are_taken(tmp_path: Path) -> None:
    source = np.arange(20, dtype=np.int32)
    source.flags.writeable = False
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        writer.add_document(source[::2])
        writer.add_document(source[::-1])
    assert contents(tmp_path / "x") == [list(range(0, 20, 2)), list(range(19, -1, -1))]


def test_mode_bytes_are_kept_and_refused_where_there_are_none(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=100, multimodal=True) as writer:
        writer.add_document([1, 2, 3], lengths=[1, 2], modes=[0, 1])
        writer.add_document([4])
        writer.add_documents([5, 6], [1, 0, 1], modes=[-1, 7, 2])
        with pytest.raises(errors.LengthMismatchError):
            writer.add_document([1], modes=[1, 2])
        with pytest.raises(errors.TokenRangeError):
            writer.add_document([1], modes=[200])
    ds = IndexedDataset(tmp_path / "x", multimodal=True)
    assert ds.sequence_modes is not None and ds.sequence_modes.tolist() == [0, 1, 0, -1, 2]
    with ShardWriter(tmp_path / "y") as plain, pytest.raises(errors.LengthMismatchError, match="multimodal=True"):
        plain.add_document([1], modes=[1])


def test_pointers_are_right_past_two_to_the_31_bytes(tmp_path: Path) -> None:
    lengths = np.full(7, 2**29 + 1, np.int32)
    spool = IndexSpool(str(tmp_path / "x"), multimodal=False)
    spool.add_sequences(lengths)
    spool.add_ends(np.arange(1, 8))
    spool.seal()
    spool.write_index(str(tmp_path / "x.idx"), np.dtype("<i4"))
    spool.discard()
    with open(tmp_path / "x.bin", "wb") as sparse:
        sparse.truncate(int(lengths.sum(dtype=np.int64)) * 4)
        sparse.seek((2**29 + 1) * 6 * 4)
        sparse.write(np.arange(5, dtype="<i4").tobytes())
    ds = IndexedDataset(tmp_path / "x")
    assert ds.sequence_pointers.tolist() == [i * (2**29 + 1) * 4 for i in range(7)]
    assert ds.sequence_pointers[-1] > 2**33
    assert ds.get(6, 0, 5).tolist() == [0, 1, 2, 3, 4]
    assert ds[6][:5].tolist() == [0, 1, 2, 3, 4] and ds[5][-1] == 0


# Files appear whole, or not at all.


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


# Checkpoints.


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
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
