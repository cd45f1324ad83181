"""Promise 10: decisions equal an exhaustive greedy pass in keeper order, on random corpora and on the hard shapes."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mmdata.dedup import decide, walk
from mmdata.dedup.decide import DedupRun, Rule
from mmdata.dedup.in_memory import TextSource, find_duplicates
from mmdata.dedup.params import DedupParams
from mmdata.dedup.signer import Signer

Outcome = tuple[NDArray[np.int64], NDArray[np.float64]]


def exhaustive(texts: list[str], params: DedupParams, order: NDArray[np.float64] | None = None) -> Outcome:
    """The promise word for word, with Python sets: compare with every kept document that shares a key."""
    signer = Signer(params, native=False)
    signed, sets = signer.sign(texts), signer.sets(texts)
    shingles = [set(sets[i].tolist()) for i in range(len(texts))]
    keys = [set(row.tolist()) if ok else set() for row, ok in zip(signed.keys, signed.counted, strict=True)]
    queue = sorted(range(len(texts)), key=lambda i: (0 if order is None else -order[i], i))
    kept: list[int] = []
    kept_of, similarity = np.full(len(texts), -1), np.zeros(len(texts))
    for i in queue:
        for j in sorted(kept):
            if not keys[i] & keys[j]:
                continue
            jaccard = len(shingles[i] & shingles[j]) / len(shingles[i] | shingles[j])
            if jaccard >= params.threshold and jaccard > similarity[i]:
                kept_of[i], similarity[i] = j, jaccard
        if kept_of[i] < 0:
            kept.append(i)
    return kept_of, similarity


def random_corpus(rng: random.Random, size: int) -> list[str]:
    """Edits and cuts of a few base texts: dense clusters whose similarities straddle every threshold."""
    bases = [[rng.choice("abcd") + str(rng.randrange(60)) for _ in range(rng.randrange(3, 60))] for _ in range(4)]
    texts = []
    for _ in range(size):
        words = list(rng.choice(bases))
        for _ in range(rng.randrange(4)):
            words[rng.randrange(len(words))] = f"x{rng.randrange(1000)}"
        if rng.random() < 0.2:
            words = words[: rng.randrange(len(words) + 1)]
        texts.append(" ".join(words))
    return texts


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_decisions_equal_the_exhaustive_greedy_pass(seed: int, native: bool) -> None:
    rng = random.Random(seed)
    texts = random_corpus(rng, rng.randrange(1, 300))
    params = DedupParams(threshold=rng.choice([0.3, 0.5, 0.8, 0.9, 1.0]), ngram=rng.choice([1, 2, 5]))
    order = None if seed % 2 else np.array([float(rng.randrange(5)) for _ in texts])
    wanted = exhaustive(texts, params, order)
    found = find_duplicates(texts, params, order, native)
    assert np.array_equal(found[0], wanted[0])
    assert np.array_equal(found[1], wanted[1])


def template_corpus(rng: random.Random, size: int, words: int = 120, unique: int = 17) -> list[str]:
    """Texts that share a template and end in words of their own: Jaccard (words - 4) / (words + 2 unique - 4)."""
    template = [f"t{i}" for i in range(words)]
    return [" ".join(template + [f"u{rng.randrange(10**9)}" for _ in range(unique)]) for _ in range(size)]


@pytest.mark.parametrize("native", [True, False])
def test_a_template_bucket_decides_as_the_exhaustive_pass(native: bool) -> None:
    rng = random.Random(3)
    # .774 and .853 of the template: one corpus below the threshold, one above, and near copies of some in both.
    texts = template_corpus(rng, 150) + template_corpus(rng, 60, unique=10)
    texts += [text + " tail" for text in texts[::5]]
    rng.shuffle(texts)
    wanted = exhaustive(texts, DedupParams())
    found = find_duplicates(texts, DedupParams(), native=native)
    assert np.array_equal(found[0], wanted[0]) and np.array_equal(found[1], wanted[1])
    assert (wanted[0] < 0).sum() > 120


@pytest.mark.parametrize("order", ["random", "ascending", "descending"])
@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
def test_a_component_of_many_sizes_decides_as_the_exhaustive_pass(order: str, threshold: float) -> None:
    """Sizes differ up to fourfold, so that short prefixes alone would miss pairs, in every order of sizes."""
    rng = random.Random(17)
    templates = [[f"t{k}x{i}" for i in range(120)] for k in range(2)]
    texts = []
    for _ in range(700):
        template = templates[rng.random() < 0.3]
        own = [f"u{rng.randrange(10**9)}" for _ in range(rng.randrange(60))]
        texts.append(" ".join([*template[: rng.randrange(40, 121)], *own]))
    texts += [text + " tail end" for text in texts[::9]]
    rng.shuffle(texts)
    if order != "random":
        texts.sort(key=len, reverse=order == "descending")
    params = DedupParams(threshold=threshold)
    wanted, found = exhaustive(texts, params), find_duplicates(texts, params)
    assert np.array_equal(found[0], wanted[0]) and np.array_equal(found[1], wanted[1])
    assert 0.05 < (wanted[0] >= 0).mean() < 0.95


def test_twenty_thousand_documents_that_share_a_template_are_all_kept() -> None:
    texts = template_corpus(random.Random(1), 20_000)
    kept_of, _ = find_duplicates(texts)
    assert (kept_of == -1).all()


def test_the_component_in_hand_stays_within_the_stated_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[walk.CompiledWalker] = []

    def make(threshold: float, native: bool, cluster: bool) -> walk.Walker:
        made.append(walk.CompiledWalker(threshold))
        return made[-1]

    monkeypatch.setattr(decide, "make_walker", make)
    texts = template_corpus(random.Random(1), 6000)
    assert (find_duplicates(texts)[0] == -1).all()
    held = sum(array.nbytes for array in made[0]._state or ())
    shingles = 6000 * 133
    assert held < 60 * shingles + 8000 * 6000
    assert held > 8 * shingles


def test_twenty_thousand_equal_documents_leave_the_first() -> None:
    kept_of, similarity = find_duplicates(["本院认为，原告的诉讼请求成立，应予支持。"] * 20_000)
    assert kept_of[0] == -1 and (kept_of[1:] == 0).all()
    assert (similarity[1:] == 1.0).all()


def chain(length: int, width: int, step: int) -> list[str]:
    """Windows of a long text: neighbours are similar, distant ones share nothing."""
    words = [f"w{i}" for i in range(length * step + width)]
    return [" ".join(words[i * step : i * step + width]) for i in range(length)]


def test_a_chain_of_five_thousand_keeps_every_link_that_no_kept_one_covers() -> None:
    texts = chain(5000, 104, 10)
    kept_of, similarity = find_duplicates(texts)
    # Of 100 shingles neighbours share 90 (.818), those two apart 80 (.667): about every second one stays, not one.
    dropped = kept_of >= 0
    assert 0.495 < dropped.mean() <= 0.5
    assert not (dropped[1:] & dropped[:-1]).any()
    assert (kept_of[kept_of >= 0] + 1 == np.flatnonzero(kept_of >= 0)).all()
    assert set(similarity[kept_of >= 0].tolist()) == {90 / 110}
    assert np.array_equal(exhaustive(texts[:400], DedupParams())[0], kept_of[:400])


@pytest.mark.parametrize("native", [True, False])
def test_cluster_mode_keeps_one_link_of_a_chain_and_states_the_exact_similarity(native: bool) -> None:
    texts = chain(5000, 104, 3)
    params = DedupParams(cluster=True, bands=20, rows=6)
    kept_of, similarity = find_duplicates(texts, params, native=native)
    # Neighbours share 97 of 103 shingles: every one is united with the next, the last shares nothing with the first.
    assert kept_of[0] == -1 and (kept_of[1:] == 0).all()
    assert similarity[1] == 97 / 103 and similarity[2] == 94 / 106 and similarity[-1] == 0.0


def test_cluster_mode_keeps_the_best_of_each_connected_component_of_shared_keys() -> None:
    rng = random.Random(5)
    texts, params = random_corpus(rng, 400), DedupParams(cluster=True, threshold=0.6)
    order = np.array([float(rng.randrange(9)) for _ in texts])
    signed = Signer(params).sign(texts)
    parent = list(range(len(texts)))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    met: dict[int, int] = {}
    for i, keys in enumerate(signed.keys.tolist()):
        for key in keys if signed.counted[i] else ():
            parent[root(i)] = root(met.setdefault(key, i))
    first: dict[int, int] = {}
    for i in sorted(range(len(texts)), key=lambda i: (-order[i], i)):
        first.setdefault(root(i), i)
    wanted = [-1 if first[root(i)] == i else first[root(i)] for i in range(len(texts))]
    assert find_duplicates(texts, params, order)[0].tolist() == wanted
    assert (np.array(wanted) >= 0).sum() > 50


@pytest.mark.peer
def test_cluster_mode_cuts_bands_as_datasketch_does() -> None:
    lsh = pytest.importorskip("datasketch").MinHashLSH
    for threshold, num_perm in ((0.8, 128), (0.9, 128), (0.7, 64), (0.5, 64)):
        theirs = lsh(threshold=threshold, num_perm=num_perm)
        ours = DedupParams(cluster=True, threshold=threshold, num_perm=num_perm)
        assert (ours.bands, ours.rows) == (theirs.b, theirs.r)


def test_unique_documents_all_stay_and_empty_ones_are_never_compared() -> None:
    texts = [f"document {i} has words {i * 7} of {i * 13} its {i * 17} own {i * 19}" for i in range(2000)]
    assert (find_duplicates(texts)[0] == -1).all()
    assert (find_duplicates(["", "", "……", "……", " "])[0] == -1).all()
    assert find_duplicates([])[0].tolist() == []


def test_one_huge_document_and_its_copy() -> None:
    huge = " ".join(f"w{i % 90_000}" for i in range(700_000))
    kept_of, similarity = find_duplicates(["short one here", huge, huge + " end", "short one here"])
    assert kept_of.tolist() == [-1, -1, 1, 0]
    assert similarity[2] == pytest.approx(1.0, abs=1e-4)


def test_ties_name_the_lower_input_position_even_when_it_was_kept_later() -> None:
    base = [f"w{i}" for i in range(40)]
    left, right = [*base[:-1], "left"], [*base[:-1], "right"]
    texts = [" ".join(left), " ".join(right), " ".join(base)]
    params = DedupParams(threshold=0.9, ngram=1)
    # 39 of 41 words are shared by each pair: with threshold .955 only equals match, with .9 the first wins.
    assert find_duplicates(texts, params, np.array([1.0, 2.0, 0.0]))[0].tolist() == [1, -1, 1]
    keep_both = DedupParams(threshold=0.951, ngram=1)
    assert find_duplicates([*texts[:2], texts[0]], keep_both)[0].tolist() == [-1, 0, 0]


def test_a_test_set_makes_others_leave_and_nobody_else_does() -> None:
    texts = ["a b c d e f g"] * 3 + ["h i j k l m n"] * 3
    signer = Signer(DedupParams())
    test = np.array([False, True, False, False, False, False])
    run = DedupRun(DedupParams(), rule=Rule(ranked=True, always_kept=test))
    run.add(signer.sign(texts), test.astype(np.float64))
    assert run.decide(TextSource(texts, signer)).arrays()[0].tolist() == [1, -1, 1, -1, -1, -1]


@pytest.mark.parametrize("ranked", [False, True])
@pytest.mark.parametrize("memory", [1 << 20, 1 << 12])
def test_scratch_on_disk_any_batching_and_a_resumed_run_decide_the_same(
    tmp_path: Path, memory: int, ranked: bool
) -> None:
    rng = random.Random(8)
    texts = random_corpus(rng, 1200)
    params = DedupParams(threshold=0.7)
    order = np.array([float(rng.randrange(40)) for _ in texts]) if ranked else None
    wanted = find_duplicates(texts, params, order)
    signer = Signer(params)

    def fill(run: DedupRun, start: int, stop: int, step: int) -> None:
        for low in range(start, stop, step):
            high = min(low + step, stop)
            run.add(signer.sign(texts[low:high]), None if order is None else order[low:high])

    first = DedupRun(params, tmp_path, memory, Rule(ranked=ranked))
    fill(first, 0, 700, 97)
    state = first.checkpoint()
    fill(first, 700, 900, 50)
    first.checkpoint()
    first.close()
    second = DedupRun(params, tmp_path, memory, Rule(ranked=ranked))
    second.resume(state)
    fill(second, 700, 1200, 33)
    decisions = second.decide(TextSource(texts, signer))
    for _ in range(2):
        found = decisions.arrays()
        assert np.array_equal(found[0], wanted[0]) and np.array_equal(found[1], wanted[1])
    decisions.remove()
    assert list(tmp_path.iterdir()) == []
