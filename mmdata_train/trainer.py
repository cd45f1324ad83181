"""The training loop: batches in, steps, evaluations, checkpoints and logs out.

Generic over where batches come from. Every rank runs the same loop and takes the same decisions, since each depends
only on values that all ranks share: a stop wished for by one rank stops all after the same step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist

from mmdata_train.batch import Batch
from mmdata_train.checkpoint import Checkpointer
from mmdata_train.config import OutputConfig, TrainingConfig
from mmdata_train.errors import StepError
from mmdata_train.loss import IGNORED
from mmdata_train.metrics import Meter, RunLog
from mmdata_train.step import Engine
from mmdata_train.watch import STOP_FILE, BestWatch, SpikeWatch, StopWatch

ENDING_SKIPPED = 2
"""So many steps in a row whose gradients are not finite, and no good one after them, are taken for ruined weights: one
alone may be its batch's fault.
"""


class BatchStream(Protocol):
    """This data rank's batches in order, from a place that is a few JSON values."""

    def next_batch(self, global_rows: int) -> Batch:
        """This rank's rows of the next `global_rows` samples."""

    def state(self) -> dict[str, Any]:
        """Where the next batch begins: what a checkpoint keeps."""

    def describe(self) -> list[str]:
        """The documents of the last batch, as `file:line` where known."""


