"""Splitting: where documents go, that they stay whole, and that sidecars and manifests follow."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from small_shards import contents, file, full_shard, plain_shard, random_documents

from mmdata import errors
from mmdata.indexed import IndexedDataset, ShardWriter, merge_shards, read_manifest, split_of, split_shard, verify_shard
from mmdata.indexed.paths import key_suffix
from mmdata.indexed.split import order_bounds, parse_ratio, size_bounds

SPLITS = ("train", "valid", "test")


def test_split_of_is_this_very_function() -> None:
    # A change here would silently move documents between train and test.
    lines = np.arange(1, 25)
    assert split_of(1234, np.zeros(24, np.int64), lines, "6,3,1").tolist() == GOLDEN
    assert [by_hand(1234, 0, int(line), (6, 3, 1)) for line in lines] == GOLDEN
    for seed, number, line in ((0, 0, 1), (-1, 7, 2**40), (2**63, 3, 12)):
        assert split_of(seed, [number], [line], "1,1,1").tolist() == [by_hand(seed, number, line, (1, 1, 1))]


def mix(value: int) -> int:
    """SplitMix64's next output from a state, in Python integers."""
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


def by_hand(seed: int, number: int, line: int, shares: tuple[int, ...]) -> int:
    start = mix((seed + 0x9E3779B97F4A7C15) % 2**64)
    point = mix(mix((number + start) % 2**64) ^ line)
    return sum(point * sum(shares) >= sum(shares[: n + 1]) * 2**64 for n in range(len(shares) - 1))


GOLDEN = [2, 0, 1, 0, 2, 1, 1, 2, 0, 1, 0, 0, 0, 2, 0, 2, 0, 0, 2, 1, 0, 2, 0, 0]


def test_split_of_hits_the_shares_and_is_independent_between_seeds_and_inputs() -> None:
    lines = np.arange(1, 100_001)
    zero = np.zeros(lines.size, np.int64)
    splits = split_of(1, zero, lines, "70,20,10")
    shares = np.bincount(splits) / lines.size
    assert np.abs(shares - [0.7, 0.2, 0.1]).max() < 0.005
    for other in (split_of(2, zero, lines, "70,20,10"), split_of(1, zero + 1, lines, "70,20,10")):
        expected = 0.7**2 + 0.2**2 + 0.1**2
        assert abs(float((splits == other).mean()) - expected) < 0.01


def test_split_of_does_not_depend_on_what_else_is_there() -> None:
    numbers, lines = np.repeat([0, 1, 2], 50), np.tile(np.arange(1, 51), 3)
    whole = split_of(7, numbers, lines, (8, 1, 1))
    assert whole[60:90].tolist() == split_of(7, numbers[60:90], lines[60:90], (8, 1, 1)).tolist()
    assert split_of(7, numbers, lines, "0.8,0.1,0.1").tolist() == whole.tolist()
    assert split_of(7, [], [], "1,1").tolist() == [] and whole.dtype == np.uint8


def test_zero_shares_get_nothing() -> None:
    lines = np.arange(1, 2000)
    zero = np.zeros(lines.size, np.int64)
    assert set(split_of(3, zero, lines, "1,0,0")) == {0} and set(split_of(3, zero, lines, "0,0,5")) == {2}
    assert set(split_of(3, zero, lines, "1,0,1")) == {0, 2} and set(split_of(3, zero, lines, "9")) == {0}
    assert set(split_of(-5, zero, lines + 2**40, "1,1")) == {0, 1}


@pytest.mark.parametrize("ratio", ["", "a,b", "1,2,3,4", "0,0", "-1,2", [0.5, -0.5], [], "1;2", [float("nan"), 1.0]])
def test_bad_ratios_are_refused(ratio: str | list[float]) -> None:
    with pytest.raises(errors.UsageError, match=r"969,30,1|at least 0"):
        parse_ratio(ratio)


def test_ratio_may_be_written_several_ways() -> None:
    assert (
        parse_ratio("969,30,1") == parse_ratio("969/30/1") == parse_ratio(" 969, 30, 1 ") == parse_ratio([969, 30, 1])
    )
    assert parse_ratio("0.9,0.1") == parse_ratio((0.9, 0.1))


