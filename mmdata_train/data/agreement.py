"""Proof that ranks which must hold the same samples do: tensor peers, first and last stage.

Two hashes of 63 bits travel, never tokens. One collective of 24 bytes a rank a checked step.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from mmdata_train.errors import BatchMismatch

_NOTHING = -1


def check_agreement(token_digest: int | None, index_digest: int, group: Any, device: torch.device, what: str) -> None:
    """Compare digests over a process group; ranks without tokens pass None and are compared by the index alone.

    what: the axis and step, for the message. Raises BatchMismatch on every rank of the group, with the differing ranks.
    """
    mine = torch.tensor(
        [_NOTHING if token_digest is None else token_digest, index_digest], dtype=torch.int64, device=device
    )
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, mine, group=group)
    tokens, indices = zip(*(pair.tolist() for pair in gathered), strict=True)
    members = dist.get_process_group_ranks(group)
    for name, values in (("tokens", tokens), ("document boundaries, positions or targets", indices)):
        known = {rank: value for rank, value in zip(members, values, strict=True) if value != _NOTHING}
        if len(set(known.values())) > 1:
            seen = ", ".join(f"rank {rank}: {value:016x}" for rank, value in known.items())
            raise BatchMismatch(
                f"{what}: ranks hold different {name} ({seen}); they read different files: put the shards on one "
                "shared disk, copy them again, or set data.loading.tensor_peers: broadcast"
            )
