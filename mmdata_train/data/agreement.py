"""Proof that ranks which must hold the same samples do: tensor peers, first and last stage.

Two hashes of 63 bits travel, never tokens. One collective of 24 bytes a rank, a group and a checked step. Every rank
takes part in every collective before any rank raises, and a disagreement found in one group is told to the next one:
nobody is left waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

_NOTHING = -1


@dataclass(frozen=True)
class Digests:
    """Hashes of a step: of its tokens (None where they were not read), and of what follows from the index."""

    tokens: int | None
    index: int


def find_disagreement(mine: Digests, trouble: bool, group: Any, device: torch.device) -> str | None:
    """Compare digests over a process group; ranks without tokens are compared by the index alone.

    trouble: whether this rank already knows of a disagreement, which then is the answer of its whole group. Returns
    what differs and where, the same on every rank of the group, or None.
    """
    values = [_NOTHING if mine.tokens is None else mine.tokens, mine.index, int(trouble)]
    row = torch.tensor(values, dtype=torch.int64, device=device)
    gathered = [torch.empty_like(row) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, row, group=group)
    tokens, indices, troubles = zip(*(other.tolist() for other in gathered), strict=True)
    members = dist.get_process_group_ranks(group)
    for name, column in (("tokens", tokens), ("document boundaries, positions or targets", indices)):
        known = {rank: value for rank, value in zip(members, column, strict=True) if value != _NOTHING}
        if len(set(known.values())) > 1:
            seen = ", ".join(f"rank {rank}: {value:016x}" for rank, value in known.items())
            return f"ranks hold different {name} ({seen})"
    told = [rank for rank, value in zip(members, troubles, strict=True) if value]
    return f"rank {told[0]} and its tensor peers hold different samples" if told else None
