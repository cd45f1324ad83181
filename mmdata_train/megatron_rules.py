"""Sharding, precision, schedule, batches and data from Megatron's flags that act together.

Each rule returns fields by dotted name, adds to the notices what a Megatron user would not expect, and raises
ConfigError for what would give another result than Megatron's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmdata.errors import SamplesError
from mmdata.samples.entries import parse_data_path
from mmdata_train.errors import ConfigError
from mmdata_train.megatron_parse import Given
from mmdata_train.megatron_shape import stage_rules

Fields = dict[str, Any]
Notices = list[str]
Rule = Callable[[Given, int, Notices], Fields]

KEEP_ALL = 1_000_000
_START_SCALE = 65536.0
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def parallel_rule(flags: Given, data_ranks: int, notices: Notices) -> Fields:
    """Sequence parallelism, ZeRO stage, sharding groups, overlap."""
    sequence, tensor = bool(flags.get("sequence-parallel")), flags.get("tensor-model-parallel-size")
    if sequence and tensor == 1:
        notices.append("--sequence-parallel has no effect without --tensor-model-parallel-size above 1")
    overlaps = ("overlap-grad-reduce", "overlap-param-gather")
    stage = _zero_stage(flags)
    fields: Fields = {
        "parallel.sequence_parallel": sequence and tensor > 1,
        "parallel.zero_stage": stage,
        "parallel.overlap": all(flags.get(name) for name in overlaps if name in flags),
    }
    copies = flags.get("num-distributed-optimizer-instances")
    if copies > 1:
        if stage == 0:
            raise ConfigError(
                f"--num-distributed-optimizer-instances {copies} needs --use-distributed-optimizer: nothing is sharded"
                " without"
            )
        if data_ranks % copies:
            raise ConfigError(
                f"--num-distributed-optimizer-instances {copies} does not divide the {data_ranks} data ranks; use one"
                f" of {[n for n in range(1, data_ranks + 1) if data_ranks % n == 0]}"
            )
        fields["parallel.shard_size"] = data_ranks // copies
    return fields


def _zero_stage(flags: Given) -> int:
    torch_fsdp, own_fsdp = bool(flags.get("use-torch-fsdp2")), bool(flags.get("use-megatron-fsdp"))
    if torch_fsdp and own_fsdp:
        raise ConfigError("--use-torch-fsdp2 and --use-megatron-fsdp are both given; keep one")
    keeps_parameters = bool(flags.get("torch-fsdp2-no-reshard-after-forward"))
    if keeps_parameters and not torch_fsdp:
        raise ConfigError("--torch-fsdp2-no-reshard-after-forward has no effect without --use-torch-fsdp2")
    if "data-parallel-sharding-strategy" in flags and not own_fsdp:
        raise ConfigError("--data-parallel-sharding-strategy has no effect in Megatron without --use-megatron-fsdp")
    distributed = 1 if flags.get("use-distributed-optimizer") else 0
    if own_fsdp:
        return max(distributed, SHARDING[flags.get("data-parallel-sharding-strategy")])
    return (2 if keeps_parameters else 3) if torch_fsdp else distributed


def pipeline_rule(flags: Given, data_ranks: int, notices: Notices) -> Fields:
    """Virtual and uneven stages."""
    return {f"parallel.{name}": value for name, value in stage_rules(flags).items()}


def precision_rule(flags: Given, data_ranks: int, notices: Notices) -> Fields:
    """Number format, loss scale, recomputation."""
    if flags.get("bf16") and flags.get("fp16"):
        raise ConfigError("--bf16 and --fp16 are both given; keep one")
    fields: Fields = {
        "train.precision": "bf16" if flags.get("bf16") else "fp16" if flags.get("fp16") else "fp32",
        "train.initial_loss_scale": _START_SCALE,
        "train.min_loss_scale": flags.get("min-loss-scale"),
        "train.loss_scale_window": int(flags.get("loss-scale-window")),
    }
    if "initial-loss-scale" in flags:
        fields["train.initial_loss_scale"] = flags.get("initial-loss-scale")
    elif flags.get("fp16") and "loss-scale" not in flags:
        notices.append("the loss scale starts at 65,536; from Megatron's 2^32 about 16 steps would be skipped first")
    if "loss-scale" in flags:
        fixed = flags.get("loss-scale")
        if not flags.get("fp16"):
            raise ConfigError(f"--loss-scale {fixed:g} has no effect without --fp16; give both, or neither")
        # Never below the floor, and a window that no run reaches: the scale stays.
        fields |= {"train.initial_loss_scale": fixed, "train.min_loss_scale": fixed, "train.loss_scale_window": 2**62}
    mode = flags.get("recompute-granularity") or "none"
    if flags.get("recompute-activations"):
        mode = "selective"
    if flags.get("activation-checkpointing"):
        mode = "full"
    return {**fields, "train.activation_checkpointing": mode}


def schedule_rule(flags: Given, data_ranks: int, notices: Notices) -> Fields:
    """The learning rate's course."""
    style = flags.get("lr-decay-style")
    styles = {"constant": "constant", "linear": "linear", "cosine": "cosine", "WSD": "wsd"}
    if style not in styles:
        raise ConfigError(f"--lr-decay-style {style} is not offered; choose from {', '.join(styles)}")
    if flags.absent("lr"):
        notices.append("--lr is absent: the engine's 1e-5 is used")
    fields: Fields = {"train.lr_schedule": styles[style], "train.warmup_steps": _warmup(flags, notices)}
    if (length := _decay_steps(flags, notices)) is not None:
        fields["train.decay_steps"] = length
    if style != "WSD":
        return fields
    shape, decay = flags.get("lr-wsd-decay-style"), flags.get("lr-wsd-decay-iters")
    steps = length or flags.get("train-iters")
    if "lr-wsd-decay-style" not in flags:
        notices.append("WSD decays linearly here; Megatron's default is exponential (--lr-wsd-decay-style linear)")
    elif shape != "linear":
        raise ConfigError(f"--lr-wsd-decay-style {shape} is not offered; use linear")
    if decay is not None:
        if not steps or not 0 <= decay < steps:
            raise ConfigError(f"--lr-wsd-decay-iters {decay} needs --train-iters or --lr-decay-iters above it")
        fields["train.decay_ratio"] = decay / steps
    return fields


