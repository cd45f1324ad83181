"""Where a LoRA run begins: the frozen base, and adapters fresh, from a PEFT folder, or after merging one.

Runs the same on a first start and on every resume, since checkpoints hold adapters only: what they were trained on is
built again from the model folder (or seed), the checkpoint named by `start_from`, and the adapter to merge first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mmdata_train.checkpoint import load_base
from mmdata_train.errors import AdapterError
from mmdata_train.lora.adapter import Adapter
from mmdata_train.lora.fill import initialize_adapters, initialize_added, load_adapters, merge_into_base
from mmdata_train.lora.fits import check_fits
from mmdata_train.lora.peft import from_peft, read_adapter
from mmdata_train.lora.settings import LoraConfig
from mmdata_train.lora.tokens import AddedTokens
from mmdata_train.model.config import ModelConfig
from mmdata_train.parallelize import ModelParts
from mmdata_train.run_folder import read_state


@dataclass(frozen=True, slots=True)
class AdapterStart:
    """base: a checkpoint of a full run whose weights are the base. folder: a PEFT adapter; merge_first: add it to the
    base and begin with fresh adapters. added: tokens whose rows are trained.
    """

    seed: int
    base: Path | None = None
    folder: Path | None = None
    merge_first: bool = False
    added: AddedTokens | None = None


def holds_adapters(checkpoint: Path) -> bool:
    """Whether a checkpoint is of a LoRA run. Raises CheckpointError."""
    return read_state(checkpoint).get("lora") is not None


def check_start(folder: Path, model: ModelConfig, lora: LoraConfig, *, merge_first: bool = False) -> None:
    """Refuse a PEFT folder the run cannot begin from, by its headers, before a model is loaded or ranks are started.

    Raises AdapterError naming the folder and what does not fit, with both sizes.
    """
    adapter = read_adapter(folder, mapped=True)
    try:
        if merge_first and not adapter.paths():
            raise AdapterError("it holds no low-rank update that could be merged")
        check_fits(adapter, model, shape_of(adapter) if merge_first else lora)
    except AdapterError as error:
        raise AdapterError(f"lora_from {folder}: {error}") from None


def start_adapters(parts: ModelParts, start: AdapterStart) -> None:
    """Fill every adapter of the parts, whose base is filled from the model already; a collective.

    Raises AdapterError for a folder that does not fit, CheckpointError for a base that does not.
    """
    lora = parts.lora
    assert lora is not None, "there are no adapters to start"
    if start.base is not None and not holds_adapters(start.base):
        load_base(parts, start.base)
    adapter = None if start.folder is None else read_adapter(start.folder)
    if adapter is not None and start.merge_first:
        shape = shape_of(adapter)
        merge_into_base(parts.parts, from_peft(adapter, parts.config, shape), shape)
        adapter = None
    initialize_adapters(parts.parts, start.seed)
    if start.added is not None:
        initialize_added(parts.parts, start.added)
    if adapter is not None:
        load_adapters(parts.parts, from_peft(adapter, parts.config, lora), start.seed)


def shape_of(adapter: Adapter) -> LoraConfig:
    """Settings that hold the whole adapter: its largest rank, every module it names."""
    ranks = [adapter.config.rank_of(path) for path in adapter.paths()]
    rank = max([adapter.config.rank, *ranks])
    return LoraConfig(rank=rank, targets=tuple(adapter.paths()), dora=adapter.config.dora, rslora=adapter.config.rslora)
