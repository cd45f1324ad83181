"""The barrier: collects keys while documents stream by, then decides which documents are duplicates of kept ones.

Rule: documents are taken in keeper order; one is dropped exactly when an already kept document that shares a key with
it has exact Jaccard similarity at or above the threshold over the same shingles; it names the most similar such
document, ties to the lower input position. The outcome depends on texts and parameters alone. `plan.py` states the
bytes. Without a work folder everything stays in memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup.candidates import KEY_SHIFT, KeyLookup, Members, document_chunks, group, order_members
from mmdata.dedup.decisions import Decisions
from mmdata.dedup.external import PairStore, pending_pairs
from mmdata.dedup.keeper import F64, U32, rank_in_memory, rank_on_disk
from mmdata.dedup.key_log import KeyLog
from mmdata.dedup.loading import loaded_in_order
from mmdata.dedup.params import DedupParams
from mmdata.dedup.signer import ShingleSets, Signed, concatenate_sets
from mmdata.dedup.walk import ALWAYS_KEPT, NEVER_KEPT, ORDINARY, Piece, make_walker
from mmdata.errors import DedupStateError

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

CHUNK_DOCUMENTS = 4096
INDEX_DOCUMENTS = 256
"""Of an index in all pieces in memory."""
DEFAULT_MEMORY = 256 << 20
LOW32 = np.uint64(0xFFFFFFFF)


class SetSource(Protocol):
    """Gives back the shingle sets of documents by number; asked by several threads, each with a slot of its own."""

    def sizes(self, documents: I64) -> I64:
        """Bytes of each text, or about that."""
        ...

    def load(self, documents: I64, slot: int) -> ShingleSets:
        """Sets of all documents asked for. They are good until the slot is used again."""
        ...


class PinnedSource(KeyLookup, Protocol):
    """An index of documents kept earlier: found by key, never dropped."""

    def sets(self, numbers: U64) -> ShingleSets:
        """Shingle sets of index documents by number."""
        ...


@dataclass(frozen=True, slots=True)
class Rule:
    """What besides the parameters shapes the decision.

    ranked: documents come in descending order of the keys given to `add`, else in input order. always_kept: if given,
    these documents stay and only they can make others leave (a test set against the rest); they must rank first.
    """

    ranked: bool = False
    always_kept: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        assert self.ranked or self.always_kept is None, "documents that are always kept must rank first"


class DedupRun:
    """One deduplication: `add` batches in input order, `checkpoint` and `resume` between them, then `decide`."""

    def __init__(
        self, params: DedupParams, work_dir: Path | None = None, memory: int = DEFAULT_MEMORY, rule: Rule | None = None
    ) -> None:
        """work_dir: an existing folder for scratch files, None to stay in memory. memory: bytes for sorting."""
        self.params, self.folder, self.memory = params, work_dir, memory
        self.rule = rule if rule is not None else Rule()
        self.total, self.uncounted, self.compared = 0, 0, 0
        self._keys = KeyLog(work_dir, params.keys_per_document)
        self._order: list[F64] = []
        self._ordered = 0

    def add(self, signed: Signed, order_keys: F64 | None = None) -> None:
        """Take the next documents; order_keys: float64 for each, greatest kept first, or see add_order."""
        count = len(signed.keys)
        numbers = np.arange(self.total, self.total + count, dtype=np.uint64)[signed.counted]
        self._keys.append(numbers, signed.keys[signed.counted])
        if order_keys is not None:
            self.add_order(order_keys)
        self.total += count
        self.uncounted += count - len(numbers)

    def add_order(self, order_keys: F64) -> None:
        """Order keys of the next documents that have none yet, where they are known only later than the documents."""
        self._ordered += len(order_keys)
        if self.folder is None:
            self._order.append(order_keys)
            return
        with self._order_path().open("ab") as file:
            file.write(order_keys.astype("<f8").tobytes())

    def close(self) -> None:
        """Close files; everything stays for `resume`."""
        self._keys.close()

    def checkpoint(self) -> dict[str, Any]:
        """Make everything added durable; returns a small JSON state for `resume`. Needs a work folder."""
        state = {"total": self.total, "uncounted": self.uncounted, "fingerprint": self.params.fingerprint()}
        if self.rule.ranked and self._order_path().exists():
            with self._order_path().open("rb+") as file:
                os.fsync(file.fileno())
        return state | {"keys": self._keys.checkpoint()}

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint: what was added after it is cut away.

        Raises DedupStateError when the files do not reach as far, or the parameters differ.
        """
        if state["fingerprint"] != self.params.fingerprint():
            raise DedupStateError(
                f"the checkpoint was made with deduplication parameters {state['fingerprint']}, these are "
                f"{self.params.fingerprint()}: start anew"
            )
        self.total, self.uncounted = int(state["total"]), int(state["uncounted"])
        self._keys.resume(state["keys"])
        if self.rule.ranked:
            path = self._order_path()
            found = path.stat().st_size if path.exists() else 0
            if found < 8 * self.total:
                raise DedupStateError(f"{path}: {found} bytes, the checkpoint recorded {8 * self.total}: start anew")
            if path.exists():
                os.truncate(path, 8 * self.total)
            self._ordered = self.total
        else:
            # Keys of add_order, by a run that was killed before it decided.
            self._order_path().unlink(missing_ok=True)

    def decide(
        self,
        source: SetSource,
        index: PinnedSource | None = None,
        native: bool = True,
        threads: int = 1,
    ) -> Decisions:
        """Decide everything added. Consumes the scratch files; call once.

        source: the texts' shingle sets. index: documents that win over all of these. threads: that load sets; with one,
        the calling thread does.
        """
        assert self._ordered == self.total or not self.rule.ranked, "a ranking rule needs a key for each document"
        groups, pinned = group(self._sorted_keys(), self.folder, self.memory, index)
        rank_of = self._rank()
        members = order_members(groups, pinned, self.total, rank_of, native)
        document_of = None if rank_of is None else _inverse(rank_of)
        del rank_of
        decisions = Decisions(self.total, self.folder)
        walker = make_walker(self.params.threshold, native, self.params.cluster and self.params.method == "minhash")
        in_memory = 1 if threads == 1 else threads + 1
        # Bytes of text of each piece in memory: its sets and tables take about four times as much.
        limit = max(self.memory // 8 // in_memory, 1 << 16)
        jobs = self._jobs(members, document_of, _Sets(source, index, limit, INDEX_DOCUMENTS // in_memory))
        for piece in loaded_in_order(jobs, threads, in_memory * limit):
            kept_of, similarity = walker.decide(piece)
            dropped = kept_of != -1
            # Index documents stand as negative numbers from -2 down in the walk already.
            decisions.add(piece.document[dropped], kept_of[dropped], similarity[dropped])
            del piece  # the next one is made before the name is given anew
        self.compared = walker.compared
        return decisions

    def _sorted_keys(self) -> PairStore:
        """The pairs (key, document), partitioned by key."""
        store = PairStore(self.folder, "keys", KEY_SHIFT, pending_pairs(self.memory))
        for numbers, keys in self._keys.drain():
            store.append(keys.ravel(), np.repeat(numbers, keys.shape[1]))
        return store

    def _rank(self) -> U32 | None:
        if not self.rule.ranked:
            return None
        if self.folder is None:
            return rank_in_memory(np.concatenate([np.zeros(0), *self._order]))
        path = self._order_path()
        rank = rank_on_disk(path, self.total) if self.total else np.zeros(0, dtype=np.uint32)
        path.unlink(missing_ok=True)
        return rank

    def _jobs(
        self, members: Members, document_of: U32 | None, sets: _Sets
    ) -> Iterator[tuple[int, Callable[[int], Piece]]]:
        """Bytes and makers of pieces: runs of documents whose texts are within the limit, or a single larger one."""
        last_root = -1
        for places, keys, key_starts in document_chunks(members, self.memory, CHUNK_DOCUMENTS):
            roots = (places >> np.uint64(32)).astype(np.int64)
            first = np.concatenate([[roots[0] != last_root], roots[1:] != roots[:-1]])
            last_root = int(roots[-1])
            documents = _documents(places & LOW32, members.pinned, document_of)
            kind = self._kinds(documents)
            for low, high, size in _runs(sets.sizes(documents), sets.limit):
                span = key_starts[low : high + 1]
                yield size, partial(
                    sets.piece, documents[low:high], first[low:high], kind[low:high], keys[span[0] : span[-1]],
                    span - span[0],
                )  # fmt: skip

    def _kinds(self, documents: I64) -> NDArray[np.uint8]:
        kind = np.full(len(documents), ORDINARY, dtype=np.uint8)
        if self.rule.always_kept is not None:
            kind[:] = NEVER_KEPT
            ours = documents >= 0
            kind[ours] = np.where(self.rule.always_kept[documents[ours]], ALWAYS_KEPT, NEVER_KEPT)
        kind[documents < 0] = ALWAYS_KEPT
        return kind

    def _order_path(self) -> Path:
        assert self.folder is not None, "no files without a work folder"
        return self.folder / "order.f8"


def _inverse(rank_of: U32) -> U32:
    document_of = np.empty_like(rank_of)
    step = 1 << 20
    for low in range(0, len(rank_of), step):
        part = rank_of[low : low + step]
        document_of[part] = np.arange(low, low + len(part), dtype=np.uint32)
    return document_of


def _documents(nodes: U64, pinned: U64, document_of: U32 | None) -> I64:
    """Nodes to document numbers; document i of the index becomes -2 - i."""
    ours = nodes >= np.uint64(len(pinned))
    documents = np.empty(len(nodes), dtype=np.int64)
    ranks = (nodes[ours] - np.uint64(len(pinned))).astype(np.int64)
    documents[ours] = ranks if document_of is None else document_of[ranks]
    documents[~ours] = -2 - pinned[nodes[~ours]].astype(np.int64)
    return documents


def _runs(sizes: I64, limit: int) -> Iterator[tuple[int, int, int]]:
    """(low, high, bytes) of runs that hold at most `limit` bytes, or a single larger one."""
    ends = np.cumsum(sizes)
    low, before = 0, 0
    while low < len(sizes):
        high = max(int(np.searchsorted(ends, before + limit, side="right")), low + 1)
        yield low, high, int(ends[high - 1]) - before
        low, before = high, int(ends[high - 1])


class _Sets:
    """Makes pieces of documents of this run and of an index."""

    def __init__(self, source: SetSource, index: PinnedSource | None, limit: int, index_documents: int) -> None:
        """limit: bytes of text that a piece may hold. index_documents: how many of an index."""
        self.limit = limit
        self._index_share = limit // max(index_documents, 1)
        self._source, self._index = source, index
        self._index_in_use = threading.Lock()

    def sizes(self, documents: I64) -> I64:
        """Bytes of text of each; those of an index, which are not known, for their share of a piece."""
        sizes = np.full(len(documents), self._index_share, dtype=np.int64)
        ours = documents >= 0
        sizes[ours] = self._source.sizes(documents[ours])
        return sizes

    def piece(
        self, documents: I64, first: NDArray[np.bool_], kind: NDArray[np.uint8], keys: U64, key_starts: I64, slot: int
    ) -> Piece:
        """These documents with their sets."""
        sets = self._load(documents, slot)
        return Piece(documents, first, kind, sets.values, sets.starts, keys, key_starts)

    def _load(self, documents: I64, slot: int) -> ShingleSets:
        cuts = np.flatnonzero((documents[1:] < 0) != (documents[:-1] < 0)) + 1
        parts = []
        for part in np.split(documents, cuts):
            if part[0] >= 0:
                sets = self._source.load(part, slot)
                # The next part is loaded into the same slot.
                parts.append(ShingleSets(sets.values.copy(), sets.starts) if len(cuts) else sets)
                continue
            assert self._index is not None, "index documents come from an index"
            with self._index_in_use:
                parts.append(self._index.sets((-2 - part).astype(np.uint64)))
        return concatenate_sets(parts)


def clear_scratch(folder: Path) -> None:
    """Delete what a DedupRun may have left in its folder."""
    for path in [*folder.glob("*.pairs"), *folder.glob("keys-*.log"), folder / "order.f8"]:
        path.unlink(missing_ok=True)
