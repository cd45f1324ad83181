"""From keys to candidate components: who shares a key with whom, ordered for the decision.

Three passes over what shares a key: group (sort each partition of keys), unite (union-find), order (sort by component
and keeper order). Memory: four bytes a document plus the piece in hand. Scratch: 16 bytes a key, and while a pass
moves pairs from one store to the next each partition is deleted as soon as it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup.components import MOST_NODES, NOBODY, flatten, unite_runs
from mmdata.dedup.external import PairStore, pending_pairs
from mmdata.errors import DedupParameterError

U64 = NDArray[np.uint64]
U32 = NDArray[np.uint32]

KEY_SHIFT = 56
PINNED = np.uint64(1 << 63)
"""Marks the number of a document of an index among document numbers of this run."""


class KeyLookup(Protocol):
    """An index: finds its documents by key."""

    def find(self, keys: U64) -> tuple[U64, U64]:
        """For distinct ascending keys: (key, document number in the index) of every match, ordered by key."""
        ...


@dataclass(frozen=True, slots=True)
class Members:
    """Everything the decision walks over: pairs (component root << 32 | node, key), and who the nodes are.

    Nodes 0 to len(pinned) - 1 are the documents `pinned` of the index, the others documents in keeper order.
    """

    pairs: PairStore
    pinned: U64


def group(keys: PairStore, folder: Path | None, memory: int, lookup: KeyLookup | None) -> tuple[PairStore, U64]:
    """The pairs (key, document) whose key occurs twice or in the index; pairs of one key are neighbours.

    Consumes `keys`. Index documents appear as PINNED | number; also returns their distinct numbers, ascending.
    """
    groups = PairStore(folder, "groups", KEY_SHIFT, pending_pairs(memory))
    found: list[U64] = []
    last: tuple[np.uint64, np.uint64, bool] | None = None
    for piece_keys, documents in keys.read_sorted(memory, consume=True, lone=lookup is not None):
        if not len(piece_keys):
            continue
        same = np.zeros(len(piece_keys) + 1, dtype=np.bool_)
        same[1:-1] = piece_keys[1:] == piece_keys[:-1]
        if last is not None and last[0] == piece_keys[0]:
            same[0] = True
            if not last[2]:
                groups.append(np.array([last[0]]), np.array([last[1]]))
        shared = same[1:] | same[:-1]
        if lookup is not None:
            firsts = ~same[:-1]
            in_index, numbers = lookup.find(piece_keys[firsts])
            shared |= np.isin(piece_keys, in_index)
            chosen = np.concatenate([in_index, piece_keys[shared]])
            payloads = np.concatenate([numbers | PINNED, documents[shared]])
            order = np.argsort(chosen, kind="stable")
            groups.append(chosen[order], payloads[order])
            found.append(np.unique(numbers))
        else:
            groups.append(piece_keys[shared], documents[shared])
        last = (piece_keys[-1], documents[-1], bool(shared[-1]))
    return groups, np.unique(np.concatenate(found)) if found else np.zeros(0, dtype=np.uint64)


def order_members(groups: PairStore, pinned: U64, total: int, rank_of: U32 | None, native: bool) -> Members:
    """Unite what shares a key and order it by component, then keeper order. Consumes `groups`.

    total: documents of this run. rank_of: each document's place in keeper order, None for input order.
    Raises DedupParameterError above 2^32 - 2 documents.
    """
    nodes_total = total + len(pinned)
    if nodes_total > MOST_NODES:
        raise DedupParameterError(f"{nodes_total} documents in one run: at most {MOST_NODES}; split the input")
    parent = np.full(nodes_total, NOBODY, dtype=np.uint32)
    carry_key, carry_node = np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.uint32)
    for keys, documents in groups.read_unsorted(consume=False):
        nodes = np.concatenate([carry_node, _nodes(documents, pinned, rank_of)])
        unite_runs(parent, np.concatenate([carry_key, keys]), nodes, native)
        carry_key, carry_node = keys[-1:], nodes[-1:]
    flatten(parent, native)
    shift = max(int(nodes_total).bit_length() + 32 - 8, 32)
    members = PairStore(groups.folder, "members", shift, groups.pending)
    for keys, documents in groups.read_unsorted(consume=True):
        nodes = _nodes(documents, pinned, rank_of)
        roots = parent[nodes].astype(np.uint64)
        members.append((roots << np.uint64(32)) | nodes, keys)
    return Members(members, pinned)


def _nodes(documents: U64, pinned: U64, rank_of: U32 | None) -> U32:
    """Document numbers to nodes: index documents first, then keeper order."""
    nodes = np.empty(len(documents), dtype=np.uint32)
    of_index = documents >= PINNED
    ours = documents[~of_index]
    ranks = ours if rank_of is None else rank_of[ours]
    nodes[~of_index] = ranks.astype(np.uint64) + np.uint64(len(pinned))
    nodes[of_index] = np.searchsorted(pinned, documents[of_index] ^ PINNED)
    return nodes


def document_chunks(members: Members, memory: int, most: int) -> Iterator[tuple[U64, U64, NDArray[np.int64]]]:
    """Documents in (component, keeper) order, at most `most` at a time: (root << 32 | node, keys, key starts).

    Keys of one document ascend. Consumes the members.
    """
    for places, keys in members.pairs.read_sorted(memory, consume=True):
        order = np.lexsort((keys, places))
        keys = keys[order]
        firsts = np.flatnonzero(np.concatenate([[True], places[1:] != places[:-1]]))
        starts = np.append(firsts, len(places)).astype(np.int64)
        for low in range(0, len(firsts), most):
            high = min(low + most, len(firsts))
            span = starts[low : high + 1]
            yield places[starts[low:high]], keys[span[0] : span[-1]], span - span[0]
