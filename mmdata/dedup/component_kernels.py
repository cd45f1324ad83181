"""Compiled union-find with path halving; see components.py."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmdata.kernels import kernel

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
EMPTY = np.uint32(0xFFFFFFFF)


@kernel
def root_of(parent: U32, node: np.uint32) -> np.uint32:
    """The root of a node that has one; halves the path on the way."""
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@kernel
def unite_runs(parent: U32, keys: U64, nodes: U32) -> None:
    """Unite neighbours of one key."""
    for i in range(len(nodes)):
        node = nodes[i]
        if parent[node] == EMPTY:
            parent[node] = node
        if i > 0 and keys[i] == keys[i - 1]:
            a, b = root_of(parent, nodes[i - 1]), root_of(parent, node)
            if a < b:
                parent[b] = a
            else:
                parent[a] = b


@kernel
def flatten(parent: U32) -> None:
    """Point every node at its root: parents are never greater than children, so one ascending pass is enough."""
    for node in range(len(parent)):
        if parent[node] != EMPTY:
            parent[node] = parent[parent[node]]
