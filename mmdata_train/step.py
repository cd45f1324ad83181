"""One training step: count tokens, forward and backward, norm, clip, update. The same code in every layout.

The number of counted tokens is known before the first forward pass, so the loss is the sum over tokens divided by the
global number, however the batch was cut. One small sum over the world settles loss, norm and finiteness for every
rank. A step whose gradients are not finite is skipped, counted, and its parameter named: weights, Adam's state and its
count stay those of the last good step. An update that leaves weights which are not finite ends the run.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mmdata_train.batch import Batch
from mmdata_train.config import ParallelConfig, TrainingConfig
from mmdata_train.errors import StepError
from mmdata_train.execute import Executor, SequentialExecutor
from mmdata_train.gradients import (
    LossScaler,
    clip_factor,
    first_non_finite,
    first_non_finite_tensor,
    scale_gradients,
    sum_of_squares,
)
from mmdata_train.optim import build_optimizer, learning_rate
from mmdata_train.parallelize import ModelParts
from mmdata_train.pipeline import PipelineExecutor
from mmdata_train.tied import TiedCopies


@dataclass(frozen=True, slots=True)
class StepResult:
    """What every rank knows after a step. loss is nats per counted token; grad_norm is before clipping."""

    loss: float
    grad_norm: float
    tokens: int
    lr: float
    loss_scale: float
    skipped: bool = False
    non_finite: str | None = None
    stop: bool = False


@dataclass(slots=True)
class Engine:
    """Model parts, optimizer and the state between steps."""

    model: ModelParts
    parallel: ParallelConfig
    training: TrainingConfig
    seq_length: int
    total_steps: int
    optimizer: torch.optim.Optimizer | None = field(init=False)
    scaler: LossScaler = field(init=False)
    tied: TiedCopies = field(init=False)
    skipped_in_a_row: int = 0
    updates: int = 0
    row_losses: Tensor | None = None
    _executors: dict[int, Executor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        training = self.training
        lora = self.model.lora
        self.optimizer = build_optimizer(
            self.model.named_parameters(), training, 1.0 if lora is None else lora.plus_ratio
        )
        self.tied = TiedCopies.find(self.model, self.parallel.schedule)
        fp16 = training.precision == "fp16"
        self.scaler = LossScaler(
            scale=training.initial_loss_scale if fp16 else 1.0,
            minimum=training.min_loss_scale,
            window=training.loss_scale_window,
            hysteresis=training.loss_scale_hysteresis,
            dynamic=fp16,
            patience=training.loss_scale_hysteresis,
        )

    @property
    def searches_scale(self) -> bool:
        """fp16 needs some overflows to find its scale; only at the smallest scale do they mean trouble."""
        return self.scaler.dynamic and self.scaler.scale > self.scaler.minimum

    def executor(self, rows: int) -> Executor:
        """The executor for batches of `rows` rows on this data rank; made once for each size."""
        if rows not in self._executors:
            if self.model.num_stages == 1:
                self._executors[rows] = SequentialExecutor(self.model, self.training.micro_batch_size)
            else:
                count = rows // self.training.micro_batch_size
                self._executors[rows] = PipelineExecutor(
                    self.model, self.parallel, self.training, count, self.seq_length
                )
        return self._executors[rows]

    def parameters(self) -> list[nn.Parameter]:
        """Weights of this rank that count once: a tied head's second copy is left out."""
        return [weight for _, weight in self.model.named_parameters() if not self.tied.is_second_copy(weight)]

    def train_step(self, batch: Batch, step: int, *, stop: bool = False) -> StepResult:
        """Step `step` (0-based). Raises StepError after `max_skipped_steps` non-finite steps in a row, and at once
        where the weights are what is not finite.

        stop: this rank wants the run to end; the result says on every rank whether any rank does. `row_losses` holds
        the step's nll by row afterwards, where the head is.
        """
        training, mesh = self.training, self.model.mesh
        batch = batch.to(mesh.device)
        tokens = self._count_tokens(batch)
        rate = learning_rate(training, step, self.total_steps)
        scale = self.scaler.scale
        self.model.set_loss_scale(scale / max(tokens, 1))
        seed_dropout(training.seed, step, mesh.data_rank, mesh.rank_on("pipeline"))
        nll = self.executor(batch.tokens.shape[0]).train(batch)
        self.tied.sum_gradients()
        self.row_losses = nll
        wish = torch.tensor(float(stop), dtype=torch.float64, device=mesh.device)
        squares, total, stops = self._sum(sum_of_squares(self.parameters(), mesh.device), self._own_sum(nll), wish)
        norm = math.sqrt(squares) / scale if math.isfinite(squares) and squares >= 0 else float("nan")
        finite = math.isfinite(norm) and math.isfinite(total)
        culprit = None
        if finite and tokens:
            self._update(clip_factor(norm, training.clip_grad) / scale, rate)
        elif not finite:
            self.require_finite(step)
            culprit = self._name_culprit()
        self._zero_gradients()
        if tokens:
            self.scaler.update(finite)
        self._watch(finite, step, culprit)
        loss = total / tokens if tokens else 0.0
        return StepResult(loss, norm, tokens, rate, scale, not (finite and tokens), culprit, stops > 0)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[float, int]:
        """(sum of nll in nats, counted tokens) over all data ranks; weights untouched."""
        batch = batch.to(self.model.mesh.device)
        self.model.train(False)
        nll = self.executor(batch.tokens.shape[0]).evaluate(batch)
        self.model.train(True)
        # Without a backward pass nothing drops the gathered parameters, and they would be taken for the shards.
        self.model.reshard()
        tokens = self._count_tokens(batch)
        return self._sum(self._own_sum(nll))[0], tokens

    def require_finite(self, step: int) -> None:
        """Raises StepError naming the first weight, or state of Adam, that is not finite after `step` steps; a
        collective. One read of this rank's shards: asked before each save and after a step that was not finite, so
        that such weights are neither kept nor trained on.
        """
        own: list[tuple[str, Tensor]] = []
        for name, weight in self.model.named_parameters():
            own.append((name, weight))
            state = {} if self.optimizer is None else self.optimizer.state.get(weight, {})
            own += [(f"{name} ({part})", value) for part, value in state.items() if isinstance(value, Tensor)]
        found = self._first_named(first_non_finite_tensor(own))
        if found is not None:
            raise StepError(
                f"step {step}: {found} is not finite: an update of this run was too large. Nothing of it is saved, the"
                f" last checkpoint stays in use; lower train.lr (now {self.training.lr}) or train.clip_grad (now"
                f" {self.training.clip_grad}), or warm up longer"
            )

    def _update(self, factor: float, rate: float) -> None:
        # Counted here and not read off Adam: a stage without trainable weights has no Adam, and may be rank 0's.
        self.updates += 1
        scale_gradients((weight for _, weight in self.model.named_parameters()), factor)
        if self.optimizer is None:
            return
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["lr_factor"]
        self.optimizer.step()

    def _zero_gradients(self) -> None:
        for _, weight in self.model.named_parameters():
            weight.grad = None

    def _count_tokens(self, batch: Batch) -> int:
        own = batch.counted() if self.model.mesh.speaks_for_data else batch.counted() * 0
        return int(self.model.mesh.sum(own).item())

    def _own_sum(self, nll: Tensor | None) -> Tensor:
        """This rank's part of the sum over all samples: tensor peers hold the same values, one of them speaks."""
        mesh = self.model.mesh
        if nll is None or mesh.rank_on("tensor") != 0:
            return torch.zeros((), dtype=torch.float64, device=mesh.device)
        return nll.double().sum()

    def _sum(self, *values: Tensor) -> list[float]:
        summed: list[float] = self.model.mesh.sum(torch.stack(values)).tolist()
        return summed

    def _name_culprit(self) -> str | None:
        """The parameter the lowest rank found; a collective."""
        return self._first_named(first_non_finite(self.model.named_parameters()))

    @staticmethod
    def _first_named(own: str | None) -> str | None:
        """The lowest rank's name that is not None; a collective."""
        found: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(found, own)
        return next((name for name in found if name is not None), None)

    def _watch(self, finite: bool, step: int, culprit: str | None) -> None:
        self.skipped_in_a_row = 0 if finite else self.skipped_in_a_row + 1
        limit = self.training.max_skipped_steps
        if self.skipped_in_a_row >= limit and not self.searches_scale:
            raise StepError(
                f"step {step}: gradients were not finite {self.skipped_in_a_row} steps in a row, first in {culprit};"
                f" lower train.lr (now {self.training.lr}), check the data of these steps, or use precision bf16"
            )


def seed_dropout(seed: int, step: int, data_rank: int, pipeline_rank: int) -> None:
    """Random state as a function of the step: tensor peers share masks, data ranks and stages differ, resume is
    exact.
    """
    text = f"{seed}:{step}:{data_rank}:{pipeline_rank}".encode()
    torch.manual_seed(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1)
