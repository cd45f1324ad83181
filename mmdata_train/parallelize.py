"""From a plain decoder to this rank's share of it: the one place that fixes the order of the steps.

Per stage: build without memory, drop what other ranks hold, freeze and insert adapters, split over the tensor axis,
tie again, wrap for recomputation, compile, shard over data ranks, then allocate. Weights are filled afterwards, each
rank only its own part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from mmdata_train.config import ParallelConfig, TrainingConfig
from mmdata_train.lora.layer import insert_adapters
from mmdata_train.lora.settings import LoraConfig
from mmdata_train.mesh import Mesh
from mmdata_train.model.config import ModelConfig
from mmdata_train.model.decoder import Decoder
from mmdata_train.overlap import set_overlap
from mmdata_train.precision import DTYPES
from mmdata_train.recompute import recompute_layer
from mmdata_train.schedules import SCHEDULES, split_layers, stages_of_rank
from mmdata_train.slices import TENSOR_AXIS
from mmdata_train.tensor_plan import split_over_tensor_axis


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The stages this rank holds: `parts[i]` is pipeline stage `stages[i]` of `num_stages`.

    lora: the adapters that are trained in place of the model, None for all weights.
    """

    config: ModelConfig
    mesh: Mesh
    parts: tuple[Decoder, ...]
    stages: tuple[int, ...]
    num_stages: int
    lora: LoraConfig | None = None

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter on this rank by its name in the whole model."""
        for part in self.parts:
            yield from part.named_parameters()

    def set_loss_scale(self, scale: float) -> None:
        """What the sum over tokens is multiplied by in the next step, wherever the head is."""
        for part in self.parts:
            if part.head is not None:
                part.head.token_loss.scale = scale

    def train(self, mode: bool = True) -> None:
        """Switch dropout on or off."""
        for part in self.parts:
            part.train(mode)

    def reshard(self) -> None:
        """Drop gathered parameters, so that `named_parameters` are this rank's shards."""
        for part in self.parts:
            for module in fsdp_modules(part):
                module.reshard()


def stage_layer_counts(model: ModelConfig, parallel: ParallelConfig) -> tuple[int, ...]:
    """Layers of each stage: as configured, or split with the head weighed by its operations."""
    if parallel.pipeline > 1 and parallel.stage_layers is not None:
        return parallel.stage_layers
    head_cost = model.padded_vocab_size * model.hidden_size / model.layer_parameters
    return split_layers(model.num_layers, parallel.stages, head_cost)


def build_parts(
    model: ModelConfig,
    parallel: ParallelConfig,
    training: TrainingConfig,
    mesh: Mesh,
    lora: LoraConfig | None = None,
) -> ModelParts:
    """This rank's stages on its device, split and sharded, weights not yet filled.

    With `lora` all weights but the adapters' are frozen and held in the compute dtype. Raises ConfigError for unknown
    targets.
    """
    counts = stage_layer_counts(model, parallel)
    per_rank = parallel.stages // parallel.pipeline
    rule = SCHEDULES[parallel.schedule]
    numbers = [0]
    if parallel.pipeline > 1:
        numbers = stages_of_rank(rule, mesh.rank_on("pipeline"), parallel.pipeline, per_rank)
    parts = []
    for number in numbers:
        with torch.device("meta"):
            part = Decoder(model)
        start = sum(counts[:number])
        layers = range(start, start + counts[number])
        part.keep(layers, first=number == 0, last=number == len(counts) - 1)
        if lora is not None:
            insert_adapters(part, lora)
            _hold_frozen_in(DTYPES[training.precision], part)
        if parallel.tensor > 1:
            split_over_tensor_axis(part, mesh.world[TENSOR_AXIS], splits_sequence=parallel.splits_sequence)
        if part.head is not None:
            part.head.token_loss.split_backward = parallel.pipeline > 1 and rule.splits_backward
        for layer in part.decoder_layers():
            recompute_layer(layer, training.activation_checkpointing, compiled=training.compile)
        shard_over_data(part, mesh, parallel, training)
        part.to_empty(device="cpu" if parallel.cpu_offload else mesh.device)
        if lora is not None:
            # Plain weights get new memory each, distributed ones stay one: a frozen tied head may be plain.
            part.tie()
        parts.append(part)
    return ModelParts(model, mesh, tuple(parts), tuple(numbers), len(counts), lora)


def _hold_frozen_in(dtype: torch.dtype, part: Decoder) -> None:
    """Frozen weights are never updated: the precision they compute in is all they need."""
    for weight in part.parameters():
        if not weight.requires_grad:
            weight.data = weight.data.to(dtype)


def shard_over_data(part: Decoder, mesh: Mesh, parallel: ParallelConfig, training: TrainingConfig) -> None:
    """FSDP over each layer, the embedding and the head; even with one data rank, so that precision is handled alike.

    Gradients are summed, not averaged: the loss is divided by the global number of tokens already. Frozen weights have
    neither gradient nor optimizer state to shard: below ZeRO 3 every data rank keeps them whole, nothing is gathered.
    """
    dtype = DTYPES[training.precision]
    policy = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    offload = CPUOffloadPolicy(pin_memory=mesh.device.type == "cuda") if parallel.cpu_offload else OffloadPolicy()
    data_mesh = mesh.data_mesh()
    reshard = mesh.zero_stage == 3
    whole = set()
    if not reshard and not parallel.cpu_offload:
        whole = {weight for weight in part.parameters() if not weight.requires_grad}

    def shard(modules: nn.Module | list[nn.Module], *, reshard_after_forward: bool) -> None:
        fully_shard(
            modules,
            mesh=data_mesh,
            reshard_after_forward=reshard_after_forward,
            mp_policy=policy,
            offload_policy=offload,
            ignored_params=whole or None,
        )

    embed, head = part.embed, part.head
    if embed is not None and head is not None and part.config.tie_embeddings:
        shard([embed, head], reshard_after_forward=False)
    else:
        if embed is not None:
            shard(embed, reshard_after_forward=reshard)
        if head is not None:
            # Its backward pass comes right after its forward pass.
            shard(head, reshard_after_forward=False)
    for layer in part.decoder_layers():
        shard(layer, reshard_after_forward=reshard)
    shard(part, reshard_after_forward=reshard)
    for module in fsdp_modules(part):
        # Both are needed: a factor alone selects a reduction gloo does not have.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    layers = [layer for layer in part.decoder_layers() if isinstance(layer, FSDPModule)]
    set_overlap(list(fsdp_modules(part)), layers, overlap=parallel.overlap, gathers=reshard)


def fsdp_modules(part: nn.Module) -> Iterator[FSDPModule]:
    """Every separately sharded module of a part, the part itself included."""
    yield from (module for module in part.modules() if isinstance(module, FSDPModule))
