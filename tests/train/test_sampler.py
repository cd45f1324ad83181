"""The laws of the order of samples, over a grid of layouts, batch sizes, epochs, tails and resume points."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from mmdata_train.errors import ConfigError, LayoutError, SamplerError, SamplerStateError, SamplesExhausted
from mmdata_train.layout import ParallelLayout
from mmdata_train.sampler import PADDING, Order, ParallelSampler, Tail

LAYOUTS = [ParallelLayout(t, p, d) for t, p, d in itertools.product((1, 2), (1, 2), (1, 2, 3))]
GRID = [
    (layout, micro, total, tail, shuffle)
    for layout, micro, total, tail, shuffle in itertools.product(
        LAYOUTS, (1, 2), (12, 31, 48), ("drop", "pad"), (False, True)
    )
]
GLOBAL = 12


def make(layout: ParallelLayout, micro: int, total: int, tail: Tail, shuffle: bool, epochs: int = 3) -> ParallelSampler:
    return ParallelSampler(total, layout, micro, GLOBAL, seed=7, shuffle=shuffle, tail=tail, epochs=epochs)


def gather(sampler: ParallelSampler) -> list[list[int]]:
    """The global batches put together again from what the ranks get, micro-batch by micro-batch."""
    layout = sampler.layout
    firsts = [layout.group(0, "data")[place] for place in range(layout.data)]
    per_rank = [[part for part, _ in sampler.iterate(rank)] for rank in firsts]
    assert len({len(parts) for parts in per_rank}) == 1
    return [
        [int(i) for micro in range(sampler.micro_batches) for part in parts for i in part[micro]]
        for parts in zip(*per_rank, strict=True)
    ]


@pytest.mark.parametrize(("layout", "micro", "total", "tail", "shuffle"), GRID)
def test_every_law_holds(layout: ParallelLayout, micro: int, total: int, tail: Tail, shuffle: bool) -> None:
    sampler = make(layout, micro, total, tail, shuffle)
    batches = gather(sampler)
    alone = make(ParallelLayout(), 1, total, tail, shuffle)
    assert batches == [b.tolist() for b in alone], "the order depends on the layout or the micro-batch"
    assert len(batches) == sampler.steps
    per_epoch = len(batches) // 3
    for epoch in range(3):
        flat = [i for batch in batches[epoch * per_epoch : (epoch + 1) * per_epoch] for i in batch]
        real = [i for i in flat if i != PADDING]
        assert len(set(real)) == len(real), "a sample came twice in one epoch"
        assert len(real) == (total if tail == "pad" else total // GLOBAL * GLOBAL)
        assert flat[: len(real)] == real, "padding stands only at the end of an epoch"
        if not shuffle:
            assert real == list(range(len(real)))
    for rank in range(layout.world_size):
        peer = layout.group(rank, "tensor")[0]
        mine, theirs = list(sampler.iterate(rank)), list(sampler.iterate(peer))
        assert all(np.array_equal(a, b) and x == y for (a, x), (b, y) in zip(mine, theirs, strict=True))
        assert all(part.shape == (sampler.micro_batches, micro) for part, _ in mine)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("total", [12, 31, 48])
def test_resume_at_every_step_under_every_data_size_goes_on_with_the_next_batch(
    total: int, tail: Tail, shuffle: bool
) -> None:
    whole = make(ParallelLayout(), 1, total, tail, shuffle)
    batches = [b.tolist() for b in whole]
    for step in range(len(batches) + 1):
        consumed = whole.consumed_at(step)
        if step:
            assert whole.step_at(whole.consumed_at(step - 1)).indices.tolist() == batches[step - 1]
        for data, micro in ((1, 4), (2, 3), (3, 2), (4, 1)):
            other = make(ParallelLayout(2, 2, data), micro, total, tail, shuffle)
            resumed = other.resume(whole.state(consumed))
            assert gather(resumed) == batches[step:]


def test_an_epoch_is_another_permutation_and_the_seed_changes_both() -> None:
    def epochs(seed: int) -> list[list[int]]:
        sampler = ParallelSampler(100, ParallelLayout(), 1, 100, seed=seed)
        return [batch.tolist() for batch in islice(sampler, 3)]

    first, again, other = epochs(1), epochs(1), epochs(2)
    assert first == again
    orders = [*first, *other]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders}) == 6
    assert first[0] != list(range(100))


def test_the_batch_size_may_change_at_resume_without_repeat_or_hole() -> None:
    first = ParallelSampler(100, ParallelLayout(), 1, 10, seed=3)
    taken = [i for batch in islice(first, 4) for i in batch.tolist()]
    ramped = ParallelSampler(100, ParallelLayout(data=2), 2, 20, seed=3).resume(first.state(40))
    rest = [i for batch in islice(ramped, 3) for i in batch.tolist()]
    assert sorted(taken + rest) == list(range(100))


def test_dropped_samples_differ_from_epoch_to_epoch() -> None:
    sampler = ParallelSampler(25, ParallelLayout(), 1, 10, seed=0)
    dropped = [
        frozenset(range(25)) - {i for step in (0, 1) for i in sampler.step_at(epoch * 25 + step * 10).indices.tolist()}
        for epoch in range(4)
    ]
    assert all(len(left) == 5 for left in dropped)
    assert len(set(dropped)) > 1


def test_golden_order_of_the_default_sampler() -> None:
    # The order is part of every checkpoint: these values may never change.
    sampler = ParallelSampler(12, ParallelLayout(), 1, 12, seed=1234)
    assert [batch.tolist() for batch in islice(sampler, 2)] == [
        [9, 0, 5, 6, 3, 8, 4, 7, 1, 10, 2, 11],
        [9, 7, 0, 2, 11, 6, 4, 5, 1, 10, 3, 8],
    ]
    assert sampler.fingerprint == "f96d7bb19e603b272d543e38ffed31eb"


def test_an_unshuffled_set_ends_after_one_epoch_and_says_so() -> None:
    sampler = ParallelSampler(30, ParallelLayout(), 1, 10, shuffle=False)
    assert [batch.tolist()[0] for batch in sampler] == [0, 10, 20]
    with pytest.raises(SamplesExhausted, match="30 of 30 samples are consumed"):
        sampler.step_at(30)


def test_padding_is_uncounted_and_only_fills_the_last_batch() -> None:
    sampler = ParallelSampler(5, ParallelLayout(data=2), 2, 4, shuffle=False, tail="pad")
    assert [batch.tolist() for batch in sampler] == [[0, 1, 2, 3], [4, PADDING, PADDING, PADDING]]
    assert [part.tolist() for part, _ in sampler.iterate(1)] == [[[2, 3]], [[PADDING, PADDING]]]


def test_fewer_samples_than_one_global_batch_is_an_error_that_names_both() -> None:
    with pytest.raises(SamplerError, match="10 samples do not fill one global batch of 32"):
        ParallelSampler(10, ParallelLayout(), 1, 32)
    assert ParallelSampler(10, ParallelLayout(), 1, 32, tail="pad", epochs=1).steps == 1


def test_a_global_batch_that_does_not_divide_names_the_sizes_that_would() -> None:
    with pytest.raises(LayoutError, match=r"use 30 or 36; micro-batches of 1, 2, 4, 8, 16 would fit"):
        ParallelSampler(100, ParallelLayout(data=2), 3, 32)


def test_a_state_of_another_order_is_refused_with_both_fingerprints() -> None:
    one, two = (ParallelSampler(100, ParallelLayout(), 1, 10, seed=seed) for seed in (1, 2))
    with pytest.raises(SamplerStateError, match=f"{one.fingerprint}.*{two.fingerprint}"):
        two.resume(one.state())


@pytest.mark.parametrize("bad", [{"total": 0}, {"micro_batch": 0}, {"consumed": -1}, {"epochs": 0}, {"order": "x"}])
def test_wrong_values_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        replace(ParallelSampler(100, ParallelLayout(), 1, 10), **bad)


# Megatron's two samplers, recorded from megatron.training.datasets.data_samplers.


def lists(total: int, micro: int, data: int, order: Order, sharding: bool = True) -> list[list[list[int]]]:
    sampler = ParallelSampler(
        total, ParallelLayout(data=data), micro, micro * data, order=order, epochs=1, data_sharding=sharding
    )
    return [[part[0].tolist() for part, _ in sampler.iterate(rank)] for rank in range(data)]


def test_single_gives_megatrons_lists() -> None:
    assert lists(10, 2, 2, "single") == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_cyclic_gives_megatrons_lists() -> None:
    (two,) = lists(14, 2, 1, "cyclic")
    assert [i for batch in two for i in batch] == [4, 3, 7, 6, 2, 11, 9, 10, 1, 12, 5, 13, 8, 0]
    (four,) = lists(14, 4, 1, "cyclic")
    assert [i for batch in four for i in batch] == [8, 0, 5, 9, 7, 4, 2, 10, 3, 1, 11, 6]
    assert lists(10, 2, 3, "cyclic") == [[[0, 1]], [[2, 3]], [[4, 5]]]


def test_cyclic_unsharded_gives_every_rank_the_same_number_of_batches() -> None:
    parts = lists(10, 2, 3, "cyclic", sharding=False)
    assert [len(part) for part in parts] == [1, 1, 1]  # Megatron gives 2, 1 and 1, and hangs
    assert len({i for part in parts for batch in part for i in batch}) == 6


@pytest.mark.parametrize("sharding", [True, False])
@pytest.mark.parametrize(("total", "micro", "data"), [(14, 2, 1), (50, 2, 3), (50, 4, 2), (64, 4, 4), (7, 1, 7)])
def test_cyclic_equals_a_replay_of_megatrons_random_sampler(total: int, micro: int, data: int, sharding: bool) -> None:
    torch = pytest.importorskip("torch")
    active = total - total % (micro * data)
    sampler = ParallelSampler(
        total, ParallelLayout(data=data), micro, micro * data, order="cyclic", data_sharding=sharding, epochs=2
    )
    for rank in range(data):
        expected: list[list[int]] = []
        for epoch in range(2):
            generator = torch.Generator().manual_seed(epoch)
            if sharding:
                bucket = total // (micro * data) * micro
                order = [rank * bucket + i for i in torch.randperm(bucket, generator=generator).tolist()]
            else:
                order = torch.randperm(total // micro * micro, generator=generator).tolist()[rank::data]
            whole = [order[i : i + micro] for i in range(0, len(order) - micro + 1, micro)]
            expected += whole[: active // (micro * data)]
        assert [part[0].tolist() for part, _ in sampler.iterate(rank)] == expected


def test_cyclic_resume_inside_an_epoch_and_refusal_between_micro_batches() -> None:
    sampler = ParallelSampler(50, ParallelLayout(data=2), 2, 8, order="cyclic")
    batches = [batch.tolist() for batch in islice(sampler, 12)]
    for step in range(12):
        assert [b.tolist() for b in islice(replace(sampler, consumed=8 * step), 12 - step)] == batches[step:]
    with pytest.raises(SamplerStateError, match="cannot resume under another"):
        replace(sampler, consumed=3)
    with pytest.raises(SamplerError, match="do not fill one micro-batch"):
        ParallelSampler(3, ParallelLayout(data=2), 2, 4, order="cyclic")
