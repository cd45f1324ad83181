"""How long a run is, in words, before it starts: steps, samples, tokens, epochs, and the course of the learning rate.

Tokens are expected values of the last phase's samples (exact where every row is full); an epoch is one pass over all
training sources without their weights.
"""

from __future__ import annotations

from collections.abc import Iterator

from mmdata_train.config import TrainConfig, TrainingConfig
from mmdata_train.data.open import TrainingData
from mmdata_train.lora.settings import check_rank
from mmdata_train.model.config import ModelConfig
from mmdata_train.optim import warmup_steps


def course_lines(training: TrainingConfig, data: TrainingData, steps: int) -> Iterator[str]:
    """What follows from `train.steps` or `train.epochs`."""
    shares = data.shares()
    samples = sum(share.draws for share in shares)
    whole = sum(share.draws / share.passes for share in shares if share.passes)
    tokens, counted = sum(share.token_count for share in shares), sum(share.counted_count for share in shares)
    length = data.samples.seq_length
    cause = "as given" if training.steps is not None else f"from {training.epochs or 1.0:g} epochs"
    yield (
        f"{steps:,} steps ({cause}) of {training.global_batch_size:,} sequences of {length:,} tokens:"
        f" {samples:,} samples, {tokens:,} tokens, {counted:,} of them counted"
    )
    yield (
        f"{whole / training.global_batch_size:,.2f} steps an epoch, {samples / max(whole, 1e-9):.2f} epochs; "
        + course_of_rate(training, steps)
    )


def notices(config: TrainConfig, model: ModelConfig, steps: int) -> Iterator[str]:
    """Settings that are legal but have no effect, or seldom the one that is meant. Raises what check_rank raises."""
    training, length = config.train, config.data.seq_length
    warmup = warmup_steps(training, steps)
    if warmup >= steps:
        yield (
            f"warm-up takes {warmup:,} of {steps:,} steps: the rate reaches {training.lr * min(1, steps / warmup):g} at"
            f" the last step and never follows {training.lr_schedule}; lower train.warmup_steps"
        )
    if model.positions == "rope" and length > model.max_positions:
        yield (
            f"data.seq_length {length:,} is beyond the {model.max_positions:,} positions the model was made for"
            " (max_positions): rotary positions go on, but the model has not learned them; set model.rope_scaling, or"
            " use a shorter length"
        )
    if training.eval_every is not None and not config.data.validation_names:
        yield "train.eval_every has no effect: there is no validation set; name one under data.valid"
    if config.lora is not None:
        yield from check_rank(config.lora, model)


def course_of_rate(training: TrainingConfig, steps: int) -> str:
    """Warm-up and schedule of the learning rate over a run of `steps`."""
    warmup = warmup_steps(training, steps)
    end = steps if training.decay_steps is None else training.decay_steps
    rise = f"{warmup:,} steps of warm-up to {training.lr:g}" if warmup else f"{training.lr:g} from the first step"
    if training.lr_schedule == "constant":
        return f"learning rate: {rise}, then constant"
    if training.lr_schedule == "wsd":
        start = max(warmup, end - round(training.decay_ratio * end))
        return f"learning rate: {rise}, linear to {training.min_lr:g} from step {start:,} to {end:,}"
    return f"learning rate: {rise}, {training.lr_schedule} to {training.min_lr:g} at step {end:,}"
