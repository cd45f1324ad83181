"""How many samples so many steps take and how many steps so many samples give, from the start or a checkpoint on.

Batch ramp-up included. A run that is continued with another batch counts what is behind it as it was and only what is
left by the batch of now. Costs one turn of a loop for each size of the ramp-up, whatever the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mmdata_train.config import TrainConfig, TrainingConfig
from mmdata_train.errors import ConfigError
from mmdata_train.trainer import global_rows_at


@dataclass(frozen=True, slots=True)
class Done:
    """What is behind a run: steps made, and the samples they consumed."""

    steps: int = 0
    consumed: int = 0

    @classmethod
    def of(cls, state: Mapping[str, Any] | None) -> Done:
        """As a checkpoint's state says; nothing without one."""
        return cls() if state is None else cls(int(state["step"]), int(state["consumed"]))


def _stretches(training: TrainingConfig, consumed: int) -> Iterator[tuple[int, int | None]]:
    """(global batch, steps that have it) from `consumed` on; None: all that follow."""
    ramp = training.batch_rampup
    while ramp is not None and consumed < ramp.samples:
        rows = global_rows_at(training, consumed)
        sizes = max(1, (training.global_batch_size - ramp.start) // ramp.increment)
        # The first sample at which the next size begins, rounded up.
        end = -(-(consumed * sizes // ramp.samples + 1) * ramp.samples // sizes)
        steps = -(-(min(end, ramp.samples) - consumed) // rows)
        yield rows, steps
        consumed += rows * steps
    yield training.global_batch_size, None


def samples_of_steps(training: TrainingConfig, steps: int, done: Done = Done()) -> int:
    """Samples consumed once the run has made so many steps, those behind it included."""
    left, consumed = max(0, steps - done.steps), done.consumed
    for rows, most in _stretches(training, consumed):
        taken = left if most is None else min(left, most)
        left, consumed = left - taken, consumed + taken * rows
    return consumed


def count_steps(training: TrainingConfig, samples: int, done: Done = Done()) -> int:
    """Whole steps of a run of so many samples, those behind it included. Raises ConfigError when there is none."""
    steps, left = done.steps, samples - done.consumed
    for rows, most in _stretches(training, done.consumed):
        fit = max(0, left) // rows
        taken = fit if most is None else min(fit, most)
        steps, left = steps + taken, left - taken * rows
        if taken != most:
            break
    if not steps:
        raise ConfigError(
            f"{samples:,} samples are fewer than one global batch of {training.global_batch_size};"
            " lower train.global_batch_size or data.seq_length, or add data"
        )
    return steps


def check_supply(config: TrainConfig, samples: int, done: Done = Done()) -> None:
    """Refuse `train.steps` that need more samples than `data.num_samples` gives. Raises ConfigError with both."""
    training, data = config.train, config.data
    if training.steps is None or data.num_samples is None or data.order == "cyclic":
        return
    needed = samples_of_steps(training, training.steps, done)
    # A padded tail makes a last step of what is left.
    missing = needed - samples - (training.global_batch_size - 1 if data.tail == "pad" else 0)
    if missing > 0:
        raise ConfigError(
            f"train.steps {training.steps:,} needs {needed:,} samples, but data.num_samples {data.num_samples:,} gives"
            f" {samples:,}: that is {count_steps(training, samples, done):,} steps; lower train.steps to it, or leave"
            " data.num_samples out"
        )
