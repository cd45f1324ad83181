"""The shape of one decoder: every switch the model code reads, checked when it is made.

Covers Llama 2/3, Mistral, Qwen2/2.5/3 and their likes (RMSNorm, rotary positions, grouped queries, gated MLP) and
GPT-2 and its likes (LayerNorm, learned positions, plain MLP). Does not cover mixtures of experts, encoders, or layers
that differ from one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mmdata_train.errors import ModelError
from mmdata_train.limits import CHANCE, MOST_LAYERS, MOST_WIDTH, Limit, check_numbers, divisors

RopeKind = Literal["linear", "llama3", "yarn"]

_WIDTH = Limit(1, MOST_WIDTH)
_DERIVED = Limit(0, MOST_WIDTH, hint="leave it out to have it follow from the others")
_POSITIVE = Limit(0, above=True)
MODEL_LIMITS = {
    **dict.fromkeys(("vocab_size", "hidden_size", "num_heads", "max_positions", "vocab_multiple"), _WIDTH),
    **dict.fromkeys(("num_kv_heads", "head_dim", "intermediate_size"), _DERIVED),
    "num_layers": Limit(1, MOST_LAYERS),
    "norm_eps": Limit(0, 1, above=True, hint="1e-5 and 1e-6 are usual"),
    "rope_theta": Limit(0, above=True, hint="10000 is usual"),
    "sliding_window": Limit(1, hint="null for none"),
    "dropout": CHANCE,
    "attention_dropout": CHANCE,
    "init_std": Limit(0, hint="0.02 is usual"),
}
_ROPE = {
    "factor": Limit(1, hint="it stretches positions"),
    "original_max_positions": _WIDTH,
    **dict.fromkeys(("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"), _POSITIVE),
    "attention_factor": Limit(0, above=True, hint="null to have it follow from factor"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched to reach longer sequences than the model was first trained on.

    `linear` divides every frequency by `factor`. `llama3` divides only long wavelengths and blends between (Llama
    3.1). `yarn` blends by the number of rotations and multiplies the tables by an attention factor (YaRN, arXiv
    2309.00071).
    """

    kind: RopeKind
    factor: float
    original_max_positions: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        check_numbers(self, "model.rope_scaling.", _ROPE, ModelError)
        if self.kind == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            low, high = self.low_freq_factor, self.high_freq_factor
            raise ModelError(f"model.rope_scaling: high_freq_factor {high} must be above low_freq_factor {low}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """One decoder. Sizes are in elements; `num_kv_heads` and `head_dim` follow from the others when left out."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int = 0
    head_dim: int = 0
    intermediate_size: int = 0
    max_positions: int = 2048
    family: Literal["llama", "mistral", "qwen2", "qwen3", "gpt2"] = "llama"
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-5
    positions: Literal["rope", "learned"] = "rope"
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    activation: Literal["silu", "gelu", "gelu_tanh", "relu2"] = "silu"
    gated: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_embeddings: bool = False
    sliding_window: int | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    init_std: float = 0.02
    vocab_multiple: int = 128
    """The vocabulary is padded to a multiple of this whatever the layout, so that checkpoints fit any; padded columns
    never enter the loss.
    """

    def __post_init__(self) -> None:
        check_numbers(self, "model.", MODEL_LIMITS, ModelError)
        defaults = {
            "num_kv_heads": self.num_kv_heads or self.num_heads,
            "head_dim": self.head_dim or self.hidden_size // max(self.num_heads, 1),
            "intermediate_size": self.intermediate_size or self._default_intermediate_size(),
        }
        for name, value in defaults.items():
            object.__setattr__(self, name, value)
        self._check()

    def _default_intermediate_size(self) -> int:
        """4 x hidden; for a gated MLP two thirds of it (three matrices for two), rounded up to 64."""
        plain = 4 * self.hidden_size
        return -(-(plain * 2 // 3) // 64) * 64 if self.gated else plain

    def _check(self) -> None:
        for name in ("num_kv_heads", "head_dim", "intermediate_size"):
            # Worked out of sizes too small for it: a width below the number of heads.
            if getattr(self, name) < 1:
                raise ModelError(f"model.{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_heads % self.num_kv_heads:
            fits = divisors(self.num_heads)
            raise ModelError(
                f"model.num_kv_heads {self.num_kv_heads} does not divide num_heads {self.num_heads}; use one of {fits}"
            )
        if self.positions == "rope" and self.head_dim % 2:
            raise ModelError(f"model.head_dim {self.head_dim} is odd; rotary positions turn pairs, so it must be even")
        if not self.positions == "rope" and self.rope_scaling is not None:
            raise ModelError("model.rope_scaling is set but model.positions is 'learned'; remove one of them")

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding and of the output head."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's matrices (biases and norms left out), for splitting stages and counting operations."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return attention + self.hidden_size * self.intermediate_size * (3 if self.gated else 2)
