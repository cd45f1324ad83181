"""Sizes of the modules adapters stand beside, and the modules of a PEFT file that hold rows of new tokens."""

from __future__ import annotations

from mmdata_train.lora.adapter import LM_HEAD
from mmdata_train.lora.settings import ADDED, HEAD, HEAD_ADDED
from mmdata_train.model.config import ModelConfig


def outputs_of(model: ModelConfig, name: str) -> int:
    """Outputs of one of our modules, vocabulary unpadded."""
    kind = name.rpartition(".")[2]
    return {
        "q_proj": model.num_heads * model.head_dim,
        "k_proj": model.num_kv_heads * model.head_dim,
        "v_proj": model.num_kv_heads * model.head_dim,
        "gate_proj": model.intermediate_size,
        "up_proj": model.intermediate_size,
        HEAD: model.vocab_size,
    }.get(kind, model.hidden_size)


def inputs_of(model: ModelConfig, name: str) -> int:
    """Inputs of one of our modules."""
    kind = name.rpartition(".")[2]
    wide = {"o_proj": model.num_heads * model.head_dim, "down_proj": model.intermediate_size}
    return wide.get(kind, model.hidden_size)


def token_modules(model: ModelConfig) -> dict[str, str]:
    """Our weight of added rows -> the module that holds them there; a tied head has none of its own."""
    embedding = "transformer.wte" if model.family == "gpt2" else "model.embed_tokens"
    return {ADDED: embedding} if model.tie_embeddings else {ADDED: embedding, HEAD_ADDED: LM_HEAD}
