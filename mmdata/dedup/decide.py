"""The barrier: collects keys while documents stream by, then decides which documents are duplicates of kept ones.

Rule: documents are taken in keeper order; one is dropped exactly when an already kept document that shares a key with
it has exact Jaccard similarity at or above the threshold over the same shingles; it names the most similar such
document, ties to the lower input position. The outcome depends on texts and parameters alone. `plan.py` states the
bytes. Without a work folder everything stays in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup.candidates import KEY_SHIFT, KeyLookup, Members, document_chunks, group, order_members
from mmdata.dedup.decisions import Decisions
from mmdata.dedup.external import PairStore, pending_pairs
from mmdata.dedup.keeper import F64, U32, rank_in_memory, rank_on_disk
from mmdata.dedup.key_log import KeyLog
from mmdata.dedup.params import DedupParams
from mmdata.dedup.signer import ShingleSets, Signed, concatenate_sets
from mmdata.dedup.walk import ALWAYS_KEPT, NEVER_KEPT, ORDINARY, Piece, make_walker
from mmdata.errors import DedupStateError

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

CHUNK_DOCUMENTS = 4096
DEFAULT_MEMORY = 256 << 20
LOW32 = np.uint64(0xFFFFFFFF)


class SetSource(Protocol):
    """Gives back the shingle sets of documents by number."""

    def load(self, documents: I64, limit_bytes: int) -> ShingleSets:
        """Sets of the first documents asked for, as many as have about limit_bytes of text together, at least one."""
        ...


class PinnedSource(KeyLookup, Protocol):
    """An index of documents kept earlier: found by key, never dropped."""

    def sets(self, numbers: U64) -> ShingleSets:
        """Shingle sets of index documents by number."""
        ...


class Watch:
    """Told what a decision is doing, by the thread that decides; whatever it raises ends the decision."""

    def working(self) -> None:
        """Comes every so often."""

    def candidates(self, documents: U64) -> None:
        """These share a key with another, or with a document of the index; numbers of the index have their top bit."""

    def candidates_known(self) -> None:
        """All candidates have been told: every other document is kept."""


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
        watch: Watch | None = None,
        native: bool = True,
    ) -> Decisions:
        """Decide everything added. Consumes the scratch files; call once.

        source: the texts' shingle sets. index: documents that win over all of these.
        """
        watch = watch if watch is not None else Watch()
        assert self._ordered == self.total or not self.rule.ranked, "a ranking rule needs a key for each document"
        groups, pinned = group(self._sorted_keys(), self.folder, self.memory, index, watch.working)
        rank_of = self._rank()
        members = order_members(groups, pinned, self.total, rank_of, native, watch.candidates)
        watch.candidates_known()
        document_of = None if rank_of is None else _inverse(rank_of)
        del rank_of
        decisions = Decisions(self.total, self.folder)
        walker = make_walker(self.params.threshold, native, self.params.cluster and self.params.method == "minhash")
        for piece in self._pieces(members, document_of, source, index):
            kept_of, similarity = walker.decide(piece)
            dropped = kept_of != -1
            # Index documents stand as negative numbers from -2 down in the walk already.
            decisions.add(piece.document[dropped], kept_of[dropped], similarity[dropped])
            del piece  # the next one is made before the name is given anew
            watch.working()
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

    def _chunk_bytes(self) -> int:
        """Text a chunk may hold: its sets and tables take about four times as much."""
        return max(self.memory // 8, 1 << 16)

    def _pieces(
        self, members: Members, document_of: U32 | None, source: SetSource, index: PinnedSource | None
    ) -> Iterator[Piece]:
        """Chunks of documents with their sets, cut further where the texts are long."""
        last_root = -1
        for places, keys, key_starts in document_chunks(members, self.memory, CHUNK_DOCUMENTS):
            roots = (places >> np.uint64(32)).astype(np.int64)
            first = np.concatenate([[roots[0] != last_root], roots[1:] != roots[:-1]])
            last_root = int(roots[-1])
            documents = _documents(places & LOW32, members.pinned, document_of)
            kind = self._kinds(documents)
            low = 0
            while low < len(documents):
                sets = _load(documents[low:], self._chunk_bytes(), source, index)
                high = low + len(sets)
                span = key_starts[low : high + 1]
                yield Piece(
                    documents[low:high], first[low:high], kind[low:high], sets.values, sets.starts,
                    keys[span[0] : span[-1]], span - span[0],
                )  # fmt: skip
                low = high
                del sets  # the next ones are made before the name is given anew

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


def _load(documents: I64, limit_bytes: int, source: SetSource, index: PinnedSource | None) -> ShingleSets:
    """Sets of a leading part of the documents, at least of the first; a run of one kind (ours or the index's) each."""
    parts: list[ShingleSets] = []
    done, tokens = 0, 0
    while done < len(documents) and tokens < limit_bytes // 4:
        of_index = documents[done:] < 0
        run = int(np.argmax(of_index != of_index[0])) or len(of_index)
        wanted = documents[done : done + run]
        if of_index[0]:
            assert index is not None, "index documents come from an index"
            sets = index.sets((-2 - wanted[:256]).astype(np.uint64))
        else:
            sets = source.load(wanted, limit_bytes)
        parts.append(sets)
        done += len(sets)
        tokens += len(sets.values)
    return concatenate_sets(parts)


def clear_scratch(folder: Path) -> None:
    """Delete what a DedupRun may have left in its folder."""
    for path in [*folder.glob("*.pairs"), *folder.glob("keys-*.log"), folder / "order.f8"]:
        path.unlink(missing_ok=True)
