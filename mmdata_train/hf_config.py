"""A Hugging Face config.json as a ModelConfig. Unknown architectures and features that would change the result are
refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

from mmdata_train.errors import ModelError
from mmdata_train.hf import read_json
from mmdata_train.model.config import ModelConfig, RopeKind, RopeScaling

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu2",
}
LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")
SUPPORTED = (*LLAMA_LIKE, "gpt2")
Raw = Mapping[str, Any]


def config_from_folder(folder: str | Path, **changes: Any) -> ModelConfig:
    """The model of a Hugging Face folder. `changes` replace fields (dropout, vocab_multiple). Raises ModelError."""
    path = Path(folder) / "config.json"
    raw = read_json(path)
    kind = raw.get("model_type")
    try:
        if kind in LLAMA_LIKE:
            fields = _llama_like(raw, str(kind))
        elif kind == "gpt2":
            fields = _gpt2(raw)
        else:
            raise ModelError(f"model_type {kind!r} is not supported; supported: {', '.join(SUPPORTED)}")
        return ModelConfig(**{**fields, **changes})
    except KeyError as error:
        raise ModelError(f"{path}: {error.args[0]!r} is missing") from None
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def _activation(name: str) -> str:
    if name not in ACTIVATIONS:
        raise ModelError(f"activation {name!r} is not supported; supported: {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


def _llama_like(raw: Raw, kind: str) -> dict[str, Any]:
    attention_bias = bool(raw.get("attention_bias", False))
    theta, scaling = _rope(raw)
    return {
        "family": kind,
        "vocab_size": raw["vocab_size"],
        "hidden_size": raw["hidden_size"],
        "num_layers": raw["num_hidden_layers"],
        "num_heads": raw["num_attention_heads"],
        "num_kv_heads": raw.get("num_key_value_heads") or raw["num_attention_heads"],
        # Qwen3's default is 128 whatever the hidden size; the others divide.
        "head_dim": raw.get("head_dim") or (128 if kind == "qwen3" else 0),
        "intermediate_size": raw["intermediate_size"],
        "max_positions": raw.get("max_position_embeddings", 2048),
        "norm_eps": raw.get("rms_norm_eps", 1e-6),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "activation": _activation(raw.get("hidden_act", "silu")),
        "qkv_bias": kind == "qwen2" or attention_bias,
        "output_bias": kind != "qwen2" and attention_bias,
        "mlp_bias": bool(raw.get("mlp_bias", False)),
        "qk_norm": kind == "qwen3",
        "tie_embeddings": bool(raw.get("tie_word_embeddings", False)),
        "sliding_window": _window(raw, kind),
        "attention_dropout": raw.get("attention_dropout", 0.0),
        "init_std": raw.get("initializer_range", 0.02),
    }


def _window(raw: Raw, kind: str) -> int | None:
    window = raw.get("sliding_window")
    if window is None or kind == "llama":
        return None
    layers = set(raw.get("layer_types") or ())
    if kind in ("qwen2", "qwen3"):
        if not raw.get("use_sliding_window", False):
            return None
        if not layers and raw.get("max_window_layers", 0) > 0:
            full = raw["max_window_layers"] >= raw["num_hidden_layers"]
            layers = {"full_attention"} if full else {"full_attention", "sliding_attention"}
    if layers == {"full_attention"}:
        return None
    if len(layers) > 1:
        raise ModelError(f"layers mix {' and '.join(sorted(layers))}; one kind for all layers is supported")
    return int(window)


def _rope(raw: Raw) -> tuple[float, RopeScaling | None]:
    """(theta, scaling) from `rope_parameters` (new) or `rope_theta` and `rope_scaling` (old)."""
    parameters = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    theta = float(parameters.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind not in get_args(RopeKind):
        raise ModelError(f"rope scaling {kind!r} is not supported; supported: default, {', '.join(get_args(RopeKind))}")
    for key in ("mscale", "mscale_all_dim"):
        if parameters.get(key) is not None:
            raise ModelError(f"rope scaling with {key} is not supported; it changes attention by a factor of its own")
    original = parameters.get("original_max_position_embeddings") or raw.get("max_position_embeddings", 2048)
    names = ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "truncate")
    optional = {name: parameters[name] for name in names if parameters.get(name) is not None}
    factor = float(parameters["factor"])
    return theta, RopeScaling(
        kind=cast(RopeKind, kind), factor=factor, original_max_positions=int(original), **optional
    )


def _gpt2(raw: Raw) -> dict[str, Any]:
    for key, wanted in {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}.items():
        if raw.get(key, wanted) != wanted:
            raise ModelError(f"{key}={raw[key]} is not supported; only {wanted} is")
    drops = {raw.get("resid_pdrop", 0.1), raw.get("embd_pdrop", 0.1)}
    if len(drops) > 1:
        raise ModelError(f"resid_pdrop and embd_pdrop differ ({sorted(drops)}); one dropout for both is supported")
    return {
        "family": "gpt2",
        "vocab_size": raw["vocab_size"],
        "hidden_size": raw["n_embd"],
        "num_layers": raw["n_layer"],
        "num_heads": raw["n_head"],
        "intermediate_size": raw.get("n_inner") or 4 * raw["n_embd"],
        "max_positions": raw["n_positions"],
        "norm": "layer",
        "norm_eps": raw.get("layer_norm_epsilon", 1e-5),
        "positions": "learned",
        "activation": _activation(raw.get("activation_function", "gelu_new")),
        "gated": False,
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "tie_embeddings": bool(raw.get("tie_word_embeddings", True)),
        "init_std": raw.get("initializer_range", 0.02),
        "dropout": drops.pop(),
        "attention_dropout": raw.get("attn_pdrop", 0.1),
    }
