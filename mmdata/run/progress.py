"""How far a run is: MB/s, documents, tokens and time left, on a terminal, as plain lines, or not at all.

A run tells a Progress what it has done; what is shown and where is decided by make_progress, which the commands call.
Rates count from when the run started, not from where a resumed run began. Costs nothing between displays.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

LINE_EVERY_S = 10.0


class Progress(Protocol):
    """Takes amounts since the last call."""

    def advance(
        self, *, text_bytes: int = 0, documents: int = 0, tokens: int = 0, disk_bytes: int | None = None
    ) -> None:
        """text_bytes: decompressed bytes read. disk_bytes: bytes of all inputs taken from the disk so far, in total."""
        ...

    def stage(self, name: str) -> None:
        """What is being done now."""
        ...

    def close(self) -> None:
        """The run is over, well or not."""
        ...


class SilentProgress:
    """Shows nothing."""

    def advance(
        self, *, text_bytes: int = 0, documents: int = 0, tokens: int = 0, disk_bytes: int | None = None
    ) -> None:
        """Nothing."""

    def stage(self, name: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


@dataclass(slots=True)
class Meter:
    """The arithmetic of progress. total_bytes: of the inputs on disk; None when unknown (standard input)."""

    total_bytes: int | None
    clock: Callable[[], float] = time.monotonic
    stage: str = ""
    text_bytes: int = 0
    documents: int = 0
    tokens: int = 0
    disk_bytes: int = 0
    first_disk_bytes: int | None = None
    first_at: float = 0.0
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    def add(self, text_bytes: int, documents: int, tokens: int, disk_bytes: int | None) -> None:
        """Count what was done; disk_bytes: taken from the inputs in all, None where that is not known."""
        self.text_bytes += text_bytes
        self.documents += documents
        self.tokens += tokens
        if disk_bytes is not None:
            if self.first_disk_bytes is None:
                self.first_disk_bytes, self.first_at = disk_bytes, self.clock()
            self.disk_bytes = disk_bytes

    def share(self) -> float | None:
        """The share of the inputs read, 0 to 1."""
        return min(1.0, self.disk_bytes / self.total_bytes) if self.total_bytes else None

    def seconds_left(self) -> float | None:
        """At the rate since the first amount came in, so neither start-up nor what an earlier run did counts."""
        done = self.disk_bytes - (self.first_disk_bytes or 0)
        if self.total_bytes is None or done <= 0:
            return None
        return max(0.0, (self.total_bytes - self.disk_bytes) * (self.clock() - self.first_at) / done)

    def line(self) -> str:
        """For example `encoding 43%  52.1 MB/s  120,345 documents  98.2 M tokens  1:02 left`."""
        elapsed = max(self.clock() - self.started, 1e-9)
        share, left = self.share(), self.seconds_left()
        pieces = [
            f"{self.stage} {share:.0%}".strip() if share is not None else self.stage,
            f"{self.text_bytes / 1e6 / elapsed:.1f} MB/s",
            f"{self.documents:,} documents",
            f"{_count(self.tokens)} tokens" if self.tokens else "",
            f"{_clock(left)} left" if left is not None else f"{_clock(elapsed)} so far",
        ]
        return "  ".join(piece for piece in pieces if piece)


class LineProgress:
    """One plain line every ten seconds, and a last one."""

    def __init__(self, stream: TextIO, meter: Meter) -> None:
        self._stream, self._meter = stream, meter
        self._next = meter.started + LINE_EVERY_S
        self._closed = False

    def advance(
        self, *, text_bytes: int = 0, documents: int = 0, tokens: int = 0, disk_bytes: int | None = None
    ) -> None:
        """Count what was done, and show it when it is time."""
        self._meter.add(text_bytes, documents, tokens, disk_bytes)
        if self._meter.clock() >= self._next:
            self._write()

    def stage(self, name: str) -> None:
        """What is being done from now on."""
        self._meter.stage = name

    def close(self) -> None:
        """Write the last line, once."""
        if not self._closed and self._meter.documents:
            self._write()
        self._closed = True

    def _write(self) -> None:
        self._stream.write(self._meter.line() + "\n")
        self._stream.flush()
        self._next = self._meter.clock() + LINE_EVERY_S


class TerminalProgress:
    """One line that is redrawn, with a bar where the total is known."""

    def __init__(self, stream: TextIO, meter: Meter) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Display

        columns = (BarColumn(bar_width=24), TextColumn("{task.fields[line]}"))
        self._meter = meter
        self._display: Any = Display(*columns, console=Console(file=stream), auto_refresh=False)
        self._task = self._display.add_task("", total=meter.total_bytes, line="")
        self._drawn = 0.0
        self._display.start()

    def advance(
        self, *, text_bytes: int = 0, documents: int = 0, tokens: int = 0, disk_bytes: int | None = None
    ) -> None:
        """Count what was done, and show it when it is time."""
        self._meter.add(text_bytes, documents, tokens, disk_bytes)
        if self._meter.clock() - self._drawn >= 0.2:
            self._draw()

    def stage(self, name: str) -> None:
        """What is being done from now on."""
        self._meter.stage = name
        self._draw()

    def close(self) -> None:
        """Draw the last state and leave it standing."""
        self._draw()
        self._display.stop()

    def _draw(self) -> None:
        self._drawn = self._meter.clock()
        self._display.update(self._task, completed=self._meter.disk_bytes, line=self._meter.line(), refresh=True)


def make_progress(total_bytes: int | None, stream: TextIO, *, quiet: bool = False) -> Progress:
    """What suits `stream` (standard error, as a rule): a redrawn line on a terminal, plain lines elsewhere."""
    if quiet:
        return SilentProgress()
    meter = Meter(total_bytes)
    return TerminalProgress(stream, meter) if stream.isatty() else LineProgress(stream, meter)


def _count(number: int) -> str:
    for unit, name in ((10**9, " G"), (10**6, " M")):
        if number >= unit:
            return f"{number / unit:.1f}{name}"
    return f"{number:,}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
