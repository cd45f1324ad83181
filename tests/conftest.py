"""Where the real inputs are, for tests that use them when present and skip without."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

# Processes forked from the server share what it imported: a rank starts in milliseconds in place of three seconds.
multiprocessing.set_forkserver_preload(["mmdata_train.parity"])

SHARED = Path(__file__).parent.parent.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real corpora and tokenizers; tests that need it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the shared corpora are not on this machine")
    return SHARED
