"""PackedSamples: whole documents, positions reset, loss spans as targets, fixed shapes, padding never counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_lengths import ragged

from mmdata.errors import CorruptSampleError, EmptySplitError, PackingError, SampleOptionError, ShardsDifferError
from mmdata.indexed.reader import IndexedDataset
from mmdata.indexed.writer import ShardWriter
from mmdata.samples import PackedSamples
from mmdata.samples.rows import Rows

MakeShard = Any


def chat_shard(prefix: Path, lengths: list[int], spans: list[list[int]], first: int = 1) -> str:
    """A shard with a loss span sidecar; tokens count up from `first`."""
    with ShardWriter(str(prefix), vocab_size=60_000) as writer:
        writer.add_documents(np.arange(first, first + sum(lengths)), np.array(lengths))
    with ShardWriter(f"{prefix}_loss_spans", dtype=np.int32) as writer:
        for flat in spans:
            writer.add_documents(np.array(flat, np.int32), np.array([len(flat)]), np.array([1]))
    return str(prefix)


def read(samples: PackedSamples) -> Rows:
    rows = Rows.empty(len(samples), samples.seq_length)
    samples.read(np.arange(len(samples)), rows)
    return rows


def test_every_document_stands_whole_in_one_row_once_an_epoch(make_shard: MakeShard) -> None:
    prefix = make_shard("a", ragged(200, 4), first=1)
    samples = PackedSamples(prefix, 64)
    ds = IndexedDataset(prefix)
    rows = read(samples)
    assert rows.tokens is not None
    found = []
    for row in range(len(samples)):
        width = int(samples.bins.used()[samples.bin_of(np.array([row]))[0]])
        for number in range(int(rows.documents[row, :width].max()) + 1):
            here = np.flatnonzero(rows.documents[row, :width] == number)
            assert rows.positions[row, here].tolist() == list(range(len(here)))
            assert not rows.counted[row, here[-1]], "nothing is learned across a boundary"
            assert rows.counted[row, here[:-1]].all()
            found.append(tuple(rows.tokens[row, here].tolist()))
        assert not rows.counted[row, width - 1 :].any()
        assert not rows.tokens[row, width:].any()
        assert len(samples[row]) == width
    assert sorted(found) == sorted(tuple(tokens.tolist()) for tokens in ds)
    assert int(rows.counted.sum()) == ds.token_count - len(ds), "a document of n tokens gives n - 1 targets"


def test_loss_spans_are_the_targets_and_nothing_else(tmp_path: Path) -> None:
    spans = [[2, 5, 7, 9], [1, 4], [], [3, 6]]
    lengths = [9, 4, 5, 8]
    samples = PackedSamples(chat_shard(tmp_path / "chat", lengths, spans), 32)
    rows = read(samples)
    assert rows.tokens is not None and len(samples) == 1
    counted = sorted(rows.tokens[0, 1:][rows.counted[0]].tolist())
    starts = np.concatenate(([0], np.cumsum(lengths)))
    expected = [
        1 + int(starts[d]) + token
        for d, flat in enumerate(spans)
        for begin, end in zip(flat[::2], flat[1::2], strict=True)
        for token in range(begin, end)
    ]
    assert counted == sorted(expected)


def test_each_epoch_takes_every_row_once_in_another_order(make_shard: MakeShard) -> None:
    bins = len(PackedSamples(make_shard("a", ragged(300, 4)), 64))
    samples = PackedSamples(str(Path(make_shard("b", ragged(300, 4)))), 64, 3 * bins)
    epochs = samples.bin_of(np.arange(3 * bins)).reshape(3, bins)
    assert all(sorted(epoch.tolist()) == list(range(bins)) for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 3
    assert samples.bin_of(np.array([-1, 0]))[0] == -1
    # Asking for more rows changes nothing in the first ones.
    longer = PackedSamples(samples.group, 64, 9 * bins)
    assert np.array_equal(longer.bin_of(np.arange(3 * bins)).reshape(3, bins), epochs)


def test_documents_of_several_sequences_stay_together(tmp_path: Path) -> None:
    prefix = str(tmp_path / "multi")
    with ShardWriter(prefix, vocab_size=1000) as writer:
        writer.add_document([1, 2, 3, 4, 5], lengths=[2, 3])
        writer.add_document([6, 7, 8])
        writer.add_document([])
        writer.add_document([9, 10], lengths=[1, 1])
    samples = PackedSamples(prefix, 16)
    rows = read(samples)
    assert rows.tokens is not None
    for tokens in ([1, 2, 3, 4, 5], [6, 7, 8], [9, 10]):
        start = rows.tokens[0].tolist().index(tokens[0])
        assert rows.tokens[0, start : start + len(tokens)].tolist() == tokens
        assert rows.positions[0, start : start + len(tokens)].tolist() == list(range(len(tokens)))
        assert len(set(rows.documents[0, start : start + len(tokens)].tolist())) == 1
    assert int(rows.counted.sum()) == 10 - 3


def test_a_full_row_needs_no_padding_and_its_last_position_has_no_target(make_shard: MakeShard) -> None:
    rows = read(PackedSamples(make_shard("a", [8, 8], first=1), 8))
    assert rows.tokens is not None
    assert rows.tokens[:, 8].tolist() == [0, 0]
    assert rows.counted.tolist() == [[True] * 7 + [False]] * 2


def test_a_document_longer_than_a_row_names_shard_document_and_max_length(make_shard: MakeShard) -> None:
    prefix = make_shard("a", [5, 40, 7, 33])
    with pytest.raises(
        PackingError, match=r"a: 2 documents are longer than seq_length 32 .*document 1 with 40.*--max-l"
    ):
        PackedSamples(prefix, 32)


def test_spans_that_lie_name_shard_and_document(tmp_path: Path) -> None:
    for number, flat in enumerate(([0, 3], [2, 2], [4, 11], [3, 6, 5, 8], [1, 2, 3])):
        prefix = chat_shard(tmp_path / f"bad{number}", [10, 10], [[1, 2], flat])
        with pytest.raises(CorruptSampleError, match=r"bad\d: document 1 .*(spans|numbers)"):
            read(PackedSamples(prefix, 32))


def test_shards_with_and_without_spans_are_two_entries(tmp_path: Path, make_shard: MakeShard) -> None:
    chat = chat_shard(tmp_path / "chat", [9], [[2, 5]])
    with pytest.raises(ShardsDifferError, match="two entries of the blend"):
        read(PackedSamples([chat, make_shard("plain", [9])], 32))


def test_a_split_is_of_documents_and_may_not_be_empty(make_shard: MakeShard) -> None:
    prefix = make_shard("a", [10] * 10)
    train = PackedSamples(prefix, 10, split="8,2", subset="train")
    valid = PackedSamples(prefix, 10, split="8,2", subset="valid")
    assert (len(train), len(valid)) == (8, 2)
    assert {int(t[0]) for t in (valid[0], valid[1])} == {80, 90}
    with pytest.raises(EmptySplitError, match="holds no token to pack"):
        PackedSamples(prefix, 10, split="99,1", subset="valid")
    with pytest.raises(SampleOptionError, match="num_samples is 0"):
        PackedSamples(prefix, 10, 0)


def test_several_shards_pack_together_and_cache_gives_the_same(make_shard: MakeShard, tmp_path: Path) -> None:
    first, second = ragged(50, 1), ragged(70, 2)
    group = [make_shard("a", first), make_shard("b", second, first=int(first.sum()))]
    whole = make_shard("c", np.concatenate([first, second]))
    one, many = read(PackedSamples(whole, 64)), read(PackedSamples(group, 64, cache_dir=tmp_path / "cache"))
    again = read(PackedSamples(group, 64, cache_dir=tmp_path / "cache"))
    for name in ("tokens", "counted", "positions", "documents"):
        assert np.array_equal(getattr(one, name), getattr(many, name))
        assert np.array_equal(getattr(many, name), getattr(again, name))
