"""Megatron's model flags give the model Megatron would build: activations, windows, norms, biases, groups."""

from __future__ import annotations

import pytest
from megatron_lines import config_of, model_of, read


def test_megatrons_plain_command_is_a_gpt2() -> None:
    model = model_of("")
    assert (model.norm, model.positions, model.gated, model.family) == ("layer", "learned", False, "gpt2")
    assert model.qkv_bias and model.output_bias and model.mlp_bias and model.tie_embeddings
    assert (model.intermediate_size, model.head_dim, model.num_kv_heads, model.init_std) == (128, 8, 4, 0.02)
    assert (model.dropout, model.attention_dropout) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("line", "activation"),
    [
        ("", "gelu_tanh"),  # Megatron's fused bias and GELU is the tanh form
        ("--no-bias-gelu-fusion", "gelu"),
        ("--disable-bias-linear", "gelu"),
        ("--disable-bias-linear --openai-gelu", "gelu_tanh"),
        ("--squared-relu", "relu2"),
        ("--swiglu", "silu"),
    ],
)
def test_activation_is_the_one_megatron_computes(line: str, activation: str) -> None:
    assert model_of(line).activation == activation


@pytest.mark.peer
def test_fused_gelu_of_megatron_is_the_tanh_form() -> None:
    torch = pytest.importorskip("torch")
    fused = pytest.importorskip("megatron.core.fusions.fused_bias_gelu")
    x = torch.linspace(-4, 4, 101)
    ours = torch.nn.functional.gelu(x, approximate="tanh")
    assert torch.allclose(fused.bias_gelu(torch.zeros(101), x), ours, atol=1e-6)
    assert not torch.allclose(torch.nn.functional.gelu(x), ours, atol=1e-6)


@pytest.mark.peer
@pytest.mark.parametrize("left", [0, 3])
def test_window_holds_the_positions_megatrons_mask_leaves_open(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("megatron.core.transformer.utils")
    from mmdata_train.attention import block_causal_mask

    window = model_of(f"--window-size {left},0").sliding_window
    ours = block_causal_mask(8, None, window, torch.device("cpu"))
    assert ours is not None
    ones = torch.ones
    # Megatron makes its mask on a GPU.
    monkeypatch.setattr(torch, "ones", lambda *shape, device, **more: ones(*shape, **more))
    assert torch.equal(ours[0, 0], ~theirs.get_sliding_window_causal_mask(8, 8, (left, 0)))


def test_gated_width_is_rounded_down_as_megatron_does() -> None:
    assert config_of("--hidden-size 4096 --swiglu").model.intermediate_size == 10880  # type: ignore[union-attr]
    assert model_of("--hidden-size 4096").intermediate_size == 16384
    assert model_of("--swiglu --ffn-hidden-size 48").intermediate_size == 48


def test_llama_flags_give_a_llama() -> None:
    model = model_of(
        "--swiglu --disable-bias-linear --normalization RMSNorm --norm-epsilon 1e-6 --position-embedding-type rope"
        " --rotary-base 500000 --use-rope-scaling --rope-scaling-factor 32 --group-query-attention"
        " --num-query-groups 2 --untie-embeddings-and-output-weights --window-size 7,0"
    )
    assert (model.family, model.norm, model.gated, model.norm_eps) == ("llama", "rms", True, 1e-6)
    assert (model.num_kv_heads, model.rope_theta, model.sliding_window) == (2, 500000.0, 8)
    assert model.rope_scaling is not None
    assert (model.rope_scaling.kind, model.rope_scaling.factor) == ("llama3", 32.0)
    assert (model.rope_scaling.low_freq_factor, model.rope_scaling.high_freq_factor) == (1.0, 4.0)
    assert model.rope_scaling.original_max_positions == 8192
    assert not (model.qkv_bias or model.tie_embeddings)


def test_qwen_biases_and_norms_are_told_apart() -> None:
    qwen2 = model_of("--normalization RMSNorm --disable-bias-linear --add-qkv-bias")
    assert (qwen2.family, qwen2.qkv_bias, qwen2.output_bias, qwen2.mlp_bias) == ("qwen2", True, False, False)
    qwen3 = model_of("--normalization RMSNorm --add-bias-linear false --qk-layernorm --kv-channels 16")
    assert (qwen3.family, qwen3.qk_norm, qwen3.qkv_bias, qwen3.head_dim) == ("qwen3", True, False, 16)


def test_group_query_attention_alone_has_one_group_as_in_megatron() -> None:
    assert model_of("--group-query-attention").num_kv_heads == 1


def test_dropout_is_0_with_a_notice_unless_given() -> None:
    assert any("dropout is 0; Megatron's default is 0.1" in notice for notice in read("").notices)
    given = read("--hidden-dropout 0.1 --attention-dropout 0.2")
    assert not any("dropout" in notice for notice in given.notices)
    model = model_of("--hidden-dropout 0.1 --attention-dropout 0.2")
    assert (model.dropout, model.attention_dropout) == (0.1, 0.2)
