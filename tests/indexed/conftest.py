"""A whole shard with its sidecars, for the tests that damage one."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_shards import full_shard, random_documents


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return full_shard(tmp_path / "x", random_documents(40), spans=[[]] * 40)
