"""Reading: every way in gives the same tokens, arrays outlive the dataset, processes and addresses do not matter."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_shards import EOD, contents, file, full_shard, patch, plain_shard, random_documents, write_example

from mmdata import errors
from mmdata.indexed import IndexedDataset, Origin, ShardWriter
from mmdata.indexed.mapping import _standard_map, map_file


@pytest.fixture
def documents() -> list[list[int]]:
    return random_documents(60)


@pytest.fixture
def dataset(tmp_path: Path, documents: list[list[int]]) -> IndexedDataset:
    return IndexedDataset(plain_shard(tmp_path / "x", documents))


def test_every_way_in_gives_the_same_tokens(dataset: IndexedDataset, documents: list[list[int]]) -> None:
    assert len(dataset) == len(documents) == 60
    assert [s.tolist() for s in dataset] == documents
    assert [dataset[i].tolist() for i in range(60)] == documents
    assert [dataset[i - 60].tolist() for i in range(60)] == documents
    assert [dataset.document(i).tolist() for i in range(60)] == documents
    assert [dataset.get(i).tolist() for i in range(60)] == documents
    assert dataset[np.int64(3)].tolist() == documents[3] and dataset[np.uint8(59)].tolist() == documents[59]
    assert dataset.tokens.tolist() == [token for tokens in documents for token in tokens]


@pytest.mark.parametrize(
    "cut",
    [slice(None), slice(3, 9), slice(9, 3), slice(-4, None), slice(0, 60, 7), slice(None, None, -1), slice(50, 99)],
)
def test_slices_are_those_of_a_list(dataset: IndexedDataset, documents: list[list[int]], cut: slice) -> None:
    assert [s.tolist() for s in dataset[cut]] == documents[cut]


def test_numbers_out_of_range_are_index_errors_of_ours(dataset: IndexedDataset) -> None:
    for number in (60, -61, 10**30):
        for access in (dataset.__getitem__, dataset.document, dataset.get, dataset.loss_spans):
            with pytest.raises(errors.SequenceRangeError, match="the shard has 60") as caught:
                access(number)
            assert isinstance(caught.value, IndexError)
    for bad in (1.0, "1", None):
        with pytest.raises(TypeError):
            dataset[bad]  # type: ignore[call-overload]


def test_get_takes_a_part_and_refuses_what_leaves_the_sequence(tmp_path: Path) -> None:
    ds = IndexedDataset(plain_shard(tmp_path / "x", [[1], [2, 3, 4, 5], [6]]))
    assert ds.get(1, 1, 2).tolist() == [3, 4] and ds.get(1, 4).tolist() == [] and ds.get(-2, offset=3).tolist() == [5]
    for offset, length in ((0, 5), (3, 2), (5, None), (-1, 1), (2, -1)):
        with pytest.raises(errors.SequenceRangeError, match="it has 4"):
            ds.get(1, offset, length)


def test_arrays_are_read_only_and_outlive_the_dataset(dataset: IndexedDataset, documents: list[list[int]]) -> None:
    held: list[Any] = [dataset[5], *dataset[7:9], dataset.document(10), dataset.get(11, 0)]
    whole = [dataset.sequence_lengths, dataset.sequence_pointers, dataset.document_indices, dataset.tokens]
    for array in (*held, *whole):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    del dataset
    gc.collect()
    assert [array.tolist() for array in held] == [documents[i] for i in (5, 7, 8, 10, 11)]
    assert whole[0].tolist() == [len(tokens) for tokens in documents]


def test_empty_shard_reads_as_empty(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "none", vocab_size=10):
        pass
    ds = IndexedDataset(tmp_path / "none")
    assert (len(ds), ds.document_count, ds.token_count, list(ds), ds[:]) == (0, 0, 0, [], [])
    assert (tmp_path / "none.idx").stat().st_size == 42
    with pytest.raises(errors.SequenceRangeError):
        ds[0]
    with ShardWriter(tmp_path / "empties", vocab_size=10) as writer:
        writer.add_documents([], [0, 0, 0])
    ds = IndexedDataset(tmp_path / "empties")
    assert (len(ds), ds.document_count, ds.document(1).tolist()) == (0, 3, [])
    with ShardWriter(tmp_path / "zeros", vocab_size=10) as writer:
        writer.add_documents([], [0, 0], documents=[1, 1])
    ds = IndexedDataset(tmp_path / "zeros")
    assert (len(ds), ds[1].tolist(), ds[0:2][0].tolist()) == (2, [], [])


def test_a_document_of_several_sequences_is_their_tokens_in_a_row(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        writer.add_document([1, 2, 3, 4, 5, 6], lengths=[1, 0, 3, 2])
        writer.add_document([7, 8], lengths=[1, 1])
    ds = IndexedDataset(tmp_path / "x")
    assert [ds.document(i).tolist() for i in (0, 1)] == [[1, 2, 3, 4, 5, 6], [7, 8]]
    assert [s.tolist() for s in ds[1:5]] == [[], [2, 3, 4], [5, 6], [7]]
    assert ds.document_sequences(-1) == (4, 6)


def _read_in_worker(ds: IndexedDataset, number: int) -> list[int]:
    return ds[number].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_dataset_works_in_processes_of_every_start_method(tmp_path: Path, method: str) -> None:
    if method == "forkserver":
        pytest.skip("the same path as spawn")
    ds = IndexedDataset(plain_shard(tmp_path / "x", [[1, 2], [3]]))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        assert list(pool.map(_read_in_worker, [ds, ds], [0, 1], timeout=240)) == [[1, 2], [3]]


def test_pickling_keeps_prefix_and_mode(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=10, multimodal=True) as writer:
        writer.add_document([1], modes=[3])
    copy = pickle.loads(pickle.dumps(IndexedDataset(tmp_path / "x", multimodal=True)))
    assert copy[0].tolist() == [1] and copy.sequence_modes.tolist() == [3]


def test_1500_shards_are_open_at_once_without_descriptors(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    prefix = write_example(tmp_path / "x")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 20, hard))
    try:
        opened = [IndexedDataset(prefix) for _ in range(1500)]
        assert len(os.listdir("/dev/fd")) == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(ds[0].tolist() == [1, 2, 3] for ds in opened)


def test_mapping_frees_the_region_with_the_last_array(tmp_path: Path) -> None:
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("needs /proc")
    prefix = write_example(tmp_path / "mapped")

    def mapped() -> int:
        return Path("/proc/self/maps").read_text(encoding="utf-8").count("mapped.")

    ds = IndexedDataset(prefix)
    array = ds[0]
    assert mapped() == 2
    del ds
    assert mapped() == 1 and array.tolist() == [1, 2, 3]
    del array
    assert mapped() == 0


@pytest.mark.skipif(os.name == "posix" and sys.version_info < (3, 13), reason="this Python's map keeps a descriptor")
def test_the_standard_map_gives_the_same_bytes(tmp_path: Path) -> None:
    path = file(write_example(tmp_path / "x"), ".idx")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert bytes(_standard_map(descriptor, 102)) == path.read_bytes() == map_file(str(path)).tobytes()
    finally:
        os.close(descriptor)


def test_prefix_may_be_given_as_either_file(tmp_path: Path) -> None:
    write_example(tmp_path / "x")
    for ending in ("", ".bin", ".idx"):
        assert len(IndexedDataset(str(tmp_path / "x") + ending)) == 3
    assert IndexedDataset.exists(tmp_path / "x") and not IndexedDataset.exists(tmp_path / "y")


# Manifest and sidecars.


def test_origin_names_input_and_line(tmp_path: Path) -> None:
    ds = IndexedDataset(full_shard(tmp_path / "x", [[11], [12, 13]], path="in/a.jsonl"))
    assert ds.origin(1) == Origin(0, 2, 0, "in/a.jsonl") == ds.origin(-1)
    manifest = ds.manifest
    assert manifest is not None and (manifest.eod_id, manifest.documents, manifest.tokens) == (EOD, 2, 5)


def test_origin_keeps_lines_beyond_31_bits(tmp_path: Path) -> None:
    from mmdata.indexed import ShardSet, encode_origins

    line = 5 * 2**31 + 7
    with ShardSet(tmp_path / "x", sidecars=["origin"], vocab_size=100) as shard_set:
        shard_set.main.add_document([1])
        shard_set.sidecars["origin"].add_document(encode_origins([3], [line], [2]).ravel())
        shard_set.publish()
    assert IndexedDataset(tmp_path / "x").origin(0) == Origin(3, line, 2, None)


def test_origin_without_sidecar_or_with_a_foreign_one_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(errors.SidecarMissingError, match="x_origin"):
        IndexedDataset(plain_shard(tmp_path / "x", [[1]])).origin(0)
    prefix = full_shard(tmp_path / "y", [[1], [2]])
    patch(file(prefix, "_origin.bin"), 16, np.array([7], "<i4").tobytes())
    with pytest.raises(errors.SidecarMismatchError, match="names input 7"):
        IndexedDataset(prefix).origin(1)
    other = full_shard(tmp_path / "z", [[1], [2], [3]])
    for ending in ("_origin.bin", "_origin.idx"):
        file(prefix, ending).write_bytes(file(other, ending).read_bytes())
    with pytest.raises(errors.SidecarMismatchError, match="3 documents"):
        IndexedDataset(prefix).origin(1)


def test_loss_spans_come_from_the_sidecar_or_cover_all_but_token_0(tmp_path: Path) -> None:
    plain = IndexedDataset(full_shard(tmp_path / "x", [[11, 12, 13], []]))
    assert plain.loss_spans(0).tolist() == [[1, 4]] and plain.loss_spans(1).tolist() == [] and not plain.has_loss_spans
    chat = IndexedDataset(full_shard(tmp_path / "y", [[11, 12, 13], [14], [15]], spans=[[1, 2, 3, 4], [], [1, 2]]))
    assert [chat.loss_spans(i).tolist() for i in range(3)] == [[[1, 2], [3, 4]], [], [[1, 2]]]
    assert chat.loss_spans(1).shape == (0, 2) and chat.has_loss_spans


def test_manifest_that_says_spans_without_the_sidecar_is_an_error(tmp_path: Path) -> None:
    prefix = full_shard(tmp_path / "y", [[11]], spans=[[1, 2]])
    file(prefix, "_loss_spans.bin").unlink()
    with pytest.raises(errors.ShardNotFoundError, match=r"_loss_spans\.bin"):
        IndexedDataset(prefix).loss_spans(0)
    file(prefix, "_loss_spans.idx").unlink()
    with pytest.raises(errors.SidecarMissingError, match="loss: spans"):
        IndexedDataset(prefix).loss_spans(0)


@pytest.mark.parametrize("spans", [[0, 2], [1, 5], [2, 2], [1, 3, 2, 4], [3, 4, 1, 2], [1], [1, 2, 3], [-1, 2]])
def test_spans_that_lie_are_caught_at_access(tmp_path: Path, spans: list[int]) -> None:
    ds = IndexedDataset(full_shard(tmp_path / "y", [[11, 12, 13]], spans=[spans]))
    with pytest.raises(errors.SidecarMismatchError, match="sequence 0"):
        ds.loss_spans(0)


# Remote addresses.


@pytest.fixture
def memory_address(tmp_path: Path) -> Any:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    prefix = full_shard(tmp_path / "far", random_documents(30), spans=[[]] * 30)
    for path in tmp_path.iterdir():
        memory.pipe_file(f"/bucket/{path.name}", path.read_bytes())
    yield "memory://bucket/far", prefix, memory
    memory.rm("/bucket", recursive=True)


def test_remote_shard_reads_as_the_local_one(tmp_path: Path, memory_address: Any) -> None:
    address, prefix, _ = memory_address
    local, far = IndexedDataset(prefix), IndexedDataset(address, cache_dir=str(tmp_path / "cache"))
    assert [s.tolist() for s in far] == contents(prefix)
    assert [s.tolist() for s in far[3:9]] == contents(prefix)[3:9]
    assert far.get(2, 0, 1).tolist() == local.get(2, 0, 1).tolist() and far.document(4).tolist() == local[4].tolist()
    assert far.manifest == local.manifest and far.origin(3) == local.origin(3) and far.loss_spans(0).tolist() == []
    assert not far[0].flags.writeable
    with pytest.raises(errors.RemoteStorageError, match="not mapped"):
        _ = far.tokens


def test_remote_index_is_downloaded_once_and_again_when_it_changes(
    tmp_path: Path, memory_address: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _, memory = memory_address
    downloads: list[str] = []
    get_file = type(memory).get_file

    def spy(self: Any, source: str, target: str, **options: Any) -> Any:
        downloads.append(source)
        return get_file(self, source, target, **options)

    monkeypatch.setattr(type(memory), "get_file", spy)
    cache = str(tmp_path / "cache")
    first = IndexedDataset(address, cache_dir=cache)
    IndexedDataset(address, cache_dir=cache)
    assert downloads == ["/bucket/far.idx"]
    other = plain_shard(tmp_path / "other", [[1, 2]])
    for ending in (".bin", ".idx"):
        memory.pipe_file(f"/bucket/far{ending}", file(other, ending).read_bytes())
    assert contents_of(IndexedDataset(address, cache_dir=cache)) == [[1, 2]]
    assert len(downloads) == 2 and not [name for name in os.listdir(cache) if "partial" in name]
    with pytest.raises(errors.ShortReadError, match=r"far\.bin"):
        first[29]


def contents_of(ds: IndexedDataset) -> list[list[int]]:
    return [sequence.tolist() for sequence in ds]


def test_remote_reads_are_ranged(tmp_path: Path, memory_address: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    address, _, memory = memory_address
    far = IndexedDataset(address, cache_dir=str(tmp_path / "cache"))
    ranges: list[tuple[int, int]] = []
    cat_file = type(memory).cat_file

    def spy(self: Any, path: str, start: int, end: int, **options: Any) -> Any:
        ranges.append((start, end))
        return cat_file(self, path, start=start, end=end, **options)

    monkeypatch.setattr(type(memory), "cat_file", spy)
    start, length = int(far.sequence_pointers[7]), int(far.sequence_lengths[7])
    _ = far[7]
    _ = far[2:20]
    assert ranges[0] == (start, start + 2 * length) and len(ranges) == 2


def test_remote_shard_that_is_missing_or_truncated_is_named(tmp_path: Path, memory_address: Any) -> None:
    address, _, memory = memory_address
    with pytest.raises(errors.ShardNotFoundError, match="memory://bucket/nothing"):
        IndexedDataset("memory://bucket/nothing", cache_dir=str(tmp_path / "cache"))
    memory.pipe_file("/bucket/far.bin", memory.cat_file("/bucket/far.bin")[:-2])
    with pytest.raises(errors.BinSizeError, match="memory://bucket/far"):
        IndexedDataset(address, cache_dir=str(tmp_path / "cache"))
    with pytest.raises(errors.RemoteStorageError, match="nosuchscheme"):
        IndexedDataset("nosuchscheme://bucket/far", cache_dir=str(tmp_path / "cache"))


def test_whatever_a_store_raises_is_our_error(
    tmp_path: Path, memory_address: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _, memory = memory_address
    far = IndexedDataset(address, cache_dir=str(tmp_path / "cache"))

    class NoCredentials(Exception):
        pass

    def refuse(*arguments: Any, **options: Any) -> None:
        raise NoCredentials("who are you")

    for name in ("cat_file", "get_file", "ukey", "size"):
        monkeypatch.setattr(type(memory), name, refuse)
    for access in (lambda: far[0], lambda: far.manifest, lambda: IndexedDataset(address)):
        with pytest.raises(errors.RemoteStorageError, match="NoCredentials: who are you"):
            access()


def test_remote_dataset_can_be_pickled(tmp_path: Path, memory_address: Any) -> None:
    address, _, _ = memory_address
    far = IndexedDataset(address, cache_dir=str(tmp_path / "cache"))
    assert contents_of(pickle.loads(pickle.dumps(far))) == contents_of(far)


def test_forgetting_never_changes_what_is_read(tmp_path: Path) -> None:
    from mmdata.indexed.mapping import forget

    with ShardWriter(tmp_path / "x", vocab_size=60_000) as writer:
        writer.add_documents(np.arange(50_000), np.full(50, 1000))
    tokens = IndexedDataset(tmp_path / "x").tokens
    for part in (tokens, tokens[100:40_000], tokens[49_999:], tokens[5:5]):
        forget(part)
    assert np.array_equal(tokens, np.arange(50_000))
    own = np.arange(50_000)
    for part in (own, own[1:], own[::2]):
        forget(part)
    assert np.array_equal(own, np.arange(50_000))


MEASURED = """
import sys
from mmdata.indexed import merge_shards, split_shard, verify_shard
prefix = sys.argv[1]
assert verify_shard(prefix, deep=True, vocab_size=10).ok
merge_shards([prefix], prefix + "_again")
split_shard(prefix, prefix + "_split", max_tokens=3_000_000)
# Not ru_maxrss: that one counts what the parent held when it forked.
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="compares peak memory as Linux counts it")
def test_verifying_merging_and_splitting_take_no_more_memory_for_larger_shards(tmp_path: Path) -> None:
    peaks = []
    for name, count in (("small", 800_000), ("large", 4_000_000)):
        with ShardWriter(tmp_path / name, vocab_size=60_000) as writer:
            writer.add_documents(np.full(10 * count, 7, np.uint16), np.full(count, 10))
        command = [sys.executable, "-c", MEASURED, str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        peaks.append(int(done.stdout))
        for path in tmp_path.glob(f"{name}*"):
            path.unlink()
    # The larger shard has 128 MB more on disk.
    assert peaks[1] - peaks[0] < 20_000
