"""Groups of ranks shared by all tests of the engine: started once, each call with a deadline."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_start import START

from mmdata_train.launch import RankPool


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Proofs of layouts go to a folder of the session, in ranks and commands too."""
    former = os.environ.get("MMDATA_CACHE_DIR")
    os.environ["MMDATA_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if former is None:
        del os.environ["MMDATA_CACHE_DIR"]
    else:
        os.environ["MMDATA_CACHE_DIR"] = former


@pytest.fixture(scope="module")
def one() -> Iterator[RankPool]:
    """A single rank: the reference. A pool a file: hundreds of gloo groups left open keep waking and fill the cores."""
    with RankPool(1, deadline_s=150, method=START) as pool:
        yield pool


@pytest.fixture(scope="module")
def two() -> Iterator[RankPool]:
    with RankPool(2, deadline_s=150, method=START) as pool:
        yield pool


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    """Four ranks: enough for any two axes."""
    with RankPool(4, deadline_s=150, method=START) as pool:
        yield pool


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny random model of each architecture that adapters are compared on, by its name in peft_models.PEERS."""
    from peft_models import make_folders

    return make_folders(tmp_path_factory)
