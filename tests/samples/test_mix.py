"""Mixes: entries resolved and frozen, prolonged without rebuilding, changed without repeating what was consumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_lengths import ragged

from mmdata.errors import BlendError, ShardChangedError, ShardNotFoundError
from mmdata.indexed.writer import ShardWriter
from mmdata.samples import BlendedSamples, GPTSamples, PackedSamples
from mmdata.samples.entries import Entry, parse_data_path, resolve
from mmdata.samples.mix import Mix, Resume, resume_mix, start_mix
from mmdata.samples.mix_plan import MixOptions, megatron_sizes

MakeShard = Any
OPTIONS = MixOptions(seq_length=16, seed=5)


@pytest.fixture
def entries(make_shard: MakeShard) -> list[Entry]:
    weights = {"a": 0.5, "b": 0.3, "c": 0.2}
    return [
        resolve(make_shard(name, ragged(200, k), first=k * 9000), weight)
        for k, (name, weight) in enumerate(weights.items())
    ]


def drawn_from(mix: Mix, start: int, stop: int, path: str) -> list[tuple[int, ...]]:
    """The samples of an entry among the run's samples [start, stop), as token tuples."""
    found = []
    parts, local = mix.samples.locate(np.arange(start, stop))
    for part, index in zip(parts.tolist(), local.tolist(), strict=True):
        blend = mix.blends[part]
        if mix.phases[part].sets[int(blend.dataset_index[index])].path == path:
            found.append(tuple(blend[index].tolist()))
    return found


def saved(mix: Mix) -> Any:
    """The state as it comes back from a checkpoint: JSON and nothing else."""
    return json.loads(json.dumps(mix.state()))


# What users write.


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a"], [("a", None)]),
        (["a", "b", "c"], [("a", None), ("b", None), ("c", None)]),
        (["0.3", "a", "0.7", "b"], [("a", 0.3), ("b", 0.7)]),
        (["1", "2"], [("2", 1.0)]),
        (["30", " a ", "7e1", "b"], [("a", 30.0), ("b", 70.0)]),
        (["a", "b"], [("a", None), ("b", None)]),
    ],
)
def test_data_paths_are_read_as_megatron_reads_them(words: list[str], expected: list[Any]) -> None:
    assert parse_data_path(words) == expected


@pytest.mark.parametrize("words", [[], ["0.3", "a", "0.7"], ["a", "0.3"], ["0.3", "a", "b", "0.7"]])
def test_lists_that_are_neither_are_refused_where_megatron_guesses(words: list[str]) -> None:
    with pytest.raises(BlendError, match="data paths"):
        parse_data_path(words)


def test_a_folder_or_glob_is_one_entry_in_sorted_order_without_sidecars(make_shard: MakeShard, tmp_path: Path) -> None:
    for name in ("b_text_document", "a_text_document", "a_text_document_origin", "lonely_loss_spans"):
        make_shard(name, [5])
    names = ["a_text_document", "b_text_document", "lonely_loss_spans"]
    assert resolve(str(tmp_path)).shards == tuple(str(tmp_path / name) for name in names)
    assert resolve(str(tmp_path / "*_document")).shards == tuple(str(tmp_path / name) for name in names[:2])
    assert resolve(str(tmp_path / "a_text_document.bin")).shards == (str(tmp_path / "a_text_document"),)
    for missing in ("nothing", "nothing*"):
        with pytest.raises(ShardNotFoundError, match="nothing"):
            resolve(str(tmp_path / missing))


# A new run.


def test_a_new_mix_is_megatrons_blend_of_sets_with_its_surplus(entries: list[Entry]) -> None:
    mix = start_mix(entries, 400, OPTIONS)
    sizes, total = megatron_sizes([0.5, 0.3, 0.2], 400)
    sets = [GPTSamples(e.shards[0], 16, n, 5) for e, n in zip(entries, sizes, strict=True)]
    plain = BlendedSamples(sets, [0.5, 0.3, 0.2], total)
    assert len(mix.samples) == 400
    assert all(np.array_equal(mix.samples[i], plain[i]) for i in range(400))


def test_a_single_entry_is_its_own_order(entries: list[Entry]) -> None:
    mix = start_mix(entries[:1], 500, OPTIONS)
    alone = GPTSamples(entries[0].shards[0], 16, 500, 5)
    assert all(np.array_equal(mix.samples[i], alone[i]) for i in range(500))


def test_surplus_never_runs_out(make_shard: MakeShard) -> None:
    # Many small sets with uneven weights, where draws exceed what 0.5 % surplus gives.
    entries = [resolve(make_shard(f"s{k}", [17], first=20 * k), 1.0 + 0.37 * k) for k in range(12)]
    for size in (13, 50, 99, 1000):
        mix = start_mix(entries, size, OPTIONS)
        assert len(mix.samples) == size
        mix.samples[size - 1]


