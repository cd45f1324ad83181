"""From a configuration to an engine on this rank: groups, model, weights. Data and checkpoints come on top."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path

import torch
import torch.distributed as dist

from mmdata_train.config import TrainConfig
from mmdata_train.config_checks import check_run
from mmdata_train.errors import ConfigError
from mmdata_train.hf import load_weights
from mmdata_train.hf_config import config_from_folder
from mmdata_train.lora.settings import resolve_targets
from mmdata_train.lora.start import AdapterStart, check_start, start_adapters
from mmdata_train.lora.tokens import AddedTokens, plan_tokens
from mmdata_train.mesh import Mesh, pick_device, start_process_group
from mmdata_train.model.config import ModelConfig
from mmdata_train.model.init import initialize
from mmdata_train.parallelize import build_parts
from mmdata_train.step import Engine

logger = logging.getLogger("mmdata_train")


def model_config(config: TrainConfig) -> ModelConfig:
    """The shape of the run's model: read from its folder, or as configured; dropout is train.dropout or 0.

    A checkpoint's own dropout is not taken over silently: fine-tuning with it is a choice. The vocabulary has room for
    `added_tokens`. Raises ModelError, ConfigError (also for lora_targets this model does not have), and
    AdapterError for a `lora_from` that does not fit.
    """
    model, added = base_config(config), planned_tokens(config)
    if added is not None:
        model = dataclasses.replace(model, vocab_size=added.vocabulary(model.vocab_size))
    if config.lora is not None:
        resolve_targets(config.lora, model)
        if config.lora_from is not None:
            lora = config.lora if added is None else dataclasses.replace(config.lora, added_ids=added.ids)
            check_start(config.lora_from, model, lora, merge_first=config.lora_merge_first)
    return model


def planned_tokens(config: TrainConfig) -> AddedTokens | None:
    """The run's new tokens, None without any. Raises ConfigError for tokens or a tokenizer that do not fit."""
    if not config.added_tokens:
        return None
    return plan_tokens(config.tokenizer or model_folder(config), config.added_tokens)


def model_folder(config: TrainConfig) -> str | None:
    """The Hugging Face folder the run starts from, None for a shape. Raises ConfigError where it is not there."""
    if isinstance(config.model, ModelConfig):
        return None
    if not Path(config.model).is_dir():
        raise ConfigError(
            f"model: {config.model} is no folder here; give the model's Hugging Face folder (config.json,"
            " *.safetensors, tokenizer.json) in the file or as --set model=DIR"
        )
    return config.model


def base_config(config: TrainConfig) -> ModelConfig:
    """The shape of the weights the run starts from, without new tokens."""
    model_folder(config)
    dropout = config.train.dropout or 0.0
    if isinstance(config.model, ModelConfig):
        if config.train.dropout is None:
            return config.model
        return dataclasses.replace(config.model, dropout=dropout, attention_dropout=dropout)
    return config_from_folder(config.model, dropout=dropout, attention_dropout=dropout)


def make_deterministic() -> None:
    """Same bits from the same inputs on one kind of device; slower. cuBLAS needs its workspace set before first use."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def open_engine(
    config: TrainConfig, *, seq_length: int, total_steps: int, fill: bool = True, mesh: Mesh | None = None
) -> Engine:
    """Join the process group, check sizes, build this rank's part and fill it from the model folder or the seed.

    fill: False leaves weights unset for a checkpoint to fill. mesh: one made for this layout already. Raises
    ConfigError before any group exists where the world size is known, ModelError on a folder that does not fit. The CPU
    path uses TF32 nowhere; on GPUs fp32 runs at full precision.
    """
    model = model_config(config)
    world = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
    check_run(model, config.parallel, config.train, seq_length, world)
    device = pick_device()
    torch.set_float32_matmul_precision("highest")
    if config.train.deterministic:
        make_deterministic()
    start_process_group(device.type, config.parallel.timeout_minutes)
    mesh = mesh or Mesh.make(config.parallel, device)
    added, lora = planned_tokens(config), config.lora
    if lora is not None and added is not None:
        lora = dataclasses.replace(lora, added_ids=added.ids)
    if lora is not None:
        for line in lora.describe(model):
            logger.info("%s", line)
    parts = build_parts(model, config.parallel, config.train, mesh, lora)
    # A checkpoint of adapters holds no base.
    fill = fill or lora is not None
    if fill and isinstance(config.model, ModelConfig):
        initialize(parts.parts, base_config(config), config.train.seed)
    elif fill:
        load_weights(parts.parts, base_config(config), Path(str(config.model)))
    if lora is not None:
        start_adapters(
            parts,
            AdapterStart(config.train.seed, config.start_from, config.lora_from, config.lora_merge_first, added),
        )
    return Engine(parts, config.parallel, config.train, seq_length, total_steps)
