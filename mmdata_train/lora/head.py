"""The output head with a low-rank adapter: logits = W h + scale x B (A h).

Computed as one product of [h, scale x A h] with [W, B], so the fused loss stays as it is. Cost: a copy of the head's
rows a pass and the head's whole gradient, as in full fine-tuning, of which B's columns are kept. The frozen matrix may
be the embedding's: the adapter unties what the model computes, not what is stored.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn import functional as F

from mmdata_train.lora.settings import LoraConfig
from mmdata_train.loss import to_local
from mmdata_train.model.decoder import Decoder, OutputHead


class AdaptedHead(OutputHead):
    """OutputHead with lora_A [rank, hidden] and lora_B [padded vocabulary, rank]."""

    def __init__(self, part: Decoder, base: OutputHead, lora: LoraConfig) -> None:
        with torch.device("meta"):
            super().__init__(part.config)
        self.norm, self.weight, self.token_loss = base.norm, base.weight, base.token_loss
        rows, hidden = base.weight.shape
        self.lora_A = nn.Parameter(torch.empty(lora.rank, hidden, device=base.weight.device))
        self.lora_B = nn.Parameter(torch.empty(rows, lora.rank, device=base.weight.device))
        self.scale = lora.scale

    def forward(self, x: Tensor, labels: Tensor | None) -> Tensor | tuple[Tensor, Tensor]:
        hidden = self.norm(x)
        inner = F.linear(hidden, to_local(self.lora_A)) * self.scale
        hidden = torch.cat((hidden, inner), dim=-1)
        weight = torch.cat((to_local(self.weight), to_local(self.lora_B)), dim=1)
        if labels is None:
            return self.token_loss.logits(hidden, weight)
        return self.token_loss(hidden, weight, labels)

    def split(self, mesh: DeviceMesh) -> None:
        """B by vocabulary rows over the tensor axis, A whole."""
        for key, place in (("lora_A", Replicate()), ("lora_B", Shard(0))):
            share = distribute_tensor(getattr(self, key).detach(), mesh, [place], src_data_rank=None)
            setattr(self, key, nn.Parameter(share))
