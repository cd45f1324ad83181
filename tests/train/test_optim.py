"""Learning rates, weight-decay groups, clipping and the loss scale follow their formulas."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from mmdata_train.config import OptimConfig  # noqa: E402
from mmdata_train.errors import ConfigError  # noqa: E402
from mmdata_train.gradients import LossScaler, clip_factor, first_non_finite, sum_of_squares  # noqa: E402
from mmdata_train.model.config import ModelConfig  # noqa: E402
from mmdata_train.model.decoder import Decoder  # noqa: E402
from mmdata_train.optim import build_optimizer, decays, learning_rate  # noqa: E402


def rates(total: int, **options: object) -> list[float]:
    config = OptimConfig(lr=1.0, **options)  # type: ignore[arg-type]
    return [round(learning_rate(config, step, total), 6) for step in range(total)]


def test_warmup_is_linear_and_loses_no_step() -> None:
    assert rates(8, warmup_steps=4, lr_schedule="constant") == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert rates(8, warmup_ratio=0.3, lr_schedule="constant")[:4] == [round((i + 1) / 3, 6) for i in range(3)] + [1.0]


def test_linear_and_cosine_fall_towards_the_floor_and_waste_no_step() -> None:
    assert rates(4, lr_schedule="linear", min_lr=0.5) == [0.9, 0.8, 0.7, 0.6]
    cosine = rates(4, lr_schedule="cosine", min_lr=0.1)
    assert cosine == [round(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * i / 5)), 6) for i in (1, 2, 3, 4)]
    assert min(rates(7, lr_schedule="cosine", warmup_steps=3)) > 0.0


def test_wsd_keeps_the_rate_and_falls_over_the_last_share() -> None:
    assert rates(10, lr_schedule="wsd", decay_ratio=0.3, warmup_steps=2) == [0.5, *[1.0] * 6, 0.75, 0.5, 0.25]


def test_rate_beyond_the_last_step_stays_at_the_floor() -> None:
    assert learning_rate(OptimConfig(lr=1.0, min_lr=0.2), 50, 10) == 0.2


def test_course_may_be_shorter_than_the_run_and_counts_its_warmup() -> None:
    whole = rates(6, min_lr=0.1, warmup_steps=2, lr_schedule="linear")
    assert rates(9, min_lr=0.1, warmup_steps=2, lr_schedule="linear", decay_steps=6) == [*whole, 0.1, 0.1, 0.1]
    assert rates(4, warmup_ratio=0.5, decay_steps=8) == [0.25, 0.5, 0.75, 1.0]
    with pytest.raises(ConfigError, match="leaves nothing after 6 steps of warm-up"):
        OptimConfig(warmup_steps=6, decay_steps=6)


def test_weight_decay_spares_biases_and_norms() -> None:
    config = ModelConfig(
        vocab_size=11, hidden_size=8, num_layers=1, num_heads=2, vocab_multiple=1, qkv_bias=True, qk_norm=True
    )
    spared = {name for name, weight in Decoder(config).named_parameters() if not decays(name, weight)}
    assert spared == {
        "layers.0.attention_norm.weight", "layers.0.mlp_norm.weight", "head.norm.weight",
        "layers.0.attention.q_norm.weight", "layers.0.attention.k_norm.weight",
        "layers.0.attention.q_proj.bias", "layers.0.attention.k_proj.bias", "layers.0.attention.v_proj.bias",
    }  # fmt: skip


def test_rank_without_trainable_weights_has_no_optimizer() -> None:
    layer = nn.Linear(2, 2)
    layer.requires_grad_(False)
    assert build_optimizer(layer.named_parameters(), OptimConfig()) is None
    layer.bias.requires_grad_(True)
    optimizer = build_optimizer(layer.named_parameters(), OptimConfig())
    assert optimizer is not None and len(optimizer.param_groups) == 1


def test_norm_and_clipping_equal_torchs() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    model(torch.randn(4, 5)).square().sum().backward()
    norm = math.sqrt(float(sum_of_squares(model.parameters(), torch.device("cpu"))))
    factor = clip_factor(norm, 0.5)
    ours = [weight.grad * factor for weight in model.parameters()]
    assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)), rel=1e-6)
    for mine, weight in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(mine, weight.grad)
    assert clip_factor(0.3, 0.5) == 1.0 and clip_factor(1e9, 0.0) == 1.0


def test_first_non_finite_parameter_is_named() -> None:
    model = nn.Linear(2, 2)
    model.weight.grad, model.bias.grad = torch.zeros(2, 2), torch.tensor([0.0, math.nan])
    assert first_non_finite(model.named_parameters()) == "bias"
    model.bias.grad.zero_()
    assert first_non_finite(model.named_parameters()) is None


def test_scale_halves_after_the_second_overflow_and_doubles_after_a_window() -> None:
    scaler = LossScaler(scale=16.0, window=3, hysteresis=2, dynamic=True, minimum=2.0)
    scales = []
    for finite in (False, False, False, True, True, True, False, False, False, False, False):
        scaler.update(finite)
        scales.append(scaler.scale)
    assert scales == [16.0, 8.0, 4.0, 4.0, 4.0, 8.0, 8.0, 4.0, 2.0, 2.0, 2.0]


def test_scaler_that_does_not_scale_stays_at_one() -> None:
    scaler = LossScaler()
    scaler.update(False)
    assert scaler.scale == 1.0


def test_scaler_state_comes_back() -> None:
    scaler = LossScaler(scale=16.0, dynamic=True)
    scaler.update(False)
    other = LossScaler(dynamic=True)
    other.load(scaler.state())
    assert other == scaler
