"""Progress: the arithmetic, plain lines every ten seconds, a terminal, silence."""

from __future__ import annotations

import io

from mmdata.run import SilentProgress, make_progress
from mmdata.run.progress import LineProgress, Meter, TerminalProgress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_says_rate_documents_tokens_and_time_left() -> None:
    clock = Clock()
    meter = Meter(1_000_000_000, clock)
    meter.stage = "encoding"
    clock.now = 2.0
    meter.add(0, 0, 0, 0)
    clock.now = 12.0
    meter.add(600_000_000, 120_345, 98_200_000, 100_000_000)
    assert meter.line() == "encoding 10%  50.0 MB/s  120,345 documents  98.2 M tokens  1:30 left"


def test_time_left_counts_neither_start_up_nor_what_an_earlier_run_did() -> None:
    clock = Clock()
    meter = Meter(1000, clock)
    clock.now = 100.0
    meter.add(0, 0, 0, 500)
    assert meter.seconds_left() is None
    clock.now = 110.0
    meter.add(0, 0, 0, 600)
    assert meter.seconds_left() == 40.0


def test_without_a_total_the_time_so_far_is_shown() -> None:
    clock = Clock()
    meter = Meter(None, clock)
    clock.now = 3725.0
    meter.add(3_725_000_000, 1, 0, 12)
    assert meter.line() == "1.0 MB/s  1 documents  1:02:05 so far"


def test_plain_lines_come_every_ten_seconds_and_once_at_the_end() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, Meter(None, clock))
    for second in range(1, 26):
        clock.now = float(second)
        progress.advance(text_bytes=1_000_000, documents=1)
    progress.close()
    progress.close()
    assert stream.getvalue().split("\n") == [f"1.0 MB/s  {n} documents  0:{n} so far" for n in (10, 20, 25)] + [""]


def test_a_terminal_gets_one_line_redrawn() -> None:
    stream = Terminal()
    progress = make_progress(100, stream)
    assert isinstance(progress, TerminalProgress)
    progress.stage("encoding")
    progress.advance(text_bytes=10, documents=3, disk_bytes=50)
    progress.close()
    assert "encoding 50%" in stream.getvalue() and "3 documents" in stream.getvalue()


def test_a_pipe_gets_lines_and_quiet_gets_nothing() -> None:
    stream = io.StringIO()
    assert isinstance(make_progress(100, stream), LineProgress)
    quiet = make_progress(100, stream, quiet=True)
    assert isinstance(quiet, SilentProgress)
    quiet.stage("x")
    quiet.advance(documents=5)
    quiet.close()
    assert stream.getvalue() == ""
