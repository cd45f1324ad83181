"""What is reported each step: speed, model FLOPs utilisation, memory; to the log, a JSONL file and TensorBoard.

Operations a token (forward and backward): 6 x weights of all matrices but the embedding, plus 12 x layers x heads x
head_dim x length for attention scores (causality not subtracted), as in PaLM (arXiv 2204.02311, appendix B).
With adapters 4 in place of 6: a frozen weight has no gradient of its own, and the adapters' share is left out.
Recomputation does not count as work done.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch

from mmdata.errors import OutputError
from mmdata.indexed.durable import disk_faults
from mmdata_train.errors import ConfigError
from mmdata_train.json_text import json_text
from mmdata_train.model.config import ModelConfig
from mmdata_train.step import StepResult

logger = logging.getLogger("mmdata_train")

PEAK_TFLOPS = {"H200": 989.0, "H100 NVL": 835.0, "H100 PCIe": 756.0, "H100": 989.0, "A100": 312.0, "B200": 2250.0}
"""Dense bf16 peaks by device name, TFLOP/s, as NVIDIA's data sheets give them; the first name contained wins."""


def flops_per_token(model: ModelConfig, seq_length: int, *, frozen: bool = False) -> float:
    """Operations of one token's forward and backward pass. frozen: adapters are trained, not the weights."""
    matrices = model.num_layers * model.layer_parameters + model.vocab_size * model.hidden_size
    return (4.0 if frozen else 6.0) * matrices + 12.0 * model.num_layers * model.num_heads * model.head_dim * seq_length


def peak_tflops(device: torch.device) -> float | None:
    """The device's peak, None where it is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One line of the log. Rates are over the whole world; memory is this rank's peak since the last line."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    counted_tokens: int
    tokens_per_second: float
    tflops_per_device: float
    mfu: float | None
    memory_gib: float
    seconds: float
    loss_scale: float
    skipped: bool
    non_finite: str | None
    remaining_seconds: float


@dataclass(slots=True)
class Meter:
    """Turns step results into records; one for each run."""

    model: ModelConfig
    seq_length: int
    devices: int
    device: torch.device
    peak: float | None = None
    frozen: bool = False
    _last: float = field(default_factory=time.perf_counter)
    _pace: float | None = None

    def __post_init__(self) -> None:
        self.peak = self.peak or peak_tflops(self.device)

    def restart(self) -> None:
        """Leave out the time since the last step: evaluation and saving are not training."""
        self._last = time.perf_counter()

    def record(self, result: StepResult, step: int, rows: int, steps_left: int) -> StepRecord:
        """The record of a step of `rows` sequences over the world."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        # A running mean of about ten steps, so that time left does not jump.
        self._pace = seconds if self._pace is None else 0.9 * self._pace + 0.1 * seconds
        tokens = rows * self.seq_length
        rate = tokens / seconds
        tflops = rate * flops_per_token(self.model, self.seq_length, frozen=self.frozen) / self.devices / 1e12
        return StepRecord(
            step=step,
            loss=result.loss,
            grad_norm=result.grad_norm,
            lr=result.lr,
            tokens=tokens,
            counted_tokens=result.tokens,
            tokens_per_second=rate,
            tflops_per_device=tflops,
            mfu=tflops / self.peak if self.peak else None,
            memory_gib=self._memory(),
            seconds=seconds,
            loss_scale=result.loss_scale,
            skipped=result.skipped,
            non_finite=result.non_finite,
            remaining_seconds=self._pace * steps_left,
        )

    def _memory(self) -> float:
        if self.device.type != "cuda":
            return 0.0
        used = torch.cuda.max_memory_allocated(self.device) / 2**30
        torch.cuda.reset_peak_memory_stats(self.device)
        return used


def line(record: StepRecord, total_steps: int) -> str:
    """One readable line."""
    parts = [
        f"step {record.step}/{total_steps}",
        f"loss {record.loss:.4f}",
        f"norm {record.grad_norm:.3f}",
        f"lr {record.lr:.2e}",
        f"{record.tokens_per_second:,.0f} tok/s",
        f"{record.tflops_per_device:.1f} TFLOP/s",
    ]
    if record.mfu is not None:
        parts.append(f"MFU {record.mfu:.1%}")
    if record.memory_gib:
        parts.append(f"{record.memory_gib:.1f} GiB")
    if record.skipped:
        cause = f"gradient of {record.non_finite} not finite" if record.non_finite else "no counted tokens"
        parts.append(f"SKIPPED ({cause})")
    minutes, seconds = divmod(round(record.remaining_seconds), 60)
    parts.append(f"left {minutes // 60}:{minutes % 60:02}:{seconds:02}")
    return " | ".join(parts)


