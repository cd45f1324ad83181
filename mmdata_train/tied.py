"""One weight in two places: the embedding in the first stage and the tied head in the last.

Both copies start equal, get the sum of both gradients, and are updated alike, so they stay equal to the bit. On a
folded schedule both lie on one rank and nothing is sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor, nn

from mmdata_train.loss import to_local
from mmdata_train.mesh import Mesh
from mmdata_train.parallelize import ModelParts
from mmdata_train.schedules import SCHEDULES, ScheduleName, rank_of_stage


@dataclass(frozen=True, slots=True)
class TiedCopies:
    """This rank's copies of the tied weight (one, both or none) and the two ranks that hold them, if they differ."""

    embedding: nn.Parameter | None
    head: nn.Parameter | None
    group: dist.ProcessGroup | None

    @classmethod
    def find(cls, model: ModelParts, schedule: ScheduleName) -> TiedCopies:
        """A collective: every rank takes part in making the groups."""
        if not model.config.tie_embeddings or model.num_stages == 1:
            return cls(None, None, None)
        group = _pair_group(
            model.mesh, rank_of_stage(SCHEDULES[schedule], model.num_stages - 1, model.mesh.layout.pipeline)
        )
        here = dict(model.named_parameters())
        # Beside a frozen embedding the rows of new tokens are what is trained in both places.
        pairs = (("embed.added.rows", "head.added_rows"), ("embed.tokens.weight", "head.weight"))
        names = next((pair for pair in pairs if any(name in here for name in pair)), pairs[1])
        return cls(here.get(names[0]), here.get(names[1]), group)

    def sum_gradients(self) -> None:
        """Give both copies the sum of their gradients."""
        grads = [
            to_local(weight.grad)
            for weight in (self.embedding, self.head)
            if weight is not None and weight.grad is not None
        ]
        if len(grads) == 2:
            total: Tensor = grads[0].add_(grads[1])
            grads[1].copy_(total)
        elif grads and self.group is not None:
            dist.all_reduce(grads[0], group=self.group)

    def is_second_copy(self, weight: nn.Parameter) -> bool:
        """True for the head's copy: norms and checkpoints count the weight once."""
        return weight is self.head


def _pair_group(mesh: Mesh, last: int) -> dist.ProcessGroup | None:
    """The group of the first and the last stage's ranks at this rank's data and tensor place; None if one rank holds
    both.
    """
    if last == 0:
        return None
    grid = mesh.world.mesh.flatten(1)
    mine = None
    for column in range(grid.shape[1]):
        ranks = [int(grid[0, column]), int(grid[last, column])]
        group = dist.new_group(ranks, timeout=mesh.limit)
        if dist.get_rank() in ranks:
            mine = group
    return mine
