"""A linear layer with a low-rank adapter beside it, and its insertion into a decoder that is not split yet.

The layer knows nothing of ranks: its weights and inputs may be plain tensors or distributed ones, and every product is
written so that a sum over columns held elsewhere stays a sum until the layer's own output is added up. Cost beside the
frozen product: 2 x rank x (in + out) multiplications a token, and with DoRA one pass over the weight a forward pass.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from mmdata_train.lora.embedding import ExtendedEmbedding
from mmdata_train.lora.head import AdaptedHead
from mmdata_train.lora.settings import HEAD, LoraConfig, is_adapter_weight, resolve_targets
from mmdata_train.model.decoder import Decoder
from mmdata_train.slices import local_slices


def drop(x: Tensor, chance: float) -> Tensor:
    """Dropout whose mask is drawn for the whole of a distributed `x` and cut to what is held here.

    So a tensor group with equal random state drops what one process with that state would, and peers stay in step.
    """
    mask = (torch.rand(x.shape, device=x.device) >= chance).to(x.dtype) / (1.0 - chance)
    if isinstance(x, DTensor):
        mask = DTensor.from_local(mask[local_slices(x)], x.device_mesh, x.placements, run_check=False)
    return x * mask


class LoraLinear(nn.Linear):
    """W x + b + scale x B (A x); with DoRA m / |W + scale x B A| times the product, rows apart, plus b.

    lora_A [rank, in], lora_B [out, rank], lora_magnitude [out] (DoRA only). The adapter's input is dropped with
    `dropout` in training; the frozen product's is not. DoRA takes the rows' length as a constant of the backward pass
    (arXiv 2402.09353, section 4.3).
    """

    lora_magnitude: nn.Parameter | None

    def __init__(self, base: nn.Linear, lora: LoraConfig) -> None:
        super().__init__(
            base.in_features, base.out_features, bias=base.bias is not None, device="meta", dtype=base.weight.dtype
        )
        self.weight = base.weight
        self.bias = base.bias
        device = base.weight.device
        self.lora_A = nn.Parameter(torch.empty(lora.rank, base.in_features, device=device))
        self.lora_B = nn.Parameter(torch.empty(base.out_features, lora.rank, device=device))
        magnitude = nn.Parameter(torch.empty(base.out_features, device=device)) if lora.dora else None
        self.register_parameter("lora_magnitude", magnitude)
        self.scale = lora.scale
        self.dropout = lora.dropout

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] -> [..., out]: the frozen layer and its update."""
        x = drop(input, self.dropout) if self.dropout and self.training else input
        update = F.linear(F.linear(x, self.lora_A) * self.scale, self.lora_B)
        if self.lora_magnitude is None:
            return F.linear(input, self.weight, self.bias) + update
        turned = (F.linear(input, self.weight) + update) * (self.lora_magnitude / self.row_lengths())
        return turned if self.bias is None else turned + self.bias

    @torch.no_grad()
    def row_lengths(self) -> Tensor:
        """|W + scale x B A| of each row, [out], in the weight's dtype, without making the sum of the matrices.

        |W|^2 + 2 scale (W A^T) . B + scale^2 (B A A^T) . B, rows apart, in float32.
        """
        weight, a, b = self.weight, self.lora_A.detach(), self.lora_B.float()
        plain = torch.linalg.vector_norm(weight, dim=1, dtype=torch.float32).square()
        cross = (F.linear(weight, a.to(weight.dtype)).float() * b).sum(dim=1)
        small = a.float()
        own = ((b @ (small @ small.T)) * b).sum(dim=1)
        squared: Tensor = plain + cross * (2.0 * self.scale) + own * self.scale**2
        return squared.clamp_min(0.0).sqrt().to(weight.dtype)


def insert_adapters(part: Decoder, lora: LoraConfig) -> None:
    """Freeze the part and put adapters beside the linear layers `lora` names, those that are here.

    Before it is split or sharded: sharding reads what is trainable. Raises ConfigError for unknown targets.
    """
    part.requires_grad_(False)
    targets = resolve_targets(lora, part.config)
    if part.head is not None and (HEAD in targets or lora.added_ids):
        part.head = AdaptedHead(part, part.head, lora, adapted=HEAD in targets)
    if part.embed is not None and lora.added_ids:
        part.embed = ExtendedEmbedding(part, part.embed, lora.added_ids)
    tie_added_rows(part)
    for name in targets:
        if name == HEAD:
            continue
        owner_name, _, kind = name.rpartition(".")
        if owner_name.split(".")[1] not in part.layers:
            continue
        owner = part.get_submodule(owner_name)
        setattr(owner, kind, LoraLinear(cast(nn.Linear, getattr(owner, kind)), lora))


def tie_added_rows(part: Decoder) -> None:
    """Make the rows of new tokens one weight again, where embedding and head are both here and the model ties them."""
    embed, head = part.embed, part.head
    if part.config.tie_embeddings and isinstance(embed, ExtendedEmbedding) and isinstance(head, AdaptedHead):
        head.added_rows = embed.added.rows


def adapter_parameters(part: nn.Module) -> dict[str, nn.Parameter]:
    """The adapters' own weights by name."""
    return {name: weight for name, weight in part.named_parameters() if is_adapter_weight(name)}