@dataclass(slots=True)
class RunLog:
    """Where records go. Only one rank of a run writes; the others hold one that is switched off.

    wandb: project of Weights & Biases. facts: of the run, shown there. Raises ConfigError when it is not installed,
    DiskFullError or OutputError with the file's name when a record cannot be written. What is not a number (nan) is
    null in log.jsonl.
    """

    folder: Path
    total_steps: int
    enabled: bool
    tensorboard: bool = False
    every: int = 1
    wandb: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    _file: TextIO | None = None
    _board: Any = None
    _wandb: Any = None

    def __post_init__(self) -> None:
        if not self.enabled:
            return
        if self.wandb is not None:
            self._wandb = start_wandb(self.wandb, self.folder, self.facts)
        with disk_faults(str(self._path)):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8", newline="\n")
        if self.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self.folder / "tensorboard"))

    @property
    def _path(self) -> Path:
        return self.folder / "log.jsonl"

    def step(self, record: StepRecord) -> None:
        """A training step."""
        if not self.enabled or record.step % self.every:
            return
        logger.info("%s", line(record, self.total_steps))
        self._write("train", record.step, asdict(record))

    def evaluation(self, step: int, values: Mapping[str, Mapping[str, float]]) -> None:
        """Losses and perplexities of named sets."""
        for name, measured in values.items():
            shown = ", ".join(f"{key} {value:.4f}" for key, value in measured.items())
            if self.enabled:
                logger.info("step %d | %s: %s", step, name, shown)
            self._write(f"valid/{name}", step, dict(measured))

    def sources(self, step: int, values: Mapping[str, tuple[float, int]]) -> None:
        """By training source: mean loss and counted tokens of one step."""
        if self.enabled and values:
            shown = ", ".join(f"{name} {loss:.4f}" for name, (loss, _) in values.items())
            logger.info("step %d | by source: %s", step, shown)
        for name, (loss, tokens) in values.items():
            self._write(f"source/{name}", step, {"loss": loss, "counted_tokens": tokens})

    def event(self, step: int, text: str, *, warning: bool = False) -> None:
        """Something that happened once: a save, a signal, an early stop."""
        if self.enabled:
            logger.log(logging.WARNING if warning else logging.INFO, "step %d | %s", step, text)
        self._write("event", step, {"text": text})

    def _write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        if self._file is not None:
            try:
                with disk_faults(str(self._path)):
                    self._file.write(json_text({"kind": kind, **values, "step": step}) + "\n")
                    self._file.flush()
            except OutputError:
                # What is still buffered would be tried again when the file is closed.
                with contextlib.suppress(OSError):
                    self._file.close()
                self._file = None
                raise
        scalars = {
            f"{kind}/{key}": value
            for key, value in values.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "step"
        }
        if self._board is not None:
            for key, value in scalars.items():
                self._board.add_scalar(key, value, step)
        if self._wandb is not None and scalars:
            self._wandb.log(scalars, step=step)

    def close(self) -> None:
        """Flush and close."""
        if self._file is not None:
            with disk_faults(str(self._path)):
                self._file.close()
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def start_wandb(project: str, folder: Path, facts: Mapping[str, Any]) -> Any:
    """A run of Weights & Biases that a second start of the same folder continues. Raises ConfigError without it.

    It reaches the network unless WANDB_MODE=offline; it is used only where the configuration names a project.
    """
    try:
        wandb = importlib.import_module("wandb")
    except ImportError:
        raise ConfigError("output.wandb needs the package: pip install wandb; or set output.wandb: null") from None
    folder.mkdir(parents=True, exist_ok=True)
    name = folder / "wandb.id"
    if not name.is_file():
        name.write_text(uuid.uuid4().hex, encoding="utf-8")
    return wandb.init(
        project=project,
        dir=str(folder),
        name=folder.name,
        id=name.read_text(encoding="utf-8"),
        resume="allow",
        config=dict(facts),
    )
