"""Drives the decision over chunks of documents and makes room for the compiled kernels (or does it in plain Python).

State is one component's: the shingle sets and keys of its kept documents. Memory is 8 bytes for each shingle kept in
the component in hand plus about as much for its indexes; components of a few documents, nearly all, need next to
nothing. A component of a million documents that share a template, none of them a duplicate, is the costly case.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mmdata.dedup.greedy_kernels import Walk

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
F64 = NDArray[np.float64]

ORDINARY, ALWAYS_KEPT, NEVER_KEPT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Piece:
    """Documents in (component, keeper) order; arrays as in greedy_kernels.Chunk."""

    document: I64
    first: NDArray[np.bool_]
    kind: NDArray[np.uint8]
    values: U64
    starts: I64
    keys: U64
    key_starts: I64


class Walker(Protocol):
    """Decides pieces one after the other; a component may go on in the next piece."""

    compared: int

    def decide(self, piece: Piece) -> tuple[I64, F64]:
        """For each document the number of the kept one it duplicates (-1: kept) and the exact similarity."""
        ...


class PlainWalker:
    """The rule in a few lines of Python sets, for machines without numba and as the tests' second opinion."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.compared = 0
        self._kept: list[tuple[int, frozenset[int]]] = []
        self._by_key: dict[int, list[int]] = {}

    def decide(self, piece: Piece) -> tuple[I64, F64]:
        """See Walker."""
        total = len(piece.document)
        kept_of, similarity_of = np.full(total, -1, dtype=np.int64), np.zeros(total)
        for d in range(total):
            if piece.first[d]:
                self._kept, self._by_key = [], {}
            tokens = frozenset(piece.values[piece.starts[d] : piece.starts[d + 1]].tolist())
            keys = piece.keys[piece.key_starts[d] : piece.key_starts[d + 1]].tolist()
            if piece.kind[d] != ALWAYS_KEPT:
                similarity, kept = self._best(tokens, keys)
                if kept >= 0:
                    kept_of[d], similarity_of[d] = kept, similarity
                    continue
            if piece.kind[d] != NEVER_KEPT:
                for key in keys:
                    self._by_key.setdefault(key, []).append(len(self._kept))
                self._kept.append((int(piece.document[d]), tokens))
        return kept_of, similarity_of

    def _best(self, tokens: frozenset[int], keys: list[int]) -> tuple[float, int]:
        """The most similar kept candidate at or above the threshold, ties to the lower number, or -1."""
        candidates = sorted({y for key in keys for y in self._by_key.get(key, ())})
        self.compared += len(candidates)
        best, best_document = 0.0, -1
        for y in candidates:
            document, other = self._kept[y]
            shared = len(tokens & other)
            similarity = shared / (len(tokens) + len(other) - shared)
            if similarity < self.threshold:
                continue
            if best_document < 0 or similarity > best or (similarity == best and document < best_document):
                best, best_document = similarity, document
        return best, best_document


