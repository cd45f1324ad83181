"""A Hugging Face config.json as a ModelConfig, in the old and the new spelling.

Where a key is absent, transformers' default for that architecture holds (configuration_*.py of transformers 5.24).
Unknown architectures and features that would change the result are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

from mmdata_train.errors import ModelError
from mmdata_train.hf_folder import read_json
from mmdata_train.model.config import ModelConfig, RopeKind, RopeScaling

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu2",
}
_COMMON = {
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_dropout": 0.0,
    "initializer_range": 0.02, "head_dim": None, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
_WINDOWED = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {**_COMMON, "num_key_value_heads": None, "max_position_embeddings": 2048},
    "mistral": {**_COMMON, "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    "qwen2": {**_COMMON, **_WINDOWED, "num_key_value_heads": 32, "max_position_embeddings": 32768},
    "qwen3": {**_COMMON, **_WINDOWED, "num_key_value_heads": 32, "max_position_embeddings": 32768, "head_dim": 128},
}
GPT2_DEFAULTS: dict[str, Any] = {
    "n_inner": None, "n_positions": 1024, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
    "tie_word_embeddings": True, "initializer_range": 0.02, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
}  # fmt: skip
SUPPORTED = {
    "llama": "Llama 1 to 3, Yi, DeepSeek LLM and Coder, and others of Llama's architecture",
    "mistral": "Mistral",
    "qwen2": "Qwen2, Qwen2.5",
    "qwen3": "Qwen3",
    "gpt2": "GPT-2",
}
_EXPERTS = "it is a mixture of experts, which this engine does not train; use a dense model"
_REFUSED = {
    "mixtral": _EXPERTS,
    "qwen2_moe": _EXPERTS,
    "qwen3_moe": _EXPERTS,
    "deepseek": _EXPERTS,
    "deepseek_v2": _EXPERTS,
    "deepseek_v3": _EXPERTS,
    "Yi": "it is Yi's first release with code of its own; use the model's current revision, which is a Llama",
    "qwen": "it is the first Qwen with code of its own; use Qwen2 or newer",
}
_WHOLE = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "max_position_embeddings", "sliding_window", "max_window_layers", "n_embd", "n_layer",
    "n_head", "n_inner", "n_positions",
)  # fmt: skip
_NUMBERS = (
    "rms_norm_eps", "layer_norm_epsilon", "attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop",
    "initializer_range", "rope_theta",
)  # fmt: skip
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(_WHOLE, ((int,), "a whole number")),
    **dict.fromkeys(_NUMBERS, ((int, float), "a number")),
    **dict.fromkeys(("hidden_act", "activation_function"), ((str,), "a name")),
    **dict.fromkeys(("rope_parameters", "rope_scaling"), ((Mapping,), "an object")),
}
_MAY_BE_NULL = (
    "num_key_value_heads", "head_dim", "n_inner", "sliding_window", "max_window_layers", "attention_dropout",
    "rope_theta", "rope_parameters", "rope_scaling",
)  # fmt: skip
Raw = Mapping[str, Any]


def config_from_folder(folder: str | Path, **changes: Any) -> ModelConfig:
    """The model of a Hugging Face folder. `changes` replace fields (dropout, vocab_multiple). Raises ModelError."""
    path = Path(folder) / "config.json"
    return config_from_json(read_json(path), str(path), **changes)


def config_from_json(raw: Raw, where: str, **changes: Any) -> ModelConfig:
    """The model of a config.json's object; `where` names it in messages. Raises ModelError."""
    kind = raw.get("model_type")
    try:
        _refuse(raw, kind)
        _check_kinds(raw)
        fields = _gpt2({**GPT2_DEFAULTS, **raw}) if kind == "gpt2" else _llama_like(raw, str(kind))
        return ModelConfig(**{**fields, **changes})
    except KeyError as error:
        raise ModelError(f"{where}: {error.args[0]!r} is missing") from None
    except (TypeError, ValueError, ModelError) as error:
        raise ModelError(f"{where}: {error}") from None


def _refuse(raw: Raw, kind: Any) -> None:
    if kind not in SUPPORTED:
        named = ", ".join(str(name) for name in raw.get("architectures") or ()) or "a model without a name"
        known = "; ".join(f"{name} ({what})" for name, what in SUPPORTED.items())
        reason = f" ({_REFUSED[kind]})" if kind in _REFUSED else ""
        raise ModelError(f"{named} of model_type {kind!r} is not supported{reason}; supported: {known}")
    quantised = raw.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method", "unknown") if isinstance(quantised, Mapping) else quantised
        raise ModelError(
            f"the weights are quantised ({method}); use the original model, which trains and merges exactly"
        )


def _check_kinds(raw: Raw) -> None:
    """Every key that is read holds the kind of value it should."""
    for key, (types, what) in _KINDS.items():
        value = raw.get(key)
        if key not in raw or (value is None and key in _MAY_BE_NULL):
            continue
        if not isinstance(value, types) or isinstance(value, bool):
            raise ModelError(f"{key} is {value!r}; it must be {what}")


