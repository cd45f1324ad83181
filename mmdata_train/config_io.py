"""Mappings to frozen dataclasses and back: YAML files, `--set key=value`, and every type error with the key it stands
at.

Generic over the dataclasses: nested ones, optional values, literals, tuples, lists and dictionaries. An unknown key
is an error that names the nearest known one. Numbers written as YAML 1.1 strings (`1e-4`) are numbers.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import yaml

from mmdata.strict_yaml import load_yaml
from mmdata_train.errors import ConfigError, TrainError

T = TypeVar("T")

ALIASES = {
    "learning_rate": "train.lr",
    "max_lr": "train.lr",
    "min_learning_rate": "train.min_lr",
    "lr_scheduler": "train.lr_schedule",
    "lr_scheduler_type": "train.lr_schedule",
    "scheduler": "train.lr_schedule",
    "warmup": "train.warmup_steps",
    "warmup_iters": "train.warmup_steps",
    "lr_warmup_steps": "train.warmup_steps",
    "warmup_ratio": "train.warmup_ratio",
    "warmup_fraction": "train.warmup_ratio",
    "adam_beta1": "train.beta1",
    "adam_beta2": "train.beta2",
    "adam_epsilon": "train.eps",
    "adam_eps": "train.eps",
    "epsilon": "train.eps",
    "max_grad_norm": "train.clip_grad",
    "gradient_clipping": "train.clip_grad",
    "grad_clip": "train.clip_grad",
    "wd": "train.weight_decay",
    "batch_size": "train.global_batch_size (of the whole step; train.micro_batch_size is what a rank computes at once)",
    "train_batch_size": "train.global_batch_size",
    "per_device_train_batch_size": "train.micro_batch_size",
    "per_device_batch_size": "train.micro_batch_size",
    "micro_batch": "train.micro_batch_size",
    "gradient_accumulation_steps": (
        "train.global_batch_size (micro_batch_size x data ranks x accumulation, which follows from it)"
    ),
    "grad_accumulation_steps": "train.global_batch_size (micro_batch_size x data ranks x accumulation)",
    "max_steps": "train.steps",
    "num_steps": "train.steps",
    "total_steps": "train.steps",
    "train_steps": "train.steps",
    "train_iters": "train.steps",
    "iters": "train.steps",
    "num_epochs": "train.epochs",
    "num_train_epochs": "train.epochs",
    "max_epochs": "train.epochs",
    "epoch": "train.epochs",
    "dtype": "train.precision",
    "torch_dtype": "train.precision",
    "bf16": "train.precision: bf16",
    "fp16": "train.precision: fp16",
    "mixed_precision": "train.precision",
    "gradient_checkpointing": "train.activation_checkpointing",
    "recompute": "train.activation_checkpointing",
    "torch_compile": "train.compile",
    "logging_steps": "train.log_every",
    "log_interval": "train.log_every",
    "eval_steps": "train.eval_every",
    "eval_interval": "train.eval_every",
    "eval_iters": "train.eval_batches",
    "early_stopping_patience": "train.early_stop_after",
    "patience": "train.early_stop_after",
    "max_seq_length": "data.seq_length",
    "max_seq_len": "data.seq_length",
    "max_length": "data.seq_length",
    "sequence_length": "data.seq_length",
    "block_size": "data.seq_length",
    "cutoff_len": "data.seq_length",
    "dataset": "data.train",
    "data_path": "data.train",
    "num_workers": "data.loading.workers",
    "tensor_parallel": "parallel.tensor",
    "tensor_parallel_size": "parallel.tensor",
    "tp": "parallel.tensor",
    "tensor_model_parallel_size": "parallel.tensor",
    "pipeline_parallel": "parallel.pipeline",
    "pipeline_parallel_size": "parallel.pipeline",
    "pipeline_model_parallel_size": "parallel.pipeline",
    "pp": "parallel.pipeline",
    "dp": "parallel.data",
    "data_parallel_size": "parallel.data",
    "zero": "parallel.zero_stage",
    "output_dir": "output.dir",
    "save_steps": "output.save_every",
    "save_interval": "output.save_every",
    "save_total_limit": "output.keep",
    "resume_from_checkpoint": "output.dir (a run found there is continued) or start_from (its weights alone)",
    "model_name_or_path": "model",
    "model_name": "model",
    "lora_r": "lora_rank",
    "lora_target_modules": "lora_targets",
    "target_modules": "lora_targets",
}
"""What other trainers call a key (transformers, Megatron, DeepSpeed, litgpt, LLaMA-Factory) -> ours, in full."""


def load_mapping(path: str | Path) -> dict[str, Any]:
    """One YAML document as a mapping. Raises ConfigError naming file and line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        value = load_yaml(text)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; give the path of a YAML file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds {type(value).__name__} at its top, not `key: value` lines")
    return value


