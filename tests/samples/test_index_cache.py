"""The index cache: keyed by content, whole or absent, right when many processes build at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_lengths import ragged

from mmdata.errors import OutputError
from mmdata.indexed.writer import ShardWriter
from mmdata.samples import BlendedSamples, GPTSamples
from mmdata.samples.cache import cached, content_hash, key_of

FACTS = {"kind": "test", "n": 3}


def arrays(offset: int = 0) -> dict[str, np.ndarray]:
    return {
        "a": np.arange(1000, dtype=np.int32) + offset,
        "b": np.arange(6, dtype=np.int64).reshape(3, 2),
        "empty": np.empty((0, 2), dtype=np.uint16),
    }


def never() -> dict[str, np.ndarray]:
    raise AssertionError("the entry was there and was built again")


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_second_call_maps_what_the_first_built(tmp_path: Path) -> None:
    first = cached(tmp_path, FACTS, arrays)
    again = cached(tmp_path, FACTS, never)
    for name, array in arrays().items():
        assert np.array_equal(first[name], array) and np.array_equal(again[name], array)
        assert again[name].dtype == array.dtype and not again[name].flags.writeable
    assert files(tmp_path) == [key_of(FACTS) + ".bin", key_of(FACTS) + ".json"]


def test_mapped_arrays_outlive_their_files(tmp_path: Path) -> None:
    kept = cached(tmp_path, FACTS, arrays)
    for name in files(tmp_path):
        os.unlink(tmp_path / name)
    assert kept["a"].sum() == arrays()["a"].sum()


def test_an_array_built_after_another_finds_that_one_written_and_let_go(tmp_path: Path) -> None:
    alive: list[weakref.ref[np.ndarray]] = []

    def one_by_one() -> Iterator[tuple[str, np.ndarray]]:
        for name, array in arrays().items():
            assert not [ref for ref in alive if ref() is not None]
            copy = array.copy()
            alive.append(weakref.ref(copy))
            yield name, copy
            del copy

    found = cached(tmp_path, FACTS, one_by_one)
    assert list(found) == list(arrays())
    assert all(np.array_equal(found[name], array) for name, array in arrays().items())
    kept = cached(None, FACTS, lambda: iter(arrays().items()))
    assert all(np.array_equal(kept[name], array) for name, array in arrays().items())


def test_a_folder_emptied_while_the_index_is_written_costs_a_second_build(tmp_path: Path) -> None:
    calls = []

    def emptied() -> Iterator[tuple[str, np.ndarray]]:
        calls.append(1)
        yield from arrays().items()

    def load(entry: str, facts: Any) -> None:
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmdata.samples.cache._load", load)
        found = cached(tmp_path, FACTS, emptied)
    assert len(calls) == 2 and all(np.array_equal(found[name], array) for name, array in arrays().items())


@pytest.mark.parametrize("fault", ["cut", "flipped", "empty", "no_bin", "bad_json", "other_facts", "no_key"])
def test_a_torn_or_stale_entry_is_built_again(tmp_path: Path, fault: str) -> None:
    cached(tmp_path, FACTS, arrays)
    data, text = tmp_path / f"{key_of(FACTS)}.bin", tmp_path / f"{key_of(FACTS)}.json"
    content, description = data.read_bytes(), json.loads(text.read_text(encoding="utf-8"))
    if fault == "cut":
        data.write_bytes(content[:-64])
    elif fault == "flipped":
        data.write_bytes(b"\xff" + content[1:])
    elif fault == "empty":
        data.write_bytes(b"")
    elif fault == "no_bin":
        data.unlink()
    elif fault == "bad_json":
        text.write_text("{", encoding="utf-8")
    elif fault == "other_facts":
        text.write_text(json.dumps(description | {"facts": {"kind": "other"}}), encoding="utf-8")
    else:
        text.write_text("{}", encoding="utf-8")
    assert np.array_equal(cached(tmp_path, FACTS, arrays)["a"], arrays()["a"])
    assert np.array_equal(cached(tmp_path, FACTS, never)["a"], arrays()["a"])


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        cached(tmp_path, FACTS, lambda: {"a": np.array([1 // 0])})
    assert files(tmp_path) == []


def test_the_lock_of_a_killed_builder_holds_nobody_up(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    lock = tmp_path / f"{key_of(FACTS)}.lock"
    import socket

    lock.write_text(json.dumps({"host": socket.gethostname(), "pid": int(done.stdout)}), encoding="utf-8")
    start = time.monotonic()
    assert np.array_equal(cached(tmp_path, FACTS, arrays)["a"], arrays()["a"])
    assert time.monotonic() - start < 60


def test_a_folder_that_cannot_be_made_is_our_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OutputError, match="file"):
        cached(tmp_path / "file" / "cache", FACTS, arrays)


def test_large_content_is_hashed_at_both_ends_and_between() -> None:
    content = np.zeros(40 << 20, np.uint8)
    whole = content_hash(content)
    for place in (0, len(content) - 1):
        content[place] = 1
        assert content_hash(content) != whole
        content[place] = 0
    assert content_hash(content[:-1]) != whole


def shard(prefix: Path, lengths: Any, first: int = 0, **options: Any) -> str:
    with ShardWriter(str(prefix), vocab_size=60_000, overwrite=True) as writer:
        writer.add_documents((np.arange(int(np.sum(lengths))) + first) % 60_000, np.asarray(lengths), **options)
    return str(prefix)


def test_every_option_that_changes_the_index_changes_the_key(tmp_path: Path) -> None:
    prefix = shard(tmp_path / "a", ragged(100, 1))
    cache = tmp_path / "cache"
    variants: list[dict[str, Any]] = [
        {}, {"seq_length": 17}, {"num_samples": 51}, {"num_samples": None}, {"seed": 2}, {"split": "9,1"},
        {"split": "9,1", "subset": "valid"}, {"extra_token": False}, {"drop_last": False},
    ]  # fmt: skip
    for number, options in enumerate(variants, start=1):
        GPTSamples(prefix, **({"seq_length": 16, "num_samples": 50, "cache_dir": cache} | options))
        assert len(files(cache)) == 2 * number, options
    assert len({GPTSamples(prefix, **({"seq_length": 16, "num_samples": 50} | o)).fingerprint for o in variants}) == 9


def test_rewriting_a_shard_under_its_name_rebuilds_and_another_path_does_not(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    lengths = ragged(100, 1)
    GPTSamples(shard(tmp_path / "a", lengths), 16, 50, cache_dir=cache)
    GPTSamples(shard(tmp_path / "copy", lengths), 16, 50, cache_dir=cache)
    assert len(files(cache)) == 2
    other = lengths[::-1].copy()
    samples = GPTSamples(shard(tmp_path / "a", other), 16, 50, cache_dir=cache)
    assert len(files(cache)) == 4
    fresh = GPTSamples(str(tmp_path / "a"), 16, 50)
    assert all(np.array_equal(a, b) for a, b in zip(samples, fresh, strict=True))


def test_tokens_change_the_fingerprint_but_not_the_index(tmp_path: Path) -> None:
    lengths = ragged(100, 1)
    one = GPTSamples(shard(tmp_path / "a", lengths), 16, 50)
    two = GPTSamples(shard(tmp_path / "b", lengths, first=5), 16, 50)
    assert np.array_equal(one.shuffle_index, two.shuffle_index)
    assert one.fingerprint != two.fingerprint


def build_at_once(prefix: str, cache: str, start: Any, results: Any) -> None:
    start.wait(60)
    samples = GPTSamples(prefix, 64, 3000, cache_dir=cache)
    blend = BlendedSamples([samples, samples], [0.3, 0.7], 3000, cache_dir=cache)
    total = int(samples.shuffle_index.astype(np.int64) @ np.arange(len(samples)))
    results.put((len(samples), total, int(blend.dataset_index.sum()), samples[5].tolist()))


def test_eight_processes_building_at_once_get_the_same_and_leave_one_entry(tmp_path: Path) -> None:
    prefix = shard(tmp_path / "a", ragged(20_000, 1))
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    start, results = context.Event(), context.Queue()
    arguments = (prefix, str(tmp_path / "cache"), start, results)
    workers = [context.Process(target=build_at_once, args=arguments) for _ in range(8)]
    for worker in workers:
        worker.start()
    start.set()
    try:
        answers = [results.get(timeout=240) for _ in workers]
        for worker in workers:
            worker.join(30)
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.kill()
    assert all(answer == answers[0] for answer in answers)
    assert [worker.exitcode for worker in workers] == [0] * 8
    assert sorted(Path(name).suffix for name in files(tmp_path / "cache")) == [".bin", ".bin", ".json", ".json"]
