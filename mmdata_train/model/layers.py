"""The parts of one decoder layer: norm, attention, MLP. Plain modules; how they are split over devices is decided
elsewhere.

Head counts are read from the projections' outputs, never from the configuration, so that a module holding a share of
the heads computes just its share. Shapes: [batch, length, hidden] between modules, [batch, heads, length, head_dim]
inside attention.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from mmdata_train.attention import attend
from mmdata_train.model.cache import LayerCache
from mmdata_train.model.config import ModelConfig
from mmdata_train.model.rotary import Rotary, rotate


def build_norm(config: ModelConfig, size: int) -> nn.Module:
    """RMSNorm or LayerNorm over the last dimension of `size` elements."""
    if config.norm == "rms":
        return nn.RMSNorm(size, eps=config.norm_eps)
    return nn.LayerNorm(size, eps=config.norm_eps)


class Attention(nn.Module):
    """Causal self-attention with grouped queries; projections stay unfused, as adapters and Hugging Face name them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
        self.head_dim = size
        self.dropout = config.attention_dropout
        self.q_proj = nn.Linear(config.hidden_size, heads * size, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_heads * size, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_heads * size, bias=config.qkv_bias)
        self.o_proj = nn.Linear(heads * size, config.hidden_size, bias=config.output_bias)
        self.q_norm = build_norm(config, size) if config.qk_norm else None
        self.k_norm = build_norm(config, size) if config.qk_norm else None

    def forward(self, x: Tensor, rotary: Rotary | None, mask: Tensor | None, cache: LayerCache | None = None) -> Tensor:
        """x [batch, length, hidden] -> the same shape; mask as `attend` takes it, None for causal."""
        query = self.q_proj(x).unflatten(-1, (-1, self.head_dim))
        key = self.k_proj(x).unflatten(-1, (-1, self.head_dim))
        value = self.v_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = query.transpose(1, 2), key.transpose(1, 2)
        if rotary is not None:
            query, key = rotate(query, rotary), rotate(key, rotary)
        if cache is not None:
            key, value = cache.append(key, value)
        dropout = self.dropout if self.training else 0.0
        mixed = attend(query, key, value, mask, dropout)
        output: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return output


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu2": _squared_relu,
}


class MLP(nn.Module):
    """down(act(up(x))), or down(act(gate(x)) * up(x)) when gated."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=config.mlp_bias) if config.gated else None
        self.up_proj = nn.Linear(hidden, inner, bias=config.mlp_bias)
        self.down_proj = nn.Linear(inner, hidden, bias=config.mlp_bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        inner = self.up_proj(x)
        inner = self.activation(inner) if self.gate_proj is None else self.activation(self.gate_proj(x)) * inner
        output: Tensor = self.down_proj(inner)
        return output


class DecoderLayer(nn.Module):
    """Pre-norm residual layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = build_norm(config, config.hidden_size)
        self.attention = Attention(config)
        self.mlp_norm = build_norm(config, config.hidden_size)
        self.mlp = MLP(config)
        self.dropout = config.dropout

    def forward(self, x: Tensor, rotary: Rotary | None, mask: Tensor | None, cache: LayerCache | None = None) -> Tensor:
        """x [batch, length, hidden] -> the same shape."""
        # By name: tensor plans describe the layout of each positional argument.
        x = x + self._drop(self.attention(self.attention_norm(x), rotary, mask, cache=cache))
        return x + self._drop(self.mlp(self.mlp_norm(x)))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x
