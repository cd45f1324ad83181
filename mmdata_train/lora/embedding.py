"""Trainable rows for new tokens beside a frozen embedding.

A new token's vector is the frozen table's row, which is set to 0, plus its own trainable row; every other token gets 0
from here. So the frozen table stays one product, split over the vocabulary or not, and the rows are whole on every
rank. Cost: one look-up of a small table and an addition a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmdata_train.model.decoder import Decoder, Embedding


class AddedRows(nn.Module):
    """Row i belongs to token `first + i`; tokens [batch, length] to vectors [batch, length, hidden]."""

    def __init__(self, ids: Sequence[int], hidden: int) -> None:
        super().__init__()
        assert list(ids) == list(range(ids[0], ids[0] + len(ids))), "ids follow one another"
        self.first = ids[0]
        self.rows = nn.Parameter(torch.empty(len(ids), hidden))

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens int64 [batch, length] -> [batch, length, hidden]: their own rows, 0 for all other tokens."""
        count = self.rows.shape[0]
        slots = tokens - self.first
        here = (slots >= 0) & (slots < count)
        vectors = F.embedding(slots.clamp(0, count - 1), self.rows)
        return vectors * here.unsqueeze(-1).to(vectors.dtype)


class ExtendedEmbedding(Embedding):
    """Embedding with `added`."""

    def __init__(self, part: Decoder, base: Embedding, ids: Sequence[int]) -> None:
        with torch.device("meta"):
            super().__init__(part.config)
            self.added = AddedRows(ids, part.config.hidden_size)
        self.tokens, self.positions = base.tokens, base.positions

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """tokens and positions int64 [batch, length] -> [batch, length, hidden]."""
        x: Tensor = self.tokens(tokens) + self.added(tokens)
        if self.positions is not None:
            x = x + self.positions(positions)
        return F.dropout(x, self.dropout, self.training) if self.dropout else x