def test_hash_split_covers_everything_once_and_keeps_order(tmp_path: Path) -> None:
    documents = random_documents(300)
    spans = [[1, len(tokens)] if len(tokens) > 1 else [] for tokens in documents]
    source = full_shard(tmp_path / "my_text_document", documents, spans=spans)
    parts = split_shard(source, tmp_path / "out", "60,30,10", seed=5)
    assert [part.prefix for part in parts] == [str(tmp_path / f"out_{name}_text_document") for name in SPLITS]
    assert sum(part.documents for part in parts) == 300 and all(part.documents for part in parts)
    lines = np.arange(1, 301)
    splits = split_of(5, np.zeros(300, np.int64), lines, "60,30,10")
    for number, part in enumerate(parts):
        chosen = np.flatnonzero(splits == number)
        ds = IndexedDataset(part.prefix)
        assert contents(Path(part.prefix)) == [[*documents[i], 9] for i in chosen]
        assert [origin.line for i in range(len(ds)) if (origin := ds.origin(i))] == (chosen + 1).tolist()
        assert [ds.loss_spans(k).ravel().tolist() for k in range(len(ds))] == [spans[i] for i in chosen]
        manifest = ds.manifest
        assert manifest is not None and manifest.options["cut"] == {
            "by": "hash",
            "ratio": ["60", "30", "10"],
            "seed": 5,
        }
        assert manifest.counts == {"read": 300} and manifest.documents == len(chosen)
        assert verify_shard(part.prefix, deep=True).findings == []


def test_appending_documents_moves_none(tmp_path: Path) -> None:
    documents = random_documents(200)
    before = full_shard(tmp_path / "a_text_document", documents[:120])
    after = full_shard(tmp_path / "b_text_document", documents)
    for part, longer in zip(
        split_shard(before, tmp_path / "x", "5,3,2"), split_shard(after, tmp_path / "y", "5,3,2"), strict=True
    ):
        short = contents(Path(part.prefix))
        assert contents(Path(longer.prefix))[: len(short)] == short


def test_order_split_gives_contiguous_ranges_of_whole_documents(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=2000) as writer:
        for number in range(100):
            writer.add_document([number] * 3, lengths=[1, 2])
    parts = split_shard(tmp_path / "x", tmp_path / "out", "8,1,1", by="order")
    assert [part.prefix for part in parts] == [str(tmp_path / f"out_{name}") for name in SPLITS]
    assert [(part.documents, part.sequences) for part in parts] == [(80, 160), (10, 20), (10, 20)]
    assert list(itertools.chain(*(contents(Path(part.prefix)) for part in parts))) == contents(tmp_path / "x")


def test_share_of_zero_writes_no_shard_and_an_empty_range_an_empty_one(tmp_path: Path) -> None:
    source = full_shard(tmp_path / "x", random_documents(3))
    assert [Path(p.prefix).name for p in split_shard(source, tmp_path / "a", "1,0,1", by="order")] == [
        "a_train",
        "a_test",
    ]
    parts = split_shard(source, tmp_path / "b", "969,30,1", by="order")
    assert [part.documents for part in parts] == [3, 0, 0]
    assert all(verify_shard(part.prefix, deep=True).ok for part in parts)


@pytest.mark.parametrize("max_tokens", [1, 7, 50, 10_000])
def test_size_split_never_exceeds_the_limit_but_for_a_longer_document(tmp_path: Path, max_tokens: int) -> None:
    documents = random_documents(80)
    source = full_shard(tmp_path / "x_text_document", documents)
    parts = split_shard(source, tmp_path / "out", max_tokens=max_tokens)
    assert [part.prefix for part in parts] == [str(tmp_path / f"out_{n:05d}_text_document") for n in range(len(parts))]
    for part, following in itertools.pairwise([*parts, None]):
        assert part is not None and (part.tokens <= max_tokens or part.documents == 1)
        if following is not None:
            first = len(contents(Path(following.prefix))[0])
            assert part.tokens + first > max_tokens
    assert list(itertools.chain(*(contents(Path(part.prefix)) for part in parts))) == contents(source)
    merge_shards([part.prefix for part in parts], tmp_path / "again")
    for ending in (".bin", ".idx", "_origin.bin", "_origin.idx"):
        assert file(tmp_path / "again", ending).read_bytes() == file(source, ending).read_bytes()


def test_size_bounds_agree_with_a_walk_whatever_the_blocks() -> None:
    generator = np.random.default_rng(0)
    for limit in (1, 5, 9, 40):
        lengths = generator.integers(0, 12, 200)
        wanted, total = [], 0
        for number, length in enumerate(lengths):
            if total and total + length > limit:
                wanted.append(number)
                total = 0
            total += int(length)
        wanted.append(200)
        ends = np.cumsum(lengths)
        for size in (1, 3, 64, 500):
            assert size_bounds((ends[a : a + size] for a in range(0, 200, size)), limit) == wanted
    assert size_bounds(iter(()), 5) == []


def test_order_bounds_end_at_the_count() -> None:
    for count in (0, 1, 2, 7, 1000):
        assert order_bounds(count, "969,30,1")[-1] == count


