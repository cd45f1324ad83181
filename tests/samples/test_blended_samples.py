"""BlendedSamples draws as Megatron's BlendedDataset and builder do, and mixes plain with packed sets."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_lengths import ragged

from mmdata.errors import BlendError, SampleRangeError
from mmdata.samples import BlendedSamples, GPTSamples, PackedSamples
from mmdata.samples.rows import Rows

MakeShard = Any


@pytest.fixture
def three(make_shard: MakeShard) -> list[GPTSamples]:
    return [GPTSamples(make_shard(name, ragged(100, k), first=k * 9000), 16, 300) for k, name in enumerate("abc")]


def test_draws_follow_the_weights_and_each_set_its_own_order(three: list[GPTSamples]) -> None:
    blend = BlendedSamples(three, [0.5, 0.3, 0.2], 100)
    assert blend.dataset_index[:10].tolist() == [0, 1, 2, 0, 1, 0, 2, 0, 1, 0]
    assert blend.drawn().tolist() == [50, 30, 20]
    for number in range(3):
        assert blend.dataset_sample_index[blend.dataset_index == number].tolist() == list(range(blend.drawn()[number]))
    for draw in range(100):
        expected = three[blend.dataset_index[draw]][int(blend.dataset_sample_index[draw])]
        assert np.array_equal(blend[draw], expected)


def test_a_batch_equals_its_samples_one_by_one(three: list[GPTSamples]) -> None:
    blend = BlendedSamples(three, [1, 1, 1], 90)
    indices = np.array([5, -1, 88, 0, 7])
    rows = Rows.empty(5, 16)
    blend.read(indices, rows)
    assert rows.tokens is not None
    for row, index in enumerate(indices.tolist()):
        assert rows.tokens[row].tolist() == ([0] * 17 if index < 0 else blend[index].tolist())
        assert rows.counted[row].all() == (index >= 0)


def test_an_exhaustive_blend_takes_every_sample_once(three: list[GPTSamples]) -> None:
    blend = BlendedSamples(three)
    assert len(blend) == sum(len(one) for one in three)
    pairs = list(zip(blend.dataset_index.tolist(), blend.dataset_sample_index.tolist(), strict=True))
    assert len(set(pairs)) == len(blend)


def test_without_weights_the_sizes_are_the_weights_and_the_size_is_capped(three: list[GPTSamples]) -> None:
    assert len(BlendedSamples(three, size=10_000)) == sum(len(one) for one in three)
    assert len(BlendedSamples(three, size=50)) == 50


def test_asking_a_set_for_more_than_it_has_names_the_number_to_build(three: list[GPTSamples]) -> None:
    with pytest.raises(
        BlendError, match=r"draws 400 samples from set 0, which has \d+ left; build it with num_samples=400"
    ):
        BlendedSamples(three, [0.8, 0.1, 0.1], 500)


def test_offsets_go_on_where_another_blend_stopped(three: list[GPTSamples]) -> None:
    first = BlendedSamples(three, [0.5, 0.3, 0.2], 100)
    second = BlendedSamples(three, [0.2, 0.3, 0.5], 100, offsets=first.drawn().tolist())
    taken = set(zip(first.dataset_index.tolist(), first.dataset_sample_index.tolist(), strict=True))
    later = set(zip(second.dataset_index.tolist(), second.dataset_sample_index.tolist(), strict=True))
    assert len(taken) == len(later) == 100 and not taken & later


def test_plain_and_chat_sets_share_one_shape(make_shard: MakeShard) -> None:
    plain = GPTSamples(make_shard("plain", ragged(100, 1)), 32, 50)
    packed = PackedSamples(make_shard("packed", ragged(100, 2, longest=30), first=30_000), 32, 50)
    blend = BlendedSamples([plain, packed], [0.5, 0.5], 100)
    rows = Rows.empty(100, 32)
    blend.read(np.arange(100), rows)
    from_plain = blend.dataset_index == 0
    assert blend.isolates
    assert rows.counted[from_plain].all()
    assert not rows.documents[from_plain].any()
    assert (rows.documents[~from_plain].max(axis=1) >= 1).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": [0.5, 0.5, 0.0], "size": 10}, "weight 2 of the blend is 0.0"),
        ({"weights": [1, float("nan"), 1], "size": 10}, "weight 1 of the blend is nan"),
        ({"weights": [1, -1, 1], "size": 10}, "weight 1 of the blend is -1"),
        ({"weights": [1, 1], "size": 10}, "2 weights for 3 sets"),
        ({"weights": [1, 1, 1]}, "weights need a size"),
        ({"offsets": [1]}, "1 offsets for 3 sets"),
    ],
)
def test_what_is_no_blend_is_refused(three: list[GPTSamples], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BlendError, match=message):
        BlendedSamples(three, **arguments)


def test_different_lengths_and_no_sets_are_refused(three: list[GPTSamples], make_shard: MakeShard) -> None:
    with pytest.raises(BlendError, match=r"seq_length \[16, 32\]"):
        BlendedSamples([three[0], GPTSamples(make_shard("d", [99]), 32, 1)])
    with pytest.raises(BlendError, match="at least one set"):
        BlendedSamples([])
    with pytest.raises(SampleRangeError):
        BlendedSamples(three, [1, 1, 1], 5)[5]


def test_cache_pickling_and_fingerprint(three: list[GPTSamples], tmp_path: Path) -> None:
    blend = BlendedSamples(three, [3, 1, 1], 200, cache_dir=tmp_path / "cache")
    again = BlendedSamples(three, [3, 1, 1], 200, cache_dir=tmp_path / "cache")
    assert np.array_equal(blend.dataset_index, again.dataset_index)
    assert pickle.loads(pickle.dumps(blend))[17].tolist() == blend[17].tolist()
    others = [
        BlendedSamples(three, [3, 1, 2], 200),
        BlendedSamples(three, [3, 1, 1], 201),
        BlendedSamples(three[::-1], [3, 1, 1], 200),
    ]
    assert len({blend.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert again.fingerprint == blend.fingerprint


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_a_blend_equals_megatron_cores_builder_over_the_same_shards(make_shard: MakeShard) -> None:
    gpt = pytest.importorskip("megatron.core.datasets.gpt_dataset")
    builder = pytest.importorskip("megatron.core.datasets.blended_megatron_dataset_builder")

    class Tokenizer:
        vocab_size, eod, pad, unique_identifiers = 60_000, 59_999, 59_998, {"name": "none"}

    prefixes = [make_shard(name, ragged(200, k), first=k * 9000) for k, name in enumerate("abc")]
    weights = [0.5, 0.3, 0.2]
    config = gpt.GPTDatasetConfig(
        random_seed=5, sequence_length=16, blend=(prefixes, weights), split="90,10,0", tokenizer=Tokenizer(),
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False,
        path_to_cache="",
    )  # fmt: skip
    theirs = builder.BlendedMegatronDatasetBuilder(gpt.GPTDataset, [400, 40, 0], lambda: True, config).build()
    from mmdata.samples.mix_plan import megatron_sizes

    for subset, data, size in (("train", theirs[0], 400), ("valid", theirs[1], 40)):
        sizes, total = megatron_sizes(weights, size)
        sets = [
            GPTSamples(prefix, 16, n, 5, split="90,10,0", subset=subset)  # type: ignore[arg-type]
            for prefix, n in zip(prefixes, sizes, strict=True)
        ]
        mine = BlendedSamples(sets, weights, total)
        assert len(mine) == len(data)
        for index in range(len(mine)):
            item = data[index]
            assert mine[index].tolist() == [*item["tokens"].tolist(), int(item["labels"][-1])]
