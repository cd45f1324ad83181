"""Shuffles as functions: permutations, even spread, fixed for ever."""

from __future__ import annotations

import numpy as np
import pytest

from mmdata.errors import SamplesError
from mmdata.samples.permutation import shuffled, torch_randperm


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 255, 256, 257, 1000, 65_537])
def test_each_seed_and_epoch_is_a_permutation(size: int) -> None:
    for seed, epoch in ((0, 0), (1, 0), (0, 1), (2**63, 5), (-1, 3)):
        assert np.array_equal(np.sort(shuffled(np.arange(size), size, seed, epoch)), np.arange(size))


def test_any_part_equals_the_same_part_of_the_whole() -> None:
    whole = shuffled(np.arange(10_007), 10_007, 42, 3)
    assert np.array_equal(shuffled(np.arange(5_000, 5_100), 10_007, 42, 3), whole[5_000:5_100])
    assert np.array_equal(shuffled(np.arange(6).reshape(2, 3), 10_007, 42, 3), whole[:6].reshape(2, 3))


def test_a_position_is_uniform_over_seeds() -> None:
    size, seeds = 10, 2_000
    hits = np.zeros((size, size))
    for seed in range(seeds):
        hits[np.arange(size), shuffled(np.arange(size), size, seed)] += 1
    chi = ((hits - seeds / size) ** 2 / (seeds / size)).sum()
    assert chi < 150  # 81 degrees of freedom: mean 81, the 0.99999 quantile is 142


def test_neighbours_are_not_correlated() -> None:
    order = shuffled(np.arange(100_000), 100_000, 9).astype(np.float64)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(order, np.arange(100_000))[0, 1]) < 0.02


def test_sizes_beyond_32_bits_work_without_memory() -> None:
    size = 2**40 + 12_345
    values = shuffled(np.array([0, 1, size - 1]), size, 1)
    assert len(set(values.tolist())) == 3
    assert all(0 <= value < size for value in values.tolist())


def test_a_position_outside_is_refused() -> None:
    with pytest.raises(SamplesError, match=r"outside \[0, 10\)"):
        shuffled(np.array([10]), 10, 0)


@pytest.mark.peer
@pytest.mark.parametrize("size", [0, 1, 2, 14, 1000, 30_000])
def test_torch_randperm_equals_torchs(size: int) -> None:
    torch = pytest.importorskip("torch")
    for seed in (0, 1, 1234, 2**33 + 5):
        generator = torch.Generator().manual_seed(seed)
        assert torch_randperm(size, seed).tolist() == torch.randperm(size, generator=generator).tolist()


def test_torch_randperm_beyond_its_32_bit_draws_is_refused() -> None:
    with pytest.raises(SamplesError, match="use the default order"):
        torch_randperm(214_748_364, 0)
