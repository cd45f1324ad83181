"""A deadline for every test of running: none may hang."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Iterator

import pytest

DEADLINE_S = 240.0


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """Interrupts the test when it takes too long."""
    timer = threading.Timer(DEADLINE_S, _thread.interrupt_main)
    timer.start()
    yield
    timer.cancel()
