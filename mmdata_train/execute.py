"""Running the micro-batches of one step: forward and backward on this rank's part of the model.

`SequentialExecutor` is gradient accumulation on a whole model; `pipeline.PipelineExecutor` is the same over stages.
Both leave summed, synchronised gradients behind and give back each row's negative log-likelihood where the head is.

When gradients are reduced and parameters dropped is what the ZeRO stages mean: stage 0 and 1 keep whole gradients
until the last micro-batch; 2 and 3 reduce-scatter after each; only 3 drops parameters between passes.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from mmdata_train.batch import Batch
from mmdata_train.parallelize import ModelParts


class Executor(Protocol):
    """Runs batches of `micro_batches` x `micro_batch_size` rows."""

    def train(self, batch: Batch) -> Tensor | None:
        """Forward and backward; gradients are added up and reduced. Returns nll [rows] float32, None without the
        head.
        """

    def evaluate(self, batch: Batch) -> Tensor | None:
        """Forward only. Returns nll [rows] float32, None without the head."""


def set_synchronisation(part: FSDPModule, zero_stage: int, *, last: bool) -> None:
    """What the next backward pass does with gradients and parameters."""
    part.set_is_last_backward(last)
    part.set_requires_gradient_sync(last or zero_stage >= 2)
    part.set_reshard_after_backward(last or zero_stage == 3)


class SequentialExecutor:
    """Micro-batches one after the other on a model that is whole on this pipeline rank."""

    def __init__(self, model: ModelParts, micro_batch_size: int) -> None:
        assert model.num_stages == 1
        self.model = model
        self.micro_batch_size = micro_batch_size

    def train(self, batch: Batch) -> Tensor | None:
        """Forward and backward of each micro-batch in turn. Returns nll [rows] float32."""
        part = self.model.parts[0]
        assert isinstance(part, FSDPModule)
        spans = self._spans(batch)
        sums = []
        for index, span in enumerate(spans):
            set_synchronisation(part, self.model.mesh.zero_stage, last=index == len(spans) - 1)
            loss, nll = self._forward(batch.rows(span))
            torch.autograd.backward(loss)
            sums.append(nll)
        return torch.cat(sums)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor | None:
        """Forward of each micro-batch in turn. Returns nll [rows] float32."""
        return torch.cat([self._forward(batch.rows(span))[1] for span in self._spans(batch)])

    def _spans(self, batch: Batch) -> list[slice]:
        rows, size = batch.tokens.shape[0], self.micro_batch_size
        batch.check(-(-rows // size) * size, batch.tokens.shape[1])
        return [slice(start, start + size) for start in range(0, rows, size)]

    def _forward(self, micro: Batch) -> tuple[Tensor, Tensor]:
        output: tuple[Tensor, Tensor] = self.model.parts[0](
            micro.tokens, micro.positions, documents=micro.documents, labels=micro.labels
        )
        return output
