"""Megatron's three indices of one set and its blend of several, element by element, as pure functions of integers.

Document index: the sequences of each epoch, shuffled. Sample index: where in it each sample begins. Shuffle index: the
order in which samples are drawn. Blend: which set each draw goes to. Definitions follow megatron-core 0.16.1
(GPTDataset, BlendedDataset and their compiled helper); docs/samples.md lists where the results differ on purpose:
where Megatron hangs, overflows or reads past an array.

Ten million documents of 500 tokens take half a second and 48 MiB beside the lengths, or 52 MiB, the size of the three
arrays, where all of them stay in memory. `engine="numpy"` gives the same values without numba, three to ten times
slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import EmptySplitError, SampleOptionError

Engine = Literal["auto", "numba", "numpy"]
Array = NDArray[Any]

INT32_MAX = 2**31 - 1
UINT32_MAX = 2**32 - 1
MAX_BLENDED_SETS = 32_767
# Megatron's share of an epoch's samples below which the last, partial epoch is shuffled on its own.
_SEPARATE_BELOW = 0.80


@lru_cache(maxsize=4)
def kernels(engine: Engine) -> ModuleType | None:
    """The compiled loops, or None for the numpy path. `auto` means numba where it can be imported."""
    if engine not in ("auto", "numba", "numpy"):
        raise SampleOptionError(f"engine {engine!r} is unknown; use auto, numba or numpy")
    if engine == "numpy":
        return None
    try:
        return import_module("mmdata.samples.order_kernels")
    except ImportError as error:
        if engine == "auto":
            return None
        raise SampleOptionError(f"engine 'numba' cannot be used here ({error}); use engine='numpy'") from error


@dataclass(frozen=True)
class EpochPlan:
    """How often a set is passed through. separate: the last epoch is shuffled apart from the ones before it.

    before_last: samples that begin before the last epoch (of use only when `separate`). samples: all samples.
    """

    epochs: int
    separate: bool
    before_last: int
    samples: int


@dataclass(frozen=True)
class Cut:
    """How a stream of tokens is cut into samples.

    seq_length: tokens a sample is trained on. extra: 1 when each sample holds one more token (the last label), which it
    shares with the next sample; else 0. drop_last: leave out a last sample that is not full.
    """

    seq_length: int
    extra: int = 1
    drop_last: bool = True

    def __post_init__(self) -> None:
        if self.seq_length < 1 or self.seq_length > INT32_MAX - 1:
            raise SampleOptionError(f"seq_length is {self.seq_length}; it must be from 1 to {INT32_MAX - 1:,}")
        if self.extra not in (0, 1):
            raise SampleOptionError(f"extra is {self.extra}; a sample has 0 or 1 extra token")

    def count(self, tokens: int) -> int:
        """Samples in `tokens` tokens, in exact integers (Megatron's ceiling is a 32-bit float)."""
        usable = tokens - self.extra
        return max(usable // self.seq_length if self.drop_last else -(-usable // self.seq_length), 0)


def plan_epochs(tokens: int, num_samples: int | None, cut: Cut) -> EpochPlan:
    """The epochs needed for `num_samples` samples of a set with `tokens` tokens; one epoch when None.

    Raises EmptySplitError when the set is empty or gives no sample, SampleOptionError when num_samples is below 1.
    """
    if num_samples is not None and num_samples < 1:
        raise SampleOptionError(f"num_samples is {num_samples}; it must be at least 1")
    if tokens < 1:
        raise EmptySplitError("it holds no token, so no number of epochs gives a sample")
    need = 0 if num_samples is None else num_samples * cut.seq_length + cut.extra
    epochs = max(1, -(-need // tokens))
    samples = cut.count(epochs * tokens)
    if samples < 1:
        raise EmptySplitError(
            f"its {tokens:,} tokens do not fill one sample of {cut.seq_length + cut.extra:,}; give num_samples to pass "
            "through it more than once, or lower seq_length"
        )
    if epochs == 1 or num_samples is None:
        return EpochPlan(epochs, False, samples, samples)
    before_last = ((epochs - 1) * tokens - cut.extra) // cut.seq_length
    from_last = num_samples - before_last
    per_epoch = (tokens - cut.extra) // cut.seq_length
    assert 0 <= from_last <= per_epoch + 1
    return EpochPlan(epochs, from_last < int(_SEPARATE_BELOW * per_epoch), before_last, samples)


def _shuffle(items: Array, rng: np.random.RandomState, engine: Engine) -> None:
    """`rng.shuffle(items)`: the same swaps and the same generator state after it, about four times faster."""
    compiled = kernels(engine)
    if compiled is None or len(items) > UINT32_MAX:
        rng.shuffle(items)
        return
    state: Any = rng.get_state(legacy=False)
    state["state"]["pos"] = int(compiled.shuffle(items, state["state"]["key"], state["state"]["pos"]))
    rng.set_state(state)


def document_index(sequences: range, plan: EpochPlan, rng: np.random.RandomState, engine: Engine = "auto") -> Array:
    """The sequences of all epochs, shuffled together (the last epoch apart when `plan.separate`).

    int32 [epochs * len(sequences)]; int64 when a sequence number needs it (Megatron wraps there).
    """
    dtype = np.int32 if sequences.stop - 1 <= INT32_MAX else np.int64
    count = len(sequences)
    index = np.ones(plan.epochs * count, dtype=dtype)
    index[0] = sequences.start
    np.cumsum(index[:count], dtype=dtype, out=index[:count])
    for epoch in range(1, plan.epochs):
        index[epoch * count : (epoch + 1) * count] = index[:count]
    border = len(index) - count if plan.separate else len(index)
    _shuffle(index[:border], rng, engine)
    if plan.separate:
        _shuffle(index[border:], rng, engine)
    return index


def sample_index(lengths: Array, documents: Array, plan: EpochPlan, cut: Cut, engine: Engine = "auto") -> Array:
    """Where each sample begins: [samples + 1, 2] of (place in the document index, token offset), int32 or int64.

    lengths: integers, one for each sequence number. The row after the last sample says where that one ends, `extra`
    tokens before its last token. int64 when a place or an offset needs it.
    """
    largest = max(len(documents), int(lengths.max()))
    index = np.empty((plan.samples + 1, 2), dtype=np.int32 if largest <= INT32_MAX else np.int64)
    index[0] = 0
    compiled = kernels(engine)
    if compiled is not None:
        rows = int(compiled.walk(lengths, documents, cut.seq_length, cut.extra, index))
    else:
        rows = _walk_by_search(lengths, documents, cut, index)
    if rows <= plan.samples:
        assert rows == plan.samples and not cut.drop_last, "only a partial last sample may end at the end of the tokens"
        index[rows] = _end_of_tokens(lengths, documents, cut)
    return index


def _walk_by_search(lengths: Array, documents: Array, cut: Cut, index: Array) -> int:
    ends = np.cumsum(lengths[documents], dtype=np.int64)
    starts = np.arange(1, len(index), dtype=np.int64) * cut.seq_length
    places = np.searchsorted(ends, starts + cut.extra, side="left")
    whole = int(np.searchsorted(places, len(ends), side="left"))
    places, starts = places[:whole], starts[:whole]
    before = np.where(places > 0, ends[places - 1], 0)
    index[1 : whole + 1, 0] = places
    index[1 : whole + 1, 1] = starts - before
    return whole + 1


def _end_of_tokens(lengths: Array, documents: Array, cut: Cut) -> tuple[int, int]:
    """The last document with enough tokens to step `extra` back (Megatron takes the last one, empty or not)."""
    place = len(documents) - 1
    while int(lengths[documents[place]]) < cut.extra:
        place -= 1
    return place, int(lengths[documents[place]]) - cut.extra


def shuffle_index(plan: EpochPlan, rng: np.random.RandomState, engine: Engine = "auto") -> Array:
    """The order of samples: uint32 [samples] (int64 beyond its range), the last epoch's apart when `plan.separate`."""
    dtype = np.int64 if plan.samples >= UINT32_MAX - 1 else np.uint32
    index = np.arange(plan.samples, dtype=dtype)
    border = plan.before_last if plan.separate else plan.samples
    _shuffle(index[:border], rng, engine)
    if border < plan.samples:
        _shuffle(index[border:], rng, engine)
    return index


def index_arrays(
    lengths: Array, sequences: range, plan: EpochPlan, cut: Cut, seed: int, engine: Engine = "auto"
) -> Iterator[tuple[str, Array]]:
    """`document_index`, `sample_index` and `shuffle_index` by name, one after the other.

    No more than the first two are held at once: 4 bytes a document and 8 a sample.
    """
    rng = np.random.RandomState(seed)
    documents = document_index(sequences, plan, rng, engine)
    yield "document_index", documents
    samples = sample_index(lengths, documents, plan, cut, engine)
    del documents
    yield "sample_index", samples
    del samples
    yield "shuffle_index", shuffle_index(plan, rng, engine)


def blend_index(weights: Array, size: int, engine: Engine = "auto") -> tuple[Array, Array]:
    """Which set each of `size` draws goes to, int16 [size], and its number within that set, int64 [size].

    weights: float64, shares that add up to 1. Draw n goes to the set with the largest weight * max(n, 1) - draws so
    far, the first of equals: no randomness.
    """
    datasets, samples = _blend_arrays(len(weights), size)
    compiled = kernels(engine)
    if compiled is not None:
        compiled.blend(np.ascontiguousarray(weights, dtype=np.float64), datasets, samples)
    else:
        _blend_in_numpy(np.asarray(weights, dtype=np.float64), None, datasets, samples)
    return datasets, samples


def exhaustive_index(sizes: Array, engine: Engine = "auto") -> tuple[Array, Array]:
    """As `blend_index`, drawing exactly sizes[k] samples from set k in proportion to the sizes.

    Raises SampleOptionError when a size is below 1 (Megatron then writes past its arrays).
    """
    sizes = np.ascontiguousarray(sizes, dtype=np.int64)
    if len(sizes) and int(sizes.min()) < 1:
        raise SampleOptionError(f"set {int(sizes.argmin())} of the blend has {int(sizes.min())} samples; leave it out")
    datasets, samples = _blend_arrays(len(sizes), int(sizes.sum()))
    compiled = kernels(engine)
    if compiled is not None:
        compiled.blend_exhaustive(sizes, datasets, samples)
    else:
        _blend_in_numpy(sizes / float(sizes.sum()), sizes, datasets, samples)
    return datasets, samples


def _blend_arrays(sets: int, size: int) -> tuple[Array, Array]:
    if not 1 <= sets < MAX_BLENDED_SETS:
        raise SampleOptionError(f"a blend of {sets:,} sets; from 1 to {MAX_BLENDED_SETS - 1:,} are possible")
    return np.empty(size, dtype=np.int16), np.empty(size, dtype=np.int64)


def _blend_in_numpy(weights: Array, sizes: Array | None, datasets: Array, samples: Array) -> None:
    taken = np.zeros(len(weights), dtype=np.int64)
    for draw in range(len(datasets)):
        behind = weights * float(max(draw, 1)) - taken
        if sizes is not None:
            behind[taken == sizes] = -np.inf
        best = int(behind.argmax())
        datasets[draw], samples[draw] = best, taken[best]
        taken[best] += 1
