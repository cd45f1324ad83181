"""Which layer is split how over the tensor axis, as a table of rows.

Columns of q/k/v/gate/up, rows of o/down, rows of the vocabulary. Residuals and norms hold the whole sequence on every
rank, or with sequence parallelism a share of it (Korthikanti et al., arXiv 2205.05198). Between modules tensors are
plain local ones.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from mmdata_train.lora.embedding import ExtendedEmbedding
from mmdata_train.lora.head import AdaptedHead
from mmdata_train.lora.layer import LoraLinear, tie_added_rows
from mmdata_train.lora.split import AdaptedColumns, AdaptedRows
from mmdata_train.loss import VocabShard
from mmdata_train.model.decoder import Decoder

SEQUENCE_DIM = 1
HEADS_DIM = 2


class ReplicatedWeights(ParallelStyle):
    """A module whose weights every rank holds whole, on an input laid out as `before`, handed on as `after`."""

    def __init__(self, before: Placement, after: Placement) -> None:
        self.before, self.after = before, after

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        enter: Any = partial(_enter, self.before)
        leave: Any = partial(_leave, self.after)
        return distribute_module(module, device_mesh, _replicate, enter, leave)


def _replicate(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for key, weight in list(module.named_parameters(recurse=False)):
        whole = DTensor.from_local(weight.detach(), mesh, [Replicate()], run_check=False)
        module.register_parameter(key, nn.Parameter(whole, requires_grad=weight.requires_grad))


def _enter(layout: Placement, module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
    return (DTensor.from_local(inputs[0], mesh, [layout], run_check=False), *inputs[1:])


def _leave(layout: Placement, module: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
    return output.redistribute(placements=[layout]).to_local()


def _own_memory(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return output.clone()


def _columns(linear: nn.Module) -> ParallelStyle:
    return AdaptedColumns() if isinstance(linear, LoraLinear) else ColwiseParallel()


def _rows(linear: nn.Module, after: Placement) -> ParallelStyle:
    return AdaptedRows(after) if isinstance(linear, LoraLinear) else RowwiseParallel(output_layouts=after)


def tensor_plan(part: Decoder, *, splits_sequence: bool) -> dict[str, ParallelStyle]:
    """Module name -> style, for the modules this part has."""
    between: Placement = Shard(SEQUENCE_DIM) if splits_sequence else Replicate()
    whole: Placement = Replicate()
    plan: dict[str, ParallelStyle] = {}
    if part.embed is not None:
        plan["embed.tokens"] = RowwiseParallel(input_layouts=whole, output_layouts=between)
        if isinstance(part.embed, ExtendedEmbedding):
            plan["embed.added"] = ReplicatedWeights(whole, between)
        if part.embed.positions is not None:
            plan["embed.positions"] = ReplicatedWeights(whole, between)
    for number, layer in zip(part.layers, part.decoder_layers(), strict=True):
        attention, mlp = layer.attention, layer.mlp
        rows: dict[str, ParallelStyle] = {
            "attention_norm": ReplicatedWeights(between, between),
            "attention": PrepareModuleInput(
                input_layouts=(between, None, None), desired_input_layouts=(whole, None, None)
            ),
            "attention.q_proj": _columns(attention.q_proj),
            "attention.k_proj": _columns(attention.k_proj),
            "attention.v_proj": _columns(attention.v_proj),
            "attention.o_proj": _rows(attention.o_proj, between),
            "mlp_norm": ReplicatedWeights(between, between),
            "mlp": PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(whole,)),
            "mlp.up_proj": _columns(mlp.up_proj),
            "mlp.down_proj": _rows(mlp.down_proj, between),
        }
        if mlp.gate_proj is not None:
            rows["mlp.gate_proj"] = _columns(mlp.gate_proj)
        if part.config.qk_norm:
            heads = Shard(HEADS_DIM)
            rows["attention.q_norm"] = ReplicatedWeights(heads, heads)
            rows["attention.k_norm"] = ReplicatedWeights(heads, heads)
        plan.update({f"layers.{number}.{name}": style for name, style in rows.items()})
    if part.head is not None:
        plan["head.norm"] = ReplicatedWeights(between, whole)
    return plan


def split_over_tensor_axis(part: Decoder, mesh: DeviceMesh, *, splits_sequence: bool) -> None:
    """Apply the plan in place, split the head by vocabulary rows, and tie it to the embedding again."""
    parallelize_module(part, mesh, tensor_plan(part, splits_sequence=splits_sequence), src_data_rank=None)
    if part.embed is not None:
        # Its output is a view into a DTensor, on which FSDP's hook for the backward pass would not be safe.
        part.embed.register_forward_hook(_own_memory)
    if part.head is None:
        return
    whole = part.head.weight
    if not isinstance(whole, DTensor):
        split = distribute_tensor(whole.detach(), mesh, [Shard(0)], src_data_rank=None)
        part.head.weight = nn.Parameter(split, requires_grad=whole.requires_grad)
    if isinstance(part.head, AdaptedHead):
        part.head.split(mesh)
    rows = part.config.padded_vocab_size // mesh.size()
    part.head.token_loss.shard = VocabShard(mesh.get_local_rank() * rows, mesh.get_group())
    part.tie()
    tie_added_rows(part)
