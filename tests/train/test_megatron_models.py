"""Megatron's own GPT and the model its flags give here have the same logits on the same weights, in float32."""

from __future__ import annotations

import contextlib
import importlib.util
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rank_start import START

torch = pytest.importorskip("torch")
if importlib.util.find_spec("megatron") is None:
    pytest.skip("megatron-core is not installed", allow_module_level=True)

from mmdata_train.config_io import build  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.megatron_flags import translate  # noqa: E402
from mmdata_train.megatron_shape import vocabulary_rules  # noqa: E402
from mmdata_train.model.config import ModelConfig  # noqa: E402
from mmdata_train.model.decoder import Decoder  # noqa: E402

pytestmark = pytest.mark.peer
VOCABULARY, LENGTH = 64, 16
SIZES = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --max-position-embeddings 16 --seq-length 16"
    " --micro-batch-size 1 --global-batch-size 1 --make-vocab-size-divisible-by 64"
)
# Flags, and what Megatron's scripts make of them: fields of its TransformerConfig and of its GPTModel.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("", {}, {}),
    "erf GELU": ("--no-bias-gelu-fusion", {"bias_activation_fusion": False}, {}),
    "squared ReLU without biases": (
        "--squared-relu --disable-bias-linear --untie-embeddings-and-output-weights",
        {"activation_func": "relu2", "add_bias_linear": False, "bias_activation_fusion": False},
        {"share_embeddings_and_output_weights": False},
    ),
    "Llama": (
        "--swiglu --normalization RMSNorm --norm-epsilon 1e-6 --disable-bias-linear --position-embedding-type rope"
        " --rotary-base 500000 --group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights"
        " --use-rope-scaling --rope-scaling-factor 32 --ffn-hidden-size 96",
        {
            "activation_func": "silu", "gated_linear_unit": True, "normalization": "RMSNorm",
            "layernorm_epsilon": 1e-6, "add_bias_linear": False, "bias_activation_fusion": False,
            "num_query_groups": 2, "ffn_hidden_size": 96,
        },
        {
            "position_embedding_type": "rope", "rotary_base": 500000, "rope_scaling": True, "rope_scaling_factor": 32.0,
            "share_embeddings_and_output_weights": False,
        },
    ),
    "Qwen 2, positions stretched": (
        "--swiglu --normalization RMSNorm --disable-bias-linear --add-qkv-bias --position-embedding-type rope"
        " --rotary-seq-len-interpolation-factor 2 --ffn-hidden-size 64",
        {
            "activation_func": "silu", "gated_linear_unit": True, "normalization": "RMSNorm", "add_bias_linear": False,
            "add_qkv_bias": True, "bias_activation_fusion": False, "ffn_hidden_size": 64,
        },
        {"position_embedding_type": "rope", "seq_len_interpolation_factor": 2.0},
    ),
    "Qwen 3": (
        "--swiglu --normalization RMSNorm --disable-bias-linear --qk-layernorm --kv-channels 16 --rotary-base 1000000"
        " --use-rotary-position-embeddings --group-query-attention --num-query-groups 1 --ffn-hidden-size 64",
        {
            "activation_func": "silu", "gated_linear_unit": True, "normalization": "RMSNorm", "add_bias_linear": False,
            "qk_layernorm": True, "kv_channels": 16, "num_query_groups": 1, "bias_activation_fusion": False,
            "ffn_hidden_size": 64,
        },
        {"position_embedding_type": "rope", "rotary_base": 1000000},
    ),
}  # fmt: skip


def our_model(line: str) -> Decoder:
    """The model of a command line, on the CPU."""
    found = translate(shlex.split(f"{SIZES} {line}"))
    assert not found.problems, found.problems
    return Decoder(build(ModelConfig, found.section("model") | vocabulary_rules(found.given, VOCABULARY)))


