"""An index makes batches decide as one run would, refuses other parameters, and survives a crash unchanged."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mmdata.dedup.decide import DedupRun
from mmdata.dedup.in_memory import TextSource, find_duplicates
from mmdata.dedup.index import DedupIndex, Identity
from mmdata.dedup.params import DedupParams
from mmdata.dedup.signer import Signer
from mmdata.errors import DedupIndexChangedError, DedupIndexError, DedupIndexMismatchError

PARAMS = DedupParams(threshold=0.7, ngram=3)


def corpus(seed: int, size: int) -> list[str]:
    rng = random.Random(seed)
    bases = [[f"w{rng.randrange(80)}" for _ in range(rng.randrange(10, 60))] for _ in range(12)]
    texts = []
    for _ in range(size):
        words = list(rng.choice(bases))
        for _ in range(rng.randrange(12)):
            words[rng.randrange(len(words))] = f"x{rng.randrange(1000)}"
        texts.append(" ".join(words))
    return texts


def add_batch(folder: Path, texts: list[str], first_line: int) -> list[int]:
    """Deduplicate against the index and itself, add what is kept; returns global numbers as one run would give."""
    index = DedupIndex(folder, PARAMS)
    signer = Signer(PARAMS)
    run = DedupRun(PARAMS)
    run.add(signer.sign(texts))
    kept_of, _ = run.decide(TextSource(texts, signer), index).arrays()
    named = [
        -1 if k == -1 else index.identity(-2 - int(k)).line if k < -1 else first_line + int(k) for k in kept_of.tolist()
    ]
    kept = [i for i, k in enumerate(kept_of.tolist()) if k == -1]
    with index.begin() as batch:
        chosen = [texts[i] for i in kept]
        identities = [Identity("文.jsonl", first_line + i, None) for i in kept]
        batch.add(identities, signer.sign(chosen), signer.sets(chosen))
        batch.commit()
    return named


@pytest.mark.parametrize("cuts", [[400], [100, 200, 300, 400], [5, 390, 395, 400]])
def test_batches_through_an_index_decide_as_one_run(tmp_path: Path, cuts: list[int]) -> None:
    texts = corpus(1, 400)
    wanted = find_duplicates(texts, PARAMS)[0].tolist()
    found: list[int] = []
    low = 0
    for high in cuts:
        found += add_batch(tmp_path / "index", texts[low:high], low)
        low = high
    assert found == wanted
    index = DedupIndex(tmp_path / "index", PARAMS)
    assert index.documents == wanted.count(-1)
    sizes = [run.facts.documents for run in index.runs]
    assert all(a > 2 * b for a, b in pairwise(sizes))
    assert sorted(p.name for p in (tmp_path / "index").glob("run-*")) == sorted(r.facts.name for r in index.runs)


def test_running_the_same_input_twice_keeps_nothing_the_second_time(tmp_path: Path) -> None:
    texts = corpus(2, 150)
    first = add_batch(tmp_path, texts, 0)
    second = add_batch(tmp_path, texts, 1000)
    assert first.count(-1) > 10
    assert -1 not in second
    assert all(line < 1000 for line in second)


def test_other_parameters_are_refused_by_name(tmp_path: Path) -> None:
    add_batch(tmp_path, corpus(3, 20), 0)
    with pytest.raises(DedupIndexMismatchError, match=r"ngram 3 there, 5 here"):
        DedupIndex(tmp_path, DedupParams(threshold=0.7))


def test_a_crash_before_the_commit_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    add_batch(tmp_path, corpus(4, 60), 0)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    index = DedupIndex(tmp_path, PARAMS)
    signer = Signer(PARAMS)
    batch = index.begin()
    batch.add([Identity("a", 1, None)], signer.sign(["one two three four"]), signer.sets(["one two three four"]))
    # The process dies here: its lock goes with it, its unfinished run stays.
    for file in batch._files.values():
        file.close()
    batch._lock.release()
    assert {path: path.read_bytes() for path in before} == before
    assert DedupIndex(tmp_path, PARAMS).documents == index.documents
    assert add_batch(tmp_path, corpus(4, 60), 0).count(-1) == 0
    assert not list(tmp_path.glob("*.partial"))


def test_two_runs_cannot_both_add(tmp_path: Path) -> None:
    add_batch(tmp_path, corpus(5, 30), 0)
    stale = DedupIndex(tmp_path, PARAMS)
    other = DedupIndex(tmp_path, PARAMS)
    with other.begin() as batch:
        with pytest.raises(DedupIndexChangedError, match="another run is adding"):
            stale.begin()
        batch.commit()
    with pytest.raises(DedupIndexChangedError, match="after this one opened it"):
        stale.begin()


def test_damage_and_foreign_folders_are_named(tmp_path: Path) -> None:
    add_batch(tmp_path / "index", corpus(6, 30), 0)
    run = next((tmp_path / "index").glob("run-*"))
    (run / "values").write_bytes(b"short")
    with pytest.raises(DedupIndexError, match="5 bytes, the index recorded"):
        DedupIndex(tmp_path / "index", PARAMS)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(DedupIndexError, match="not empty and no deduplication index"):
        DedupIndex(tmp_path / "other", PARAMS)
    (tmp_path / "index" / "index.json").write_text(json.dumps({"format": 9}), encoding="utf-8")
    with pytest.raises(DedupIndexError, match="format 9"):
        DedupIndex(tmp_path / "index", PARAMS)


def test_a_long_list_of_documents_under_one_key_is_found_whole(tmp_path: Path) -> None:
    signer = Signer(PARAMS)
    index = DedupIndex(tmp_path, PARAMS)
    texts = [f"{i} {i + 1} {i + 2} {i + 3}" for i in range(50)]
    with index.begin() as batch:
        signed = signer.sign(texts)
        signed.keys[:, 0] = 7
        batch.add([Identity("a", i, str(i)) for i in range(50)], signed, signer.sets(texts))
        batch.commit("batch one")
    keys, numbers = DedupIndex(tmp_path, PARAMS).find(np.array([6, 7, 8], dtype=np.uint64))
    assert keys.tolist() == [7] * 50 and numbers.tolist() == list(range(50))
    assert DedupIndex(tmp_path, PARAMS).batches == ["batch one"]
    assert DedupIndex(tmp_path, PARAMS).identity(49) == Identity("a", 49, "49")
