"""Where each of our weights lies in a Hugging Face folder, as one table a family.

A row says the tensor's name there, whether it is stored [in, out] (GPT-2's Conv1D), and for fused tensors which rows
are ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mmdata_train.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Source:
    """One of our weights in the folder: our row i is row `offset + i` of `key` (column, if transposed).

    fused: how many weights of our shape the tensor holds side by side. vocabulary: rows are tokens, stored without
    padding.
    """

    key: str
    transposed: bool = False
    offset: int = 0
    fused: int = 1
    vocabulary: bool = False


LLAMA_LAYER = {
    "attention_norm": "input_layernorm",
    "attention.q_proj": "self_attn.q_proj",
    "attention.k_proj": "self_attn.k_proj",
    "attention.v_proj": "self_attn.v_proj",
    "attention.o_proj": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate_proj": "mlp.gate_proj",
    "mlp.up_proj": "mlp.up_proj",
    "mlp.down_proj": "mlp.down_proj",
}
GPT2_LAYER = {
    "attention_norm": "ln_1",
    "attention.o_proj": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up_proj": "mlp.c_fc",
    "mlp.down_proj": "mlp.c_proj",
}
GPT2_FUSED = ("attention.q_proj", "attention.k_proj", "attention.v_proj")


def sources(config: ModelConfig) -> dict[str, Source]:
    """Our weight names (all layers, all kinds) -> where each lies."""
    head = "model.embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"
    if config.family == "gpt2":
        return _gpt2_sources(config)
    table = {
        "embed.tokens.weight": Source("model.embed_tokens.weight", vocabulary=True),
        "head.norm.weight": Source("model.norm.weight"),
        "head.weight": Source(head, vocabulary=True),
    }
    for layer in range(config.num_layers):
        for ours, theirs in LLAMA_LAYER.items():
            for kind in ("weight", "bias"):
                table[f"layers.{layer}.{ours}.{kind}"] = Source(f"model.layers.{layer}.{theirs}.{kind}")
    return table


def _gpt2_sources(config: ModelConfig) -> dict[str, Source]:
    table = {
        "embed.tokens.weight": Source("transformer.wte.weight", vocabulary=True),
        "embed.positions.weight": Source("transformer.wpe.weight"),
        "head.norm.weight": Source("transformer.ln_f.weight"),
        "head.norm.bias": Source("transformer.ln_f.bias"),
        "head.weight": Source("transformer.wte.weight" if config.tie_embeddings else "lm_head.weight", vocabulary=True),
    }
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}", f"transformer.h.{layer}"
        for name, there in GPT2_LAYER.items():
            matrix = "norm" not in name
            table[f"{ours}.{name}.weight"] = Source(f"{theirs}.{there}.weight", transposed=matrix)
            table[f"{ours}.{name}.bias"] = Source(f"{theirs}.{there}.bias")
        for index, name in enumerate(GPT2_FUSED):
            offset = index * config.hidden_size
            table[f"{ours}.{name}.weight"] = Source(f"{theirs}.attn.c_attn.weight", True, offset, len(GPT2_FUSED))
            table[f"{ours}.{name}.bias"] = Source(f"{theirs}.attn.c_attn.bias", False, offset, len(GPT2_FUSED))
    return table


def expected_shape(config: ModelConfig, shape: tuple[int, ...], source: Source) -> tuple[int, ...]:
    """The shape of the folder's tensor that holds our weight of `shape` (vocabulary padded)."""
    rows = config.vocab_size if source.vocabulary else shape[0]
    stored = (rows * source.fused, *shape[1:])
    return stored[::-1] if source.transposed else stored


def ignorable(config: ModelConfig, name: str) -> bool:
    """Tensors some folders hold that are not weights: causal masks, rotary tables, a second copy of a tied head."""
    if config.tie_embeddings and name == "lm_head.weight":
        return True
    return re.search(r"(\.attn\.(masked_)?bias|rotary_emb\.inv_freq)$", name) is not None
