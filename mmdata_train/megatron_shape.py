"""The model and its pipeline stages from Megatron's flags, with Megatron's own defaults and roundings.

Megatron's plain command is a GPT-2: LayerNorm, learned positions, GELU, biases everywhere, tied embeddings. Rules
return fields of `ModelConfig` and `ParallelConfig` and raise ConfigError; the vocabulary is worked out by the caller,
who knows the data.
"""

from __future__ import annotations

import math
from typing import Any

from mmdata_train.errors import ConfigError
from mmdata_train.megatron_parse import Given

Fields = dict[str, Any]


def model_rules(flags: Given) -> Fields:
    """Every model field that a rule gives; fields that equal one flag are set by the table."""
    return {
        **_sizes(flags),
        **_attention(flags),
        **_layer(flags),
        **_positions(flags),
        **_dropout(flags),
        "tie_embeddings": not flags.get("untie-embeddings-and-output-weights"),
        "family": _family(flags),
    }


def _sizes(flags: Given) -> Fields:
    fields: Fields = {}
    hidden, heads = flags.get("hidden-size"), flags.get("num-attention-heads")
    if "kv-channels" in flags:
        fields["head_dim"] = flags.get("kv-channels")
    elif hidden is not None and heads is not None and (heads < 1 or hidden % heads):
        raise ConfigError(
            f"--hidden-size {hidden} is not a multiple of --num-attention-heads {heads}; change one of them, or give"
            " the width of a head as --kv-channels"
        )
    if "ffn-hidden-size" in flags:
        fields["intermediate_size"] = flags.get("ffn-hidden-size")
    elif hidden is not None:
        # A gated MLP has three matrices for two: 2/3 of the width, as a multiple of 64.
        gated = int(4 * hidden * 2 / 3 / 64) * 64
        fields["intermediate_size"] = gated if flags.get("swiglu") else 4 * hidden
    positions, length = flags.get("max-position-embeddings"), flags.get("seq-length")
    if positions is not None:
        fields["max_positions"] = positions
        if length is not None and length > positions:
            raise ConfigError(
                f"--seq-length {length} is beyond --max-position-embeddings {positions}; use at most as many"
            )
    return fields


def _attention(flags: Given) -> Fields:
    fields: Fields = {}
    if flags.get("group-query-attention"):
        fields["num_kv_heads"] = flags.get("num-query-groups")
    elif "num-query-groups" in flags and flags.get("num-query-groups") != flags.get("num-attention-heads"):
        raise ConfigError(
            f"--num-query-groups {flags.get('num-query-groups')} has no effect in Megatron without"
            " --group-query-attention; give both, or neither"
        )
    window = flags.get("window-size")
    if window is None:
        return fields
    try:
        left, right = (int(number) for number in window.strip("()").split(","))
    except ValueError:
        raise ConfigError(f"--window-size {window} is not LEFT,RIGHT, such as 4095,0") from None
    if right not in (0, -1):
        raise ConfigError(f"--window-size {window} looks ahead; only what came before can be seen: use {left},0")
    # Megatron counts the positions before a query, this engine the query too.
    fields["sliding_window"] = None if left < 0 else left + 1
    return fields


def _layer(flags: Given) -> Fields:
    biases = not flags.get("disable-bias-linear") and bool(flags.get("add-bias-linear"))
    chosen = [name for name in ("swiglu", "squared-relu", "openai-gelu") if flags.get(name)]
    if len(chosen) > 1:
        raise ConfigError(f"--{chosen[0]} and --{chosen[1]} are both given; keep one activation")
    plain = "gelu" if flags.get("no-bias-gelu-fusion") or not biases else "gelu_tanh"
    activations = {"swiglu": "silu", "squared-relu": "relu2", "openai-gelu": "gelu_tanh"}
    return {
        "norm": {"LayerNorm": "layer", "RMSNorm": "rms"}[flags.get("normalization")],
        "activation": activations[chosen[0]] if chosen else plain,
        "gated": bool(flags.get("swiglu")),
        "qkv_bias": biases or bool(flags.get("add-qkv-bias")),
        "output_bias": biases,
        "mlp_bias": biases,
    }


def _positions(flags: Given) -> Fields:
    kinds = {"learned_absolute": "learned", "rope": "rope"}
    kind = "rope" if flags.get("use-rotary-position-embeddings") else flags.get("position-embedding-type")
    if kind not in kinds:
        raise ConfigError(f"--position-embedding-type {kind} is not offered; choose from {', '.join(kinds)}")
    linear, scaled = flags.get("rotary-seq-len-interpolation-factor"), flags.get("use-rope-scaling")
    fields: Fields = {"positions": kinds[kind]}
    if (linear is not None or scaled) and kind != "rope":
        flag = "use-rope-scaling" if scaled else "rotary-seq-len-interpolation-factor"
        raise ConfigError(f"--{flag} needs --position-embedding-type rope")
    if linear is not None and scaled:
        raise ConfigError("--rotary-seq-len-interpolation-factor and --use-rope-scaling are both given; keep one")
    if linear is not None:
        fields["rope_scaling"] = {"kind": "linear", "factor": linear}
    if scaled:
        # Megatron fixes the other three numbers to Llama 3.1's: 1, 4 and 8192, which are the defaults here.
        fields["rope_scaling"] = {"kind": "llama3", "factor": flags.get("rope-scaling-factor")}
    elif "rope-scaling-factor" in flags:
        raise ConfigError("--rope-scaling-factor has no effect without --use-rope-scaling; give both, or neither")
    return fields


