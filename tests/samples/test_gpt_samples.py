"""GPTSamples gives Megatron's samples, marks boundaries and targets from the index, and names what lies."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_lengths import ragged

from mmdata.errors import CorruptSampleError, EmptySplitError, SampleOptionError, SampleRangeError, ShardsDifferError
from mmdata.indexed.reader import IndexedDataset
from mmdata.indexed.writer import ShardWriter
from mmdata.samples import GPTSamples
from mmdata.samples.rows import Rows
from mmdata.samples.split import parse_split, split_range

MakeShard = Any


def plain(samples: GPTSamples, index: int) -> np.ndarray:
    """Sample `index` put together in Python from the three indices."""
    ds = IndexedDataset(samples.group.prefixes[0])
    j = int(samples.shuffle_index[index])
    (d0, o0), (d1, o1) = samples.sample_index[j].tolist(), samples.sample_index[j + 1].tolist()
    pieces = []
    for d in range(d0, d1 + 1):
        tokens = ds[int(samples.document_index[d])]
        pieces.append(tokens[o0 if d == d0 else 0 : o1 + int(samples.extra_token) if d == d1 else len(tokens)])
    return np.concatenate(pieces)


@pytest.mark.parametrize("vocab_size", [60_000, 100_000])
@pytest.mark.parametrize("extra", [True, False])
def test_samples_equal_a_plain_reading_of_the_indices(make_shard: MakeShard, vocab_size: int, extra: bool) -> None:
    samples = GPTSamples(make_shard("a", ragged(80, 3), vocab_size), 16, 200, extra_token=extra)
    assert len(samples) >= 200
    out = np.full((len(samples), 16 + extra), -5, dtype=np.int64)
    samples.fill(np.arange(len(samples)), out)
    for index in range(len(samples)):
        expected = plain(samples, index)
        assert len(expected) == 16 + extra
        assert np.array_equal(samples[index], expected)
        assert np.array_equal(out[index], expected)
    assert samples[-1].tolist() == samples[len(samples) - 1].tolist()
    assert samples[0].dtype == (np.uint16 if vocab_size == 60_000 else np.int32)


def test_known_first_tokens_of_three_tokens_repeated(tmp_path: Path) -> None:
    with ShardWriter(str(tmp_path / "three"), vocab_size=1000) as writer:
        writer.add_document([1, 2, 999])
    samples = GPTSamples(str(tmp_path / "three"), 8, 3)
    assert len(samples) == 3
    tokens = [samples[int(i)].tolist() for i in np.argsort(samples.shuffle_index)]
    assert tokens[0][:8] == [1, 2, 999, 1, 2, 999, 1, 2]
    assert tokens[1][0] == tokens[0][8]


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_every_sample_equals_megatron_cores_over_the_same_shard(make_shard: MakeShard) -> None:
    gpt = pytest.importorskip("megatron.core.datasets.gpt_dataset")
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    split = pytest.importorskip("megatron.core.datasets.utils").Split

    class Tokenizer:
        vocab_size, eod, pad, unique_identifiers = 60_000, 59_999, 59_998, {"name": "none"}

    prefix = make_shard("a", ragged(300, 8, longest=100))
    for subset, number in (("train", 0), ("valid", 1)):
        config = gpt.GPTDatasetConfig(
            random_seed=77, sequence_length=64, blend=([prefix], None), split="80,20", tokenizer=Tokenizer(),
            reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False,
            path_to_cache="",
        )  # fmt: skip
        low, high = config.split_matrix[number]
        low_level = indexed.IndexedDataset(prefix)
        indices = np.arange(round(low * len(low_level)), round(high * len(low_level)), dtype=np.int32)
        theirs = gpt.GPTDataset(low_level, prefix, indices, 500, split.train, config)
        mine = GPTSamples(prefix, 64, 500, 77, split="80,20", subset=subset)  # type: ignore[arg-type]
        assert len(mine) == len(theirs)
        rows = Rows.empty(len(mine), 64)
        mine.read(np.arange(len(mine)), rows)
        assert rows.tokens is not None
        for index in range(len(mine)):
            item = theirs[index]
            assert rows.tokens[index, :-1].tolist() == item["tokens"].tolist()
            assert rows.tokens[index, 1:].tolist() == item["labels"].tolist()
            assert rows.counted[index].tolist() == item["loss_mask"].bool().tolist()
            assert rows.positions[index].tolist() == item["position_ids"].tolist()


def test_a_partial_last_sample_is_padded_and_padding_never_counts(make_shard: MakeShard) -> None:
    samples = GPTSamples(make_shard("a", [10, 11]), 8, None, drop_last=False)
    assert len(samples) == 3
    partial = int(np.flatnonzero(samples.shuffle_index == 2)[0])
    assert len(samples[partial]) == 5
    rows = Rows.empty(1, 8)
    samples.read(np.array([partial]), rows)
    assert rows.tokens is not None
    assert rows.tokens[0, 5:].tolist() == [0, 0, 0, 0]
    assert rows.counted[0].tolist() == [True] * 4 + [False] * 4


def test_an_index_of_minus_one_is_a_row_in_which_nothing_counts(make_shard: MakeShard) -> None:
    samples = GPTSamples(make_shard("a", [50, 50]), 8, 5)
    rows = Rows.empty(3, 8)
    rows.tokens[:] = 7  # type: ignore[index]
    samples.read(np.array([0, -1, 1]), rows)
    assert rows.tokens is not None
    assert rows.tokens[1].tolist() == [0] * 9
    assert rows.counted.sum(axis=1).tolist() == [8, 0, 8]
    assert rows.positions[1].tolist() == list(range(8))


def test_positions_and_documents_restart_at_true_boundaries_without_any_end_token(make_shard: MakeShard) -> None:
    samples = GPTSamples(make_shard("a", [3, 5, 4]), 11, 1, reset_positions=True, reset_attention=True)
    rows = Rows.empty(1, 11)
    samples.read(np.array([0]), rows)
    sizes = [n for n in (int(IndexedDataset(samples.group.prefixes[0]).sequence_lengths[d])
                         for d in samples.document_index) if n]  # fmt: skip
    positions = [p for size in sizes for p in range(size)][:11]
    documents = [number for number, size in enumerate(sizes) for _ in range(size)][:11]
    assert rows.positions[0].tolist() == positions
    assert rows.documents[0].tolist() == documents
    firsts = {sum(sizes[:k]) for k in range(1, len(sizes))}
    assert rows.counted[0].tolist() == [q + 1 not in firsts for q in range(11)]


def test_without_resets_a_row_is_one_stream(make_shard: MakeShard) -> None:
    samples = GPTSamples(make_shard("a", [3, 5, 4]), 11, 1)
    rows = Rows.empty(1, 11)
    samples.read(np.array([0]), rows)
    assert rows.positions[0].tolist() == list(range(11))
    assert not rows.documents.any() and rows.counted.all()
    assert not samples.isolates


def test_several_shards_are_one_row_of_documents(make_shard: MakeShard) -> None:
    first, second = ragged(40, 1), ragged(60, 2)
    parts = [make_shard("a", first), make_shard("b", second, first=int(first.sum()))]
    whole = make_shard("whole", np.concatenate([first, second]))
    one, many = GPTSamples(whole, 16, 150), GPTSamples(parts, 16, 150)
    assert np.array_equal(one.shuffle_index, many.shuffle_index)
    assert all(np.array_equal(a, b) for a, b in zip(one, many, strict=True))
    piece = many.pieces(0)[0]
    assert piece.shard in parts


def test_the_index_needs_no_tokens(make_shard: MakeShard) -> None:
    samples = GPTSamples(make_shard("a", ragged(50, 5)), 16, 20, reset_positions=True, reset_attention=True)
    with_tokens, without = Rows.empty(20, 16), Rows.empty(20, 16, with_tokens=False)
    samples.read(np.arange(20), with_tokens)
    samples.read(np.arange(20), without)
    assert without.tokens is None
    for name in ("positions", "documents", "counted"):
        assert np.array_equal(getattr(with_tokens, name), getattr(without, name))


@pytest.mark.parametrize("cached", [False, True])
def test_samples_survive_pickling(make_shard: MakeShard, tmp_path: Path, cached: bool) -> None:
    samples = GPTSamples(make_shard("a", ragged(2000, 5)), 16, 5000, cache_dir=tmp_path / "cache" if cached else None)
    content = pickle.dumps(samples)
    assert not cached or len(content) < 2000, "a cached index is mapped again, not sent"
    again = pickle.loads(content)
    assert np.array_equal(again[7], samples[7])
    assert again.fingerprint == samples.fingerprint


def test_a_lying_pointer_names_shard_and_document(make_shard: MakeShard) -> None:
    prefix = make_shard("a", [20, 20, 20, 20])
    content = bytearray(Path(prefix + ".idx").read_bytes())
    # Pointers follow the 34 bytes of header and 4 lengths of 4 bytes: move the third sequence's.
    content[34 + 16 + 16 : 34 + 16 + 24] = (78).to_bytes(8, "little")
    Path(prefix + ".idx").write_bytes(content)
    samples = GPTSamples(prefix, 16, None)
    with pytest.raises(CorruptSampleError, match=r"a: document [12] \(sequence [12], tokens .*mmdata verify"):
        samples.fill(np.arange(len(samples)), np.empty((len(samples), 17), np.int32))


def test_an_empty_part_of_a_split_is_an_error_that_names_it(make_shard: MakeShard) -> None:
    prefix = make_shard("a", [20] * 10)
    with pytest.raises(EmptySplitError, match=r"valid of split 99,1,0 \(0 of 10 sequences\).*holds no token"):
        GPTSamples(prefix, 16, 5, split="99,1,0", subset="valid")
    with pytest.raises(SampleOptionError, match="gives test no share"):
        GPTSamples(prefix, 16, 5, split="99,1,0", subset="test")


def test_the_parts_of_a_split_share_nothing_and_leave_nothing(make_shard: MakeShard) -> None:
    prefix = make_shard("a", [20] * 100)
    seen = [set(GPTSamples(prefix, 16, None, split="90,7,3", subset=s).document_index.tolist())
            for s in ("train", "valid", "test")]  # fmt: skip
    assert [len(s) for s in seen] == [90, 7, 3]
    assert len(set.union(*seen)) == 100


@pytest.mark.parametrize("text", ["", "a,b", "1,2,3,4", "-1,2", "0,0,0", "nan", "inf,1"])
def test_a_malformed_split_is_refused(text: str) -> None:
    with pytest.raises(SampleOptionError, match="split"):
        parse_split(text)


def test_split_ranges_round_as_megatron_rounds() -> None:
    assert split_range("969,30,1", "valid", 1000) == range(969, 999)
    assert split_range("1,1", "train", 5) == range(2)  # 2.5 rounds to the even 2
    assert split_range("1,1", "train", 7) == range(4)  # 3.5 rounds to the even 4


def test_shards_of_different_dtype_are_refused(make_shard: MakeShard) -> None:
    with pytest.raises(ShardsDifferError, match=r"dtype uint16 and .* has int32"):
        GPTSamples([make_shard("a", [30], 60_000), make_shard("b", [30], 100_000)], 16, 1)


def test_a_sample_outside_is_an_index_error(make_shard: MakeShard) -> None:
    samples = GPTSamples(make_shard("a", [40]), 16, None)
    with pytest.raises(IndexError):
        samples[2]
    with pytest.raises(SampleRangeError, match="samples 0 to 2 of 2"):
        samples.parts(np.arange(3))


def test_iteration_ends(make_shard: MakeShard) -> None:
    assert len(list(GPTSamples(make_shard("a", [100]), 16, None))) == 6
