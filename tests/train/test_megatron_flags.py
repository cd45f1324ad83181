"""Megatron command lines become configurations; what would change the result is refused by name."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from mmdata_train.config import TrainConfig
from mmdata_train.config_io import build
from mmdata_train.errors import ConfigError
from mmdata_train.megatron_flags import MegatronRun, parse, translate
from mmdata_train.megatron_table import options

SIZES = "--num-layers 8 --hidden-size 32 --num-attention-heads 4 --vocab-size 61 --max-position-embeddings 64"
GUIDE = (
    "--num-layers 48 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048"
    " --micro-batch-size 1 --global-batch-size 32 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2"
    " --fp16 --save ./checkpoints --load ./pretrained_model --activation-checkpointing"
)


def run_of(line: str) -> MegatronRun:
    return translate(shlex.split(line))


def config_of(line: str) -> TrainConfig:
    return build(TrainConfig, run_of(f"{SIZES} {line}").mapping)


def test_table_knows_two_hundred_options_each_with_one_fate() -> None:
    table = options()
    assert len(table) >= 110
    assert all(option.detail for option in table.values() if option.action in "=~!")


def test_guides_command_is_read_as_it_stands() -> None:
    run = run_of(GUIDE)
    assert run.load == Path("./pretrained_model") and not run.finetune
    config = build(TrainConfig, {**run.mapping, "model": {**run.mapping["model"], "vocab_size": 50257}})
    assert (config.parallel.tensor, config.parallel.pipeline, config.parallel.zero_stage) == (4, 2, 0)
    assert (config.train.precision, config.train.activation_checkpointing) == ("fp16", "full")
    assert config.train.global_batch_size == 32 and config.data.seq_length == 2048
    assert config.output.dir == Path("checkpoints")
    assert any("Megatron's default is 0.1" in notice for notice in run.notices)


def test_megatrons_defaults_are_kept_where_they_change_the_model() -> None:
    model = config_of("").model
    assert not isinstance(model, str)
    assert (model.norm, model.positions, model.activation, model.gated) == ("layer", "learned", "gelu", False)
    assert model.qkv_bias and model.output_bias and model.mlp_bias and model.tie_embeddings
    assert model.intermediate_size == 128 and model.vocab_multiple == 128


def test_llama_options_give_a_llama() -> None:
    config = config_of(
        "--swiglu --disable-bias-linear --normalization RMSNorm --norm-epsilon 1e-6 --position-embedding-type rope"
        " --rotary-base 500000 --use-rope-scaling --rope-scaling-factor 32 --group-query-attention"
        " --num-query-groups 2 --untie-embeddings-and-output-weights --ffn-hidden-size 48 --window-size 7,0"
    )
    model = config.model
    assert not isinstance(model, str)
    assert (model.family, model.norm, model.gated, model.activation) == ("llama", "rms", True, "silu")
    assert (model.num_kv_heads, model.rope_theta, model.sliding_window) == (2, 500000.0, 8)
    assert model.rope_scaling is not None and (model.rope_scaling.kind, model.rope_scaling.factor) == ("llama3", 32.0)
    assert not (model.qkv_bias or model.tie_embeddings)


def test_qwen_bias_survives_without_the_others() -> None:
    model = config_of("--disable-bias-linear --add-qkv-bias --qk-layernorm").model
    assert not isinstance(model, str)
    assert model.qkv_bias and model.qk_norm and not model.output_bias and not model.mlp_bias


@pytest.mark.parametrize("spelling", ["--micro-batch-size 4", "--micro_batch_size 4", "--micro-batch-size=4"])
def test_spellings_of_one_option_are_equal(spelling: str) -> None:
    assert parse(shlex.split(spelling)) == {"micro-batch-size": 4}


def test_switches_take_a_following_boolean() -> None:
    assert parse(["--sequence_parallel", "false", "--bf16", "true", "--swiglu"]) == {
        "sequence-parallel": False, "bf16": True, "swiglu": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--use-distributed-optimizer", 1),
        ("--use-torch-fsdp2", 3),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", 2),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", 2),
    ],
)
def test_sharding_options_give_zero_stages(line: str, expected: int) -> None:
    assert config_of(line).parallel.zero_stage == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2", (2, "interleaved", None)),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4", (4, "interleaved", None)),
        ("--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 2", (1, "1f1b", (2, 2, 2, 2))),
        (
            "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1"
            " --decoder-last-pipeline-num-layers 1",
            (1, "1f1b", (1, 3, 3, 1)),
        ),
    ],
)
def test_pipeline_options_give_stages(line: str, expected: tuple[Any, ...]) -> None:
    parallel = config_of(line).parallel
    assert (parallel.virtual_stages, parallel.schedule, parallel.stage_layers) == expected


def test_training_options_are_taken_over() -> None:
    train = config_of(
        "--micro-batch-size 2 --global-batch-size 8 --train-samples 80 --lr 1e-4 --min-lr 1e-5 --lr-decay-style WSD"
        " --lr-wsd-decay-iters 2 --lr-warmup-fraction 0.1 --clip-grad 0.5 --adam-beta1 0.8 --rampup-batch-size 2 2 24"
        " --bf16 --recompute-granularity selective --seed 7"
    ).train
    assert (train.steps, train.lr_schedule, train.decay_ratio, train.warmup_ratio) == (10, "wsd", 0.2, 0.1)
    assert (train.lr, train.min_lr, train.clip_grad, train.beta1, train.beta2) == (1e-4, 1e-5, 0.5, 0.8, 0.999)
    assert (train.precision, train.activation_checkpointing, train.seed) == ("bf16", "selective", 7)
    assert train.batch_rampup is not None and train.batch_rampup.samples == 24


def test_static_loss_scale_never_moves() -> None:
    from mmdata_train.gradients import LossScaler

    train = config_of("--fp16 --loss-scale 128").train
    scaler = LossScaler(train.initial_loss_scale, train.min_loss_scale, train.loss_scale_window, dynamic=True)
    for finite in (True, False, False, False, True):
        scaler.update(finite)
    assert scaler.scale == 128.0


def test_weighted_data_path_keeps_its_syntax() -> None:
    data = config_of("--data-path 0.3 a/law 0.7 b/general --split 969,30,1 --reset-attention-mask --num-workers 0").data
    assert data.entries == [("a/law", 0.3), ("b/general", 0.7)]
    assert (data.split, data.reset_attention, data.loading.workers) == ("969,30,1", True, 0)


def test_accepted_options_say_that_they_do_nothing() -> None:
    assert run_of(f"{SIZES} --use-flash-attn").notices[0] == (
        "--use-flash-attn has no effect: kernels are chosen by PyTorch"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--num-experts 8", "--num-experts is not offered: mixtures of experts"),
        ("--hiden-size 3", "--hiden-size is unknown; did you mean --hidden-size?"),
        ("--lr fast", "--lr 'fast' is not a number"),
        ("--num-layers", "--num-layers needs a value"),
        ("stray", "'stray' does not belong to an option"),
        ("--lr-decay-style inverse-square-root", "choose from constant, linear, cosine, WSD"),
        ("--optimizer muon", "AdamW is the only optimizer; leave it out or use adam"),
        ("--bf16 --fp16", "keep one"),
        ("--train-iters 10 --lr-decay-iters 5", "differs from --train-iters 10"),
        (
            "--num-layers 8 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3",
            "does not divide",
        ),
        ("--window-size 4,4", "looks ahead"),
        ("--context-parallel-size 2 --num-layers 8", "use parallel.tensor with sequence_parallel"),
        ("--position-embedding-type none", "choose from learned_absolute, rope"),
        ("--eod-mask-loss", "loss spans"),
        ("--exp-avg-dtype bf16", "moments are kept in fp32"),
        ("--rampup-batch-size 2 2", "needs 3 numbers"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(TrainConfig, run_of(line).mapping)


def test_loading_options_are_told_apart() -> None:
    assert run_of("--load a --finetune").finetune and not run_of("--load a").finetune
    run = run_of("--pretrained-checkpoint b --exit-on-missing-checkpoint --mock-data")
    assert (run.load, run.finetune, run.must_load, run.mock_data) == (Path("b"), True, True, True)
