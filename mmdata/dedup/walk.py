"""Drives the decision over chunks of documents and makes room for the compiled kernels (or does it in plain Python).

State is one component's: the shingle sets and keys of its kept documents. Memory is 8 bytes for each shingle kept in
the component in hand plus about as much for its indexes; components of a few documents, nearly all, need next to
nothing. A component of a million documents that share a template, none of them a duplicate, is the costly case.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mmdata.dedup.prefix_kernels import Walk

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
F64 = NDArray[np.float64]

ORDINARY, ALWAYS_KEPT, NEVER_KEPT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Piece:
    """Documents in (component, keeper) order; arrays as in prefix_kernels.Chunk."""

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
        from mmdata.dedup import prefix_kernels as places

        state = self._make_room(piece)
        values, keys = piece.values.view(np.int64), piece.keys.view(np.int64)
        chunk = places.Chunk(piece.document, piece.first, piece.kind, values, piece.starts, keys, piece.key_starts)
        out = np.empty(len(piece.document), dtype=np.int64), np.empty(len(piece.document))
        begin = 0
        while True:
            kept = int(state.counts[places.KEPT])
            tokens = int(state.kept[kept, places.TOKEN_START]) + len(values)
            begin = native.walk_chunk(state, chunk, self.threshold, begin, self._index_tokens >= tokens, out)
            if begin == len(piece.document):
                break
            kept = int(state.counts[places.KEPT])
            tokens = int(state.kept[kept, places.TOKEN_START]) + len(values)
            state = self._grow_index(state, kept + len(piece.document), tokens)
        self.compared = int(state.counts[places.COMPARED])
        return out

    def _make_room(self, piece: Piece) -> Walk:
        """Room for every document of the piece to be kept beside what the component holds already."""
        from mmdata.dedup import greedy_kernels as native
        from mmdata.dedup import prefix_kernels as places

        state = self._state if self._state is not None else _empty_walk()
        kept = int(state.counts[places.KEPT])
        tokens = int(state.kept[kept, places.TOKEN_START]) + len(piece.values)
        links = int(state.counts[places.LINKS]) + len(piece.keys)
        largest = int(np.diff(piece.starts).max(initial=1))
        state = state._replace(
            kept=_grown(state.kept, kept + len(piece.document) + 1),
            tokens=_grown(state.tokens, tokens),
            keys=_grown(state.keys, links),
            links=_grown(state.links, links),
            prefix=_grown(state.prefix, largest),
        )
        assert largest <= places.HUGE or _huge_ascend(piece, places.HUGE), "sets of many shingles come in order"
        probed = min(largest, places.HUGE)
        if 4 * probed > len(state.probe):
            state = state._replace(probe=np.zeros((_power_of_two(4 * probed), 2), dtype=np.int64))
        if 2 * links > len(state.key_slots):
            state = state._replace(key_slots=np.zeros((_power_of_two(4 * links), 4), dtype=np.int64))
            native.link_again(state)
        self._state = state
        return state

    def _grow_index(self, state: Walk, documents: int, tokens: int) -> Walk:
        """Room in the prefix index for twice as many tokens."""
        from mmdata.dedup import prefix_kernels as places

        tokens, documents = 2 * tokens, 2 * documents
        longs = (1 - self.threshold) * tokens
        # Few values share a chain by chance: one that fell into a template's would walk past every document.
        heads = max(_power_of_two(int(longs) + documents), places.LEAST_WIDTH)
        slots = max(_power_of_two(tokens // places.TOKENS_A_SLOT), places.LEAST_WIDTH)
        state = state._replace(
            # Each prefix length is rounded up by two at most.
            postings=_resized(state.postings, int(longs) + 2 * (documents + 1)),
            short_heads=_resized(state.short_heads, heads),
            extra_heads=_resized(state.extra_heads, heads),
            posted=_resized(state.posted, heads // 4),
            frequency=_resized(state.frequency, min(slots, 1 << 24)),
        )
        self._state, self._index_tokens = state, tokens
        return state


class ClusterWalker:
    """Keeps the first document of each component and drops the others, however similar they are to it."""

    def __init__(self) -> None:
        self.compared = 0
        self._document = -1
        self._kept: U64 = np.zeros(0, dtype=np.uint64)

    def decide(self, piece: Piece) -> tuple[I64, F64]:
        """See Walker; the similarity is the exact one with the kept document."""
        total = len(piece.document)
        kept_of, similarity_of = np.full(total, -1, dtype=np.int64), np.zeros(total)
        firsts = np.flatnonzero(piece.first).tolist()
        for low, high in pairwise([*([] if firsts and firsts[0] == 0 else [0]), *firsts, total]):
            starts = piece.starts[low : high + 1]
            if piece.first[low]:
                self._document = int(piece.document[low])
                self._kept = np.sort(piece.values[starts[0] : starts[1]])
            found = np.isin(piece.values[starts[0] : starts[-1]], self._kept)
            running = np.concatenate([[0], np.cumsum(found)])
            shared = np.diff(running[starts - starts[0]])
            similarity = shared / (np.diff(starts) + len(self._kept) - shared)
            leaves = piece.kind[low:high] != ALWAYS_KEPT
            leaves[0] &= not piece.first[low]
            kept_of[low:high][leaves], similarity_of[low:high][leaves] = self._document, similarity[leaves]
            self.compared += int(leaves.sum())
        return kept_of, similarity_of


def make_walker(threshold: float, native: bool, cluster: bool = False) -> Walker:
    """The compiled walker, or the plain one without numba: the same decisions. cluster: see DedupParams."""
    if cluster:
        return ClusterWalker()
    return CompiledWalker(threshold) if native else PlainWalker(threshold)


def _huge_ascend(piece: Piece, huge: int) -> bool:
    sets = (piece.values[low:high] for low, high in pairwise(piece.starts.tolist()) if high - low > huge)
    return all(bool((one[:-1] < one[1:]).all()) for one in sets)


def _empty_walk() -> Walk:
    from mmdata.dedup import prefix_kernels as places

    columns = {"kept": 4, "key_slots": 4, "links": 2, "probe": 2, "postings": 2}
    dtypes: dict[str, Any] = {
        "frequency": np.uint8,
        "posted": np.uint8,
        "short_heads": np.int32,
        "extra_heads": np.int32,
    }
    arrays: dict[str, Any] = {}
    for name in places.Walk._fields:
        shape = (8, columns[name]) if name in columns else (8,)
        arrays[name] = np.zeros(shape, dtype=dtypes.get(name, np.int64))
    arrays["counts"] = np.zeros(places.COUNTS, dtype=np.int64)
    return places.Walk(**arrays)


def _grown(array: NDArray[Any], wanted: int) -> NDArray[Any]:
    """The array, or a copy with room for twice what is wanted."""
    if wanted <= len(array):
        return array
    larger = np.zeros((2 * wanted, *array.shape[1:]), dtype=array.dtype)
    larger[: len(array)] = array
    return larger


def _resized(array: NDArray[Any], size: int) -> NDArray[Any]:
    """A copy with `size` rows or more; the rows it has more are not set, and take no memory until they are."""
    larger = np.empty((max(size, len(array)), *array.shape[1:]), dtype=array.dtype)
    larger[: len(array)] = array
    return larger


def _power_of_two(least: int) -> int:
    return 1 << max(int(least) - 1, 1).bit_length()
