"""One run of the index on disk: sorted keys, shingle hashes and identities of a range of documents; merging of runs.

Files, all little-endian: keys and owners (uint64 each, ascending by key), values (uint64, each document's distinct
shingle hashes ascending), starts (documents + 1 offsets into values), ids (JSON), id-starts (documents + 1 offsets).
They are read through memory maps, so only what is looked up is read.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup.signer import ShingleSets
from mmdata.errors import DedupIndexError

U64 = NDArray[np.uint64]
COPY_BYTES = 1 << 22
MERGE_PAIRS = 1 << 18


@dataclass(frozen=True, slots=True)
class RunFacts:
    """name: its folder. first: number of its first document in the index. The rest are counts, `id_bytes` in bytes."""

    name: str
    first: int
    documents: int
    pairs: int
    values: int
    id_bytes: int


class Run:
    """Looks documents up in one run."""

    def __init__(self, folder: Path, facts: RunFacts) -> None:
        """Raises DedupIndexError when a file is missing or has another size than recorded."""
        self.facts, self.folder = facts, folder / facts.name
        sizes = {
            "keys": 8 * facts.pairs,
            "owners": 8 * facts.pairs,
            "values": 8 * facts.values,
            "starts": 8 * (facts.documents + 1),
            "ids": facts.id_bytes,
            "id-starts": 8 * (facts.documents + 1),
        }
        for name, size in sizes.items():
            path = self.folder / name
            found = path.stat().st_size if path.exists() else -1
            if found != size:
                raise DedupIndexError(f"{path}: {found} bytes, the index recorded {size}; build the index anew")

    def open(self, name: str) -> U64:
        """One of the uint64 files as a read-only map."""
        path = self.folder / name
        return np.memmap(path, dtype="<u8", mode="r") if path.stat().st_size else np.zeros(0, dtype=np.uint64)

    def find(self, keys: U64) -> tuple[U64, U64]:
        """(key, document number in the index) of every match of distinct ascending keys, ordered by key."""
        stored, owners = self.open("keys"), self.open("owners")
        low = np.searchsorted(stored, keys, side="left")
        counts = np.searchsorted(stored, keys, side="right") - low
        hits = np.flatnonzero(counts)
        # Places low, low + 1, ... of every hit, without a loop: a running index minus where each hit's places begin.
        repeated = np.repeat(hits, counts[hits])
        within = np.arange(len(repeated)) - np.repeat(np.cumsum(counts[hits]) - counts[hits], counts[hits])
        numbers = owners[low[repeated] + within].astype(np.uint64) + np.uint64(self.facts.first)
        return keys[repeated], numbers

    def shingles(self, number: int) -> ShingleSets:
        """The shingle set of one document, by its number in the index."""
        starts = self.open("starts")
        local = number - self.facts.first
        low, high = int(starts[local]), int(starts[local + 1])
        values = np.array(self.open("values")[low:high], dtype=np.uint64)
        return ShingleSets(values, np.array([0, high - low], dtype=np.int64))

    def identity(self, number: int) -> tuple[str, int, str | None]:
        """(path, line, id) of one document, by its number in the index."""
        starts = self.open("id-starts")
        local = number - self.facts.first
        with (self.folder / "ids").open("rb") as file:
            file.seek(int(starts[local]))
            path, line, identity = json.loads(file.read(int(starts[local + 1]) - int(starts[local])))
        return str(path), int(line), identity


def write_keys(folder: Path, pieces: Iterable[tuple[U64, U64]]) -> int:
    """Write sorted (key, owner) pieces as the two files; owners of one key ascend. Returns how many pairs."""
    total = 0
    with (folder / "keys").open("wb") as keys_file, (folder / "owners").open("wb") as owners_file:
        for keys, owners in pieces:
            order = np.lexsort((owners, keys))
            keys_file.write(keys[order].astype("<u8").tobytes())
            owners_file.write(owners[order].astype("<u8").tobytes())
            total += len(keys)
        for file in (keys_file, owners_file):
            file.flush()
            os.fsync(file.fileno())
    return total


def merge_runs(folder: Path, runs: list[Run], generation: int) -> list[Run]:
    """Merge the newest two while the older is at most twice as large. Old folders stay for the caller to remove."""
    runs = list(runs)
    step = 0
    while len(runs) > 1 and runs[-2].facts.documents <= 2 * runs[-1].facts.documents:
        merged = _merge(folder, runs[-2], runs[-1], f"run-{generation:08d}-{step}")
        runs[-2:] = [merged]
        step += 1
    return runs


def _merge(folder: Path, older: Run, newer: Run, name: str) -> Run:
    partial = folder / f"{name}.partial"
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir()
    a, b = older.facts, newer.facts
    write_keys(partial, _merged_pairs(older, newer))
    _join(partial / "values", [older.folder / "values", newer.folder / "values"])
    _join(partial / "ids", [older.folder / "ids", newer.folder / "ids"])
    for starts, offset in (("starts", a.values), ("id-starts", a.id_bytes)):
        shifted = newer.open(starts) + np.uint64(offset)
        with (partial / starts).open("wb") as file:
            file.write(np.asarray(older.open(starts)[:-1]).tobytes())
            file.write(shifted.astype("<u8").tobytes())
            file.flush()
            os.fsync(file.fileno())
    os.replace(partial, folder / name)
    counts: dict[str, Any] = {
        field: getattr(a, field) + getattr(b, field) for field in ("documents", "pairs", "values", "id_bytes")
    }
    return Run(folder, RunFacts(name, a.first, **counts))


def _merged_pairs(older: Run, newer: Run) -> Iterator[tuple[U64, U64]]:
    """Both runs' pairs by key range, so that memory does not grow with the runs."""
    keys = older.open("keys"), newer.open("keys")
    owners = older.open("owners"), newer.open("owners")
    shift = np.uint64(newer.facts.first - older.facts.first)
    larger = max(keys, key=len)
    edges = np.unique(larger[MERGE_PAIRS::MERGE_PAIRS])
    cuts = [np.concatenate([[0], np.searchsorted(k, edges), [len(k)]]) for k in keys]
    for i in range(len(edges) + 1):
        spans = [slice(int(cut[i]), int(cut[i + 1])) for cut in cuts]
        piece_keys = np.concatenate([keys[0][spans[0]], keys[1][spans[1]]])
        piece_owners = np.concatenate([owners[0][spans[0]], owners[1][spans[1]] + shift])
        yield piece_keys, piece_owners


def _join(target: Path, sources: list[Path]) -> None:
    with target.open("wb") as out:
        for source in sources:
            with source.open("rb") as file:
                shutil.copyfileobj(file, out, COPY_BYTES)
        out.flush()
        os.fsync(out.fileno())
