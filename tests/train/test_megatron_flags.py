"""Megatron command lines become configurations; what would change the result is refused, all of it at once."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path
from typing import Any

import pytest

from mmdata_train.config import TrainConfig
from mmdata_train.config_io import build
from mmdata_train.megatron_flags import Translation, in_flags, nested, translate
from mmdata_train.megatron_page import help_text, markdown
from mmdata_train.megatron_parse import parse
from mmdata_train.megatron_table import FLAGS
from mmdata_train.model.config import ModelConfig

ROOT = Path(__file__).parent.parent.parent
BASE = "--seq-length 64 --micro-batch-size 1 --global-batch-size 8"
SIZES = f"--num-layers 8 --hidden-size 32 --num-attention-heads 4 --max-position-embeddings 64 {BASE}"


def read(line: str, data_ranks: int = 1) -> Translation:
    return translate(shlex.split(f"{SIZES} {line}"), data_ranks)


def config_of(line: str, data_ranks: int = 1) -> TrainConfig:
    found = read(line, data_ranks)
    assert not found.problems, found.problems
    return build(TrainConfig, nested(found.fields | {"model.vocab_size": 61}))


def model_of(line: str) -> ModelConfig:
    model = config_of(line).model
    assert isinstance(model, ModelConfig)
    return model


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


def test_dropout_is_0_with_a_notice_unless_given() -> None:
    assert any("dropout is 0; Megatron's default is 0.1" in notice for notice in read("").notices)
    given = read("--hidden-dropout 0.1 --attention-dropout 0.2")
    assert not any("dropout" in notice for notice in given.notices)
    model = model_of("--hidden-dropout 0.1 --attention-dropout 0.2")
    assert (model.dropout, model.attention_dropout) == (0.1, 0.2)


def test_accepted_flags_say_that_they_do_nothing_and_false_ones_do_not() -> None:
    assert "--use-flash-attn has no effect: kernels are chosen by PyTorch" in read("--use-flash-attn").notices
    assert not any("flash" in notice for notice in read("--use-flash-attn false").notices)
    assert not read("--eval-iters 0").problems
    assert read("--eval-iters 0").fields["train.eval_batches"] == 1


def test_published_llama_3_command_is_understood_but_for_what_changes_results() -> None:
    """The flags of Megatron-LM's example for Llama 3 8B; three of them would change what is trained."""
    found = translate(
        shlex.split(
            "--use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32"
            " --group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192"
            " --max-position-embeddings 8192 --position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0"
            " --attention-dropout 0.0 --hidden-dropout 0.0 --swiglu --init-method-std 0.0134 --attention-backend fused"
            " --apply-layernorm-1p --untie-embeddings-and-output-weights --disable-bias-linear --micro-batch-size 1"
            " --global-batch-size 128 --train-samples 1953125000 --lr-decay-samples 1949218748"
            " --lr-warmup-samples 3906252 --lr 0.00015 --min-lr 0.00001 --decoupled-lr 5.0e-4"
            " --decoupled-min-lr 4.5e-5 --lr-decay-style cosine --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9"
            " --adam-beta2 0.95 --bf16 --grad-reduce-in-bf16 --cross-entropy-loss-fusion --calculate-per-token-loss"
            " --manual-gc --empty-unused-memory-level 1 --tensor-model-parallel-size 1 --context-parallel-size 1"
            " --pipeline-model-parallel-size 1 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce"
            " --overlap-param-gather --mock-data --tokenizer-type NullTokenizer --vocab-size 128256"
            " --data-cache-path cache --tiktoken-pattern v2 --split 99,1,0 --no-create-attention-mask-in-dataloader"
            " --no-mmap-bin-files --num-workers 1 --log-interval 1 --eval-iters 32 --eval-interval 100"
            " --save-interval 1000 --log-throughput --profile --profile-step-start 4 --profile-step-end 6"
            " --ckpt-format torch_dist --distributed-timeout-minutes 60 --save there --load there --tensorboard-dir tb"
        )
    )
    words = " ".join(found.problems)
    for flag in ("--apply-layernorm-1p", "--decoupled-lr", "--decoupled-min-lr"):
        assert flag in words
    assert found.fields["train.decay_steps"] == -(-1949218748 // 128)
    assert len(found.problems) <= 5, found.problems


REFUSED = [
    ("--num-experts 8", "--num-experts is not offered: mixtures of experts are not offered; use a dense model"),
    ("--moe-router-topk 2", "--moe-router-topk is not offered: mixtures of experts"),
    ("--fp8-amax-history-len 3", "fp8 is not offered here; use --bf16"),
    ("--hiden-size 3", "--hiden-size is unknown; did you mean --hidden-size?"),
    ("--xyzzy", "--xyzzy is unknown; docs/megatron-flags.md lists all"),
    ("--lr fast", "--lr 'fast' is not a number"),
    ("--num-layers", "--num-layers needs a value"),
    ("--fp16 yes", "--fp16 'yes' is neither true nor false"),
    ("--num-layers 4 5", "'5' after --num-layers belongs to no flag"),
    ("--lr-decay-style inverse-square-root", "choose from constant, linear, cosine, WSD"),
    ("--lr-decay-style cosin", "did you mean cosine?"),
    ("--lr-decay-style WSD --lr-wsd-decay-style exponential", "use linear"),
    ("--optimizer muon", "AdamW is the only optimizer; leave it out or use adam"),
    ("--bf16 --fp16", "keep one"),
    ("--train-iters 10 --lr-decay-iters 0", "must be at least 1"),
    ("--train-iters 10 --train-samples 5", "keep one"),
    ("--train-iters 0", "--train-iters is 0; it must be at least 1"),
    ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3", r"use one of \[1, 2, 4\]"),
    ("--num-virtual-stages-per-pipeline-rank 2", "--pipeline-model-parallel-size above 1"),
    ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1", "do not split equally"),
    ("--pipeline-model-parallel-size 2 --account-for-loss-in-pipeline-split", "--num-layers 7 would fit"),
    ("--window-size 4,4", "looks ahead"),
    ("--window-size x", "is not LEFT,RIGHT"),
    ("--position-embedding-type none", "choose from learned_absolute, rope"),
    ("--use-rope-scaling", "needs --position-embedding-type rope"),
    ("--num-query-groups 2", "give both, or neither"),
    ("--swiglu --squared-relu", "keep one activation"),
    ("--hidden-size 30", "is not a multiple of --num-attention-heads 4"),
    ("--seq-length 65", "beyond --max-position-embeddings 64"),
    ("--eod-mask-loss", "--reset-attention-mask"),
    ("--exp-avg-dtype bf16", "moments are kept in fp32"),
    ("--rampup-batch-size 2 2", "is not START INCREMENT SAMPLES"),
    ("--data-path 0.3 a 0.7", "neither prefixes alone nor pairs"),
    ("--data-path a --mock-data", "keep one"),
    ("--train-data-path a --split 1,1,1", "--data-path only"),
    ("--dataloader-type external", "use single or cyclic"),
    ("--loss-scale 8", "without --fp16"),
    ("--data-parallel-sharding-strategy optim", "without --use-megatron-fsdp"),
    ("--lr-warmup-samples 9 --rampup-batch-size 2 2 8", "use --lr-warmup-iters"),
    ("--lr-warmup-samples 9 --lr-warmup-iters 2", "keep one"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_what_cannot_be_done_is_refused_with_the_reason(line: str, message: str) -> None:
    found = read(line)
    assert len(found.problems) == 1, found.problems
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(found.problems[0])


def test_everything_wrong_is_found_in_one_go() -> None:
    problems = read("--moe-x 1 --hiden-size 2 --optimizer sgd --bf16 --fp16 --window-size 4,4").problems
    assert len(problems) == 5


def test_messages_speak_in_flags() -> None:
    assert in_flags("parallel.tensor 4 does not divide model.num_heads 6") == (
        "--tensor-model-parallel-size 4 does not divide --num-attention-heads 6"
    )
    assert in_flags("train.global_batch_size 7, data.seq_length") == "--global-batch-size 7, --seq-length"
    assert in_flags("model.num_kv_heads 5, lora_rank is 8") == "--num-query-groups 5, --lora-rank is 8"
    assert in_flags("train.lr is not train.lr_schedule") == "--lr is not --lr-decay-style"