def test_without_weights_each_entry_comes_once_or_in_proportion(make_shard: MakeShard) -> None:
    entries = [resolve(make_shard("a", [160] * 10)), resolve(make_shard("b", [160] * 30, first=2000))]
    once = start_mix(entries, None, OPTIONS)
    assert len(once.samples) == 99 + 299
    assert len({tuple(once.samples[i].tolist()) for i in range(398)}) == 398
    twice = start_mix(entries, 800, OPTIONS)
    counts = list(twice.drawn(800).values())
    assert counts[1] / counts[0] == pytest.approx(3, rel=0.03)


def test_weights_by_epoch_and_by_token(make_shard: MakeShard) -> None:
    entries = [resolve(make_shard("a", [161] * 10), 2.0), resolve(make_shard("b", [161] * 30, first=2000), 0.5)]
    by_epoch = start_mix(entries, None, MixOptions(16, 5, weigh_by="epoch"))
    assert list(by_epoch.drawn(len(by_epoch.samples)).values()) == pytest.approx([200, 150], abs=1)
    with pytest.raises(BlendError, match="the epochs give"):
        start_mix(entries, 10_000, MixOptions(16, 5, weigh_by="epoch"))
    short = [resolve(make_shard("c", [9] * 50), 1.0), resolve(make_shard("d", [16] * 50, first=900), 1.0)]
    by_token = start_mix(short, 300, MixOptions(16, 5, mode="packed", weigh_by="token"))
    assert list(by_token.drawn(300).values()) == pytest.approx([300 * 16 / 25, 300 * 9 / 25], abs=2)


def test_chat_entries_are_packed_and_plain_ones_are_not(make_shard: MakeShard) -> None:
    chat = make_shard("chat", [10, 12, 9], first=100)
    with ShardWriter(chat + "_loss_spans", dtype=np.int32) as writer:
        writer.add_documents(np.array([2, 5, 1, 4, 3, 9], np.int32), np.array([2, 2, 2]))
    mix = start_mix([resolve(make_shard("plain", [100]), 0.5), resolve(chat, 0.5)], 10, OPTIONS)
    assert [use.mode for use in mix.phases[0].sets] == ["gpt", "packed"]
    assert isinstance(mix.blend.sets[1], PackedSamples)


@pytest.mark.parametrize("weights", [(0.5, None), (0.5, 0.0), (0.5, -1.0)])
def test_weights_that_are_none_are_refused(entries: list[Entry], weights: tuple[Any, Any]) -> None:
    given = [Entry(e.path, w, e.shards) for e, w in zip(entries, weights, strict=False)]
    with pytest.raises(BlendError, match="weight"):
        start_mix(given, 100, OPTIONS)


def test_the_same_shards_twice_and_a_blend_without_a_size_are_refused(entries: list[Entry]) -> None:
    with pytest.raises(BlendError, match="same shards"):
        start_mix([entries[0], entries[0]], 100, OPTIONS)
    with pytest.raises(BlendError, match=r"needs data\.num_samples"):
        start_mix(entries, None, OPTIONS)


# Going on.


def test_resuming_the_same_mix_gives_the_same_samples(entries: list[Entry]) -> None:
    mix = start_mix(entries, 400, OPTIONS)
    again = resume_mix(Resume(saved(mix), 123), entries, 400, OPTIONS)
    assert again.phases == mix.phases
    assert again.samples.fingerprint == mix.samples.fingerprint
    assert all(np.array_equal(mix.samples[i], again.samples[i]) for i in range(400))


def test_a_longer_run_appends_and_never_reorders_or_repeats(entries: list[Entry]) -> None:
    mix = start_mix(entries, 100, OPTIONS)
    longer = resume_mix(Resume(saved(mix), 60), entries, 700, OPTIONS)
    assert len(longer.samples) == 700 and len(longer.phases) == 2
    assert all(np.array_equal(mix.samples[i], longer.samples[i]) for i in range(100))
    for entry in entries:
        first = GPTSamples(entry.shards[0], 16, longer.phases[0].sets[entries.index(entry)].segments[0], 5)
        order = [tuple(tokens.tolist()) for tokens in first]
        taken = drawn_from(longer, 0, 700, entry.path)
        assert taken[: len(order)] == order[: len(taken)], "the first index comes whole before the second"
    again = resume_mix(Resume(saved(longer), 650), entries, 700, OPTIONS)
    assert all(np.array_equal(again.samples[i], longer.samples[i]) for i in range(700))


