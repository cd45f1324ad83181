"""config.json and generation_config.json of an exported model.

A model that came from a folder keeps that folder's config.json, changed only where the export differs: dtype, and ties
and vocabulary where an adapter changed them. A model trained from a shape gets the config of the first architecture
that describes it exactly: what is written is read back and compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from mmdata_train.errors import ExportError, ModelError
from mmdata_train.hf_config import SUPPORTED, config_from_json
from mmdata_train.hf_folder import token_ids
from mmdata_train.model.config import ModelConfig, RopeScaling
from mmdata_train.precision import DTYPES

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu2": "relu2"}
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
# What changes training but not the weights, and what Hugging Face has no place for.
_NOT_COMPARED = ("family", "dropout", "attention_dropout", "init_std", "vocab_multiple")


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16` for torch.bfloat16: the spelling of config.json."""
    return str(dtype).removeprefix("torch.")


def stored_dtype(config: Mapping[str, Any] | None) -> torch.dtype:
    """What a config.json says its weights are stored in (`dtype` is new, `torch_dtype` old); float32 without one."""
    named = {} if config is None else config
    name = str(named.get("dtype") or named.get("torch_dtype") or "float32").removeprefix("torch.")
    return next((dtype for dtype in DTYPES.values() if dtype_name(dtype) == name), torch.float32)


def with_changes(config: Mapping[str, Any], dtype: torch.dtype, **changes: Any) -> dict[str, Any]:
    """A source's config.json for an export in `dtype`; keys keep their order and spelling.

    `auto_map` goes: it names code files of the source, and the architectures read here need none.
    """
    key = "dtype" if "dtype" in config else "torch_dtype"
    kept = {name: value for name, value in config.items() if name != "auto_map"}
    return {**kept, key: dtype_name(dtype), **changes}


def config_of_shape(model: ModelConfig, dtype: torch.dtype, token_ids: Mapping[str, int | None]) -> dict[str, Any]:
    """A config.json for a model trained from a shape. Raises ExportError where no architecture describes it.

    token_ids: bos_token_id and the like, which a shape does not know.
    """
    reasons = []
    for kind in dict.fromkeys((model.family, *SUPPORTED)):
        raw = _gpt2(model) if kind == "gpt2" else _llama_like(model, kind)
        differs = _differences(model, raw)
        if not differs:
            ids = {name: token_ids.get(name) for name in _TOKEN_IDS}
            return {"architectures": [ARCHITECTURES[kind]], **raw, **ids, "torch_dtype": dtype_name(dtype)}
        reasons.append(f"{kind} cannot have {', '.join(differs)}")
    raise ExportError(f"no Hugging Face architecture is exactly this model: {'; '.join(reasons)}")


def family_of(config: Mapping[str, Any]) -> str:
    """The architecture a config.json names."""
    return str(config["model_type"])


def _differences(model: ModelConfig, raw: Mapping[str, Any]) -> list[str]:
    try:
        found = config_from_json(raw, "the config to be written")
    except ModelError as error:
        return [str(error)]
    names = [field.name for field in dataclasses.fields(model) if field.name not in _NOT_COMPARED]
    if model.positions == "learned" == found.positions:
        names = [name for name in names if name not in ("rope_theta", "rope_scaling")]
    return [f"{name} {getattr(model, name)!r}" for name in names if getattr(model, name) != getattr(found, name)]


def _llama_like(model: ModelConfig, kind: str) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "model_type": kind,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": _ACTIVATIONS[model.activation],
        "max_position_embeddings": model.max_positions,
        "rms_norm_eps": model.norm_eps,
        "initializer_range": model.init_std,
        "rope_theta": model.rope_theta,
        "rope_scaling": None if model.rope_scaling is None else _scaling(model.rope_scaling),
        "tie_word_embeddings": model.tie_embeddings,
        "attention_dropout": 0.0,
    }
    if kind in ("llama", "qwen3"):
        raw["attention_bias"] = model.qkv_bias
    if kind == "llama":
        raw["mlp_bias"] = model.mlp_bias
    if kind == "mistral":
        raw["sliding_window"] = model.sliding_window
    if kind in ("qwen2", "qwen3"):
        windowed = model.sliding_window is not None
        raw |= {"use_sliding_window": windowed, "sliding_window": model.sliding_window, "max_window_layers": 0}
    return raw


def _scaling(scaling: RopeScaling) -> dict[str, Any]:
    named = {"rope_type": scaling.kind, "factor": scaling.factor}
    keys = {
        "linear": (),
        "llama3": ("low_freq_factor", "high_freq_factor"),
        "yarn": ("beta_fast", "beta_slow", "attention_factor", "truncate"),
    }[scaling.kind]
    values = {key: getattr(scaling, key) for key in keys if getattr(scaling, key) is not None}
    if scaling.kind != "linear":
        values["original_max_position_embeddings"] = scaling.original_max_positions
    return {**named, **values}


def _gpt2(model: ModelConfig) -> dict[str, Any]:
    activation = "gelu_new" if model.activation == "gelu_tanh" else _ACTIVATIONS[model.activation]
    return {
        "model_type": "gpt2",
        "vocab_size": model.vocab_size,
        "n_embd": model.hidden_size,
        "n_inner": model.intermediate_size,
        "n_layer": model.num_layers,
        "n_head": model.num_heads,
        "n_positions": model.max_positions,
        "activation_function": activation,
        "layer_norm_epsilon": model.norm_eps,
        "initializer_range": model.init_std,
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": model.attention_dropout,
        "tie_word_embeddings": model.tie_embeddings,
    }


def generation_config(
    source: Mapping[str, Any] | None, config: Mapping[str, Any], end_of_turn: Iterable[int]
) -> dict[str, Any]:
    """generation_config.json: the source's, with every id that ends an answer among its eos_token_id.

    Order: the source's own first, then config.json's, then those that end a turn in the template. Raises ModelError for
    an eos_token_id that is no token id.
    """
    base: dict[str, Any] = dict(source) if source is not None else {"_from_model_config": True}
    ids: dict[int, None] = {}
    for facts, where in ((base, "generation_config.json of the source"), (config, "config.json of the source")):
        ids.update(dict.fromkeys(token_ids(facts, "eos_token_id", where)))
    ids.update(dict.fromkeys(end_of_turn))
    for name in _TOKEN_IDS:
        if config.get(name) is not None:
            base.setdefault(name, config[name])
    if ids:
        base["eos_token_id"] = next(iter(ids)) if len(ids) == 1 else list(ids)
    return base
