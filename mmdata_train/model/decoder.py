"""One decoder: embedding, layers, output head. Any part may be missing, which is how a pipeline stage is made.

Nothing here knows how many devices there are. Layers live in a dictionary keyed by their number, so the name of a
weight stays the same in whatever stage it lies. Activations are [batch, length, hidden].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmdata_train.attention import block_causal_mask
from mmdata_train.loss import TokenLoss
from mmdata_train.model.cache import KVCache
from mmdata_train.model.config import ModelConfig
from mmdata_train.model.layers import DecoderLayer, build_norm
from mmdata_train.model.rotary import rotary_tables

HEAD_WEIGHT = "head.weight"
EMBEDDING_WEIGHT = "embed.tokens.weight"
TIED_NAMES = {HEAD_WEIGHT: EMBEDDING_WEIGHT, "head.added_rows": "embed.added.rows"}


class Embedding(nn.Module):
    """Token vectors, plus learned position vectors where the model has them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.padded_vocab_size, config.hidden_size)
        learned = config.positions == "learned"
        self.positions = nn.Embedding(config.max_positions, config.hidden_size) if learned else None
        self.dropout = config.dropout

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """tokens and positions int64 [batch, length] -> [batch, length, hidden]."""
        x: Tensor = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(positions)
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class OutputHead(nn.Module):
    """Final norm and output matrix; with labels it returns the loss and never the logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = build_norm(config, config.hidden_size)
        self.weight = nn.Parameter(torch.empty(config.padded_vocab_size, config.hidden_size))
        self.token_loss = TokenLoss(config.vocab_size)

    def forward(self, x: Tensor, labels: Tensor | None) -> Tensor | tuple[Tensor, Tensor]:
        """x [batch, length, hidden] -> logits, or with labels [batch, length] (loss [], nll [batch])."""
        hidden = self.norm(x)
        if labels is None:
            return self.token_loss.logits(hidden, self.weight)
        return self.token_loss(hidden, self.weight, labels)


class Decoder(nn.Module):
    """The whole model, or after `keep` one stage of it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed: Embedding | None = Embedding(config)
        self.layers = nn.ModuleDict({str(i): DecoderLayer(config) for i in range(config.num_layers)})
        self.head: OutputHead | None = OutputHead(config)
        self.tie()

    def tie(self) -> None:
        """Make head and embedding one weight again, where both are here and the model ties them."""
        if self.config.tie_embeddings and self.embed is not None and self.head is not None:
            self.head.weight = cast(nn.Parameter, self.embed.tokens.weight)

    def keep(self, layers: range, *, first: bool, last: bool) -> None:
        """Delete what is not in this stage: layers outside the range, the embedding unless first, the head unless
        last.
        """
        for name in list(self.layers):
            if int(name) not in layers:
                del self.layers[name]
        if not first:
            self.embed = None
        if not last:
            self.head = None

    def decoder_layers(self) -> Iterator[DecoderLayer]:
        """The layers here, in order."""
        for layer in self.layers.values():
            assert isinstance(layer, DecoderLayer)
            yield layer

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        documents: Tensor | None = None,
        labels: Tensor | None = None,
        cache: KVCache | None = None,
        wanted: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Tokens (or the former stage's activations) to loss, logits, or the next stage's activations.

        x: [batch, length] token ids where the embedding is here, else activations. positions: [batch, length],
        restarting at 0 where a document restarts. documents: [batch, length] or None; equal values see each other.
        labels: [batch, length], the target of each position (IGNORED: none). cache: what came before, extended by
        this call; its rows take the place of documents, and a position of EMPTY marks padding. wanted: int64 [batch,
        n], the positions of this call whose logits are asked for (all if None). Returns activations without a head,
        logits without labels, else (loss [1], nll [batch]).
        """
        config = self.config
        if cache is not None:
            mask: Tensor | None = cache.extend(positions, config.sliding_window)
            positions = positions.clamp(min=0)
        else:
            mask = block_causal_mask(positions.shape[1], documents, config.sliding_window, positions.device)
        if self.embed is not None:
            x = self.embed(x, positions)
        rotary = rotary_tables(config, positions) if config.positions == "rope" else None
        for name, layer in self.layers.items():
            x = layer(x, rotary, mask) if cache is None else layer(x, rotary, mask, cache.layer(name))
        if self.head is None:
            return x
        if wanted is not None:
            x = x.gather(1, wanted[:, :, None].expand(-1, -1, x.shape[2]))
        output: Tensor | tuple[Tensor, Tensor] = self.head(x, labels)
        return output


def canonical_name(config: ModelConfig, name: str) -> str:
    """The name a weight is stored under: a tied head is the embedding, in whichever stage the copy lies."""
    return TIED_NAMES.get(name, name) if config.tie_embeddings else name