def _dropout(flags: Given) -> Fields:
    names = {"dropout": "hidden-dropout", "attention_dropout": "attention-dropout"}
    return {field: flags.get(name) if name in flags else 0.0 for field, name in names.items()}


def _family(flags: Given) -> str:
    """The Hugging Face architecture whose names the weights have on export."""
    if flags.get("normalization") == "LayerNorm":
        return "gpt2"
    if flags.get("qk-layernorm"):
        return "qwen3"
    return "qwen2" if flags.get("add-qkv-bias") else "llama"


def vocabulary_rules(flags: Given, vocab_size: int) -> Fields:
    """Vocabulary and padding. The rows are a multiple that the tensor degree divides; padded rows never count."""
    tensor = max(1, flags.get("tensor-model-parallel-size"))
    padded = flags.get("padded-vocab-size")
    if padded is None:
        multiple = math.lcm(max(1, flags.get("make-vocab-size-divisible-by")), tensor)
    elif padded < vocab_size:
        raise ConfigError(f"--padded-vocab-size {padded} is below the vocabulary of {vocab_size}; use at least as many")
    else:
        multiple = padded
    return {"vocab_size": vocab_size, "vocab_multiple": multiple}


def stage_rules(flags: Given) -> Fields:
    """Virtual stages, their schedule, and uneven stages."""
    ranks, layers = flags.get("pipeline-model-parallel-size"), flags.get("num-layers")
    virtual = _virtual_stages(flags, ranks, layers)
    fields: Fields = {}
    if virtual > 1:
        if ranks < 2:
            raise ConfigError("virtual pipeline stages need --pipeline-model-parallel-size above 1")
        fields.update(virtual_stages=virtual, schedule="interleaved")
    counts = _counted_stages(flags, ranks * virtual, layers) or _uneven_ends(flags, ranks, layers, virtual)
    return {**fields, "stage_layers": counts} if counts else fields


def _virtual_stages(flags: Given, ranks: int, layers: int | None) -> int:
    stages, size = (
        flags.get("num-virtual-stages-per-pipeline-rank"),
        flags.get("num-layers-per-virtual-pipeline-stage"),
    )
    if stages is not None and size is not None:
        raise ConfigError(
            "--num-virtual-stages-per-pipeline-rank and --num-layers-per-virtual-pipeline-stage are both given;"
            " the one follows from the other, keep one"
        )
    if size is None or layers is None:
        return int(stages or 1)
    if size < 1 or layers % (ranks * size):
        fits = [n for n in range(1, layers // ranks + 1) if layers % (ranks * n) == 0]
        raise ConfigError(
            f"--num-layers-per-virtual-pipeline-stage {size} x --pipeline-model-parallel-size {ranks} does not divide"
            f" --num-layers {layers}; use one of {fits}"
        )
    return int(layers // (ranks * size))


def _counted_stages(flags: Given, stages: int, layers: int | None) -> list[int] | None:
    """Equal stages where embedding or head count as a layer each."""
    first = bool(flags.get("account-for-embedding-in-pipeline-split"))
    last = bool(flags.get("account-for-loss-in-pipeline-split"))
    if layers is None or stages < 2 or not (first or last):
        return None
    total = layers + first + last
    if total % stages:
        raise ConfigError(
            f"{layers} layers with embedding or head counted as layers are {total}, not a multiple of the {stages}"
            f" pipeline stages; --num-layers {stages * (total // stages) - first - last} would fit"
        )
    counts = [total // stages] * stages
    counts[0] -= first
    counts[-1] -= last
    return counts


def _uneven_ends(flags: Given, ranks: int, layers: int | None, virtual: int) -> list[int] | None:
    """The first and last stage as given, the rest split equally."""
    first, last = (flags.get(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    ends = [count for count in (first, last) if count is not None]
    if not ends or layers is None:
        return None
    middle, rest = ranks - len(ends), layers - sum(ends)
    if virtual > 1:
        raise ConfigError("uneven first and last stages with virtual stages are not offered; keep one of the two")
    if rest < 0 or (middle < 1 and rest) or (middle > 0 and rest % middle):
        raise ConfigError(
            f"--num-layers {layers} leaves {rest} layers to the {middle} other pipeline stages, which do not split"
            " equally; change --decoder-first- or --decoder-last-pipeline-num-layers"
        )
    between = [rest // middle] * middle if middle > 0 else []
    return [*([first] if first is not None else []), *between, *([last] if last is not None else [])]
