"""First values of adapters, the same in every layout: random, from a whole adapter, or merged into the base.

A is uniform within 1 / sqrt(in) (kaiming_uniform with a = sqrt 5, PEFT's choice) from (seed, name), B is 0 and a
magnitude is the row length of its weight: at first the adapter changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from mmdata_train.errors import AdapterError
from mmdata_train.lora.embedding import ExtendedEmbedding
from mmdata_train.lora.head import AdaptedHead
from mmdata_train.lora.layer import LoraLinear, adapter_parameters
from mmdata_train.lora.settings import MAGNITUDE, LoraConfig
from mmdata_train.lora.tokens import AddedTokens
from mmdata_train.loss import to_local
from mmdata_train.model.decoder import Decoder, OutputHead
from mmdata_train.model.init import weight_seed
from mmdata_train.slices import fill, local_slices


def adapted_layers(part: nn.Module) -> Iterator[tuple[str, LoraLinear]]:
    """The layers with an adapter, by name."""
    yield from ((name, module) for name, module in part.named_modules() if isinstance(module, LoraLinear))


def whole(tensor: Tensor) -> Tensor:
    """A distributed tensor gathered on each of its ranks (a collective); a plain one as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def initial_adapter_weight(name: str, shape: torch.Size, seed: int) -> Tensor:
    """The whole lora_A or lora_B called `name`, float32 on the CPU."""
    if not name.endswith("lora_A"):
        return torch.zeros(shape)
    bound = 1.0 / math.sqrt(shape[1])
    generator = torch.Generator().manual_seed(weight_seed(seed, name))
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


@torch.no_grad()
def initialize_adapters(parts: Iterable[Decoder], seed: int) -> None:
    """Fill every adapter; the base must be filled already. With DoRA a collective over each part's ranks."""
    for part in parts:
        for name, weight in adapter_parameters(part).items():
            if not name.endswith(MAGNITUDE):
                fill(weight, initial_adapter_weight(name, weight.shape, seed)[local_slices(weight)])
        set_magnitudes(part)


@torch.no_grad()
def set_magnitudes(part: Decoder) -> None:
    """Give each DoRA layer the row lengths of its frozen weight, float32."""
    for _, layer in adapted_layers(part):
        if layer.lora_magnitude is not None:
            lengths = whole(torch.linalg.vector_norm(layer.weight, dim=1, dtype=torch.float32))
            fill(layer.lora_magnitude, lengths[local_slices(layer.lora_magnitude)])


@torch.no_grad()
def initialize_added(parts: Iterable[Decoder], added: AddedTokens) -> None:
    """Start the rows of new tokens, in embedding and head, as the mean of their pieces' rows; the frozen embedding's
    own rows for them become 0. A collective over each part's ranks.
    """
    for part in parts:
        embed, head = part.embed, part.head
        if isinstance(embed, ExtendedEmbedding):
            _fill_rows(embed.added.rows, mean_rows(embed.tokens.weight, added.pieces))
        own = head.added_rows if isinstance(head, AdaptedHead) else None
        if head is not None and own is not None and not (part.config.tie_embeddings and embed is not None):
            _fill_rows(own, mean_rows(head.weight, added.pieces))
        # After the last use: a tied head reads the same table.
        if isinstance(embed, ExtendedEmbedding):
            rows = local_slices(embed.tokens.weight)[0]
            low, high = (min(max(bound, rows.start), rows.stop) for bound in (added.ids[0], added.ids[-1] + 1))
            to_local(embed.tokens.weight)[low - rows.start : high - rows.start] = 0.0


def _fill_rows(weight: Tensor, rows: Tensor) -> None:
    fill(weight, rows[local_slices(weight)])


def mean_rows(table: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """[groups, columns] float32: the mean of each group's rows of a table that may be split by rows; a collective."""
    rows, local = local_slices(table)[0], to_local(table)
    sums = torch.zeros(len(groups), table.shape[1], device=local.device)
    for index, group in enumerate(groups):
        held = [number - rows.start for number in group if rows.start <= number < rows.stop]
        if held:
            sums[index] = local[held].float().sum(dim=0) / len(group)
    if isinstance(table, DTensor):
        places = [Replicate() if place.is_replicate() else Partial() for place in table.placements]
        return whole(DTensor.from_local(sums, table.device_mesh, places, run_check=False))
    return sums


@torch.no_grad()
def load_adapters(parts: Iterable[Decoder], state: Mapping[str, Tensor], seed: int) -> None:
    """Fill adapters from whole tensors by our names; those `state` does not name stay as they are.

    A lower rank fills the first rows of A and columns of B; the others stay as drawn, and 0. Raises AdapterError for a
    shape that does not fit.
    """
    for part in parts:
        for name, weight in adapter_parameters(part).items():
            value = state.get(name)
            if value is None:
                continue
            if value.dim() != weight.dim() or any(s > w for s, w in zip(value.shape, weight.shape, strict=True)):
                raise AdapterError(f"adapter: {name} is {list(value.shape)}, this run's is {list(weight.shape)}")
            start = initial_adapter_weight(name, weight.shape, seed)
            start[tuple(slice(0, size) for size in value.shape)] = value
            fill(weight, start[local_slices(weight)])


@torch.no_grad()
def merge_into_base(parts: Iterable[Decoder], state: Mapping[str, Tensor], lora: LoraConfig) -> None:
    """Add an adapter's update to the base weights, in float32, rounded once to what the base is held in.

    state: whole tensors by our names; `lora` says their scale. A head adapter is refused where the head is the
    embedding: AdapterError. With DoRA a collective over each part's ranks.
    """
    for part in parts:
        targets: list[tuple[str, nn.Linear | OutputHead]] = [
            (name, module) for name, module in part.named_modules() if isinstance(module, nn.Linear | OutputHead)
        ]
        for name, module in targets:
            a, b = state.get(f"{name}.lora_A"), state.get(f"{name}.lora_B")
            if a is None or b is None:
                continue
            if isinstance(module, OutputHead) and part.config.tie_embeddings:
                raise AdapterError(
                    "an adapter of the head cannot be merged into a model whose head is its embedding; export it"
                    " merged, which unties them, and train on that folder"
                )
            _merge_one(module.weight, (a, b), state.get(f"{name}.{MAGNITUDE}"), lora.scale)


def _merge_one(weight: Tensor, matrices: tuple[Tensor, Tensor], magnitude: Tensor | None, scale: float) -> None:
    a, b = (matrix.float() for matrix in matrices)
    rows, columns = local_slices(weight)
    local = to_local(weight)
    own = b[rows] @ a[:, columns] * scale
    # Rows of the padded vocabulary are not in an adapter.
    changed = local.float()
    changed[: own.shape[0]] += own.to(local.device)
    if magnitude is not None:
        lengths = torch.linalg.vector_norm(changed, dim=1)
        if isinstance(weight, DTensor):
            again = DTensor.from_local(
                changed, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape,
                stride=weight.stride(),
            )  # fmt: skip
            lengths = whole(torch.linalg.vector_norm(again, dim=1))[rows]
        changed *= (magnitude.float()[rows].to(local.device) / lengths)[:, None]
    local.copy_(changed)
