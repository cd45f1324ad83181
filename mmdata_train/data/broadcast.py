"""One rank of a tensor group reads a step and sends it to the others: for disks that bear few readers.

Two collectives a step: a header that also carries failure, so that nobody waits for a batch that will not come, and the
batch as int32. Shapes are known on every rank beforehand.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from mmdata_train.errors import DataError

_FIELDS = ("tokens", "labels", "positions")


def send_step(item: dict[str, Any], group: Any, device: torch.device) -> None:
    """Send a step, or the news that it could not be read; called on the group's first rank."""
    failed = "error" in item
    header = [0, 0, 0] if failed else [1, item["token_digest"], item["index_digest"]]
    source = dist.get_global_rank(group, 0)
    dist.broadcast(torch.tensor(header, dtype=torch.int64, device=device), src=source, group=group)
    if failed:
        return
    names = (*_FIELDS, "documents") if item["documents"] is not None else _FIELDS
    payload = torch.stack([item[name] for name in names]).to(device=device, dtype=torch.int32)
    dist.broadcast(payload, src=source, group=group)


def receive_step(shape: tuple[int, int], isolates: bool, group: Any, device: torch.device) -> dict[str, Any]:
    """The step as StepReader gives it, without `sources` and `request`. Raises DataError when the sender failed."""
    source = dist.get_global_rank(group, 0)
    header = torch.empty(3, dtype=torch.int64, device=device)
    dist.broadcast(header, src=source, group=group)
    intact, token_digest, index_digest = header.tolist()
    if not intact:
        raise DataError(f"rank {source} could not read this step; its own message says why")
    payload = torch.empty((len(_FIELDS) + isolates, *shape), dtype=torch.int32, device=device)
    dist.broadcast(payload, src=source, group=group)
    parts = dict(zip((*_FIELDS, "documents"), payload.long().unbind(), strict=False))
    return {"documents": None, **parts, "token_digest": token_digest, "index_digest": index_digest}
