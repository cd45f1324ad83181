"""External sort of (key, payload) pairs of 64 bits each, partitioned by the key's leading bits.

Append writes each pair once into its partition (16 bytes a pair); reading sorts one partition at a time in memory, or
a slice of it where a partition is larger than the memory given (then the partition is read once for each slice).
Without a folder, or while there are few pairs, nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
PAIR_BYTES = 16
READ_PAIRS = 1 << 18
MOST_PENDING = 1 << 21
LEAST_PENDING = 1 << 12


def pending_pairs(memory: int) -> int:
    """How many pairs are gathered before they are scattered to the partition files: at most 32 MiB of them."""
    return min(max(memory // (4 * PAIR_BYTES), LEAST_PENDING), MOST_PENDING)


class PairStore:
    """Partitioned pairs on disk (or in memory, when folder is None), sorted when read.

    shift: a pair belongs to partition `key >> shift`. Equal content gives equal results for any batching.
    """

    def __init__(self, folder: Path | None, name: str, shift: int, pending: int = MOST_PENDING) -> None:
        self.folder, self.name, self.shift, self.pending = folder, name, shift, pending
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
        if self._pending_pairs >= self.pending and self.folder is not None:
            self._flush()

    def _flush(self) -> None:
        """Write what is pending to the partition files."""
        keys = np.concatenate([pair[0] for pair in self._pending])
        payloads = np.concatenate([pair[1] for pair in self._pending])
        self._pending, self._pending_pairs = [], 0
        # Sixteen bits, for which numpy's stable sort is a radix sort.
        partitions = (keys >> np.uint64(self.shift)).astype(np.uint16)
        order = np.argsort(partitions, kind="stable")
        pairs = np.empty((len(keys), 2), dtype="<u8")
        pairs[:, 0], pairs[:, 1] = keys[order], payloads[order]
        numbers, firsts = np.unique(partitions[order], return_index=True)
        for number, low, high in zip(numbers.tolist(), firsts, [*firsts[1:], len(pairs)], strict=True):
            with self._path(number).open("ab" if number in self._sizes else "wb") as file:
                file.write(pairs[low:high].tobytes())
            self._sizes[number] = self._sizes.get(number, 0) + int(high - low)

    def _on_disk(self) -> bool:
        """Whether anything was written; then the rest is written too, so that all is in one place."""
        if not self._sizes:
            return False
        if self._pending:
            self._flush()
        return True

    def read_unsorted(self, consume: bool) -> Iterator[tuple[U64, U64]]:
        """All pairs in pieces, in partition order and no order within; consume deletes each partition once read."""
        if not self._on_disk():
            pending = self._pending
            if consume:
                self._pending, self._pending_pairs = [], 0
            yield from pending
            return
        for number in sorted(self._sizes):
            for pairs in self._pieces(number):
                yield pairs[:, 0], pairs[:, 1]
            if consume:
                self._path(number).unlink()
        if consume:
            self._sizes = {}

    def read_sorted(self, memory: int, consume: bool, lone: bool = True) -> Iterator[tuple[U64, U64]]:
        """All pairs by ascending key (payloads of one key in no order), in pieces.

        memory: bytes one piece and its sorting may take. Only a key with more pairs than fit is split over pieces.
        lone: False leaves out most pairs whose key no other pair has, which spares sorting them; a piece may be empty.
        """
        if not self._on_disk():
            if self._pending:
                keys, payloads = (np.concatenate([pair[i] for pair in self._pending]) for i in (0, 1))
                if consume:
                    self._pending, self._pending_pairs = [], 0
                yield _sort(keys, payloads, lone)
            return
        limit = max(memory // ((4 if lone else 5) * PAIR_BYTES), 1)
        for number in sorted(self._sizes):
            yield from self._sorted_slices(number, limit, lone)
            if consume:
                self._path(number).unlink()
        if consume:
            self._sizes = {}

    def _sorted_slices(self, number: int, limit: int, lone: bool) -> Iterator[tuple[U64, U64]]:
        size = self._sizes[number]
        if size <= limit:
            pairs = np.fromfile(self._path(number), dtype="<u8", count=2 * size).reshape(-1, 2)
            yield _sort(pairs[:, 0].copy(), pairs[:, 1].copy(), lone)
            return
        edges = self._slice_edges(number, -(-size // limit))
        for low, high in pairwise(edges):
            inside = self._pieces_between(number, low, high)
            if high - low == 1:
                yield from ((pairs[:, 0], pairs[:, 1]) for pairs in inside if len(pairs))
                continue
            chosen = np.concatenate(list(inside))
            if len(chosen):
                yield _sort(chosen[:, 0].copy(), chosen[:, 1].copy(), lone)

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


def _sort(keys: U64, payloads: U64, lone: bool) -> tuple[U64, U64]:
    if not lone:
        met = _met_twice(keys)
        keys, payloads = keys[met], payloads[met]
    order = np.argsort(keys)
    return keys[order], payloads[order]


def _met_twice(keys: U64) -> NDArray[np.bool_]:
    """True for every key that occurs more than once, and for up to two in five of the others where keys are hashes.

    Counts keys by their last bits: 44 bytes a key at most, a tenth of the time that sorting them takes.
    """
    buckets = 2 << max(len(keys) - 1, 1).bit_length()
    bucket = (keys & np.uint64(buckets - 1)).astype(np.uint32)
    met: NDArray[np.bool_] = (np.bincount(bucket, minlength=buckets) > 1)[bucket]
    return met
