"""Weights into a whole decoder on one device: from a folder, a checkpoint of any layout, and an adapter on top."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed

from mmdata_train.checkpoint_format import SafeReader, read_index
from mmdata_train.errors import CheckpointError, GenerationError
from mmdata_train.generation.sources import ModelSource
from mmdata_train.hf import load_weights
from mmdata_train.model.decoder import Decoder, canonical_name
from mmdata_train.slices import named_weights


@torch.no_grad()
def fill_from(source: ModelSource, decoder: Decoder) -> None:
    """Fill a decoder in float32. Raises ModelError, CheckpointError, GenerationError."""
    if source.checkpoint is None or source.adapted:
        if source.folder is None:
            raise GenerationError(f"{source.path}: the run's base model was random, so an adapter of it means nothing")
        load_weights([decoder], source.config, source.folder)
    else:
        read_weights(source, decoder)


def read_weights(source: ModelSource, decoder: Decoder) -> None:
    """Fill a decoder from a checkpoint, whatever the layout that wrote it."""
    assert source.checkpoint is not None
    stored = read_index(source.checkpoint).state_dict_metadata
    wanted: dict[str, Any] = {}
    for name, weight in named_weights([decoder]):
        key = f"model.{canonical_name(source.config, name)}"
        size = getattr(stored.get(key), "size", None)
        if size is None or tuple(size) != tuple(weight.shape):
            found = "missing" if size is None else f"{list(size)}"
            raise CheckpointError(f"{source.checkpoint}: {key} is {found}, this model needs {list(weight.shape)}")
        wanted[key] = weight.detach()
    load_distributed(wanted, storage_reader=SafeReader(source.checkpoint), no_dist=True)
