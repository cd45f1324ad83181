"""Weights into a whole decoder on one device: from a folder, a checkpoint of any layout, and an adapter beside them.

Adapters stay apart from the base, as in training; nothing is rounded for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mmdata_train.checkpoint_format import load_tensors, read_index
from mmdata_train.errors import AdapterError, CheckpointError, GenerationError
from mmdata_train.generation.sources import ModelSource
from mmdata_train.hf import load_weights
from mmdata_train.lora.fill import initialize_adapters, load_adapters
from mmdata_train.lora.layer import insert_adapters
from mmdata_train.lora.peft import from_peft, read_adapter
from mmdata_train.lora.settings import is_adapter_weight
from mmdata_train.lora.start import shape_of
from mmdata_train.model.decoder import Decoder, canonical_name


@torch.no_grad()
def fill_from(source: ModelSource, decoder: Decoder) -> None:
    """Fill a decoder and put its adapters in. Raises ModelError, CheckpointError, AdapterError, GenerationError."""
    if source.checkpoint is None or source.lora is not None:
        assert source.folder is not None, "sources without a folder are refused when they are found"
        load_weights([decoder], source.config, source.folder)
    else:
        read_weights(source, decoder, lambda name: True)
    if source.lora is not None:
        insert_adapters(decoder, source.lora)
        read_weights(source, decoder, is_adapter_weight)
    if source.adapter is not None:
        _put_on(source, decoder)


def _put_on(source: ModelSource, decoder: Decoder) -> None:
    """A PEFT adapter beside the base."""
    assert source.adapter is not None
    adapter = read_adapter(source.adapter)
    if adapter.rows_needed():
        raise GenerationError(
            f"{source.adapter} holds rows of added tokens; `mmdata-train export {source.adapter} --to merged` makes a"
            " folder of the whole that can be opened"
        )
    shape = shape_of(adapter)
    try:
        state = from_peft(adapter, source.config, shape)
    except AdapterError as error:
        raise AdapterError(f"{source.adapter}: {error}") from None
    insert_adapters(decoder, shape)
    initialize_adapters([decoder], seed=0)
    load_adapters([decoder], state, seed=0)


def read_weights(source: ModelSource, decoder: Decoder, wants: Callable[[str], bool]) -> None:
    """Fill the wanted weights from a checkpoint, whatever the layout that wrote it."""
    assert source.checkpoint is not None
    load_named({n: w for n, w in decoder.named_parameters() if wants(n)}, source, no_dist=True)


def load_named(weights: Mapping[str, Tensor], source: ModelSource, *, no_dist: bool) -> None:
    """Fill weights (by our names; distributed ones too) from the source's checkpoint. A collective unless no_dist.

    Raises CheckpointError naming the first that is missing or has another shape.
    """
    assert source.checkpoint is not None
    stored = read_index(source.checkpoint).state_dict_metadata
    wanted: dict[str, Any] = {}
    for name, weight in weights.items():
        key = f"model.{canonical_name(source.config, name)}"
        size = getattr(stored.get(key), "size", None)
        if size is None or tuple(size) != tuple(weight.shape):
            found = "missing" if size is None else f"{list(size)}"
            raise CheckpointError(f"{source.checkpoint}: {key} is {found}, this model needs {list(weight.shape)}")
        wanted[key] = weight.detach()
    load_tensors(wanted, source.checkpoint, no_dist=no_dist)