def their_model(changes: dict[str, Any], model_changes: dict[str, Any]) -> Any:
    """Megatron's GPTModel with its plain PyTorch layers."""
    from megatron.core.activations import squared_relu
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    functions: dict[str, Callable[..., Any]] = {
        "silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu, "relu2": squared_relu,
    }  # fmt: skip
    fields = {"bias_activation_fusion": True, "activation_func": "gelu", "normalization": "LayerNorm"} | changes
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, use_cpu_initialization=True, hidden_dropout=0.0,
        attention_dropout=0.0, bias_dropout_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False,
        **(fields | {"activation_func": functions[str(fields["activation_func"])]}),
    )  # fmt: skip
    spec = get_gpt_layer_local_spec(
        normalization=config.normalization, qk_layernorm=bool(fields.get("qk_layernorm", False))
    )
    options = {"position_embedding_type": "learned_absolute", "share_embeddings_and_output_weights": True}
    return GPTModel(
        config, spec, vocab_size=VOCABULARY, max_sequence_length=LENGTH, parallel_output=False,
        **(options | model_changes),
    )  # fmt: skip


def as_ours(config: ModelConfig, theirs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Megatron's weights under our names; fused ones are taken apart."""
    names = {
        "embedding.word_embeddings": "embed.tokens", "embedding.position_embeddings": "embed.positions",
        "decoder.final_layernorm": "head.norm", "output_layer": "head", "input_layernorm": "attention_norm",
        "pre_mlp_layernorm": "mlp_norm", "self_attention.linear_proj": "attention.o_proj",
        "self_attention.q_layernorm": "attention.q_norm", "self_attention.k_layernorm": "attention.k_norm",
        "mlp.linear_fc1": "mlp.up_proj", "mlp.linear_fc2": "mlp.down_proj", "decoder.layers": "layers",
    }  # fmt: skip
    for name, value in theirs.items():
        ours = name
        for there, here in names.items():
            ours = ours.replace(there, here)
        if "linear_qkv" in name:
            # Each group of queries is followed by its key and its value.
            per_group = config.num_heads // config.num_kv_heads
            heads = value.view(config.num_kv_heads, per_group + 2, config.head_dim, *value.shape[1:])
            for letter, part in zip("qkv", heads.split((per_group, 1, 1), dim=1), strict=True):
                yield ours.replace("self_attention.linear_qkv", f"attention.{letter}_proj"), part.flatten(0, 2)
        elif "linear_fc1" in name and config.gated:
            gate, up = value.chunk(2)
            yield ours.replace("up_proj", "gate_proj"), gate
            yield ours, up
        else:
            yield ours, value


def largest_differences() -> dict[str, tuple[float, float]]:
    """For each case the largest difference of logits and the largest logit; runs on a rank of its own."""
    from megatron.core import parallel_state, tensor_parallel

    # Its attention asks for a GPU's buffer and random state, which it then does not need without dropout.
    torch.cuda.current_device = lambda: "cpu"
    tensor_parallel.get_cuda_rng_tracker().fork = lambda *name: contextlib.nullcontext()
    parallel_state.initialize_model_parallel(1, 1)
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(LENGTH).expand(2, -1)
    future = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)
    found = {}
    for case, (line, changes, model_changes) in CASES.items():
        theirs, ours = their_model(changes, model_changes).eval(), our_model(line).eval()
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for name, weight in theirs.named_parameters():
                weight.normal_(1.0 if "norm.weight" in name else 0.0, 0.3, generator=generator)
            stored = dict(as_ours(ours.config, dict(theirs.named_parameters())))
            own = dict(ours.named_parameters())
            assert stored.keys() == own.keys(), (case, stored.keys() ^ own.keys())
            for name, weight in own.items():
                weight.copy_(stored[name])
            expected = theirs(tokens, positions, future)
            logits = ours(tokens, positions)
        found[case] = (float((logits - expected).abs().max()), float(expected.abs().max()))
    return found


def test_flags_give_megatrons_model() -> None:
    with RankPool(1, deadline_s=170, method=START) as pool:
        found = pool.run(largest_differences)[0]
    assert found.keys() == CASES.keys()
    for case, (difference, largest) in found.items():
        assert largest > 1.0, case
        assert difference < 1e-5 * largest, (case, difference, largest)
