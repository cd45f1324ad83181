"""Packing: every sequence once, never over capacity, exactly best-fit decreasing, the same bins for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.errors import PackingError
from mmdata.samples.pack import PackedBins, pack


def naive_best_fit_decreasing(lengths: list[int], capacity: int) -> list[int]:
    """Tokens in each bin by the textbook O(N * bins) algorithm, sorted."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms.remove(min(fitting))
            rooms.append(min(fitting) - length)
        else:
            rooms.append(capacity - length)
    return sorted(capacity - room for room in rooms)


def check_partition(bins: PackedBins) -> None:
    assert sorted(bins.order.tolist()) == list(range(len(bins.lengths)))
    assert int(bins.used().max(initial=0)) <= bins.capacity
    assert all(len(bins[i]) > 0 for i in range(len(bins)))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 70), st.lists(st.integers(0, 70), max_size=80), st.integers(0, 3))
def test_bins_are_those_of_the_textbook_algorithm(capacity: int, raw: list[int], seed: int) -> None:
    lengths = [min(length, capacity) for length in raw]
    bins = pack(lengths, capacity, seed)
    check_partition(bins)
    assert sorted(bins.used().tolist()) == naive_best_fit_decreasing(lengths, capacity)


def test_known_packing() -> None:
    bins = pack([6, 5, 4, 3, 2], capacity=10, seed=1)
    groups = sorted(sorted(bins.lengths[bins[i]].tolist()) for i in range(len(bins)))
    assert groups == [[2, 3, 5], [4, 6]]
    assert bins.fill == 1.0


def test_the_order_of_a_seed_never_changes() -> None:
    lengths = [6, 5, 4, 3, 2, 7, 1, 1, 9]
    bins = pack(lengths, 10, seed=1234)
    assert bins.order.tolist() == [5, 3, 8, 6, 4, 1, 7, 2, 0] and bins.starts.tolist() == [0, 2, 4, 7, 9]
    assert pack(lengths, 10, seed=-5).order.tolist() == [1, 4, 6, 0, 2, 3, 5, 7, 8]


def test_boundaries_are_the_cumulated_lengths_of_a_bin() -> None:
    bins = pack([3, 4, 2, 9], capacity=9, seed=7)
    for i in range(len(bins)):
        edges = bins.boundaries(i)
        assert edges[0] == 0 and edges[-1] == bins.used()[i]
        assert np.diff(edges).tolist() == bins.lengths[bins[i]].tolist()


def test_same_seed_same_bins_and_another_seed_only_reorders() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 5000)
    first, again, other = pack(lengths, 512, 1), pack(lengths, 512, 1), pack(lengths, 512, 2)
    assert np.array_equal(first.order, again.order) and np.array_equal(first.starts, again.starts)
    assert not np.array_equal(first.order, other.order)
    assert first.fill == other.fill
    # A literal guards against a change of the random stream between versions.
    assert pack(np.array([5, 5, 5, 5, 1, 1], np.int32), 6, 3).order.tolist() == [5, 0, 2, 1, 3, 4]


def test_log_normal_lengths_fill_at_least_97_percent_of_4096() -> None:
    rng = np.random.default_rng(5)
    lengths = np.clip(np.exp(rng.normal(np.log(300), 1.0, 200_000)), 16, 4096).astype(np.int64)
    bins = pack(lengths, 4096)
    check_partition(bins)
    assert bins.fill >= 0.97


def test_too_long_is_an_error_that_names_the_remedy() -> None:
    with pytest.raises(PackingError, match=r"2 of 4 sequences.*sequence 1 with 11.*longest: 12.*--max-length 10"):
        pack([10, 11, 3, 12], capacity=10)


@pytest.mark.parametrize("lengths", [[-1, 2], [1.5], [[1], [2]]], ids=["negative", "fraction", "two rows"])
def test_lengths_that_are_no_lengths_are_refused(lengths: object) -> None:
    with pytest.raises(PackingError):
        pack(lengths, capacity=10)  # type: ignore[arg-type]


def test_no_sequences_give_no_bins() -> None:
    bins = pack([], capacity=10)
    assert len(bins) == 0 and bins.fill == 1.0 and bins.order.tolist() == []


def test_zero_tokens_and_full_bins_fit() -> None:
    bins = pack([0, 4, 4, 0], capacity=4)
    check_partition(bins)
    assert len(bins) == 2


def test_capacity_below_one_is_refused() -> None:
    with pytest.raises(PackingError, match="at least 1"):
        pack([1], capacity=0)
