"""One data rank's share of a global batch, in the fixed shape every part of the engine relies on."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from mmdata_train.errors import StepError
from mmdata_train.loss import IGNORED


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of one step on one data rank: [micro_batches x micro_batch_size, seq_length], int64.

    tokens: inputs. labels: the target of each position, IGNORED where it does not count. positions: restart at 0 where
    documents do. documents: equal values within a row see each other, None for plain causal attention. sources: [rows],
    which data set each row came from, or None.
    """

    tokens: Tensor
    labels: Tensor
    positions: Tensor
    documents: Tensor | None = None
    sources: Tensor | None = None

    @classmethod
    def causal(cls, tokens: Tensor, labels: Tensor) -> Batch:
        """Rows that are one document each."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens).contiguous()
        return cls(tokens, labels, positions)

    def to(self, device: torch.device) -> Batch:
        """A copy on the device; pinned memory moves without waiting."""
        moved = {
            field.name: value.to(device, non_blocking=True)
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
        }
        return Batch(**moved)

    def rows(self, span: slice) -> Batch:
        """The rows of one micro-batch."""
        cut = {field.name: value[span] for field in fields(self) if (value := getattr(self, field.name)) is not None}
        return Batch(**cut)

    def counted(self) -> Tensor:
        """Number of tokens the loss counts, int64 scalar."""
        return (self.labels != IGNORED).sum()

    def check(self, rows: int, length: int) -> None:
        """Raises StepError unless every tensor is [rows, length]: pipeline buffers are made once, for this shape."""
        for name in ("tokens", "labels", "positions", "documents"):
            value = getattr(self, name)
            if value is not None and tuple(value.shape) != (rows, length):
                raise StepError(
                    f"batch.{name} is {list(value.shape)}, but this step needs [{rows}, {length}]; pad short sequences"
                    " and fill the last batch with uncounted ones"
                )
