"""What is watched beside the loss: spikes, improvement on a validation set, and wishes to stop."""

from __future__ import annotations

import math
import signal
import threading
import time
from dataclasses import dataclass, field
from types import FrameType


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
    """Remembers the best value of one validation loss and how many evaluations ago it was."""

    best: float = math.inf
    since: int = 0

    def note(self, loss: float) -> bool:
        """True when this is the best so far."""
        better = loss < self.best
        self.best = min(self.best, loss)
        self.since = 0 if better else self.since + 1
        return better


@dataclass(slots=True)
class StopWatch:
    """Collects this rank's wishes to stop: SIGTERM or SIGINT, and a limit of wall-clock time.

    Use as a context manager; the former handlers come back at the end. Off the main thread signals are left alone.
    """

    minutes: float | None = None
    reason: str | None = None
    _began: float = field(default_factory=time.monotonic)
    _former: dict[int, object] = field(default_factory=dict)

    def __enter__(self) -> StopWatch:
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
        return self.reason is not None
