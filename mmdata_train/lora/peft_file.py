"""The two files of a PEFT adapter folder as they lie on disk.

`adapter_config.json` is checked field by field: what would change numbers and is not understood is refused by name.
Tensors are written one after the other behind a header made from their shapes alone, so only one is in memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mmdata_train.errors import AdapterError
from mmdata_train.lora.adapter import PeftConfig

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PICKLED = "adapter_model.bin"
PREFIX = "base_model.model."
CHANGES_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Initialisations that also change the base model, so the adapter alone is not the whole update."""
REFUSED = (
    "alora_invocation_tokens", "arrow_config", "layer_replication", "lora_bias", "megatron_config", "target_parameters",
    "use_bdlora", "use_qalora", "monteclora_config", "velora_config", "kasa_config",
)  # fmt: skip
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def read_config(folder: Path) -> PeftConfig:
    """`adapter_config.json`. Raises AdapterError naming the field that is wrong or not supported."""
    path = folder / CONFIG
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AdapterError(f"{path} is missing; a PEFT adapter folder holds {CONFIG} and {WEIGHTS}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise AdapterError(f"{path} is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise AdapterError(f"{path} holds a {type(raw).__name__}, not an object")
    _refuse_unknown(path, raw)
    try:
        return _config(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise AdapterError(f"{path}: a field is missing or of another kind: {error!r}") from None


def _refuse_unknown(path: Path, raw: Mapping[str, Any]) -> None:
    kind = raw.get("peft_type")
    if kind != "LORA":
        raise AdapterError(f"{path}: peft_type {kind!r} is not supported; only LORA is (rsLoRA and DoRA included)")
    if raw.get("bias", "none") != "none":
        raise AdapterError(f"{path}: bias {raw['bias']!r} trains the base's biases, which is not supported; only none")
    for field in REFUSED:
        if raw.get(field):
            raise AdapterError(f"{path}: {field} is set, which is not supported")
    start = str(raw.get("init_lora_weights", True)).lower()
    if start.startswith(CHANGES_BASE):
        raise AdapterError(
            f"{path}: init_lora_weights {start!r} changes the base model too; convert it to plain LoRA first"
            " (PEFT: save_pretrained(path_initial_model_for_weight_conversion=...))"
        )


def _config(raw: Mapping[str, Any]) -> PeftConfig:
    targets = raw.get("target_modules") or ()
    tokens = raw.get("trainable_token_indices") or {}
    if isinstance(tokens, list):
        tokens = {"embed_tokens": tokens}
    return PeftConfig(
        rank=int(raw["r"]),
        alpha=float(raw["lora_alpha"]),
        targets=targets if isinstance(targets, str) else tuple(targets),
        dropout=float(raw.get("lora_dropout", 0.0)),
        rslora=bool(raw.get("use_rslora", False)),
        dora=bool(raw.get("use_dora", False)),
        fan_in_fan_out=bool(raw.get("fan_in_fan_out", False)),
        rank_pattern={str(key): int(value) for key, value in (raw.get("rank_pattern") or {}).items()},
        alpha_pattern={str(key): float(value) for key, value in (raw.get("alpha_pattern") or {}).items()},
        modules_to_save=tuple(raw.get("modules_to_save") or ()),
        trainable_tokens={str(name): tuple(int(i) for i in ids) for name, ids in tokens.items()},
        base_model=raw.get("base_model_name_or_path"),
    )


def config_json(config: PeftConfig) -> str:
    """The text of `adapter_config.json`, fields in alphabetical order as PEFT writes them."""
    tokens = {name: list(ids) for name, ids in config.trainable_tokens.items()}
    values = {
        "alpha_pattern": dict(config.alpha_pattern),
        "base_model_name_or_path": config.base_model,
        "bias": "none",
        "fan_in_fan_out": config.fan_in_fan_out,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": int(config.alpha) if float(config.alpha).is_integer() else config.alpha,
        "lora_dropout": config.dropout,
        "modules_to_save": list(config.modules_to_save) or None,
        "peft_type": "LORA",
        "r": config.rank,
        "rank_pattern": dict(config.rank_pattern),
        "target_modules": config.targets if isinstance(config.targets, str) else list(config.targets),
        "task_type": "CAUSAL_LM",
        "trainable_token_indices": tokens or None,
        "use_dora": config.dora,
        "use_rslora": config.rslora,
    }
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the adapter by its name without PEFT's prefix. Raises AdapterError for a damaged or no file."""
    path = folder / WEIGHTS
    if not path.is_file():
        pickled = folder / PICKLED
        if not pickled.is_file():
            raise AdapterError(f"{path} is missing; a PEFT adapter folder holds {CONFIG} and {WEIGHTS}")
        try:
            loaded = torch.load(pickled, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds, all of them about this file
            raise AdapterError(f"{pickled} cannot be read as plain tensors: {error}") from None
        if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
            raise AdapterError(f"{pickled} does not hold tensors by name")
        return {str(name).removeprefix(PREFIX): value for name, value in loaded.items()}
    try:
        with safe_open(path, framework="pt") as file:
            return {name.removeprefix(PREFIX): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise AdapterError(f"{path} is not a whole safetensors file: {error}") from None


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor to write: `make` gives it when its turn comes."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], Tensor]


def write_tensors(path: Path, entries: Iterable[Entry]) -> None:
    """A safetensors file with PEFT's prefix, durable when this returns; the tensors are made one at a time."""
    entries = list(entries)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for entry in entries:
        size = torch.Size(entry.shape).numel() * entry.dtype.itemsize
        header[PREFIX + entry.name] = {
            "dtype": DTYPES[entry.dtype], "shape": list(entry.shape), "data_offsets": [place, place + size],
        }  # fmt: skip
        place += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in entries:
            tensor = entry.make().detach().to("cpu", entry.dtype).contiguous()
            assert tuple(tensor.shape) == entry.shape, f"{entry.name}: {tuple(tensor.shape)} is not {entry.shape}"
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
