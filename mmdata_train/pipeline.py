"""Micro-batches over pipeline stages with torch's schedules.

Shapes are fixed when a schedule is made: every micro-batch is [micro_batch_size, seq_length], and a batch of another
shape is refused before anything is sent. Gradients are sums (torch's default of dividing by the number of
micro-batches would be wrong for a loss that is divided by the global number of tokens). The head returns the loss, so
logits are neither kept nor sent.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._backward import stage_backward
from torch.distributed.pipelining.schedules import get_schedule_class

from mmdata_train.batch import Batch
from mmdata_train.config import ParallelConfig, TrainingConfig
from mmdata_train.execute import set_synchronisation
from mmdata_train.model.decoder import Decoder
from mmdata_train.parallelize import COMPUTE_DTYPES, ModelParts
from mmdata_train.schedules import SCHEDULES


class ShardedStage(nn.Module):
    """Hides that a stage is sharded from the schedule, which would hold back its gradients until the last
    micro-batch.
    """

    def __init__(self, part: Decoder) -> None:
        super().__init__()
        self.part = part

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        return self.part(*args, **kwargs)


class ReducingStage(PipelineStage):
    """A stage that reduce-scatters its gradients after each micro-batch (ZeRO 2 and 3)."""

    zero_stage = 2

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        assert backward_type == "full", "schedules that split the backward pass are refused with ZeRO 2 and 3"
        part = self.submod.part
        assert isinstance(part, FSDPModule)
        set_synchronisation(part, self.zero_stage, last=last_backward)
        grads = stage_backward(bwd_kwargs["stage_output"], bwd_kwargs["output_grads"], bwd_kwargs["input_values"])
        return grads, None


def _take_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """The last stage computed the loss already; a new node, since the schedule detaches the stage's own outputs."""
    return output[0].sum()


class PipelineExecutor:
    """One schedule over this rank's stages, for one number of micro-batches."""

    def __init__(
        self, model: ModelParts, parallel: ParallelConfig, training: TrainingConfig, micro_batches: int, seq_length: int
    ) -> None:
        self.model = model
        self.rows = micro_batches * training.micro_batch_size
        self.seq_length = seq_length
        self.rule = SCHEDULES[parallel.schedule]
        stages = [
            self._stage(part, number, parallel, training)
            for part, number in zip(model.parts, model.stages, strict=True)
        ]
        schedule_class: Any = get_schedule_class(self.rule.torch_name)
        self.schedule = schedule_class(
            stages if self.rule.several else stages[0], micro_batches, loss_fn=_take_loss, scale_grads=False
        )

    def _stage(self, part: Decoder, number: int, parallel: ParallelConfig, training: TrainingConfig) -> PipelineStage:
        mesh, last = self.model.mesh, self.model.num_stages - 1
        size, length = training.micro_batch_size, self.seq_length
        held = length // mesh.layout.tensor if parallel.splits_sequence else length
        hidden = torch.empty(
            size,
            held,
            part.config.hidden_size,
            device="meta",
            dtype=COMPUTE_DTYPES[training.precision],
            requires_grad=True,
        )
        tokens = torch.empty(size, length, device="meta", dtype=torch.int64)
        sums = (torch.empty(1, device="meta", requires_grad=True), torch.empty(size, device="meta"))
        eager = mesh.zero_stage >= 2
        made = (ReducingStage if eager else PipelineStage)(
            ShardedStage(part) if eager else part,
            number,
            self.model.num_stages,
            mesh.device,
            input_args=(tokens,) if number == 0 else (hidden,),
            output_args=sums if number == last else (hidden,),
            group=mesh.group("pipeline"),
        )
        if isinstance(made, ReducingStage):
            made.zero_stage = mesh.zero_stage
        return made

    def train(self, batch: Batch) -> Tensor | None:
        return self._run(self.schedule.step, batch)

    def evaluate(self, batch: Batch) -> Tensor | None:
        return self._run(self.schedule.eval, batch)

    def _run(self, run: Any, batch: Batch) -> Tensor | None:
        batch.check(self.rows, self.seq_length)
        shared = {"positions": batch.positions, "labels": batch.labels}
        if batch.documents is not None:
            shared["documents"] = batch.documents
        first, last = 0 in self.model.stages, self.model.num_stages - 1 in self.model.stages
        output = run(*((batch.tokens,) if first else ()), target=batch.labels if last else None, **shared)
        if not last:
            return None
        nll: Tensor = output[1].detach()
        return nll
