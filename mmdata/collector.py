"""Python's search for reference cycles, kept away from work that makes none.

It runs whenever many objects were made, and looks through all there are: among the objects of a vocabulary (some
hundred thousand) or of a block of short records it costs as much as the work itself and finds nothing.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """No search while this lasts: for work that makes many objects, soon gone or there to stay, and no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def loaded_spared() -> Iterator[None]:
    """Searches look only at objects made while this lasts; where the program has set some aside itself, at the same
    ones as ever."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
