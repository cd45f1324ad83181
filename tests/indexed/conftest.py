"""Tests of the format flush nothing to the disk, which would take most of their time; one test sees that code does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_shards import full_shard, random_documents


@pytest.fixture(autouse=True)
def no_flushing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Replace fsync, except for tests that spy on it."""
    if "fsync" not in request.node.name:
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return full_shard(tmp_path / "x", random_documents(40), spans=[[]] * 40)
