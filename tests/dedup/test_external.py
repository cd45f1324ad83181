"""The external sort: every pair once and in order, and without lone keys none that another pair shares."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mmdata.dedup.candidates import KEY_SHIFT
from mmdata.dedup.external import PairStore

U64 = NDArray[np.uint64]


def shapes() -> dict[str, U64]:
    """Keys of many kinds; a payload is its key's place."""
    rng = np.random.default_rng(3)
    hashes = rng.integers(0, 1 << 64, 30_000, dtype=np.uint64)
    return {
        "hashes, some twice": np.concatenate([hashes, hashes[:900], hashes[:20]]),
        "no key twice": np.unique(hashes),
        "one key": np.full(20_000, 77, dtype=np.uint64),
        "a flood and its neighbours": np.concatenate([np.full(20_000, 77), np.arange(70, 90)]).astype(np.uint64),
        "equal last bits": (np.arange(3000, dtype=np.uint64) << np.uint64(40)) | np.uint64(5),
        "one pair": hashes[:1],
        "two pairs of one key": hashes[[0, 0]],
    }


@pytest.mark.parametrize("name", shapes())
@pytest.mark.parametrize(("memory", "on_disk"), [(1 << 26, False), (1 << 26, True), (1 << 14, True), (1 << 10, True)])
def test_reading_without_lone_keys_gives_every_pair_of_a_shared_one_in_order(
    tmp_path: Path, name: str, memory: int, on_disk: bool
) -> None:
    keys = shapes()[name]
    counts = Counter(keys.tolist())
    all_pairs = set(zip(keys.tolist(), range(len(keys)), strict=True))
    for lone in (True, False):
        store = PairStore(tmp_path if on_disk else None, f"keys{lone}", KEY_SHIFT, 4096)
        for low in range(0, len(keys), 1000):
            part = keys[low : low + 1000]
            store.append(part, np.arange(low, low + len(part), dtype=np.uint64))
        pieces = list(store.read_sorted(memory, consume=True, lone=lone))
        read = [int(key) for piece, _ in pieces for key in piece]
        places = [int(place) for _, piece in pieces for place in piece]
        assert read == sorted(read)
        found = set(zip(read, places, strict=True))
        assert len(found) == len(read) and found <= all_pairs
        assert found >= {(key, place) for key, place in all_pairs if lone or counts[key] > 1}
    assert list(tmp_path.iterdir()) == []


def test_most_lone_keys_are_left_out_of_the_sort() -> None:
    keys = np.unique(np.random.default_rng(4).integers(0, 1 << 64, 100_000, dtype=np.uint64))
    store = PairStore(None, "keys", KEY_SHIFT)
    store.append(keys, keys)
    ((read, _),) = store.read_sorted(1 << 26, consume=True, lone=False)
    assert 0 < len(read) < 0.45 * len(keys)
