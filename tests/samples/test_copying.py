"""Pieces of many shards copied into a batch: every token, whatever the dtypes, the layout and the number of pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_lengths import ragged

from mmdata.errors import CorruptSampleError
from mmdata.indexed.reader import IndexedDataset
from mmdata.indexed.writer import ShardWriter
from mmdata.samples import GPTSamples, PackedSamples
from mmdata.samples.rows import Rows
from mmdata.samples.shards import ShardGroup

MakeShard = Any


def shards_of(make_shard: MakeShard, count: int, vocab_size: int = 60_000) -> list[str]:
    """Shards of 0 to 60 sequences each; every token tells its place."""
    prefixes, first = [], 0
    for number in range(count):
        lengths = ragged((number * 37) % 61, number)
        prefixes.append(make_shard(f"s{number:03}", lengths, vocab_size, first=first))
        first += int(lengths.sum())
    return prefixes


def pieces_of(group: ShardGroup, count: int, width: int, seed: int) -> np.ndarray:
    """`count` random pieces, one a row, as int64 [6, count]."""
    rng = np.random.RandomState(seed)
    sequences = rng.randint(len(group), size=count)
    lengths = group.lengths[sequences].astype(np.int64)
    offsets = rng.randint(lengths + 1)
    taken = rng.randint(lengths - offsets + 1)
    columns = rng.randint(width - taken)
    rows = np.arange(count)
    return np.stack([rows, columns, sequences, offsets, taken, np.ones(count, np.int64)]).astype(np.int64)


def expected(group: ShardGroup, parts: np.ndarray, like: np.ndarray) -> np.ndarray:
    """What copying should give, sequence by sequence through the reader."""
    sequences = [tokens for shard in group.shards for tokens in shard]
    result = np.full_like(like, 7)
    for row, column, sequence, offset, taken, _ in parts.T.tolist():
        result[row, column : column + taken] = sequences[sequence][offset : offset + taken]
    return result


@pytest.mark.parametrize("shards", [1, 2, 3, 64, 65])
@pytest.mark.parametrize("vocab_size", [60_000, 100_000])
@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_pieces_of_any_number_of_shards_arrive_in_any_dtype(
    make_shard: MakeShard, shards: int, vocab_size: int, dtype: Any
) -> None:
    group = ShardGroup(shards_of(make_shard, shards + 1, vocab_size)[1:])
    assert int(group.lengths.sum()) < 60_000, "every token fits uint16"
    for count in (1, 511, 512, 513, 1500):
        parts = pieces_of(group, count, 64, count)
        out = np.full((count, 64), 7, dtype)
        group.copy(parts, out)
        assert np.array_equal(out, expected(group, parts, out))


def test_a_batch_may_be_a_view_of_any_layout(make_shard: MakeShard) -> None:
    group = ShardGroup(shards_of(make_shard, 5))
    parts = pieces_of(group, 200, 64, 1)
    wanted = expected(group, parts, np.empty((200, 64), np.uint16))
    room = np.full((200, 130), 7, np.uint16)
    for view in (room[:, 3:67], room[:, ::2][:, :64], np.full((64, 200), 7, np.uint16).T):
        room[:] = view[:] = 7
        group.copy(parts, view)
        assert np.array_equal(view, wanted)
        view[:] = 7
        assert (room == 7).all(), "nothing is written beside the view"


def test_pieces_longer_than_what_is_asked_for_ahead_arrive_whole(make_shard: MakeShard) -> None:
    # 16 KiB are asked for ahead and 8 KiB before a piece's turn: lengths below, at and beyond both.
    lengths = [1, 2047, 2048, 2049, 4095, 4096, 4097, 20_000, 5]
    samples = GPTSamples(make_shard("long", lengths, 100_000), 4096, 40)
    tokens = np.concatenate(list(IndexedDataset(samples.group.prefixes[0])))
    starts = np.concatenate(([0], np.cumsum(lengths)))
    stream = np.concatenate([tokens[starts[d] : starts[d + 1]] for d in samples.document_index])
    out = np.zeros((40, 4097), np.int32)
    samples.fill(np.arange(40), out)
    for row, sample in zip(out, samples.shuffle_index[:40].tolist(), strict=True):
        assert np.array_equal(row, stream[sample * 4096 : sample * 4096 + 4097])


def test_what_lies_in_one_of_many_shards_is_named_wherever_it_stands(make_shard: MakeShard) -> None:
    prefixes = [make_shard(f"s{number}", [20] * 300) for number in range(4)]
    content = bytearray(Path(prefixes[2] + ".idx").read_bytes())
    place = 34 + 4 * 300 + 8 * 150
    content[place : place + 8] = (2**62).to_bytes(8, "little")
    Path(prefixes[2] + ".idx").write_bytes(content)
    group = ShardGroup(prefixes)
    out = np.zeros((1200, 20), np.int32)
    sequences = np.arange(1200)
    parts = np.zeros((6, 1200), np.int64)
    parts[0], parts[2], parts[4], parts[5] = sequences, sequences, 20, 1
    with pytest.raises(CorruptSampleError, match=r"s2: document 149 \(sequence 149, tokens 0 to 20\).*verify"):
        group.copy(parts, out)
    group.copy(parts[:, [0, 599, 748, 751, 1199]], out)
    assert out[1199].tolist() == list(range(5980, 6000))


@pytest.mark.parametrize("offset, taken", [(-1, 5), (16, 5), (21, 1), (0, 2**40)])
def test_a_piece_beyond_its_sequence_is_refused(make_shard: MakeShard, offset: int, taken: int) -> None:
    group = ShardGroup([make_shard("a", [20, 20])])
    parts = np.array([[0], [0], [1], [offset], [taken], [1]])
    with pytest.raises(CorruptSampleError, match="a: document 1"):
        group.copy(parts, np.zeros((1, 32), np.int32))


def chat_shards(folder: Path, count: int) -> list[str]:
    """Shards of 20 sequences of 12 tokens; sequence i counts tokens [1 + i % 5, 6 + i % 5) and [11, 12)."""
    prefixes = []
    for number in range(count):
        prefix = str(folder / f"chat{number}")
        with ShardWriter(prefix, vocab_size=60_000) as writer:
            writer.add_documents(np.arange(240) + 240 * number, np.full(20, 12))
        with ShardWriter(f"{prefix}_loss_spans", dtype=np.int32) as writer:
            spans = [[1 + i % 5, 6 + i % 5, 11, 12] for i in range(number, number + 20)]
            writer.add_documents(np.array(spans, np.int32).reshape(-1), np.full(20, 4))
        prefixes.append(prefix)
    return prefixes


def targets(samples: PackedSamples) -> list[int]:
    rows = Rows.empty(len(samples), samples.seq_length)
    samples.read(np.arange(len(samples)), rows)
    assert rows.tokens is not None
    return sorted(
        int(token) for row, counted in zip(rows.tokens, rows.counted, strict=True) for token in row[1:][counted]
    )


def test_loss_spans_of_many_shards_are_each_their_own(tmp_path: Path) -> None:
    counted = []
    for number in range(7):
        for i in range(20):
            first = 240 * number + 12 * i
            begin = 1 + (i + number) % 5
            counted += [first + token for token in (*range(begin, begin + 5), 11)]
    assert targets(PackedSamples(chat_shards(tmp_path, 7), 64)) == sorted(counted)


def test_shards_at_remote_addresses_give_what_local_ones_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    monkeypatch.setenv("MMDATA_CACHE_DIR", str(tmp_path / "cache"))
    local = chat_shards(tmp_path, 3)
    for path in tmp_path.glob("chat*"):
        memory.pipe_file(f"/samples/{path.name}", path.read_bytes())
    try:
        mixed = [local[0], "memory://samples/chat1", local[2]]
        assert targets(PackedSamples(mixed, 64)) == targets(PackedSamples(local, 64))
        far, near = GPTSamples(mixed, 16, 90), GPTSamples(local, 16, 90)
        assert all(np.array_equal(a, b) for a, b in zip(far, near, strict=True))
    finally:
        memory.rm("/samples", recursive=True)
