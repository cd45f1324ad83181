"""What is watched beside the loss: spikes, improvement on a validation set, and wishes to stop."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any


@dataclass(slots=True)
class SpikeWatch:
    """Says when a loss stands out: above the running mean by 6 deviations and by a tenth of it.

    Mean and variance are exponential with a memory of about 50 steps; the first 20 steps are never a spike.
    """

    mean: float = 0.0
    variance: float = 0.0
    seen: int = 0

    def is_spike(self, loss: float) -> bool:
        """Judge a loss, then take it into the mean unless it was a spike or not finite."""
        if not math.isfinite(loss):
            return True
        excess = loss - self.mean
        spike = self.seen >= 20 and excess > max(6.0 * math.sqrt(self.variance), 0.1 * abs(self.mean))
        if not spike:
            self.seen += 1
            weight = max(0.02, 1.0 / self.seen)
            self.mean += weight * excess
            self.variance = (1.0 - weight) * (self.variance + weight * excess * excess)
        return spike


@dataclass(slots=True)
class BestWatch:
    """Remembers the best value of one validation loss and how many evaluations ago it got better by enough.

    delta: what counts as better for `since`; `mark` is the value it last did at. Any better value is the best.
    """

    best: float = math.inf
    since: int = 0
    delta: float = 0.0
    mark: float = math.inf

    def note(self, loss: float) -> bool:
        """True when this is the best so far."""
        better = loss < self.best
        self.best = min(self.best, loss)
        # The first value is an improvement by any delta.
        enough = loss < self.mark - self.delta or (math.isinf(self.mark) and math.isfinite(loss))
        self.since = 0 if enough else self.since + 1
        if enough:
            self.mark = loss
        return better

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        known = {"best": self.best, "mark": self.mark}
        return {name: None if math.isinf(value) else value for name, value in known.items()} | {"since": self.since}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self.best = math.inf if state["best"] is None else float(state["best"])
        self.mark = math.inf if state["mark"] is None else float(state["mark"])
        self.since = int(state["since"])


STOP_FILE = "stop"
"""In a run's output folder: training saves after the step at hand, deletes the file and ends."""


@dataclass(slots=True)
class StopWatch:
    """Collects this rank's wishes to stop: SIGTERM or SIGINT, a limit of wall-clock time, and a file.

    Use as a context manager; the former handlers come back at the end. Off the main thread signals are left alone.
    file: looked for at each step and deleted when found, one from before the run too; None on ranks that do not look.
    """

    minutes: float | None = None
    file: Path | None = None
    reason: str | None = None
    _began: float = field(default_factory=time.monotonic)
    _former: dict[int, object] = field(default_factory=dict)

    def __enter__(self) -> StopWatch:
        if self.file is not None:
            self.file.unlink(missing_ok=True)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._former[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *problem: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._former.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.reason is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.reason = f"signal {signal.Signals(number).name}"

    def wants_to_stop(self) -> bool:
        """Whether this rank has a reason to end the run after the step at hand."""
        if self.reason is None and self.minutes is not None and time.monotonic() - self._began > 60 * self.minutes:
            self.reason = f"{self.minutes:g} minutes are over"
        if self.reason is None and self.file is not None and self.file.exists():
            self.file.unlink()
            self.reason = f"{self.file} was made"
        return self.reason is not None