def test_mode_bytes_survive_every_split(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=10, multimodal=True) as writer:
        for number in range(9):
            writer.add_document([number, number], lengths=[1, 1], modes=[0, number])
    for part, numbers in zip(
        split_shard(tmp_path / "x", tmp_path / "o", "1,1,1", by="order"), ([0, 1, 2], [3, 4, 5], [6, 7, 8]), strict=True
    ):
        modes = IndexedDataset(part.prefix, multimodal=True).sequence_modes
        assert modes is not None and modes.tolist() == [mode for number in numbers for mode in (0, number)]


def test_hash_split_without_origins_names_the_other_way(tmp_path: Path) -> None:
    with pytest.raises(errors.SidecarMissingError, match="--split-by order"):
        split_shard(plain_shard(tmp_path / "x", [[1]]), tmp_path / "o", "1,1")


@pytest.mark.parametrize(
    "options", [{}, {"ratio": "1,1", "max_tokens": 5}, {"max_tokens": 0}, {"ratio": "1,1", "by": "size"}]
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(errors.UsageError):
        split_shard(plain_shard(tmp_path / "x", [[1]]), tmp_path / "o", **options)  # type: ignore[arg-type]


def test_parts_of_an_earlier_split_are_refused_or_removed(tmp_path: Path) -> None:
    source = full_shard(tmp_path / "x_text_document", random_documents(30))
    split_shard(source, tmp_path / "o", max_tokens=60)
    split_shard(source, tmp_path / "o", "8,1,1")
    with pytest.raises(errors.OutputExistsError):
        split_shard(source, tmp_path / "o", max_tokens=10_000)
    split_shard(source, tmp_path / "o", max_tokens=10_000, overwrite=True)
    assert sorted(path.name for path in tmp_path.glob("o_0*.idx") if "origin" not in path.name) == [
        "o_00000_text_document.idx"
    ]
    for ending in (".bin", ".idx", ".json", "_origin.bin", "_origin.idx"):
        for name in ("train", "valid"):
            file(tmp_path / f"o_{name}_text_document", ending).unlink()
    with pytest.raises(errors.OutputExistsError, match="earlier split"):
        split_shard(source, tmp_path / "o", "9,1,0")
    split_shard(source, tmp_path / "o", "9,1,0", overwrite=True)
    assert not file(tmp_path / "o_test_text_document", ".idx").exists()


def test_a_failure_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmdata.indexed import shardset

    source = full_shard(tmp_path / "x_text_document", random_documents(30))
    publish, calls = shardset.publish_shard, []

    def second_fails(*arguments: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise errors.DiskFullError("full")
        return publish(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(shardset, "publish_shard", second_fails)
    with pytest.raises(errors.DiskFullError):
        split_shard(source, tmp_path / "o", "1,1,1")
    assert not list(tmp_path.glob("o_*"))


@pytest.mark.parametrize(
    ("prefix", "key", "suffix"),
    [
        ("out/my_text_document", None, "_text_document"),
        ("out/my_content_sentence", None, "_content_sentence"),
        ("out/my_long_key_document", "long_key", "_long_key_document"),
        ("out_text_document/plain", None, ""),
        ("x", None, ""),
        ("_text_document", None, ""),
    ],
)
def test_key_suffix_is_found_in_the_prefix(prefix: str, key: str | None, suffix: str) -> None:
    assert key_suffix(prefix, key) == suffix


def test_source_manifest_is_not_changed(tmp_path: Path) -> None:
    source = full_shard(tmp_path / "x", random_documents(10))
    before = file(source, ".json").read_bytes()
    split_shard(source, tmp_path / "o", "1,1")
    assert file(source, ".json").read_bytes() == before and read_manifest(str(source)) is not None


@pytest.mark.parametrize("failing", [1, 2])
def test_an_overwrite_that_fails_leaves_the_old_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    from mmdata.indexed import publish

    source = full_shard(tmp_path / "x_text_document", random_documents(30))
    split_shard(source, tmp_path / "o", "8,1,1")
    before = {path.name: path.read_bytes() for path in tmp_path.glob("o_*")}
    sync, calls = publish.sync_directory, []

    def fails_half_way(path: str) -> None:
        calls.append(path)
        if len(calls) == 3 * failing - 1:  # of three calls a part, the one when only its index is missing
            raise errors.DiskFullError("full")
        sync(path)

    with monkeypatch.context() as patch:
        patch.setattr(publish, "sync_directory", fails_half_way)
        with pytest.raises(errors.DiskFullError):
            split_shard(source, tmp_path / "o", "4,3,3", overwrite=True)
    after = {path.name: path.read_bytes() for path in tmp_path.glob("o_*")}
    assert sorted(after) == sorted(before)
    assert after == before
    split_shard(source, tmp_path / "o", "4,3,3", overwrite=True)
    assert not list(tmp_path.glob("*.replaced"))