def _activation(name: str) -> str:
    if name not in ACTIVATIONS:
        raise ModelError(f"activation {name!r} is not supported; supported: {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


def _llama_like(given: Raw, kind: str) -> dict[str, Any]:
    raw = {**DEFAULTS[kind], **given}
    theta, scaling = _rope(raw)
    # Qwen2 has these biases without saying so, Mistral never has any, and only Llama reads mlp_bias.
    attention_bias = bool(raw["attention_bias"]) and kind in ("llama", "qwen3")
    return {
        "family": kind,
        "vocab_size": raw["vocab_size"],
        "hidden_size": raw["hidden_size"],
        "num_layers": raw["num_hidden_layers"],
        "num_heads": raw["num_attention_heads"],
        "num_kv_heads": raw["num_key_value_heads"] or raw["num_attention_heads"],
        "head_dim": raw["head_dim"] or 0,
        "intermediate_size": raw["intermediate_size"],
        "max_positions": raw["max_position_embeddings"],
        "norm_eps": raw["rms_norm_eps"],
        "rope_theta": theta,
        "rope_scaling": scaling,
        "activation": _activation(raw["hidden_act"]),
        "qkv_bias": kind == "qwen2" or attention_bias,
        "output_bias": attention_bias,
        "mlp_bias": bool(raw["mlp_bias"]) and kind == "llama",
        "qk_norm": kind == "qwen3",
        "tie_embeddings": bool(raw["tie_word_embeddings"]),
        "sliding_window": _window(raw, kind),
        "attention_dropout": raw["attention_dropout"] or 0.0,
        "init_std": raw["initializer_range"],
    }


def _window(raw: Raw, kind: str) -> int | None:
    """Positions a query sees, itself included; None: all before it."""
    window = raw.get("sliding_window")
    if kind == "llama" or not window:
        return None
    if kind == "mistral":
        layers = set(raw.get("layer_types") or ("sliding_attention",))
    elif not raw["use_sliding_window"]:
        return None
    elif raw.get("layer_types"):
        layers = set(raw["layer_types"])
    else:
        first, count = max(raw["max_window_layers"], 0), raw["num_hidden_layers"]
        layers = {"full_attention" if layer < first else "sliding_attention" for layer in range(count)}
    if layers == {"full_attention"}:
        return None
    if len(layers) > 1:
        raise ModelError(
            f"layers mix {' and '.join(sorted(layers))}; one kind for all layers is supported. Up to sequences of"
            f" sliding_window = {window} tokens both are the same: set sliding_window: null in a copy of config.json"
        )
    return int(window)


def _rope(raw: Raw) -> tuple[float, RopeScaling | None]:
    """(theta, scaling) from `rope_parameters` (new) or `rope_theta` and `rope_scaling` (old)."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    nested = [name for name, value in given.items() if isinstance(value, Mapping)]
    if nested:
        raise ModelError(f"rope_parameters differ by layer ({', '.join(nested)}); one kind for all layers is supported")
    parameters = {"partial_rotary_factor": raw.get("partial_rotary_factor"), **given}
    theta = float(parameters.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if parameters["partial_rotary_factor"] not in (None, 1, 1.0):
        raise ModelError(f"partial_rotary_factor {parameters['partial_rotary_factor']} is not supported; only 1.0 is")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return theta, None
    length = raw["max_position_embeddings"]
    if kind not in get_args(RopeKind):
        remedy = ""
        if kind == "dynamic":
            remedy = (
                f". Up to {length} positions it changes nothing: with data.seq_length within that, remove rope_scaling"
                " from a copy of config.json"
            )
        raise ModelError(
            f"rope scaling {kind!r} is not supported; supported: default, {', '.join(get_args(RopeKind))}{remedy}"
        )
    for key in ("mscale", "mscale_all_dim"):
        if parameters.get(key) is not None:
            raise ModelError(f"rope scaling with {key} is not supported; it changes attention by a factor of its own")
    # A key beside the section wins over one in it, as transformers has it.
    original = raw.get("original_max_position_embeddings") or parameters.get("original_max_position_embeddings")
    names = ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "truncate")
    optional = {name: parameters[name] for name in names if parameters.get(name) is not None}
    original = int(original or length)
    factor = parameters["factor"] if kind != "yarn" or parameters.get("factor") else length / original
    return theta, RopeScaling(
        kind=cast(RopeKind, kind), factor=float(factor), original_max_positions=original, **optional
    )


def _gpt2(raw: Raw) -> dict[str, Any]:
    wanted = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
    for key, value in wanted.items():
        if raw.get(key, value) != value:
            raise ModelError(f"{key}={raw[key]} is not supported; only {value} is")
    drops = {raw["resid_pdrop"], raw["embd_pdrop"]}
    return {
        "family": "gpt2",
        "vocab_size": raw["vocab_size"],
        "hidden_size": raw["n_embd"],
        "num_layers": raw["n_layer"],
        "num_heads": raw["n_head"],
        "intermediate_size": raw["n_inner"] or 4 * raw["n_embd"],
        "max_positions": raw["n_positions"],
        "norm": "layer",
        "norm_eps": raw["layer_norm_epsilon"],
        "positions": "learned",
        "activation": _activation(raw["activation_function"]),
        "gated": False,
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "tie_embeddings": bool(raw["tie_word_embeddings"]),
        "init_std": raw["initializer_range"],
        # Two probabilities in the file, one in the model: the larger; a run's own `train.dropout` replaces it.
        "dropout": max(drops),
        "attention_dropout": raw["attn_pdrop"],
    }