def _decay_steps(flags: Given, notices: Notices) -> int | None:
    """Length of the learning rate's course where it is not the whole run."""
    for length in ("iters", "samples"):
        given = flags.get(f"lr-decay-{length}")
        if given is not None and given == flags.get(f"train-{length}"):
            return None
    steps = _steps_of("lr-decay", flags, notices)
    if steps is not None and steps < 1:
        raise ConfigError(f"--lr-decay-iters is {steps}; it must be at least 1")
    return steps


def _warmup(flags: Given, notices: Notices) -> int:
    return _steps_of("lr-warmup", flags, notices) or 0


def _steps_of(name: str, flags: Given, notices: Notices) -> int | None:
    """Steps that `--NAME-iters` gives, or `--NAME-samples` rounded up to whole batches; None where neither is given."""
    iters, samples, batch = flags.get(f"{name}-iters"), flags.get(f"{name}-samples"), flags.get("global-batch-size")
    if not samples:
        return None if iters is None else int(iters)
    if iters:
        raise ConfigError(f"--{name}-iters and --{name}-samples are both given; keep one")
    if "rampup-batch-size" in flags or not batch:
        raise ConfigError(
            f"--{name}-samples {samples} needs one --global-batch-size for the whole run; use --{name}-iters"
        )
    steps = -(-samples // batch)
    if samples % batch:
        notices.append(f"--{name}-samples {samples} is rounded up to {steps:,} steps of {batch}")
    return int(steps)


def length_rule(flags: Given, data_ranks: int, notices: Notices) -> Fields:
    """Batches, the number of steps, seeds."""
    micro = flags.get("micro-batch-size")
    if micro is None:
        if not flags.absent("micro-batch-size"):
            return {}
        raise ConfigError("--micro-batch-size is missing; give the sequences one rank computes at a time, such as 1")
    batch = flags.get("global-batch-size")
    if batch is None:
        batch = micro * data_ranks
        if flags.absent("global-batch-size"):
            notices.append(
                f"--global-batch-size is absent: one micro-batch on each of {data_ranks} data ranks, {batch}"
            )
    fields: Fields = {"train.micro_batch_size": micro, "train.global_batch_size": batch}
    fields |= {"train.seed": flags.get("seed"), "data.seed": flags.get("seed")}
    if "rampup-batch-size" in flags:
        fields["train.batch_rampup"] = _rampup(flags.get("rampup-batch-size"))
    steps, samples = flags.get("train-iters"), flags.get("train-samples")
    if steps is not None and samples is not None:
        raise ConfigError("--train-iters and --train-samples are both given; keep one")
    for name, value in (("train-iters", steps), ("train-samples", samples)):
        if value is not None and value < 1:
            raise ConfigError(f"--{name} is {value}; it must be at least 1")
    if samples is not None:
        # As many whole steps as fit, a ramp-up's smaller ones included.
        fields["data.num_samples"] = samples
    elif steps is not None:
        fields["train.steps"] = steps
    return fields


def _rampup(words: list[str]) -> Fields:
    try:
        start, increment, samples = (int(word) for word in words)
    except ValueError:
        raise ConfigError(
            f"--rampup-batch-size {' '.join(words)} is not START INCREMENT SAMPLES, such as 16 8 300000"
        ) from None
    return {"start": start, "increment": increment, "samples": samples}


def data_rule(flags: Given, data_ranks: int, notices: Notices) -> Fields:
    """Sequence length, shards, sample order, document boundaries. What is missing is the caller's to say."""
    fields: Fields = {}
    length = flags.get("seq-length")
    if length is None and flags.absent("seq-length"):
        raise ConfigError("--seq-length is missing; give the tokens of one sample, such as 2048")
    if length is not None:
        fields["data.seq_length"] = length
    named = [name for name in ("data-path", "train-data-path", "mock-data") if flags.first([name])]
    if len(named) > 1:
        raise ConfigError(f"--{named[0]} and --{named[1]} are both given; keep one")
    if named and named[0] != "mock-data":
        fields["data.train"] = checked_path(named[0], flags.get(named[0]))
    if "valid-data-path" in flags:
        fields["data.valid"] = _valid_sets(flags.get("valid-data-path"), notices)
    if "split" in flags and named == ["train-data-path"]:
        raise ConfigError("--split divides what --data-path names; give it with --data-path only")
    kind = flags.get("dataloader-type")
    if kind == "external":
        raise ConfigError("--dataloader-type external is not offered; use single or cyclic")
    if "dataloader-type" in flags:
        fields["data.order"] = kind
    return {**fields, **_boundaries(flags, notices)}


def checked_path(flag: str, words: list[str]) -> list[str]:
    """The words of a blend, unchanged. Raises ConfigError when they are neither paths nor weights and paths."""
    try:
        parse_data_path(words)
    except SamplesError as error:
        raise ConfigError(f"--{flag}: {error}") from None
    return words


def _valid_sets(words: list[str], notices: Notices) -> dict[str, str]:
    pairs = parse_data_path(checked_path("valid-data-path", words))
    if any(weight is not None for _, weight in pairs):
        notices.append("--valid-data-path: each prefix is a set with its own loss, so its weights have no effect")
    sets: dict[str, str] = {}
    for path, _ in pairs:
        name = Path(path).name.removesuffix("_document")
        sets[name if name not in sets else path] = path
    return sets


def _boundaries(flags: Given, notices: Notices) -> Fields:
    fields: Fields = {"data.reset_attention": bool(flags.get("reset-attention-mask"))}
    if "reset-position-ids" in flags:
        fields["data.reset_positions"] = bool(flags.get("reset-position-ids"))
    elif fields["data.reset_attention"]:
        fields["data.reset_positions"] = False
    if flags.get("eod-mask-loss") and not fields["data.reset_attention"]:
        raise ConfigError(
            "--eod-mask-loss without --reset-attention-mask is not offered; give both: a document's first token then"
            " does not count"
        )
    if fields["data.reset_attention"] and not flags.get("eod-mask-loss"):
        notices.append(
            "--reset-attention-mask: the first token of a document, which nothing before it tells, does not count in"
            " the loss (Megatron: with --eod-mask-loss)"
        )
    return fields


def output_rule(flags: Given, data_ranks: int, notices: Notices) -> Fields:
    """Checkpoints kept, logs, evaluation, adapters."""
    keep = flags.get("most-recent-k")
    if flags.absent("save"):
        notices.append("--save is absent: checkpoints and logs go into runs/finetune")
    fields: Fields = {
        "output.dir": flags.get("save") or "runs/finetune",
        "output.keep": KEEP_ALL if keep in (-1, None) else keep,
        "output.tensorboard": "tensorboard-dir" in flags,
        "train.log_every": flags.get("log-interval") if "log-interval" in flags else 1,
        "train.eval_batches": None if flags.get("full-validation") else flags.get("eval-iters"),
    }
    if "tensorboard-dir" in flags:
        notices.append(f"--tensorboard-dir: TensorBoard files go into {fields['output.dir']}")
    if not flags.get("full-validation") and flags.get("eval-iters") < 1:
        fields |= {"train.eval_every": None, "train.eval_batches": 1}
        notices.append("--eval-iters 0: only one batch of each validation set is measured, before the first step")
    if "lora-targets" in flags:
        words = flags.get("lora-targets")
        fields["lora_targets"] = words[0] if words in (["all-linear"], ["all"]) else words
    return fields


RULES: tuple[Rule, ...] = (
    parallel_rule, pipeline_rule, precision_rule, schedule_rule, length_rule, data_rule, output_rule,
)  # fmt: skip
