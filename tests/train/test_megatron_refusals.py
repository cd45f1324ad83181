"""What a Megatron command line asks for and cannot be done is refused with the reason, all of it at once."""

from __future__ import annotations

import shlex

import pytest
from megatron_lines import SIZES, read

from mmdata_train.errors import CommandLineError
from mmdata_train.megatron_flags import in_flags, translate
from mmdata_train.megatron_run import prepare
from mmdata_train.megatron_table import FLAGS


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
    ("--lr nan", r"--lr is nan; it must be finite and at least 0; such as 1e-5"),
    ("--lr -inf", "--lr is -inf; it must be finite and at least 0"),
    ("--clip-grad nan", "--clip-grad is nan; it must be finite and at least 0; 1 is usual, 0 turns clipping off"),
    ("--loss-scale-window nan", "--loss-scale-window is nan; it must be finite and at least 1"),
    ("--lr-wsd-decay-iters 0x", "--lr-wsd-decay-iters '0x' is not a whole number"),
    ("--adam-eps 0", "--adam-eps is 0.0; it must be above 0"),
    ("--exit-duration-in-mins -1", "--exit-duration-in-mins is -1.0; it must be at least 0"),
    ("--num-layers 1000000000", "--num-layers is 1000000000; it must be at least 1 and at most 10,000"),
    ("--pipeline-model-parallel-size 1000000000", "--pipeline-model-parallel-size is 1000000000; it must be at"),
    (f"--train-samples {10**30}", "--train-samples is 1000000000000000000000000000000; it must be a finite number of"),
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


FLOATS = [flag.name for flag in FLAGS.values() if flag.type == "f" and flag.fate != ">"]


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("name", FLOATS)
def test_no_number_of_a_command_line_may_be_nan_or_infinite(name: str, bad: str) -> None:
    found = read(f"--{name} {bad}").problems
    assert any(text.startswith((f"--{name} is {bad}; it must be", f"--{name} is not offered")) for text in found), found


def test_flag_with_a_wrong_value_is_not_called_missing_or_absent_too() -> None:
    """For each flag that some message may call missing."""
    words = "--num-layers x --hidden-size x --num-attention-heads x --max-position-embeddings x --seq-length x"
    words += (
        " --micro-batch-size x --global-batch-size x --lr x --hidden-dropout x --train-iters 2.5 --mock-data --save a"
    )
    with pytest.raises(CommandLineError) as caught:
        prepare(words.split())
    told = (*caught.value.problems, *caught.value.notices)
    assert len(caught.value.problems) == 10 and not any(
        word in text for text in told for word in ("missing", "absent", "unless --train-iters", "dropout is 0")
    ), told
    with pytest.raises(CommandLineError) as caught:
        prepare([*SIZES.split(), "--data-path", "0.3", "a", "0.7"])
    assert len(caught.value.problems) == 1 and "neither prefixes alone" in caught.value.problems[0]
