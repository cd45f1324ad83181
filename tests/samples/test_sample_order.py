"""Document, sample, shuffle and blend indices are megatron-core's, element by element; recorded and live."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_lengths import ragged

from mmdata.errors import EmptySplitError, SampleOptionError
from mmdata.samples.order import (
    Cut,
    Engine,
    EpochPlan,
    blend_index,
    document_index,
    exhaustive_index,
    plan_epochs,
    sample_index,
    shuffle_index,
)

GOLDEN = Path(__file__).parent / "golden" / "megatron_core_0_16_1.npz"
ENGINES: list[Engine] = ["numba", "numpy"]

# name: (lengths, first and last sequence, seq_length, extra, drop_last, num_samples, seed)
Case = tuple[np.ndarray, int, int, int, int, bool, int | None, int]
CASES: dict[str, Case] = {
    "one_epoch": (ragged(50, 1), 0, 50, 16, 1, True, None, 1234),
    "part_of_an_epoch": (ragged(50, 2), 0, 50, 16, 1, True, 10, 1234),
    "three_epochs": (ragged(50, 3), 0, 50, 16, 1, True, 180, 7),
    "last_epoch_separate": (ragged(200, 4), 0, 200, 32, 1, True, 140, 42),
    "last_epoch_mixed": (ragged(200, 4), 0, 200, 32, 1, True, 225, 42),
    "many_epochs_of_few": (np.array([3, 0, 5], np.int32), 0, 3, 4, 1, True, 100, 5),
    "a_range": (ragged(100, 5), 60, 95, 8, 1, True, 300, 99),
    "no_extra_token": (ragged(50, 6), 0, 50, 16, 0, True, 100, 1234),
    "partial_last_sample": (np.append(ragged(50, 7), 9).astype(np.int32), 0, 51, 16, 1, False, None, 1234),
    "partial_without_extra": (np.append(ragged(50, 8), 9).astype(np.int32), 0, 51, 16, 0, False, 30, 1234),
    "documents_longer_than_samples": (ragged(20, 9, longest=500), 0, 20, 16, 1, True, 1000, 1),
    "documents_equal_to_samples": (np.full(30, 17, np.int32), 0, 30, 17, 1, True, 70, 1),
    "seq_length_one": (ragged(20, 10), 0, 20, 1, 1, True, 50, 3),
    "24_tokens": (np.array([24], np.int32), 0, 1, 8, 1, True, None, 1),
    "three_tokens": (np.array([3], np.int32), 0, 1, 8, 1, True, 3, 1),
}
BLENDS: dict[str, list[float]] = {
    "facts": [0.5, 0.3, 0.2],
    "rare": [0.001, 0.999],
    "ties": [1.0, 1.0, 1.0, 1.0],
    "thirds": [1 / 3, 0.2, 0.1, 0.7, 0.05],
    "one": [3.0],
    "fifty": [1.0 / (number + 1) for number in range(50)],
}
EXHAUSTIVE: dict[str, list[int]] = {"small": [3, 5, 2], "equal": [4, 4, 4], "one": [6], "skewed": [1, 1000, 17, 250]}


def ours(case: Case, engine: Engine) -> tuple[EpochPlan, np.ndarray, np.ndarray, np.ndarray]:
    lengths, first, last, seq_length, extra, drop_last, num_samples, seed = case
    cut = Cut(seq_length, extra, drop_last)
    plan = plan_epochs(int(lengths[first:last].sum()), num_samples, cut)
    rng = np.random.RandomState(seed)
    documents = document_index(range(first, last), plan, rng, engine)
    samples = sample_index(lengths, documents, plan, cut, engine)
    return plan, documents, samples, shuffle_index(plan, rng, engine)


def normalized(weights: list[float]) -> np.ndarray:
    array = np.array(weights, dtype=np.float64)
    return array / np.sum(array)


@pytest.fixture(scope="module")
def golden() -> Iterator[Any]:
    with np.load(GOLDEN, allow_pickle=False) as arrays:
        yield arrays


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CASES)
def test_indices_equal_the_recorded_ones_of_megatron_core(name: str, engine: Engine, golden: Any) -> None:
    _, documents, samples, order = ours(CASES[name], engine)
    for kind, array in (("documents", documents), ("samples", samples), ("order", order)):
        expected = golden[f"{name}.{kind}"]
        assert array.dtype == expected.dtype
        assert np.array_equal(array, expected), kind


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", BLENDS)
def test_blends_equal_the_recorded_ones_of_megatron_core(name: str, engine: Engine, golden: Any) -> None:
    datasets, samples = blend_index(normalized(BLENDS[name]), 1000, engine)
    assert np.array_equal(datasets, golden[f"blend.{name}.datasets"])
    assert np.array_equal(samples, golden[f"blend.{name}.samples"])
    assert (datasets.dtype, samples.dtype) == (np.int16, np.int64)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", EXHAUSTIVE)
def test_exhaustive_blends_equal_the_recorded_ones_of_megatron_core(name: str, engine: Engine, golden: Any) -> None:
    datasets, samples = exhaustive_index(np.array(EXHAUSTIVE[name]), engine)
    assert np.array_equal(datasets, golden[f"exhaustive.{name}.datasets"])
    assert np.array_equal(samples, golden[f"exhaustive.{name}.samples"])
    assert np.bincount(datasets).tolist() == EXHAUSTIVE[name]


def test_blend_heads_are_the_known_ones() -> None:
    datasets, _ = blend_index(normalized([0.5, 0.3, 0.2]), 10)
    assert datasets.tolist() == [0, 1, 2, 0, 1, 0, 2, 0, 1, 0]
    datasets, _ = blend_index(normalized([0.001, 0.999]), 1000)
    assert datasets[1] == 0 and np.count_nonzero(datasets == 0) == 1


# Live, where megatron-core is installed.


class Low:
    """What GPTDataset asks of the dataset below it, without files."""

    def __init__(self, lengths: np.ndarray) -> None:
        self.sequence_lengths = lengths
        self.path_prefix = "memory"

    def __len__(self) -> int:
        return len(self.sequence_lengths)


class Tokenizer:
    """A vocabulary of ten, end of document 9."""

    vocab_size, eod, pad, unique_identifiers = 10, 9, 8, {"name": "none"}


def megatrons(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    gpt = pytest.importorskip("megatron.core.datasets.gpt_dataset")
    split = pytest.importorskip("megatron.core.datasets.utils").Split
    lengths, first, last, seq_length, extra, drop_last, num_samples, seed = case
    config = gpt.GPTDatasetConfig(
        random_seed=seed, sequence_length=seq_length, blend=(["memory"], None), split="1,0,0", tokenizer=Tokenizer(),
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
        drop_last_partial_validation_sequence=drop_last, add_extra_token_to_sequence=bool(extra), path_to_cache="",
    )  # fmt: skip
    indices = np.arange(first, last, dtype=np.int32)
    dataset = gpt.GPTDataset(Low(lengths), None, indices, num_samples, split.valid, config)
    return dataset.document_index, dataset.sample_index, dataset.shuffle_index


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_indices_equal_megatron_cores_live(name: str) -> None:
    theirs = megatrons(CASES[name])
    for mine, other in zip(ours(CASES[name], "auto")[1:], theirs, strict=True):
        assert mine.dtype == other.dtype
        assert np.array_equal(mine, other)


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(40))
def test_random_sets_equal_megatron_cores_live(number: int) -> None:
    rng = np.random.RandomState(number)
    lengths = ragged(int(rng.randint(3, 300)), number, longest=int(rng.randint(3, 200)))
    first = int(rng.randint(0, len(lengths) // 2))
    # Megatron's partial last sample needs a last document that is not empty: ours below has its own test.
    case = (lengths, first, len(lengths), int(rng.randint(1, 64)), int(rng.randint(0, 2)), True,
            None if number % 4 == 0 else int(rng.randint(1, 2000)), number)  # fmt: skip
    try:
        mine = ours(case, "auto")[1:]
    except EmptySplitError:
        return
    for one, other in zip(mine, megatrons(case), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    "weights", [[1], [1, 1], [7, 3], [1, 0], [1, 1, 1], [0, 5, 2], [1, 2, 2, 1], [0, 0, 0, 1], [1, 1, 1, 1, 1]]
)
def test_few_sets_are_blended_as_many_are(weights: list[float]) -> None:
    shares = normalized(weights)
    padded = np.concatenate((shares, np.zeros(6)))  # sets without a share: the general way
    few, many = blend_index(shares, 3000), blend_index(padded, 3000)
    plain = blend_index(shares, 3000, "numpy")
    for one, other, third in zip(few, many, plain, strict=True):
        assert np.array_equal(one, other) and np.array_equal(one, third)


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_blends_equal_megatron_cores_live() -> None:
    helpers = pytest.importorskip("megatron.core.datasets.helpers_cpp")
    for seed in range(20):
        rng = np.random.RandomState(seed)
        count = seed % 6 + 1 if seed < 12 else rng.randint(1, 30)
        weights = normalized([1.0] * count if seed % 2 else rng.random_sample(count).tolist())
        size = int(rng.randint(1, 5000))
        datasets, samples = np.zeros(size, np.int16), np.zeros(size, np.int64)
        helpers.build_blending_indices(datasets, samples, weights.tolist(), len(weights), size, False)
        mine = blend_index(weights, size)
        assert np.array_equal(mine[0], datasets) and np.array_equal(mine[1], samples)
        sizes = rng.randint(1, 400, size=len(weights))
        datasets, samples = np.zeros(sizes.sum(), np.int16), np.zeros(sizes.sum(), np.int64)
        helpers.build_exhaustive_blending_indices(datasets, samples, sizes, len(sizes))
        mine = exhaustive_index(sizes)
        assert np.array_equal(mine[0], datasets) and np.array_equal(mine[1], samples)


# Where Megatron hangs, overflows or trips a bare assertion.


def test_an_empty_set_is_an_error_and_does_not_hang() -> None:
    with pytest.raises(EmptySplitError, match="holds no token"):
        plan_epochs(0, 5, Cut(8))


def test_too_few_tokens_for_one_sample_is_an_error_unless_repeated() -> None:
    with pytest.raises(EmptySplitError, match="3 tokens do not fill one sample of 9"):
        plan_epochs(3, None, Cut(8))
    assert plan_epochs(3, 3, Cut(8)) == EpochPlan(9, False, 2, 3)


def test_the_number_of_samples_is_exact_beyond_float32() -> None:
    assert Cut(1024, 1, drop_last=False).count(2**25 + 2) == 32_769  # Megatron's float gives 32,768


@pytest.mark.parametrize("engine", ENGINES)
def test_a_partial_last_sample_may_end_before_an_empty_document(engine: Engine) -> None:
    lengths = np.array([5, 4, 0, 0], np.int32)
    cut = Cut(4, 1, drop_last=False)
    plan = plan_epochs(9, None, cut)
    index = sample_index(lengths, np.arange(4, dtype=np.int32), plan, cut, engine)
    assert index.tolist() == [[0, 0], [0, 4], [1, 3]]
    plan = plan_epochs(8, None, cut)
    index = sample_index(np.array([5, 3, 0], np.int32), np.arange(3, dtype=np.int32), plan, cut, engine)
    assert index.tolist() == [[0, 0], [0, 4], [1, 2]]


@pytest.mark.parametrize("engine", ENGINES)
def test_lengths_beyond_int32_in_sum_do_not_wrap(engine: Engine) -> None:
    lengths = np.full(5, 2**31 - 1, np.int32)
    cut = Cut(2**30)
    plan = plan_epochs(int(lengths.sum(dtype=np.int64)), None, cut)
    index = sample_index(lengths, np.arange(5, dtype=np.int32), plan, cut, engine)
    starts = index[:, 0].astype(np.int64) * (2**31 - 1) + index[:, 1]
    assert starts.tolist() == [k * 2**30 for k in range(plan.samples + 1)]


def test_sequence_numbers_beyond_int32_are_kept() -> None:
    index = document_index(range(2**31, 2**31 + 3), EpochPlan(1, False, 1, 1), np.random.RandomState(0))
    assert index.dtype == np.int64
    assert sorted(index.tolist()) == [2**31, 2**31 + 1, 2**31 + 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cut(0), "seq_length is 0"),
        (lambda: Cut(8, 2), "extra is 2"),
        (lambda: plan_epochs(10, 0, Cut(8)), "num_samples is 0"),
        (lambda: exhaustive_index(np.array([3, 0])), "set 1 of the blend has 0 samples"),
        (lambda: blend_index(np.empty(0), 5), "a blend of 0 sets"),
        (lambda: blend_index(np.ones(32_767), 5), "a blend of 32,767 sets"),
        (lambda: blend_index(np.ones(1), 5, "fortran"), "engine 'fortran' is unknown"),  # type: ignore[arg-type]
    ],
)
def test_wrong_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises(SampleOptionError, match=message):
        make()


def test_the_shuffle_leaves_the_generator_where_numpy_leaves_it() -> None:
    for size in (0, 1, 2, 3, 624, 1000, 100_000):
        one, two = np.random.RandomState(3), np.random.RandomState(3)
        plan = EpochPlan(1, False, size, size)
        mine = shuffle_index(plan, one, "numba")
        expected = np.arange(size, dtype=np.uint32)
        two.shuffle(expected)
        assert np.array_equal(mine, expected)
        assert one.randint(2**31) == two.randint(2**31)


def record() -> None:
    """Write the golden arrays; run this file with python where megatron-core is installed."""
    helpers = pytest.importorskip("megatron.core.datasets.helpers_cpp")
    arrays: dict[str, np.ndarray] = {}
    for name, case in CASES.items():
        for kind, array in zip(("documents", "samples", "order"), megatrons(case), strict=True):
            arrays[f"{name}.{kind}"] = array
    for name, weights in BLENDS.items():
        datasets, samples = np.zeros(1000, np.int16), np.zeros(1000, np.int64)
        helpers.build_blending_indices(datasets, samples, normalized(weights).tolist(), len(weights), 1000, False)
        arrays[f"blend.{name}.datasets"], arrays[f"blend.{name}.samples"] = datasets, samples
    for name, sizes in EXHAUSTIVE.items():
        datasets, samples = np.zeros(sum(sizes), np.int16), np.zeros(sum(sizes), np.int64)
        helpers.build_exhaustive_blending_indices(datasets, samples, np.array(sizes), len(sizes))
        arrays[f"exhaustive.{name}.datasets"], arrays[f"exhaustive.{name}.samples"] = datasets, samples
    os.makedirs(GOLDEN.parent, exist_ok=True)
    np.savez_compressed(GOLDEN, **arrays)


if __name__ == "__main__":
    record()
