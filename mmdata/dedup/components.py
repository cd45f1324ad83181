"""Union-find over documents that share a key: iterative, arrays of four bytes a document, the least member as root.

Documents that share no key with another stay NOBODY and never reach a decision: they are kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

NOBODY = 0xFFFFFFFF
MOST_NODES = NOBODY - 1


def unite_runs(parent: U32, keys: U64, nodes: U32, native: bool) -> None:
    """Unite each node with its neighbour in the array when both have the same key."""
    if native:
        from mmdata.dedup.component_kernels import unite_runs as compiled

        compiled(parent, keys, nodes)
        return
    for i, node in enumerate(nodes.tolist()):
        if parent[node] == NOBODY:
            parent[node] = node
        if i and keys[i] == keys[i - 1]:
            a, b = _root(parent, int(nodes[i - 1])), _root(parent, node)
            parent[max(a, b)] = min(a, b)


def _root(parent: U32, node: int) -> int:
    while int(parent[node]) != node:
        parent[node] = parent[int(parent[node])]
        node = int(parent[node])
    return node


def flatten(parent: U32, native: bool) -> None:
    """Point every node at its root directly."""
    if native:
        from mmdata.dedup.component_kernels import flatten as compiled

        compiled(parent)
        return
    for node in np.flatnonzero(parent != NOBODY).tolist():
        parent[node] = _root(parent, node)