def test_changed_weights_never_repeat_consumed_samples_of_an_unchanged_set(entries: list[Entry]) -> None:
    mix = start_mix(entries, 150, OPTIONS)
    changed = [Entry(e.path, w, e.shards) for e, w in zip(entries, (0.1, 0.1, 0.8), strict=True)]
    later = resume_mix(Resume(saved(mix), 90), changed, 180, OPTIONS)
    assert [phase.start for phase in later.phases] == [0, 90]
    assert all(np.array_equal(mix.samples[i], later.samples[i]) for i in range(90))
    for entry in entries:
        before, after = drawn_from(later, 0, 90, entry.path), drawn_from(later, 90, 180, entry.path)
        order = [
            tuple(t.tolist())
            for t in GPTSamples(entry.shards[0], 16, mix.phases[0].sets[entries.index(entry)].segments[0], 5)
        ]
        assert (before + after)[: len(order)] == order[: len(before + after)]
    twice = resume_mix(Resume(saved(later), 120), entries, 200, OPTIONS)
    assert [phase.start for phase in twice.phases] == [0, 90, 120]
    assert all(np.array_equal(later.samples[i], twice.samples[i]) for i in range(120))


def test_an_entry_may_join_and_leave(entries: list[Entry]) -> None:
    two = [Entry(e.path, 1.0, e.shards) for e in entries[:2]]
    mix = start_mix(two, 100, OPTIONS)
    joined = resume_mix(Resume(saved(mix), 50), [Entry(e.path, 1.0, e.shards) for e in entries[1:]], 100, OPTIONS)
    assert not drawn_from(joined, 50, 100, entries[0].path)
    assert len(drawn_from(joined, 50, 100, entries[2].path)) == 25
    seen = drawn_from(joined, 0, 100, entries[1].path)
    assert len(set(seen)) == len(seen) == 50


def test_new_shards_of_a_folder_wait_for_a_phase(make_shard: MakeShard, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    make_shard("corpus/one", [170] * 10)
    mix = start_mix([resolve(str(folder))], 50, OPTIONS)
    make_shard("corpus/two", [170] * 10, first=3000)
    frozen = resume_mix(Resume(saved(mix), 20), [resolve(str(folder))], 50, OPTIONS)
    assert frozen.phases == mix.phases
    assert "1 new shards" in frozen.notes[0] and "two" in frozen.notes[0]
    joined = resume_mix(Resume(saved(mix), 20, new_phase=True), [resolve(str(folder))], 50, OPTIONS)
    assert [len(phase.sets[0].shards) for phase in joined.phases] == [1, 2]
    assert all(np.array_equal(mix.samples[i], joined.samples[i]) for i in range(20))
    longer = resume_mix(Resume(saved(mix), 20), [resolve(str(folder))], 90, OPTIONS)
    assert [(phase.start, len(phase.sets[0].shards)) for phase in longer.phases] == [(0, 1), (50, 2)]


def test_a_shard_that_changed_since_the_checkpoint_is_refused_with_both_fingerprints(
    make_shard: MakeShard, tmp_path: Path
) -> None:
    entries = [resolve(make_shard("a", [170] * 10))]
    mix = start_mix(entries, 50, OPTIONS)
    make_shard("a", [170] * 10, first=1, overwrite=True)
    with pytest.raises(
        ShardChangedError, match=rf"have the fingerprint [0-9a-f]{{32}}.*{mix.phases[0].sets[0].fingerprint}"
    ):
        resume_mix(Resume(saved(mix), 20), entries, 50, OPTIONS)


def test_a_shorter_changed_mix_is_refused(entries: list[Entry]) -> None:
    mix = start_mix(entries, 100, OPTIONS)
    with pytest.raises(BlendError, match="add steps"):
        resume_mix(Resume(saved(mix), 50), entries[:1], 50, OPTIONS)


def test_packed_sets_go_on_after_a_change(make_shard: MakeShard) -> None:
    options = MixOptions(16, 5, mode="packed")
    entries = [resolve(make_shard(name, [5, 6, 9, 3] * 12, first=k * 1000), 1.0) for k, name in enumerate("ab")]
    mix = start_mix(entries, 20, options)
    changed = [Entry(e.path, w, e.shards) for e, w in zip(entries, (3.0, 1.0), strict=True)]
    later = resume_mix(Resume(saved(mix), 10), changed, 22, options)
    for entry in entries:
        seen = drawn_from(later, 0, 22, entry.path)
        assert len(set(seen)) == len(seen)


def test_a_cached_mix_equals_a_fresh_one(entries: list[Entry], tmp_path: Path) -> None:
    options = MixOptions(16, 5, cache_dir=tmp_path / "cache")
    first, second = start_mix(entries, 300, options), start_mix(entries, 300, options)
    fresh = start_mix(entries, 300, OPTIONS)
    assert first.samples.fingerprint == second.samples.fingerprint == fresh.samples.fingerprint
    assert all(np.array_equal(second.samples[i], fresh.samples[i]) for i in range(300))