@dataclass(frozen=True, slots=True)
class ValidationSet:
    """A named set; `batches` starts it anew. Every rank must yield the same number of batches of one shape."""

    name: str
    batches: Callable[[], Iterable[Batch]]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How a run ended. steps: made in all, resumed ones included. loss: of the last step, nan where this start made
    none. skipped: steps of this start that changed no weights.
    """

    steps: int
    loss: float
    best: float | None
    stopped_by: str | None
    skipped: int = 0


def global_rows_at(training: TrainingConfig, consumed: int) -> int:
    """Sequences of the step that begins after `consumed` samples, batch ramp-up included (Megatron's rule)."""
    ramp = training.batch_rampup
    if ramp is None or consumed >= ramp.samples:
        return training.global_batch_size
    increments = (training.global_batch_size - ramp.start) // ramp.increment
    # Each size lasts an equal share of the ramp's samples.
    return min(training.global_batch_size, ramp.start + ramp.increment * (consumed * increments // ramp.samples))


def perplexity(loss: float) -> float:
    """exp(loss), inf beyond float64."""
    return math.exp(loss) if loss < 700 else math.inf


@dataclass(slots=True)
class Trainer:
    """One run. `loaded` says the weights came from a trained model; `sources` names the data sets rows come from."""

    engine: Engine
    stream: BatchStream
    checkpointer: Checkpointer
    log: RunLog
    meter: Meter
    output: OutputConfig
    validation: Sequence[ValidationSet] = ()
    sources: Sequence[str] = ()
    loaded: bool = False
    step: int = 0
    consumed: int = 0
    _spikes: SpikeWatch = field(default_factory=SpikeWatch)
    _best: BestWatch = field(default_factory=BestWatch)
    _saved_at: int = -1
    _skipped: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._best.delta = self.training.early_stop_delta

    @property
    def training(self) -> TrainingConfig:
        """The run's training settings."""
        return self.engine.training

    def resume(self, state: dict[str, Any]) -> None:
        """Take up the place a checkpoint's state names; the stream is placed by its maker."""
        self.step, self.consumed = int(state["step"]), int(state["consumed"])
        self._saved_at = self.step
        self._best.load(state["best"])

    def run(self) -> RunSummary:
        """Train to the last step or until a stop; saves at the end.

        Raises CheckpointError, and StepError where no step could be made; saves that were under way are ended first.
        """
        try:
            return self._run()
        except StepError:
            # Every rank raises it: the save of a good step must not end with the groups.
            self.checkpointer.wait()
            raise

    def _run(self) -> RunSummary:
        loss, begun = math.nan, self.step
        reason = self._stopped_early(again=True) if self.step else None
        if self.step == 0:
            self._evaluate()
        file = self.output.dir / STOP_FILE if dist.get_rank() == 0 else None
        with StopWatch(self.training.exit_after_minutes, file=file) as watch:
            while self.step < self.engine.total_steps and reason is None:
                rows = global_rows_at(self.training, self.consumed)
                batch = self.stream.next_batch(rows)
                self._refuse_untrained(batch)
                result = self.engine.train_step(batch, self.step, stop=watch.wants_to_stop())
                loss = result.loss
                self.step += 1
                self.consumed += rows
                self.log.step(self.meter.record(result, self.step, rows, self.engine.total_steps - self.step))
                if result.skipped:
                    self._skipped.append(self.step)
                self._log_sources(batch)
                if self._spikes.is_spike(loss) or result.non_finite:
                    self._log_documents(loss)
                reason = self._after_step()
                if result.stop:
                    reason = watch.reason or "another rank was asked to stop"
            # Still watched: a signal that comes now must not end the last save.
            if reason is not None:
                self.log.event(self.step, f"stopping: {reason}")
            self._tell_skipped(self.step - begun, natural_end=reason is None)
            if self._saved_at != self.step:
                self._save(best=False)
            self.checkpointer.wait()
        self.log.close()
        return RunSummary(
            self.step, loss, None if math.isinf(self._best.best) else self._best.best, reason, len(self._skipped)
        )

    def _after_step(self) -> str | None:
        """Evaluate and save where due; a reason to stop early, or None."""
        training, best = self.training, False
        last = self.step == self.engine.total_steps
        if training.eval_every and (self.step % training.eval_every == 0 or last):
            best = self._evaluate()
        due = bool(self.output.save_every and self.step % self.output.save_every == 0)
        if due and self.engine.skipped_in_a_row and not self.engine.searches_scale:
            self.log.event(
                self.step, "not saved: this step changed no weights; the last checkpoint stays", warning=True
            )
        elif best or due:
            self._save(best=best)
        return self._stopped_early()

    def _stopped_early(self, *, again: bool = False) -> str | None:
        """Why the evaluations so far end the run, or None; a run that is continued asks before its first step."""
        limit = self.training.early_stop_after
        if not limit or self._best.since < limit:
            return None
        least = f" by {self._best.delta:g} or more" if self._best.delta else ""
        reason = f"no better validation loss{least} in {limit} evaluations"
        return f"{reason}: stopped there before; to go on raise train.early_stop_after" if again else reason

    def _tell_skipped(self, made: int, *, natural_end: bool) -> None:
        """What the steps that changed no weights mean for the run. Raises StepError where it trained nothing, and where
        its last steps say that the weights, though finite, are of no use.
        """
        if not self._skipped:
            return
        several = f"{len(self._skipped)} of {made} steps changed no weights, the first was step {self._skipped[0]}"
        in_a_row = min(self.engine.skipped_in_a_row, made)
        nothing = in_a_row == made and natural_end
        if nothing or (in_a_row >= ENDING_SKIPPED and not self.engine.searches_scale):
            told = "not one had finite gradients, so nothing was trained" if nothing else (
                f"the gradients of the last {in_a_row} were not finite, as those of weights that an update ruined"
            )  # fmt: skip
            raise StepError(
                f"{several}: {told}, and nothing more is saved; the last checkpoint stays in use. Lower train.lr"
                f" (now {self.training.lr}), look at the data, or use precision bf16"
            )
        last = self._skipped[-1] == self.step
        kept = f"; the weights are those of step {self._last_good()}" if last else ""
        self.log.event(self.step, f"{several}{kept}", warning=True)

    def _last_good(self) -> int:
        step = self.step
        while step in self._skipped:
            step -= 1
        return step

    def _evaluate(self) -> bool:
        """Loss and perplexity of each validation set; True when the set that decides got better."""
        values = {}
        for chosen in self.validation:
            total, tokens = 0.0, 0
            for index, batch in enumerate(chosen.batches()):
                if self.training.eval_batches and index >= self.training.eval_batches:
                    break
                nll, counted = self.engine.evaluate(batch)
                total, tokens = total + nll, tokens + counted
            if not tokens:
                raise StepError(f"validation set {chosen.name} has no counted token; check its spans and seq_length")
            loss = total / tokens
            values[chosen.name] = {"loss": loss, "perplexity": perplexity(loss), "tokens": float(tokens)}
        self.log.evaluation(self.step, values)
        self.meter.restart()
        if not values:
            return False
        decides = self.output.best_by or next(iter(values))
        if decides not in values:
            raise StepError(f"output.best_by is {decides!r}; validation sets: {', '.join(values)}")
        better = self._best.note(values[decides]["loss"])
        return better and self.step > 0

    def _save(self, *, best: bool) -> None:
        self.engine.require_finite(self.step)
        state = {
            "step": self.step,
            "consumed": self.consumed,
            "data": self.stream.state(),
            "best": self._best.state(),
        }
        self.checkpointer.save(self.engine, state, best=best)
        self._saved_at = self.step
        self.log.event(self.step, f"saving {self.checkpointer.folder}" + (" (best so far)" if best else ""))
        self.meter.restart()

    def _refuse_untrained(self, batch: Batch) -> None:
        """A model loaded as trained that knows nothing was loaded wrong: the run stops before the first update."""
        if self.step or not self.loaded or self.training.allow_random:
            return
        nll, tokens = self.engine.evaluate(batch)
        chance = math.log(self.engine.model.config.vocab_size)
        if tokens and nll / tokens > 0.97 * chance:
            raise StepError(
                f"the loaded model's loss on the first batch is {nll / tokens:.3f}, no better than guessing"
                f" (ln(vocabulary) = {chance:.3f}): its weights know nothing of this data; check model and tokenizer,"
                " or set train.allow_random: true"
            )

    def _log_sources(self, batch: Batch) -> None:
        """Mean loss of each of several sources in the step at hand; a collective where rows name their source."""
        if batch.sources is None or len(self.sources) < 2 or self.step % self.training.log_every:
            return
        mesh, nll = self.engine.model.mesh, self.engine.row_losses
        sums = torch.zeros(2, len(self.sources), dtype=torch.float64, device=mesh.device)
        if nll is not None and mesh.rank_on("tensor") == 0:
            sources = batch.sources.to(mesh.device)
            counted = (batch.labels.to(mesh.device) != IGNORED).sum(dim=1).double()
            sums[0].index_add_(0, sources, nll.double())
            sums[1].index_add_(0, sources, counted)
        totals, tokens = mesh.sum(sums).tolist()
        present = {name: (t / n, int(n)) for name, t, n in zip(self.sources, totals, tokens, strict=True) if n}
        self.log.sources(self.step, present)

    def _log_documents(self, loss: float) -> None:
        """Where the documents of a striking step came from, gathered from all data ranks; a collective."""
        mesh = self.engine.model.mesh
        own = self.stream.describe() if mesh.speaks_for_data else []
        gathered: list[list[str]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(gathered, own)
        names = [name for part in gathered for name in part]
        self.log.event(self.step, f"loss {loss:.4f} stands out; documents: {', '.join(names) or 'unknown'}")
