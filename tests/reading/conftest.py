"""Reads files the way a run does, for every test of reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reading_samples import Read, parse_all

from mmdata.jsonl import ReadOptions, find_inputs, read_blocks
from mmdata.records import ParsedBlock


@pytest.fixture
def read() -> Read:
    """read(path, keys=..., **read options): everything in the file."""

    def read_path(*paths: Path | str, keys: tuple[str, ...] = ("text",), **options: Any) -> ParsedBlock:
        return parse_all(list(read_blocks(find_inputs(paths), ReadOptions(**options))), keys)

    return read_path


@pytest.fixture
def read_bytes(tmp_path: Path, read: Read) -> Read:
    """read_bytes(data, name="a.jsonl", **read options): what a file of these bytes holds."""

    def read_data(data: bytes, name: str = "a.jsonl", **options: Any) -> ParsedBlock:
        path = tmp_path / name
        path.write_bytes(data)
        return read(path, **options)

    return read_data
