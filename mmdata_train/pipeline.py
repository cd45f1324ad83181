"""Micro-batches over pipeline stages with torch's schedules.

Shapes are fixed when a schedule is made: every micro-batch is [micro_batch_size, seq_length], and a batch of another
shape is refused before anything is sent. Gradients are sums (torch's default of dividing by the number of
micro-batches would be wrong for a loss that is divided by the global number of tokens). The head returns the loss, so
logits are neither kept nor sent.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._backward import stage_backward
from torch.distributed.pipelining.schedules import get_schedule_class

from mmdata_train.batch import Batch
from mmdata_train.config import ParallelConfig, TrainingConfig
from mmdata_train.execute import set_synchronisation
from mmdata_train.model.decoder import Decoder
from mmdata_train.parallelize import ModelParts
from mmdata_train.precision import DTYPES
from mmdata_train.schedules import SCHEDULES, rank_of_stage


class ShardedStage(nn.Module):
    """Hides that a stage is sharded from the schedule, which would hold back its gradients until the last
    micro-batch.
    """

    def __init__(self, part: Decoder) -> None:
        super().__init__()
        self.part = part

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        """The stage's own forward pass."""
        return self.part(*args, **kwargs)


class NeighbourStage(PipelineStage):
    """A stage that greets its neighbours only: on a folded schedule torch 2.11 sends to itself, which gloo cannot."""

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.peer != dist.get_rank()]


class ReducingStage(NeighbourStage):
    """A stage that reduce-scatters its gradients after each micro-batch (ZeRO 2 and 3)."""

    zero_stage = 2

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        """The backward pass of one micro-batch, its gradients reduce-scattered."""
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
        self.micro_batch_size = training.micro_batch_size
        self.rule = SCHEDULES[parallel.schedule]
        self.group = model.mesh.group("pipeline")
        held = seq_length // model.mesh.layout.tensor if parallel.splits_sequence else seq_length
        size, dtype = (training.micro_batch_size, held, model.config.hidden_size), DTYPES[training.precision]
        self.hidden = torch.empty(size, device="meta", dtype=dtype, requires_grad=True)
        stages = [self._stage(part, number) for part, number in zip(model.parts, model.stages, strict=True)]
        schedule_class: Any = get_schedule_class(self.rule.torch_name)
        self.schedule = schedule_class(
            stages if self.rule.several else stages[0], micro_batches, loss_fn=_take_loss, scale_grads=False
        )

    def _stage(self, part: Decoder, number: int) -> PipelineStage:
        mesh, last, size = self.model.mesh, self.model.num_stages - 1, self.micro_batch_size
        tokens = torch.empty(size, self.seq_length, device="meta", dtype=torch.int64)
        sums = (torch.empty(1, device="meta", requires_grad=True), torch.empty(size, device="meta"))
        eager = mesh.zero_stage >= 2
        made = (ReducingStage if eager else NeighbourStage)(
            ShardedStage(part) if eager else part,
            number,
            self.model.num_stages,
            mesh.device,
            input_args=(tokens,) if number == 0 else (self.hidden,),
            output_args=sums if number == last else (self.hidden,),
            group=self.group,
        )
        if isinstance(made, ReducingStage):
            made.zero_stage = mesh.zero_stage
        return made

    def train(self, batch: Batch) -> Tensor | None:
        """Forward and backward of all micro-batches; nll [rows] where the head is."""
        batch.check(self.rows, self.seq_length)
        shared = {"positions": batch.positions, "labels": batch.labels}
        if batch.documents is not None:
            shared["documents"] = batch.documents
        first, last = 0 in self.model.stages, self.model.num_stages - 1 in self.model.stages
        inputs = (batch.tokens,) if first else ()
        output = self.schedule.step(*inputs, target=batch.labels if last else None, **shared)
        if not last:
            return None
        nll: Tensor = output[1].detach()
        return nll

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor | None:
        """Forward only, stage by stage: torch's own evaluation fails on folded schedules (2.11 to 2.13).

        A rank runs its stages in ascending order and sends without waiting, so no two ranks wait for each other.
        """
        batch.check(self.rows, self.seq_length)
        spans = [slice(row, row + self.micro_batch_size) for row in range(0, self.rows, self.micro_batch_size)]
        last = self.model.num_stages - 1
        handed: dict[tuple[int, int], Tensor] = {}
        sends: list[dist.Work | None] = []
        sums: list[Tensor] = []
        for part, number in zip(self.model.parts, self.model.stages, strict=True):
            for index, span in enumerate(spans):
                micro = batch.rows(span)
                x = micro.tokens if number == 0 else self._receive(number, index, handed)
                output = part(x, micro.positions, documents=micro.documents, labels=micro.labels)
                if number == last:
                    sums.append(output[1])
                    continue
                peer = self._global_rank(number + 1)
                if peer == dist.get_rank():
                    handed[number + 1, index] = output
                else:
                    sends.append(dist.isend(output.contiguous(), peer, group=self.group))
        for send in sends:
            if send is not None:
                send.wait()
        return torch.cat(sums) if sums else None

    def _receive(self, number: int, index: int, handed: dict[tuple[int, int], Tensor]) -> Tensor:
        peer = self._global_rank(number - 1)
        if peer == dist.get_rank():
            return handed.pop((number, index))
        x = torch.empty_like(self.hidden, device=self.model.mesh.device, requires_grad=False)
        dist.recv(x, peer, group=self.group)
        return x

    def _global_rank(self, number: int) -> int:
        place = rank_of_stage(self.rule, number, self.model.mesh.layout.pipeline)
        return dist.get_global_rank(self.group, place)
