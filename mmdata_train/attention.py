"""Attention over [batch, heads, length, head_dim] tensors: causal, block-causal within documents, or a sliding
window.

Runs PyTorch's scaled dot-product attention, which picks the fastest kernel for the device. Document boundaries and
windows become a boolean mask of [batch, 1, length, length] built once for all layers: memory grows with length
squared (length 4096: 16 MiB a sample).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def block_causal_mask(length: int, documents: Tensor | None, window: int | None, device: torch.device) -> Tensor | None:
    """Who may look at whom: True where query i sees key j. None stands for plain causal attention.

    documents: [batch, length] integers; positions of equal value in one row are one document. Padding is a document
    of its own. window: a query sees itself and the `window - 1` positions before it (Mistral's rule), or everything
    before it if None.
    """
    if documents is None and window is None:
        return None
    index = torch.arange(length, device=device)
    distance = index[:, None] - index[None, :]
    mask = distance >= 0
    if window is not None:
        mask = mask & (distance < window)
    if documents is None:
        return mask[None, None]
    same = documents[:, :, None] == documents[:, None, :]
    return (same & mask).unsqueeze(1)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float = 0.0) -> Tensor:
    """softmax(q k^T / sqrt(head_dim)) v with the mask of `block_causal_mask`; query heads share key heads in equal
    groups.
    """
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, enable_gqa=grouped
    )
