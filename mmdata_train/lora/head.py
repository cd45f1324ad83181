"""The output head with a low-rank adapter, with trainable rows for new tokens, or both.

Logits are W h + scale x B (A h), computed as one product of [h, scale x A h] with [W, B]; rows of new tokens take the
place of W's. So the fused loss stays as it is. Cost: a copy of the head's rows a pass and the head's whole gradient, as
in full fine-tuning, of which little is kept. The frozen matrix may be the embedding's: the adapter unties what the
model computes, not what is stored.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional as F

from mmdata_train.lora.settings import LoraConfig
from mmdata_train.loss import to_local
from mmdata_train.model.decoder import Decoder, OutputHead


class AdaptedHead(OutputHead):
    """OutputHead with lora_A [rank, hidden] and lora_B [padded vocabulary, rank] (where `adapted`), and added_rows
    [tokens, hidden] for `lora.added_ids`.
    """

    lora_A: nn.Parameter | None
    lora_B: nn.Parameter | None
    added_rows: nn.Parameter | None

    def __init__(self, part: Decoder, base: OutputHead, lora: LoraConfig, *, adapted: bool) -> None:
        with torch.device("meta"):
            super().__init__(part.config)
        self.norm, self.weight, self.token_loss = base.norm, base.weight, base.token_loss
        rows, hidden = base.weight.shape
        device = base.weight.device
        self.register_parameter(
            "lora_A", nn.Parameter(torch.empty(lora.rank, hidden, device=device)) if adapted else None
        )
        self.register_parameter(
            "lora_B", nn.Parameter(torch.empty(rows, lora.rank, device=device)) if adapted else None
        )
        count = len(lora.added_ids)
        self.register_parameter(
            "added_rows", nn.Parameter(torch.empty(count, hidden, device=device)) if count else None
        )
        self.first_added = lora.added_ids[0] if count else 0
        self.scale = lora.scale

    def forward(self, x: Tensor, labels: Tensor | None) -> Tensor | tuple[Tensor, Tensor]:
        """x [batch, length, hidden] -> logits, or with labels [batch, length] (loss [], nll [batch])."""
        hidden, weight = self.norm(x), self._rows()
        if self.lora_A is not None and self.lora_B is not None:
            hidden = torch.cat((hidden, F.linear(hidden, to_local(self.lora_A)) * self.scale), dim=-1)
            weight = torch.cat((weight, to_local(self.lora_B)), dim=1)
        if labels is None:
            return self.token_loss.logits(hidden, weight)
        return self.token_loss(hidden, weight, labels)

    def _rows(self) -> Tensor:
        """The rows of the head held here, new tokens' own ones in place."""
        weight = to_local(self.weight)
        if self.added_rows is None:
            return weight
        added: Tensor = self.added_rows
        if isinstance(added, DTensor):
            # Each rank's gradient covers the rows of its share of the vocabulary.
            added = added.to_local(grad_placements=[Partial()])
        # Written alike for rows held here and elsewhere: on NCCL, ranks whose gradients differ in layout wait for one
        # another for ever. Rows of other ranks go to a scratch row behind the last.
        count = weight.shape[0]
        places = torch.arange(added.shape[0], device=weight.device) + (self.first_added - self.token_loss.shard.start)
        held = (places >= 0) & (places < count)
        own = torch.where(held[:, None], added.to(weight.dtype), 0.0)
        room = torch.cat((weight, weight.new_zeros(1, weight.shape[1])))
        return room.index_copy(0, torch.where(held, places, count), own)[:count]

    def split(self, mesh: DeviceMesh) -> None:
        """B by vocabulary rows over the tensor axis, A and added rows whole."""
        for key, place in (("lora_A", Replicate()), ("lora_B", Shard(0)), ("added_rows", Replicate())):
            whole = getattr(self, key)
            if whole is not None:
                share = distribute_tensor(whole.detach(), mesh, [place], src_data_rank=None)
                setattr(self, key, nn.Parameter(share))