def apply_overrides(mapping: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy with each `a.b.c=value` set; the value is read as YAML. Raises ConfigError on a line without `=`."""
    result: dict[str, Any] = _copy(mapping)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {override!r} is not KEY=VALUE, such as train.lr=1e-4")
        *parents, last = key.strip().split(".")
        place = result
        for name in parents:
            child = place.setdefault(name, {})
            if not isinstance(child, dict):
                raise ConfigError(f"--set {key}: {name} holds {child!r}, which has no keys below it")
            place = child
        try:
            place[last] = load_yaml(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {key}: {text!r} is not YAML: {error}") from None
    return result


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value


def build(cls: type[T], mapping: Any, where: str = "") -> T:
    """`cls` made from a mapping; `where` is the dotted key it stands at. Raises ConfigError."""
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{where or 'the configuration'} is {mapping!r}; it must hold `key: value` lines")
    hints = get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cast(Any, cls)) if field.init}
    values = {}
    for key, value in mapping.items():
        if key not in fields:
            raise ConfigError(f"{_join(where, str(key))} is unknown; {_nearest(str(key), fields, where)}")
        values[key] = coerce(hints[key], value, _join(where, key))
    required = (dataclasses.MISSING, dataclasses.MISSING)
    missing = [name for name, f in fields.items() if name not in values and (f.default, f.default_factory) == required]
    if missing:
        raise ConfigError(f"{_join(where, missing[0])} is missing")
    try:
        return cls(**values)
    except TrainError as error:
        # The class names its fields from its own point of view; the section's name may differ.
        if isinstance(error, ConfigError):
            raise type(error)(str(error)) from None
        # A shape that cannot be is a wrong value here, not a model that could not be read.
        raise ConfigError(str(error)) from None


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _nearest(key: str, known: Iterable[str], where: str) -> str:
    name = key.lower().replace("-", "_")
    like = [] if name in ALIASES else difflib.get_close_matches(name, {*known, *ALIASES}, n=1, cutoff=0.8)
    meant = ALIASES.get(like[0] if like else name)
    if meant is not None and not (like and like[0] in known):
        # In its own section the bare name reads best.
        start = f"{where}."
        return f"did you mean {meant.removeprefix(start) if where else meant}?"
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known keys: {', '.join(sorted(known))}"


def coerce(hint: Any, value: Any, where: str) -> Any:
    """`value` as the annotated type, or ConfigError saying what would fit."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _coerce_union(arguments, value, where)
    if origin is Literal:
        return _coerce_literal(arguments, value, where)
    if origin in (tuple, list, Sequence):
        return _coerce_sequence(origin, arguments, value, where)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} is {value!r}; it must hold `key: value` lines")
        return {str(key): coerce(arguments[1], inner, _join(where, str(key))) for key, inner in value.items()}
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, cast(type, hint)) else build(cast(type, hint), value, where)
    return _coerce_scalar(hint, value, where)


def _coerce_union(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    choices = [argument for argument in arguments if argument is not type(None)]
    # A mapping can only be meant for a class or a dictionary: its error is the one worth reading.
    structured = [c for c in choices if dataclasses.is_dataclass(c) or get_origin(c) in (dict, Mapping)]
    if isinstance(value, Mapping) and structured:
        choices = structured
    errors = []
    for choice in choices:
        try:
            return coerce(choice, value, where)
        except ConfigError as error:
            errors.append(error)
    raise errors[0] if len(errors) == 1 else ConfigError("; or ".join(str(error) for error in errors))


def _coerce_literal(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    for argument in arguments:
        if value == argument and isinstance(value, bool) == isinstance(argument, bool):
            return argument
    choices = ", ".join(str(argument) for argument in arguments)
    close = difflib.get_close_matches(str(value), [str(a) for a in arguments], n=1)
    raise ConfigError(
        f"{where} is {value!r}; choose from {choices}" + (f" (did you mean {close[0]}?)" if close else "")
    )


def _coerce_sequence(origin: Any, arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{where} is {value!r}; it must be a list")
    fixed = origin is tuple and Ellipsis not in arguments
    if fixed and len(value) != len(arguments):
        raise ConfigError(f"{where} has {len(value)} values; it needs {len(arguments)}")
    inner = arguments if fixed else (arguments[0],) * len(value)
    made = [coerce(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(inner, value, strict=True))]
    return made if origin is list else tuple(made)


def _coerce_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is Path and isinstance(value, (str, Path)):
        return Path(value)
    if hint is float and isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{where} is a whole number of {value.bit_length():,} bits; it must be finite") from None
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    raise ConfigError(f"{where} is {value!r}; it must be {names.get(hint, hint.__name__)}")


def to_mapping(value: Any) -> Any:
    """A dataclass as plain YAML values; `build` of the result gives an equal one."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_mapping(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
    if isinstance(value, Mapping):
        return {str(key): to_mapping(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_mapping(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def dump_yaml(value: Any) -> str:
    """A dataclass as YAML text, keys in the order of its fields."""
    return yaml.safe_dump(to_mapping(value), sort_keys=False, allow_unicode=True)
