"""Settings of adapters: which layers they name, their scale and rates, and what cannot be meant."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mmdata_train.config import TrainConfig  # noqa: E402
from mmdata_train.config_io import build  # noqa: E402
from mmdata_train.errors import ConfigError  # noqa: E402
from mmdata_train.lora.layer import adapter_parameters  # noqa: E402
from mmdata_train.lora.settings import LoraConfig, linear_modules, resolve_targets  # noqa: E402
from mmdata_train.model.config import ModelConfig  # noqa: E402
from mmdata_train.optim import build_optimizer  # noqa: E402

SHAPE = {"vocab_size": 60, "hidden_size": 32, "num_layers": 4, "num_heads": 4, "vocab_multiple": 16}
MODEL = ModelConfig(vocab_size=60, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2)
GPT2 = ModelConfig(
    vocab_size=60, hidden_size=32, num_layers=2, num_heads=4, family="gpt2", gated=False, positions="learned"
)


def test_targets_are_our_names_the_folders_names_or_patterns() -> None:
    assert resolve_targets(LoraConfig(targets=("q_proj",)), MODEL) == (
        "layers.0.attention.q_proj", "layers.1.attention.q_proj",
    )  # fmt: skip
    assert resolve_targets(LoraConfig(targets=("self_attn.o_proj",)), MODEL) == (
        "layers.0.attention.o_proj", "layers.1.attention.o_proj",
    )  # fmt: skip
    assert resolve_targets(LoraConfig(targets="layers.1.mlp.*"), MODEL) == (
        "layers.1.mlp.gate_proj", "layers.1.mlp.up_proj", "layers.1.mlp.down_proj",
    )  # fmt: skip
    assert resolve_targets(LoraConfig(targets=("c_attn",)), GPT2) == tuple(
        f"layers.{layer}.attention.{kind}_proj" for layer in (0, 1) for kind in "qkv"
    )
    everything = resolve_targets(LoraConfig(), MODEL)
    assert len(everything) == 14 and "head" not in everything
    assert set(linear_modules(MODEL)) - set(everything) == {"head"}


def test_unknown_target_names_the_ones_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no linear layer is called 'query'; known: q_proj, k_proj.*head.*lm_head"):
        resolve_targets(LoraConfig(targets=("q_proj", "query")), MODEL)


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({}, 2.0), ({"rank": 64}, 2.0), ({"rank": 16, "alpha": 8.0}, 0.5), ({"rank": 16, "rslora": True}, 8.0),
        ({"rank": 64, "alpha": 16.0, "rslora": True}, 2.0),
    ],
)  # fmt: skip
def test_scale_is_alpha_over_rank_or_its_root(settings: dict[str, Any], scale: float) -> None:
    assert LoraConfig(**settings).rank == settings.get("rank", 16)
    assert LoraConfig(**settings).scale == pytest.approx(scale)


def test_ranks_outside_8_to_64_get_a_notice_and_no_error() -> None:
    assert [list(LoraConfig(rank=rank).notices()) for rank in (8, 16, 64)] == [[], [], []]
    for rank in (4, 128):
        (notice,) = LoraConfig(rank=rank).notices()
        assert f"lora_rank {rank} is outside 8 to 64" in notice


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lora_rank": -1}, "lora_rank is -1"),
        ({"lora_rank": 8, "lora_dropout": 1.0}, "lora_dropout is 1.0"),
        ({"lora_rank": 8, "lora_alpha": 0.0}, "lora_alpha is 0.0"),
        ({"lora_rank": 8, "lora_plus_ratio": 0.0}, "lora_plus_ratio is 0.0"),
        ({"lora_rank": 8, "lora_targets": []}, "lora_targets is empty"),
        ({"lora_rnak": 8}, "did you mean lora_rank"),
        ({"lora_merge_first": True}, "lora_merge_first needs lora_from"),
        ({"added_tokens": ["x"]}, "added_tokens are trained beside LoRA; set lora_rank"),
        ({"lora_from": "somewhere"}, "lora_from starts adapters; set lora_rank"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config = build(TrainConfig, {"model": SHAPE, **changes})
        assert config.lora is not None


def test_rank_defaults_to_16_and_alpha_to_twice_the_rank() -> None:
    assert build(TrainConfig, {"model": SHAPE}).lora is None
    assert build(TrainConfig, {"model": SHAPE, "lora_rank": 0, "lora_alpha": 4.0}).lora is None
    lora = build(TrainConfig, {"model": SHAPE, "lora_targets": "all-linear"}).lora
    assert lora == LoraConfig(rank=16) and lora.scale == 2.0


def test_rate_of_b_is_multiplied_and_the_magnitude_does_not_decay() -> None:
    named = [
        (name, torch.nn.Parameter(torch.zeros(shape)))
        for name, shape in (("q.lora_A", (2, 4)), ("q.lora_B", (4, 2)), ("q.lora_magnitude", (4,)))
    ]
    from mmdata_train.config import OptimConfig

    optimizer = build_optimizer(named, OptimConfig(lr=1e-3, weight_decay=0.1), 8.0)
    assert optimizer is not None
    found = {
        name: (group["lr_factor"], group["weight_decay"])
        for group in optimizer.param_groups for name, weight in named if weight is group["params"][0]
    }  # fmt: skip
    assert found == {"q.lora_A": (1.0, 0.1), "q.lora_B": (8.0, 0.1), "q.lora_magnitude": (1.0, 0.0)}


def test_names_of_adapters_are_told_from_those_of_the_model() -> None:
    from mmdata_train.lora.layer import insert_adapters
    from mmdata_train.model.decoder import Decoder

    with torch.device("meta"):
        part = Decoder(MODEL)
    plain = {name for name, _ in part.named_parameters()}
    insert_adapters(part, LoraConfig(rank=2, dora=True, added_ids=(40, 41)))
    own = set(adapter_parameters(part))
    assert {name for name, _ in part.named_parameters()} - own == plain
    assert {name for name, weight in part.named_parameters() if weight.requires_grad} == own
    assert {"embed.added.rows", "head.added_rows", "layers.0.mlp.up_proj.lora_magnitude"} <= own
