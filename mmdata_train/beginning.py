"""What a run begins with, settled before data is converted and ranks are started: its model and a checkpoint.

A checkpoint in the output folder is continued; without one, `start_from` may name another run's. Either must hold what
the configured model needs, tensor by tensor: only names and shapes are read, and the model is built without memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mmdata_train.checkpoint import MOMENTS, check_adapters, check_base, check_tensors
from mmdata_train.config import TrainConfig
from mmdata_train.errors import CheckpointError, ConfigError
from mmdata_train.export.origin import KEY
from mmdata_train.lora.layer import insert_adapters
from mmdata_train.lora.settings import LoraConfig, check_rank
from mmdata_train.lora.start import holds_adapters
from mmdata_train.model.config import ModelConfig
from mmdata_train.model.decoder import Decoder, canonical_name
from mmdata_train.run_folder import (
    RUN_CHECKPOINTS,
    RUN_STATE,
    STATE,
    check_state,
    checkpoint_at,
    latest_checkpoint,
    read_state,
    step_folder,
)
from mmdata_train.session import model_config, planned_tokens


@dataclass(frozen=True, slots=True)
class Beginning:
    """config: as given, `start_from` now the checkpoint it means. model: its shape. found: the checkpoint the run
    continues, with its state; None where it starts at step 0.
    """

    config: TrainConfig
    model: ModelConfig
    found: Path | None = None
    state: dict[str, Any] | None = None


def settle(config: TrainConfig) -> Beginning:
    """Find the checkpoints a run begins with and compare them with its model.

    Raises ConfigError, ModelError and AdapterError as model_config does, ConfigError for a `start_from` that is no
    checkpoint, and CheckpointError for a checkpoint that does not fit.
    """
    found = latest_checkpoint(config.output.dir / RUN_CHECKPOINTS)
    state = read_state(found) if found is not None else None
    if found is not None and state is not None:
        check_state(found, state, RUN_STATE)
        if step_folder(state["step"]) != found.name:
            raise CheckpointError(f"{found / STATE} is of step {state['step']}; use the checkpoint of that name")
    if found is None or config.lora is not None:
        config = replace(config, start_from=_base(config.start_from, state))
    model, lora = model_config(config), config.lora
    added = planned_tokens(config)
    if lora is not None and added is not None:
        lora = replace(lora, added_ids=added.ids)
    if lora is not None:
        # Its notices come with the run's; a rank that no layer has room for must not get as far as being allocated.
        tuple(check_rank(lora, model))
    start = config.start_from
    if found is not None:
        _compare(found, model, lora, moments=True)
    elif start is not None and (lora is None or holds_adapters(start)):
        _compare(start, model, lora, moments=False)
    if start is not None and lora is not None and not holds_adapters(start):
        # New tokens' rows are trained beside the base, which has its own size.
        check_base(start, ((name, shape) for name, shape, _ in _weights(model, None)))
    return Beginning(config, model, found, state)


def _base(given: Path | None, state: dict[str, Any] | None) -> Path | None:
    """The checkpoint `start_from` means. A run of adapters that is continued stands on the one it began with, whatever
    is the newest there by now; where that was moved, on the step of its name.
    """
    stored = None if state is None else (state.get(KEY) or {}).get("start_from")
    if stored is None:
        return None if given is None else start_checkpoint(given)
    began = Path(stored)
    if given is None:
        raise CheckpointError(f"this run began from {began}, on which its adapters stand; set start_from: {began}")
    place = (given.parent if given.is_file() else given).resolve()
    if began.is_relative_to(place) and (began / STATE).is_file():
        return began
    meant = start_checkpoint(given)
    if meant.name == began.name and not began.exists():
        return meant
    raise CheckpointError(
        f"this run began from {began}{'' if began.exists() else ', which is gone'}; start_from {given} means {meant}:"
        " set start_from to the checkpoint it began from, or start anew in another output.dir"
    )


def start_checkpoint(path: Path) -> Path:
    """The checkpoint `start_from` means: a step's folder, or the newest of a run's folder or of its checkpoints/, or
    the one `best` or `latest` there names. Raises ConfigError for anything else, naming the field that takes it.
    """
    found = checkpoint_at(path)
    if found is not None:
        return found
    wanted = "give a run's output folder, one of its checkpoints, or its checkpoints/best"
    if not path.exists():
        raise ConfigError(f"start_from {path} does not exist; {wanted}")
    if (path / "adapter_config.json").is_file():
        raise ConfigError(f"start_from {path} is a PEFT adapter; use lora_from: {path}, with lora_rank")
    if (path / "config.json").is_file():
        raise ConfigError(f"start_from {path} is a Hugging Face folder; use model: {path}")
    raise ConfigError(f"start_from {path} holds no checkpoint of this engine; {wanted}")


def _weights(model: ModelConfig, lora: LoraConfig | None) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """(stored name, shape, whether it is trained) of the whole model."""
    with torch.device("meta"):
        part = Decoder(model)
        if lora is not None:
            insert_adapters(part, lora)
    for name, weight in part.named_parameters():
        yield canonical_name(model, name), tuple(weight.shape), weight.requires_grad


def _compare(checkpoint: Path, model: ModelConfig, lora: LoraConfig | None, *, moments: bool) -> None:
    check_adapters(checkpoint, read_state(checkpoint).get("lora"), lora)
    needed = []
    for name, shape, trained in _weights(model, lora):
        if trained:
            needed.append((f"model.{name}", shape))
            needed += [(f"optimizer.{name}.{moment}", shape) for moment in MOMENTS if moments]
    check_tensors(checkpoint, needed)
