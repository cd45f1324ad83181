"""A checkpoint's weights one at a time, under the names and in the layout of a Hugging Face folder.

Any layout's checkpoint: torch's distributed checkpoint puts a tensor together from whatever chunks it was saved in.
Memory: one tensor in float32, beside the largest chunk it is stored in. Vocabulary padding is cut off; GPT-2's fused
and transposed tensors are put together again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from mmdata_train.checkpoint_format import SafeReader, load_tensors, read_index
from mmdata_train.errors import ExportError
from mmdata_train.hf_names import Source, expected_shape, sources
from mmdata_train.lora.settings import is_adapter_weight
from mmdata_train.model.config import ModelConfig
from mmdata_train.model.decoder import Decoder

WEIGHTS = "model."


class _Reader(SafeReader):
    """A reader that parses the index once, not for every tensor."""

    def __init__(self, folder: Path, index: Metadata) -> None:
        super().__init__(folder)
        self.index = index

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if self.index.storage_meta is None:
            self.index.storage_meta = StorageMeta()
        self.index.storage_meta.load_id = self.load_id
        return self.index


class CheckpointTensors:
    """The weights of one checkpoint by our names; optimizer state is left alone. Raises CheckpointError."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self._index = read_index(checkpoint)
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, stored in self._index.state_dict_metadata.items():
            if name.startswith(WEIGHTS) and hasattr(stored, "size"):
                self.shapes[name.removeprefix(WEIGHTS)] = tuple(stored.size)

    @property
    def adapters(self) -> list[str]:
        """Names of the weights that belong to an adapter."""
        return [name for name in self.shapes if is_adapter_weight(name)]

    def read(self, name: str) -> Tensor:
        """One whole weight in float32 on the CPU. Raises CheckpointError for a damaged one."""
        stored = f"{WEIGHTS}{name}"
        target = {stored: torch.empty(self.shapes[name], dtype=torch.float32)}
        load_tensors(target, self.checkpoint, no_dist=True, reader=_Reader(self.checkpoint, self._index))
        return target[stored]


@dataclass(frozen=True, slots=True)
class OutTensor:
    """A tensor of the folder to be written and the weights of ours it is made of, in their order along its rows."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[tuple[str, Source], ...]


def outgoing(config: ModelConfig) -> list[OutTensor]:
    """Every tensor of the folder in the model's order; a tied head is not among them."""
    with torch.device("meta"):
        shapes = {name: tuple(weight.shape) for name, weight in Decoder(config).named_parameters()}
    table = sources(config)
    grouped: dict[str, list[str]] = {}
    for name in shapes:
        grouped.setdefault(table[name].key, []).append(name)
    made = []
    for key, names in grouped.items():
        names.sort(key=lambda name: table[name].offset)
        shape = expected_shape(config, shapes[names[0]], table[names[0]])
        made.append(OutTensor(key, shape, tuple((name, table[name]) for name in names)))
    return made


def check_complete(held: CheckpointTensors, wanted: Iterable[OutTensor], config: ModelConfig) -> None:
    """Raises ExportError naming the first weight the checkpoint lacks, or holds in another shape."""
    with torch.device("meta"):
        shapes = {name: tuple(weight.shape) for name, weight in Decoder(config).named_parameters()}
    for out in wanted:
        for name, _ in out.parts:
            found = held.shapes.get(name)
            if found != shapes[name]:
                what = "is missing" if found is None else f"is {list(found)}"
                raise ExportError(
                    f"{held.checkpoint}: {name} {what}, a {config.family} model of its shape needs {list(shapes[name])}"
                )


def assemble(held: CheckpointTensors, out: OutTensor) -> Tensor:
    """The tensor as the folder has it, float32; a view where it is stored transposed."""
    source = out.parts[0][1]
    rows = out.shape[-1] if source.transposed else out.shape[0]
    whole = [held.read(name)[: rows // source.fused] for name, _ in out.parts]
    tensor = whole[0] if len(whole) == 1 else torch.cat(whole)
    return tensor.T if source.transposed else tensor
