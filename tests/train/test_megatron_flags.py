"""Megatron command lines become configurations: every flag of the table has a fate, a target or a reason."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path
from typing import Any

import pytest
from megatron_lines import SIZES, config_of, read

from mmdata_train.config import TrainConfig
from mmdata_train.config_io import build
from mmdata_train.megatron_flags import nested, translate
from mmdata_train.megatron_page import help_text, markdown
from mmdata_train.megatron_parse import parse
from mmdata_train.megatron_table import FLAGS

ROOT = Path(__file__).parent.parent.parent


def test_every_flag_has_one_fate_and_a_target_or_a_reason() -> None:
    assert len(FLAGS) >= 250
    hidden = {flag.name for flag in FLAGS.values() if flag.kind != "map" and not flag.note}
    aimless = {flag.name for flag in FLAGS.values() if flag.kind == "map" and not flag.target}
    dangling = {flag.name for flag in FLAGS.values() if flag.fate == ">" and flag.target not in FLAGS}
    assert not hidden | aimless | dangling


def test_every_target_is_a_field_of_the_configuration() -> None:
    """Direct rows are set one by one to a value other than the default and found in the built configuration."""
    values = {"i": "2", "f": "0.5", "s": "5,4,1", "b": "true"}
    special = {"tensor-model-parallel-size": "2", "lr-warmup-fraction": "0.5", "hidden-size": "8", "min-lr": "0"}
    for flag in FLAGS.values():
        if flag.fate != "=" or flag.name in ("context-parallel-size", "lora-rank", "split"):
            continue
        value = special.get(flag.name, values[flag.type])
        found = translate(shlex.split(f"{SIZES} --lr 1 --lr-warmup-iters 0 --{flag.name} {value}"))
        assert str(found.fields[flag.target]) in (value, value.capitalize(), f"{value}.0"), flag.name
        build(TrainConfig, nested(found.fields | {"model.vocab_size": 61}))


def test_every_flag_worked_out_by_a_rule_is_looked_at() -> None:
    names = {
        node.value
        for path in (ROOT / "mmdata_train").glob("megatron_*.py")
        if path.name != "megatron_table.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    names |= read("").given.read
    assert not {flag.name for flag in FLAGS.values() if flag.fate == "@"} - names


def test_page_of_flags_is_made_from_the_table() -> None:
    page = (ROOT / "docs" / "megatron-flags.md").read_text(encoding="utf-8")
    assert page == markdown(), "run: python tools/pretrain_gpt.py --table > docs/megatron-flags.md"


def test_help_names_every_flag_that_acts() -> None:
    text = help_text("Introduction.")
    assert all(f"--{flag.name}" in text for flag in FLAGS.values() if flag.kind == "map")


@pytest.mark.parametrize("spelling", ["--micro-batch-size 4", "--micro_batch_size 4", "--micro-batch-size=4"])
def test_spellings_of_one_flag_are_equal(spelling: str) -> None:
    given, problems = parse(shlex.split(spelling))
    assert (given.values, problems) == ({"micro-batch-size": 4}, [])


def test_switches_take_a_boolean_and_the_last_word_counts() -> None:
    line = "--sequence_parallel false --bf16 true --swiglu --lr 1 --lr 2 --use-rope-scaling=False"
    values = parse(shlex.split(line))[0].values
    assert values == {
        "sequence-parallel": False, "bf16": True, "swiglu": True, "lr": 2.0, "use-rope-scaling": False,
    }  # fmt: skip


def test_negative_numbers_and_dashed_names_are_values() -> None:
    values = parse(shlex.split("--most-recent-k -1 --window-size -1,0 --data-path -x 0.5"))[0].values
    assert values == {"most-recent-k": -1, "window-size": "-1,0", "data-path": ["-x", "0.5"]}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", 0),
        ("--use-distributed-optimizer", 1),
        ("--use-torch-fsdp2", 3),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", 2),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", 2),
        ("--use-megatron-fsdp --use-distributed-optimizer", 1),
    ],
)
def test_sharding_flags_give_zero_stages(line: str, expected: int) -> None:
    assert config_of(line).parallel.zero_stage == expected


def test_optimizer_instances_give_the_size_of_a_sharding_group() -> None:
    line = "--use-distributed-optimizer --num-distributed-optimizer-instances 2"
    assert config_of(line, data_ranks=8).parallel.shard_size == 4
    assert "use one of [1, 3]" in read(line, data_ranks=3).problems[0]


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
        (
            "--num-layers 10 --pipeline-model-parallel-size 3 --account-for-embedding-in-pipeline-split"
            " --account-for-loss-in-pipeline-split",
            (1, "1f1b", (3, 4, 3)),
        ),
        ("--num-layers 7 --pipeline-model-parallel-size 2 --account-for-loss-in-pipeline-split", (1, "1f1b", (4, 3))),
    ],
)
def test_pipeline_flags_give_stages(line: str, expected: tuple[Any, ...]) -> None:
    parallel = config_of(line).parallel
    assert (parallel.virtual_stages, parallel.schedule, parallel.stage_layers) == expected


def test_sequence_parallelism_and_overlap_follow_the_flags() -> None:
    plain = config_of("--tensor-model-parallel-size 2").parallel
    assert (plain.splits_sequence, plain.overlap) == (False, True)
    assert config_of("--tensor-model-parallel-size 2 --sequence-parallel").parallel.splits_sequence
    alone = read("--sequence-parallel")
    assert alone.fields["parallel.sequence_parallel"] is False
    assert any("--sequence-parallel has no effect" in notice for notice in alone.notices)
    assert not config_of("--overlap-grad-reduce true --overlap_param_gather false").parallel.overlap


@pytest.mark.parametrize(
    ("line", "mode"),
    [
        ("", "none"),
        ("--activation-checkpointing", "full"),
        ("--checkpoint-activations", "full"),
        ("--recompute-activations", "selective"),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "full"),
        ("--recompute-granularity selective", "selective"),
        ("--activation-checkpointing false", "none"),
    ],
)
def test_recomputation_flags_give_modes(line: str, mode: str) -> None:
    assert config_of(line).train.activation_checkpointing == mode


def test_training_flags_are_taken_over() -> None:
    train = config_of(
        "--micro-batch-size 2 --global-batch-size 8 --train-iters 10 --lr 1e-4 --min-lr 1e-5 --lr-decay-style WSD"
        " --lr-wsd-decay-iters 2 --lr-wsd-decay-style linear --lr-warmup-fraction 0.1 --clip-grad 0.5"
        " --adam-beta1 0.8 --bf16 --seed 7 --save-interval 5 --most-recent-k 2"
    )
    made = train.train
    assert (made.steps, made.lr_schedule, made.decay_ratio, made.warmup_ratio) == (10, "wsd", 0.2, 0.1)
    assert (made.lr, made.min_lr, made.clip_grad, made.beta1, made.beta2) == (1e-4, 1e-5, 0.5, 0.8, 0.999)
    assert (made.precision, made.seed, train.data.seed) == ("bf16", 7, 7)
    assert (train.output.save_every, train.output.keep) == (5, 2)


def test_the_rate_may_decay_over_another_length_than_the_run() -> None:
    batch = "--micro-batch-size 2 --global-batch-size 8"
    assert config_of(f"{batch} --train-iters 10 --lr-decay-iters 5").train.decay_steps == 5
    assert config_of(f"{batch} --train-iters 10 --lr-decay-samples 33").train.decay_steps == 5
    assert config_of(f"{batch} --train-iters 10 --lr-decay-iters 10").train.decay_steps is None
    wsd = "--lr-decay-style WSD --lr-wsd-decay-style linear --lr-wsd-decay-iters 2 --lr-decay-iters 8"
    assert config_of(f"{batch} --train-iters 10 {wsd}").train.decay_ratio == 0.25


def test_absent_flags_have_megatrons_defaults() -> None:
    config = config_of("")
    train = config.train
    assert (train.lr_schedule, train.min_lr, train.weight_decay, train.beta2, train.eps) == (
        "linear", 0.0, 0.01, 0.999, 1e-8,
    )  # fmt: skip
    assert (train.precision, train.steps, train.epochs, train.eval_every, train.eval_batches) == (
        "fp32", None, None, 1000, 100,
    )  # fmt: skip
    assert (config.output.keep, config.output.async_save, config.data.split) == (1_000_000, False, None)


def test_samples_count_as_whole_steps_with_the_ramp_up() -> None:
    config = config_of("--train-samples 83 --rampup-batch-size 2 2 24 --lr-warmup-iters 3")
    assert (config.data.num_samples, config.train.steps) == (83, None)
    ramp = config.train.batch_rampup
    assert ramp is not None and (ramp.start, ramp.increment, ramp.samples) == (2, 2, 24)
    assert config_of("--lr-warmup-samples 24").train.warmup_steps == 3
    assert config_of("--lr-warmup-samples 25").train.warmup_steps == 4


def test_absent_global_batch_is_one_micro_batch_on_each_data_rank() -> None:
    line = "--seq-length 64 --micro-batch-size 2 --num-layers 2 --hidden-size 8 --num-attention-heads 2"
    assert translate(shlex.split(line), 4).fields["train.global_batch_size"] == 8


def test_static_loss_scale_never_moves() -> None:
    pytest.importorskip("torch")
    from mmdata_train.gradients import LossScaler

    train = config_of("--fp16 --loss-scale 128").train
    scaler = LossScaler(train.initial_loss_scale, train.min_loss_scale, train.loss_scale_window, dynamic=True)
    for finite in (True, False, False, False, True):
        scaler.update(finite)
    assert scaler.scale == 128.0
    assert config_of("--fp16").train.initial_loss_scale == 65536.0
    assert config_of("--fp16 --initial-loss-scale 1024").train.initial_loss_scale == 1024.0


def test_data_path_keeps_megatrons_syntax() -> None:
    data = config_of("--data-path 0.3 a/law 0.7 b/general --split 969,30,1 --num-workers 0").data
    assert data.entries == [("a/law", 0.3), ("b/general", 0.7)]
    assert (data.split, data.loading.workers, data.order) == ("969,30,1", 0, "default")
    plain = config_of("--train-data-path a b --valid-data-path 1 v/law_text_document 1 w/law_text_document").data
    assert plain.entries == [("a", None), ("b", None)]
    assert plain.valid == {"law_text": "v/law_text_document", "w/law_text_document": "w/law_text_document"}


def test_document_boundaries_keep_positions_and_attention_apart() -> None:
    data = config_of("--reset-attention-mask").data
    assert (data.reset_attention, data.reset_positions) == (True, False)
    data = config_of("--reset-attention-mask --reset-position-ids --eod-mask-loss").data
    assert (data.reset_attention, data.reset_positions) == (True, True)
    assert config_of("--reset-position-ids").data.reset_positions is True


def test_accepted_flags_say_that_they_do_nothing_and_false_ones_do_not() -> None:
    assert "--use-flash-attn has no effect: kernels are chosen by PyTorch" in read("--use-flash-attn").notices
    assert not any("flash" in notice for notice in read("--use-flash-attn false").notices)
    assert not read("--eval-iters 0").problems
    assert read("--eval-iters 0").fields["train.eval_batches"] == 1
