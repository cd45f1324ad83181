"""The two files of a PEFT adapter folder as they lie on disk.

`adapter_config.json` is checked field by field: what would change numbers and is not understood, or is of another kind,
is refused by name. Tensors come from safetensors, or from the older `.bin` through torch's weights-only loader.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from mmdata_train.errors import AdapterError
from mmdata_train.hf_files import load_bin
from mmdata_train.hf_folder import read_json
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


def read_config(folder: Path) -> PeftConfig:
    """`adapter_config.json`. Raises AdapterError naming the field that is wrong or not supported, and its value."""
    path = folder / CONFIG
    raw = read_json(path, AdapterError, f"a PEFT adapter folder holds {CONFIG} and {WEIGHTS}")
    _refuse_unknown(path, raw)
    for name, (fits, what) in _FIELDS.items():
        value = raw.get(name)
        if not (value is None and name not in _NEEDED) and not fits(value):
            raise AdapterError(f"{path}: {name} is {value!r}; it must be {what}")
    return _config(raw)


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
    """Of fields whose kinds were checked; null is a field's default, as for PEFT."""
    tokens = raw.get("trainable_token_indices") or {}
    if isinstance(tokens, list):
        tokens = {"embed_tokens": tokens}
    layers = raw.get("layers_to_transform")
    pattern = raw.get("layers_pattern") or ()
    return PeftConfig(
        rank=raw["r"],
        alpha=float(raw["lora_alpha"]),
        targets=_several(raw.get("target_modules")),
        dropout=float(raw.get("lora_dropout") or 0.0),
        rslora=bool(raw.get("use_rslora")),
        dora=bool(raw.get("use_dora")),
        fan_in_fan_out=bool(raw.get("fan_in_fan_out")),
        rank_pattern=dict(raw.get("rank_pattern") or {}),
        alpha_pattern={key: float(value) for key, value in (raw.get("alpha_pattern") or {}).items()},
        modules_to_save=tuple(raw.get("modules_to_save") or ()),
        trainable_tokens={name: tuple(ids) for name, ids in tokens.items()},
        base_model=raw.get("base_model_name_or_path"),
        exclude=_several(raw.get("exclude_modules")),
        layers=(layers,) if isinstance(layers, int) else tuple(layers) if layers else None,
        layers_pattern=(pattern,) if isinstance(pattern, str) else tuple(pattern),
    )


def _several(value: Any) -> tuple[str, ...] | str:
    return value if isinstance(value, str) else tuple(value or ())


def _whole(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _named(value: Any) -> bool:
    return (isinstance(value, str) and _expression(value)) or _list(value, lambda item: isinstance(item, str))


def _expression(value: str) -> bool:
    try:
        re.compile(value)
    except re.error:
        return False
    return True


def _list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(fits(item) for item in value)


def _table(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(_expression(key) and fits(item) for key, item in value.items())


def _ids(value: Any) -> bool:
    return _list(value, _whole)


_NEEDED = ("r", "lora_alpha")
_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "r": (partial(_whole, least=1), "a whole number from 1"),
    "lora_alpha": (_number, "a number"),
    "lora_dropout": (lambda value: _number(value) and 0 <= value < 1, "a probability in [0, 1)"),
    **dict.fromkeys(("use_rslora", "use_dora", "fan_in_fan_out"), (_flag, "true or false")),
    **dict.fromkeys(
        ("target_modules", "exclude_modules", "layers_pattern"), (_named, "a list of names, or a regular expression")
    ),
    "modules_to_save": (lambda value: _list(value, lambda item: isinstance(item, str)), "a list of names"),
    "rank_pattern": (
        lambda value: _table(value, partial(_whole, least=1)),
        "an object of patterns with whole numbers from 1",
    ),
    "alpha_pattern": (lambda value: _table(value, _number), "an object of patterns with numbers"),
    "trainable_token_indices": (lambda value: _ids(value) or _table(value, _ids), "a list of ids, or lists by module"),
    "layers_to_transform": (lambda value: _whole(value) or _ids(value), "a layer's number, or a list of them"),
    "base_model_name_or_path": (lambda value: isinstance(value, str), "a path or a name"),
}
"""Field -> what it must be, where it is given."""


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


def read_tensors(folder: Path, *, mapped: bool = False) -> dict[str, Tensor]:
    """Every tensor of the adapter by its name without PEFT's prefix. mapped: as views of the file.

    Raises AdapterError for a damaged or no file.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        pickled = folder / PICKLED
        if not pickled.is_file():
            raise AdapterError(f"{path} is missing; a PEFT adapter folder holds {CONFIG} and {WEIGHTS}")
        return {name.removeprefix(PREFIX): value for name, value in load_bin(pickled, AdapterError).items()}
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            # The library slices a mapped storage, so a whole slice is a view and no copy.
            values = (file.get_slice(name)[...] if mapped else file.get_tensor(name) for name in names)
            return {name.removeprefix(PREFIX): value for name, value in zip(names, values, strict=True)}
    except SafetensorError as error:
        raise AdapterError(f"{path} is not a whole safetensors file: {error}") from None
