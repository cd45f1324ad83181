"""How long a run is, in words, before it starts: steps, samples, tokens, epochs, and the course of the learning rate.

Tokens are expected values of the last phase's samples (exact where every row is full); an epoch is one pass over all
training sources without their weights.
"""

from __future__ import annotations

from collections.abc import Iterator

from mmdata_train.config import TrainingConfig
from mmdata_train.data.open import TrainingData
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
