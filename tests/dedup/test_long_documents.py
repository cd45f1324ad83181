"""Long documents are signed window by window and compared by merging: the results are those of the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.dedup import find_duplicates, plain
from mmdata.dedup.decide import DedupRun
from mmdata.dedup.in_memory import TextSource
from mmdata.dedup.params import DedupParams
from mmdata.dedup.prefix_kernels import HUGE
from mmdata.dedup.signer import ShingleSets, Signed, Signer
from mmdata.dedup.windows import WINDOW, windows

TEXT = st.text(alphabet=st.sampled_from("ab1 .中文法第，。\n\t\u3000é𠮷"), max_size=120)


@settings(max_examples=400, deadline=None)
@given(TEXT, st.booleans(), st.integers(1, 6), st.integers(1, 20))
def test_windows_have_the_shingles_of_the_whole_and_no_other(text: str, chars: bool, size: int, window: int) -> None:
    pieces = list(windows(text, chars, size, window))
    found = {int(value) for piece in pieces for value in plain.rolling_shingles(piece, chars, size)}
    assert found == set(plain.rolling_shingles(text, chars, size).tolist())
    assert all(piece in text for piece in pieces)


def test_a_window_of_words_does_not_grow_with_the_text() -> None:
    text = "法律 words and 条文，" * 200_000
    pieces = list(windows(text, False, 5))
    assert len(pieces) == -(-len(text) // WINDOW) and max(map(len, pieces)) < WINDOW + 100


@pytest.mark.parametrize("options", [{}, {"unit": "char"}, {"item_hash": "sha1"}, {"normalize": ("case",)}])
def test_long_texts_have_the_keys_and_sets_of_one_pass_compiled_or_plain(options: dict[str, str]) -> None:
    rng = np.random.default_rng(3)
    words = rng.integers(0, 30_000, 60_000)
    text = "".join(f"第{word} Word{word}，" if word % 3 else "\n  " for word in words.tolist())
    assert len(text) > 2 * WINDOW
    params = DedupParams(num_perm=32, **options)  # type: ignore[arg-type]
    native, simple = Signer(params, native=True), Signer(params, native=False)
    once = native._shingles(native._normalized([text]), distinct=True)
    values = np.sort(once.values)
    for signer in (native, simple):
        sets = signer.sets(["short one", text, "short two"])
        assert np.array_equal(sets[1], values)
        assert np.array_equal(signer.signatures([text]), native._minima(once, 32))
        assert np.array_equal(signer.sign([text]).keys, native.sign([text]).keys)
        assert signer.sign([" \n\t" * WINDOW, text]).counted.tolist() == [False, True]
        assert len(signer.sets([" \n\t" * WINDOW])) == 1


class Sets:
    """A SetSource of given sets."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self.arrays = arrays

    def sizes(self, documents: np.ndarray) -> np.ndarray:
        return np.array([8 * len(self.arrays[number]) for number in documents])

    def load(self, documents: np.ndarray, slot: int) -> ShingleSets:
        arrays = [self.arrays[number] for number in documents]
        return ShingleSets(np.concatenate(arrays), np.cumsum([0, *map(len, arrays)]))


def test_huge_sets_are_compared_exactly_with_huge_and_with_smaller_ones() -> None:
    rng = np.random.default_rng(5)
    base = np.unique(rng.integers(0, 2**64, HUGE + 300_000, dtype=np.uint64))
    smaller = rng.permutation(base)[: HUGE - 100_000]  # no order is promised below HUGE
    near = np.unique(np.concatenate([base[: len(base) - 200_000], rng.integers(0, 2**64, 200_000, dtype=np.uint64)]))
    far = np.unique(np.concatenate([base[: len(base) // 2], rng.integers(0, 2**64, HUGE, dtype=np.uint64)]))
    arrays = [smaller, far, near, base]
    run = DedupRun(DedupParams(threshold=0.8))
    run.add(Signed(np.zeros((4, 20), dtype=np.uint64), np.ones(4, dtype=np.bool_)))
    kept_of, similarity = run.decide(Sets(arrays)).arrays()

    def jaccard(mine: np.ndarray, other: np.ndarray) -> float:
        shared = len(np.intersect1d(mine, other, assume_unique=True))
        return shared / (len(mine) + len(other) - shared)

    assert 0.8 < jaccard(base, smaller) < jaccard(base, near) and jaccard(near, smaller) < 0.8
    assert kept_of.tolist() == [-1, -1, -1, 2]
    assert similarity[3] == jaccard(base, near)


def test_a_long_document_and_its_copies_are_found_among_short_ones() -> None:
    text = " ".join(map(str, range(150_000)))
    texts = ["short one of several words", text, text[: len(text) // 10 * 9], text + " end", text[: len(text) // 2]]
    kept_of, similarity = find_duplicates(texts)
    assert kept_of.tolist() == [-1, -1, 1, 1, -1]
    sets = Signer(DedupParams()).sets([texts[1], texts[2]])
    assert similarity[2] == len(np.intersect1d(sets[0], sets[1])) / len(sets[0])
    assert TextSource(texts, Signer(DedupParams())).load(np.array([1]), 1).starts.tolist() == [0, 149_996]
