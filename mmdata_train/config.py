"""The configuration of a run: frozen dataclasses, read from YAML and `--set`, written back as YAML.

Each class checks what it can by itself; what depends on several sections, the model or the number of ranks is checked
by `config_checks`. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mmdata_train.config_io import apply_overrides, build, load_mapping
from mmdata_train.data_config import DATA_LIMITS, LOADING_LIMITS, DataConfig
from mmdata_train.errors import ConfigError, LayoutError
from mmdata_train.layout import ParallelLayout
from mmdata_train.limits import (
    AT_LEAST_1,
    CHANCE,
    LOSS_SCALE,
    MOST_RANKS,
    MOST_SEQUENCES,
    MOST_WIDTH,
    SHARE,
    Limit,
    check_numbers,
    divisors,
)
from mmdata_train.lora.settings import ALPHA, PLUS_RATIO, LoraConfig
from mmdata_train.model.config import MODEL_LIMITS, ModelConfig
from mmdata_train.schedules import SCHEDULES, ScheduleName

_DEGREE = Limit(1, MOST_RANKS)
_BATCH = Limit(1, MOST_SEQUENCES, hint="it counts sequences of data.seq_length tokens")
_OFTEN = Limit(1, hint="it counts steps; null for never")

_PARALLEL = {
    **dict.fromkeys(("tensor", "pipeline", "data", "context", "shard_size", "virtual_stages"), _DEGREE),
    "timeout_minutes": Limit(0, 60 * 24 * 365, above=True, hint="10 is usual, more where a step takes longer"),
}
_RAMPUP = {"start": _BATCH, "increment": _BATCH, "samples": Limit(1, hint="remove batch_rampup for none")}
_OPTIM = {
    "lr": Limit(0, hint="such as 1e-5"),
    "min_lr": Limit(0, hint="such as 0, or a tenth of train.lr"),
    "warmup_steps": Limit(0, hint="0 for none"),
    "warmup_ratio": SHARE,
    "decay_steps": Limit(1, hint="null for all steps"),
    "decay_ratio": SHARE,
    "weight_decay": Limit(0, hint="0 for none, 0.01 to 0.1 are usual"),
    "beta1": Limit(0, 1, below=True, hint="in [0, 1), 0.9 is usual"),
    "beta2": Limit(0, 1, below=True, hint="in [0, 1), 0.95 to 0.999 are usual"),
    "eps": Limit(0, 1, above=True, hint="1e-8 is usual; 0 would divide by zero"),
    "clip_grad": Limit(0, hint="1 is usual, 0 turns clipping off"),
}
_TRAINING = _OPTIM | {
    "micro_batch_size": _BATCH,
    "global_batch_size": _BATCH,
    "steps": Limit(1, hint="null for train.epochs"),
    "epochs": Limit(0, above=True, hint="such as 1 or 0.5"),
    "seed": Limit(0),
    "dropout": CHANCE,
    "initial_loss_scale": LOSS_SCALE,
    "min_loss_scale": LOSS_SCALE,
    "loss_scale_window": AT_LEAST_1,
    "loss_scale_hysteresis": AT_LEAST_1,
    "max_skipped_steps": Limit(1, hint="it counts non-finite steps in a row after which the run stops"),
    "log_every": Limit(1, hint="it counts steps"),
    "eval_every": _OFTEN,
    "eval_batches": Limit(1, hint="null for all batches of each set"),
    "early_stop_after": Limit(1, hint="it counts evaluations; null for never"),
    "early_stop_delta": Limit(0, hint="it is in nats"),
    "exit_after_minutes": Limit(0, hint="null for no limit of time"),
    "peak_tflops": Limit(0, above=True, hint="null where the device is known"),
}
_OUTPUT = {"save_every": Limit(1, hint="it counts steps; null saves at the end only"), "keep": AT_LEAST_1}
_ADAPTERS = {
    "lora_rank": Limit(0, MOST_WIDTH, hint="0 or null for full fine-tuning"),
    "lora_alpha": ALPHA,
    "lora_dropout": CHANCE,
    "lora_plus_ratio": PLUS_RATIO,
}
LIMITS = {
    f"{prefix}{name}": limit
    for prefix, limits in (
        ("model.", MODEL_LIMITS), ("data.", DATA_LIMITS), ("data.loading.", LOADING_LIMITS), ("parallel.", _PARALLEL),
        ("train.", _TRAINING), ("output.", _OUTPUT), ("", _ADAPTERS),
    )
    for name, limit in limits.items()
}  # fmt: skip
"""The range of every number by its dotted name, as a YAML file or `--set` gives it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """How ranks share the work. `data: null` takes what tensor x pipeline leave over.

    zero_stage 0 replicates everything over data ranks; 1 shards optimizer state; 2 also gradients; 3 also parameters.
    shard_size: data ranks that share one copy (null: all); smaller gives hybrid sharding with replicas of the group.
    stage_layers: layers of each pipeline stage (null: split so that the head's weight counts).
    parity_check: before the first run of a layout of several ranks, compare it with one process on a small model.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int | None = None
    context: int = 1
    zero_stage: Literal[0, 1, 2, 3] = 1
    shard_size: int | None = None
    sequence_parallel: bool | None = None
    schedule: ScheduleName = "1f1b"
    virtual_stages: int = 1
    stage_layers: tuple[int, ...] | None = None
    overlap: bool = True
    cpu_offload: bool = False
    timeout_minutes: float = 10.0
    parity_check: bool = True

    def __post_init__(self) -> None:
        check_numbers(self, "parallel.", _PARALLEL)
        if self.context > 1:
            raise ConfigError(
                f"parallel.context is {self.context}: splitting a sequence over ranks is not offered;"
                " use parallel.tensor with sequence_parallel, activation_checkpointing: full, or a shorter seq_length"
            )
        if self.sequence_parallel and self.tensor == 1:
            raise ConfigError("parallel.sequence_parallel needs parallel.tensor above 1; remove it or set tensor")
        rule = SCHEDULES[self.schedule]
        if rule.folded and self.virtual_stages != 2:
            raise ConfigError(f"parallel.schedule {self.schedule} holds 2 stages a rank; set virtual_stages: 2")
        if not rule.several and self.virtual_stages > 1:
            many = ", ".join(name for name, other in SCHEDULES.items() if other.several)
            raise ConfigError(f"parallel.virtual_stages above 1 needs one of the schedules {many}")
        if self.schedule in ("interleaved", "looped_bfs") and self.pipeline > 1 and self.virtual_stages < 2:
            raise ConfigError(f"parallel.schedule {self.schedule} needs virtual_stages of at least 2; or use 1f1b")

    @property
    def splits_sequence(self) -> bool:
        """Whether norms and residuals hold a share of the sequence: the default wherever there is a tensor axis."""
        return self.tensor > 1 if self.sequence_parallel is None else self.sequence_parallel

    @property
    def stages(self) -> int:
        """Pipeline stages over all ranks."""
        return self.pipeline * self.virtual_stages if self.pipeline > 1 else 1

    def layout(self, world_size: int) -> ParallelLayout:
        """The rank grid. Raises LayoutError when the degrees do not make the world."""
        found = ParallelLayout.for_world(world_size, self.tensor, self.pipeline, self.context)
        if self.data is not None and self.data != found.data:
            raise LayoutError(
                f"tensor {self.tensor} x pipeline {self.pipeline} x data {self.data} is"
                f" {self.tensor * self.pipeline * self.data} ranks but there are {world_size};"
                f" set parallel.data to {found.data} or null"
            )
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchRampup:
    """The global batch starts at `start` and grows by `increment` in equal steps over the first `samples` samples."""

    start: int
    increment: int
    samples: int

    def __post_init__(self) -> None:
        check_numbers(self, "train.batch_rampup.", _RAMPUP)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """AdamW and its schedule, as the optimizer needs them. Rates are per step; betas, eps as in torch.

    decay_steps: the learning rate runs its course, warm-up included, over so many steps (null: all), `min_lr` after it.
    """

    lr: float = 1e-5
    min_lr: float = 0.0
    lr_schedule: Literal["cosine", "linear", "wsd", "constant"] = "cosine"
    warmup_steps: int = 0
    warmup_ratio: float | None = None
    decay_steps: int | None = None
    decay_ratio: float = 0.1
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    clip_grad: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self, "train.", self._limits())
        if self.min_lr > self.lr:
            raise ConfigError(f"train.min_lr {self.min_lr} is above train.lr {self.lr}")
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise ConfigError(
                f"train.decay_steps is {self.decay_steps}, which leaves nothing after {self.warmup_steps} steps of"
                " warm-up; raise it above train.warmup_steps, or set null for all steps"
            )
        if self.warmup_ratio is not None and self.warmup_steps:
            raise ConfigError("train.warmup_steps and train.warmup_ratio are both set; remove one")

    def _limits(self) -> Mapping[str, Limit]:
        return _OPTIM


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig(OptimConfig):
    """The `train` section: batches, length, precision. Batches are in sequences of `data.seq_length` tokens.

    steps, or epochs: passes over all training entries, from which the steps follow (neither: one epoch). eval_every: in
    steps, null evaluates at step 0 only. early_stop_after: evaluations in which the deciding set's loss did not fall by
    more than early_stop_delta. exit_after_minutes: save and end then. allow_random: go on though a loaded model's first
    loss is no better than guessing. peak_tflops: of the device, for MFU, where it is not known.
    """

    micro_batch_size: int = 1
    global_batch_size: int = 1
    steps: int | None = None
    epochs: float | None = None
    batch_rampup: BatchRampup | None = None
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    compile: bool = False
    deterministic: bool = False
    seed: int = 1234
    dropout: float | None = None
    initial_loss_scale: float = 65536.0
    min_loss_scale: float = 1.0
    loss_scale_window: int = 1000
    loss_scale_hysteresis: int = 2
    max_skipped_steps: int = 10
    log_every: int = 1
    eval_every: int | None = None
    eval_batches: int | None = None
    early_stop_after: int | None = None
    early_stop_delta: float = 0.0
    exit_after_minutes: float | None = None
    allow_random: bool = False
    peak_tflops: float | None = None

    def __post_init__(self) -> None:
        OptimConfig.__post_init__(self)
        if self.early_stop_after is not None and self.eval_every is None:
            raise ConfigError("train.early_stop_after counts evaluations; set train.eval_every")
        if self.steps is not None and self.epochs is not None:
            raise ConfigError("train.steps and train.epochs are both set; the one follows from the other, remove one")
        if self.precision == "fp16" and self.min_loss_scale > self.initial_loss_scale:
            raise ConfigError(
                f"train.min_loss_scale {self.min_loss_scale:g} is above train.initial_loss_scale"
                f" {self.initial_loss_scale:g}; lower it to at most that"
            )

    def _limits(self) -> Mapping[str, Limit]:
        return _TRAINING

    def micro_batches(self, data_ranks: int, global_batch: int | None = None) -> int:
        """Micro-batches of one step on each data rank. Raises ConfigError naming the batch sizes that would work."""
        wanted = self.global_batch_size if global_batch is None else global_batch
        unit = self.micro_batch_size * data_ranks
        if wanted % unit:
            below, above = wanted // unit * unit, (wanted // unit + 1) * unit
            sizes = divisors(wanted // data_ranks)[:12] if wanted % data_ranks == 0 else []
            raise ConfigError(
                f"train.global_batch_size {wanted} is not a multiple of micro_batch_size {self.micro_batch_size} x data"
                f" {data_ranks} = {unit}; use {f'{below} or ' if below else ''}{above}"
                + (f", or a micro_batch_size of {', '.join(map(str, sizes))}" if sizes else "")
            )
        return wanted // unit


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputConfig:
    """Where a run writes. keep: checkpoints kept beside `best`; save_every and keep count steps and checkpoints.

    best_by: the validation set that decides which checkpoint is best (null: the first). wandb: a project of Weights &
    Biases to log to as well; its package must be installed.
    """

    dir: Path = Path("runs/finetune")
    save_every: int | None = None
    keep: int = 3
    async_save: bool = True
    tensorboard: bool = False
    wandb: str | None = None
    best_by: str | None = None

    def __post_init__(self) -> None:
        check_numbers(self, "output.", _OUTPUT)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """One run. `model` is a Hugging Face folder (its weights are the start) or a shape (random weights).

    start_from: a checkpoint of this engine, or a run's folder for its newest one, whose weights are the start instead;
    optimizer, place and random state begin anew at step 0. A run found in the output folder goes before it. With
    lora_rank, weights of a full run are the frozen base, and adapters of a LoRA run are where the adapters start.

    lora_rank above 0 trains low-rank adapters and nothing else; the other lora_ fields are LoraConfig's.
    lora_from: a PEFT adapter folder to start from; lora_merge_first adds it to the frozen base and starts new adapters.
    added_tokens: new tokens, whose embedding rows are trained beside LoRA.
    """

    model: str | ModelConfig
    tokenizer: str | None = None
    start_from: Path | None = None
    data: DataConfig = field(default_factory=DataConfig)
    parallel: ParallelConfig = ParallelConfig()
    train: TrainingConfig = TrainingConfig()
    output: OutputConfig = OutputConfig()
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_targets: tuple[str, ...] | str | None = None
    lora_dropout: float | None = None
    lora_rslora: bool | None = None
    lora_dora: bool | None = None
    lora_plus_ratio: float | None = None
    lora_from: Path | None = None
    lora_merge_first: bool = False
    added_tokens: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_numbers(self, "", _ADAPTERS)
        if self.lora_merge_first and self.lora_from is None:
            raise ConfigError("lora_merge_first needs lora_from, the adapter folder to merge")
        if self.lora is None and self.added_tokens:
            raise ConfigError("added_tokens are trained beside LoRA; set lora_rank, or extend the model's folder first")
        if self.lora is None and self.lora_from is not None:
            raise ConfigError("lora_from starts adapters; set lora_rank (that of the adapter or above)")
        if self.data.train:
            self._check_validation()

    def _check_validation(self) -> None:
        """What counts on a validation set has one."""
        names, best = self.data.validation_names, self.output.best_by
        remedy = "name one under data.valid, such as valid: {law: law_valid_text_document}"
        if best is not None and best not in names:
            known = f"choose from {', '.join(names)}" if names else f"there is none; {remedy}, or remove it"
            raise ConfigError(f"output.best_by is {best!r}, which is no validation set; {known}")
        if self.train.early_stop_after is not None and not names:
            raise ConfigError(
                f"train.early_stop_after is {self.train.early_stop_after}, but there is no validation set to judge by;"
                f" {remedy}, or remove it"
            )

    @property
    def lora(self) -> LoraConfig | None:
        """The adapters of the run; None for full fine-tuning (no lora_ field set, or lora_rank: 0)."""
        names = ("rank", "alpha", "targets", "dropout", "rslora", "dora", "plus_ratio")
        given = {name: value for name in names if (value := getattr(self, f"lora_{name}")) is not None}
        return LoraConfig(**given) if given and self.lora_rank != 0 else None


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> TrainConfig:
    """Read a YAML file, apply `--set` overrides, check. Raises ConfigError naming the key."""
    return build(TrainConfig, apply_overrides(load_mapping(path), overrides))