@dataclass(slots=True)
class CompiledWalker:
    """The same through greedy_kernels; arrays grow by doubling between calls."""

    threshold: float
    compared: int = 0
    _state: Walk | None = field(default=None, repr=False)
    _index_tokens: int = 0

    def decide(self, piece: Piece) -> tuple[I64, F64]:
        """See Walker."""
        from mmdata.dedup import greedy_kernels as native

        state = self._make_room(piece)
        chunk = native.Chunk(
            piece.document, piece.first, piece.kind, piece.values, piece.starts, piece.keys, piece.key_starts
        )
        out = np.empty(len(piece.document), dtype=np.int64), np.empty(len(piece.document))
        begin, status = 0, native.NEEDS_INDEX
        while status == native.NEEDS_INDEX:
            kept = int(state.counts[native.KEPT])
            needed = int(state.token_start[kept]) + len(piece.values)
            room = 1 if self._index_tokens >= needed else -1
            begin, status = native.walk_chunk(state, chunk, self.threshold, begin, room, out)
            if status == native.NEEDS_INDEX:
                state = self._grow_index(state, kept + len(piece.document), needed)
        self.compared = int(state.counts[native.COMPARED])
        return out

    def _make_room(self, piece: Piece) -> Walk:
        """Room for every document of the piece to be kept beside what the component holds already."""
        from mmdata.dedup import greedy_kernels as native

        state = self._state if self._state is not None else _empty_walk()
        kept = int(state.counts[native.KEPT])
        documents = kept + len(piece.document)
        tokens = int(state.token_start[kept]) + len(piece.values)
        links = int(state.counts[native.LINKS]) + len(piece.keys)
        largest = int(np.diff(piece.starts).max(initial=1))
        grown: dict[str, Any] = {
            "kept_document": _grown(state.kept_document, documents),
            "mark": _grown(state.mark, documents),
            "token_start": _grown(state.token_start, documents + 1),
            "key_start": _grown(state.key_start, documents + 1),
            "tokens": _grown(state.tokens, tokens),
            "keys": _grown(state.keys, links),
            "link_kept": _grown(state.link_kept, links),
            "link_next": _grown(state.link_next, links),
            "scratch": _grown(state.scratch, largest),
        }
        slots = _power_of_two(2 * largest)
        if slots > len(state.probe_table):
            grown["probe_table"] = np.empty(slots, dtype=np.uint64)
            grown["probe_stamp"] = np.zeros(slots, dtype=np.int64)
        state = state._replace(**grown)
        if 2 * links > len(state.key_table):
            slots = _power_of_two(4 * links)
            state = state._replace(
                key_table=np.empty(slots, dtype=np.uint64),
                key_stamp=np.zeros(slots, dtype=np.int64),
                key_head=np.empty(slots, dtype=np.int64),
                key_count=np.empty(slots, dtype=np.int64),
            )
            native.link_again(state)
        self._state = state
        return state

    def _grow_index(self, state: Walk, documents: int, tokens: int) -> Walk:
        """Room in the prefix index for twice this many tokens; it is rebuilt from what is kept."""
        from mmdata.dedup import greedy_kernels as native

        tokens = 2 * tokens
        t = self.threshold
        postings = int(((1 - t) + (1 - t) / (1 + t)) * tokens) + 4 * (documents + 1)
        slots = _power_of_two(2 * postings)
        arrays: dict[str, Any] = {
            "posting_kept": np.empty(postings, dtype=np.int64),
            "posting_next": np.empty(postings, dtype=np.int64),
            "frequency": np.zeros(min(_power_of_two(tokens), 1 << 24), dtype=np.uint32),
        }
        for name in ("short", "long"):
            arrays[f"{name}_table"] = np.empty(slots, dtype=np.uint64)
            arrays[f"{name}_stamp"] = np.zeros(slots, dtype=np.int64)
            arrays[f"{name}_head"] = np.empty(slots, dtype=np.int64)
        state = state._replace(**arrays)
        state.counts[native.BASE] = state.counts[native.INDEXED] = 0
        self._state, self._index_tokens = state, tokens
        return state


def make_walker(threshold: float, native: bool) -> Walker:
    """The compiled walker, or the plain one without numba: the same decisions."""
    return CompiledWalker(threshold) if native else PlainWalker(threshold)


def _empty_walk() -> Walk:
    from mmdata.dedup import greedy_kernels as native

    kinds = {"tokens", "keys", "scratch"}
    arrays = {}
    for name in native.Walk._fields:
        dtype: type[np.generic] = np.uint64 if name in kinds or name.endswith("_table") else np.int64
        arrays[name] = np.zeros(8, dtype=np.uint32 if name == "frequency" else dtype)
    arrays["counts"] = np.zeros(native.COUNTS, dtype=np.int64)
    return native.Walk(**arrays)


def _grown(array: NDArray[Any], wanted: int) -> NDArray[Any]:
    """The array, or a copy with room for twice what is wanted."""
    if wanted <= len(array):
        return array
    larger = np.zeros(2 * wanted, dtype=array.dtype)
    larger[: len(array)] = array
    return larger


def _power_of_two(least: int) -> int:
    return 1 << max(int(least) - 1, 1).bit_length()
