"""External sort of (key, payload) pairs of 64 bits each, partitioned by the key's leading bits.

Append writes each pair once into its partition (16 bytes a pair); reading sorts one partition at a time in memory, or
a slice of it where a partition is larger than the memory given (then the partition is read once for each slice). All
stays in memory until `spill_bytes` when there is no folder to write to, or the data is small.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import DedupStateError

U64 = NDArray[np.uint64]
PAIR_BYTES = 16
READ_PAIRS = 1 << 18
PENDING_PAIRS = 1 << 19
"""Pairs buffered before they are scattered to the partition files: 8 MiB."""


class PairStore:
    """Partitioned pairs on disk (or in memory, when folder is None), sorted when read.

    shift: a pair belongs to partition `key >> shift`. Equal content gives equal results for any batching.
    """

    def __init__(self, folder: Path | None, name: str, shift: int) -> None:
        self.folder, self.name, self.shift = folder, name, shift
        self.total = 0
        self._pending: list[tuple[U64, U64]] = []
        self._pending_pairs = 0
        self._sizes: dict[int, int] = {}

    def append(self, keys: U64, payloads: U64) -> None:
        """Add pairs; keys and payloads are uint64 of one length."""
        if len(keys) == 0:
            return
        self._pending.append((keys, payloads))
        self._pending_pairs += len(keys)
        self.total += len(keys)
        if self._pending_pairs >= PENDING_PAIRS and self.folder is not None:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered to the partition files (nothing to do in memory)."""
        if self.folder is None or not self._pending:
            return
        keys = np.concatenate([pair[0] for pair in self._pending])
        payloads = np.concatenate([pair[1] for pair in self._pending])
        self._pending, self._pending_pairs = [], 0
        partitions = (keys >> np.uint64(self.shift)).astype(np.int64)
        order = np.argsort(partitions, kind="stable")
        pairs = np.empty((len(keys), 2), dtype="<u8")
        pairs[:, 0], pairs[:, 1] = keys[order], payloads[order]
        numbers, firsts = np.unique(partitions[order], return_index=True)
        for number, low, high in zip(numbers.tolist(), firsts, [*firsts[1:], len(pairs)], strict=True):
            with self._path(number).open("ab") as file:
                file.write(pairs[low:high].tobytes())
            self._sizes[number] = self._sizes.get(number, 0) + int(high - low)

    def checkpoint(self) -> dict[str, Any]:
        """Make what was appended durable; the state lets `resume` cut away whatever came later."""
        self.flush()
        for number in self._sizes:
            with self._path(number).open("rb+") as file:
                os.fsync(file.fileno())
        return {"total": self.total, "sizes": {str(number): size for number, size in sorted(self._sizes.items())}}

    def resume(self, state: dict[str, Any]) -> None:
        """Continue after a checkpoint: cut partitions to their recorded sizes, remove later ones.

        Raises DedupStateError when a partition is shorter than recorded.
        """
        sizes = {int(number): int(size) for number, size in state["sizes"].items()}
        folder = self._folder()
        for path in sorted(folder.glob(f"{self.name}-*.pairs")):
            number = int(path.stem.rpartition("-")[2])
            if number not in sizes:
                path.unlink()
        for number, size in sizes.items():
            path = self._path(number)
            found = path.stat().st_size if path.exists() else 0
            if found < size * PAIR_BYTES:
                raise DedupStateError(f"{path}: {found} bytes, the checkpoint recorded {size * PAIR_BYTES}: start anew")
            os.truncate(path, size * PAIR_BYTES)
        self._sizes, self.total = sizes, int(state["total"])

    def read_unsorted(self, consume: bool) -> Iterator[tuple[U64, U64]]:
        """All pairs in pieces, in partition order and no order within; consume deletes each partition once read."""
        if self.folder is None:
            yield from self._pending
            return
        self.flush()
        for number in sorted(self._sizes):
            for pairs in self._pieces(number):
                yield pairs[:, 0], pairs[:, 1]
            if consume:
                self._path(number).unlink()
        if consume:
            self._sizes = {}

    def read_sorted(self, memory: int, consume: bool) -> Iterator[tuple[U64, U64]]:
        """All pairs by ascending key (payloads of one key in no order), in pieces.

        memory: bytes one piece and its sorting may take. Only a key with more pairs than fit is split over pieces.
        """
        if self.folder is None:
            if self._pending:
                yield _sort(*(np.concatenate([pair[i] for pair in self._pending]) for i in (0, 1)))
            return
        self.flush()
        limit = max(memory // (4 * PAIR_BYTES), 1)
        for number in sorted(self._sizes):
            yield from self._sorted_slices(number, limit)
            if consume:
                self._path(number).unlink()
        if consume:
            self._sizes = {}

    def _sorted_slices(self, number: int, limit: int) -> Iterator[tuple[U64, U64]]:
        size = self._sizes[number]
        if size <= limit:
            pairs = np.fromfile(self._path(number), dtype="<u8", count=2 * size).reshape(-1, 2)
            yield _sort(pairs[:, 0].copy(), pairs[:, 1].copy())
            return
        edges = self._slice_edges(number, -(-size // limit))
        for low, high in pairwise(edges):
            inside = self._pieces_between(number, low, high)
            if high - low == 1:
                yield from ((pairs[:, 0], pairs[:, 1]) for pairs in inside if len(pairs))
                continue
            chosen = np.concatenate(list(inside))
            if len(chosen):
                yield _sort(chosen[:, 0].copy(), chosen[:, 1].copy())

    def _pieces_between(self, number: int, low: int, high: int) -> Iterator[U64]:
        for pairs in self._pieces(number):
            yield pairs[(pairs[:, 0] >= np.uint64(low)) & (pairs[:, 0] <= np.uint64(high - 1))]

    def _slice_edges(self, number: int, slices: int) -> list[int]:
        """Keys that cut the partition into about equal slices, from a sample; a key met twice gets its own slice."""
        step = max(self._sizes[number] // (slices * 64), 1)
        sample = np.sort(np.concatenate([pairs[::step, 0] for pairs in self._pieces(number)]))
        places = np.linspace(0, len(sample) - 1, 2 * slices + 1).astype(np.int64)[1:-1]
        keys, counts = np.unique(sample[places], return_counts=True)
        edges = {number << self.shift, (number + 1) << self.shift, *map(int, keys)}
        return sorted(edges | {int(key) + 1 for key in keys[counts > 1]})

    def _pieces(self, number: int) -> Iterator[U64]:
        left = self._sizes[number]
        with self._path(number).open("rb") as file:
            while left:
                count = min(left, READ_PAIRS)
                yield np.fromfile(file, dtype="<u8", count=2 * count).reshape(-1, 2)
                left -= count

    def remove(self) -> None:
        """Delete the partition files."""
        self._pending, self._pending_pairs = [], 0
        for number in self._sizes:
            self._path(number).unlink(missing_ok=True)
        self._sizes = {}

    def _folder(self) -> Path:
        assert self.folder is not None, "an in-memory store has no files"
        return self.folder

    def _path(self, number: int) -> Path:
        return self._folder() / f"{self.name}-{number:05d}.pairs"


def _sort(keys: U64, payloads: U64) -> tuple[U64, U64]:
    order = np.argsort(keys)
    return keys[order], payloads[order]
