"""Small shards and length arrays that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmdata.indexed.writer import ShardWriter

MakeShard = Callable[..., str]


@pytest.fixture
def make_shard(tmp_path: Path) -> MakeShard:
    """make(name, lengths, vocab_size=..., first=0): tokens count up from `first`, modulo the vocabulary."""

    def make(name: str, lengths: Sequence[int], vocab_size: int = 60_000, first: int = 0, **options: Any) -> str:
        prefix = str(tmp_path / name)
        total = int(np.sum(lengths))
        tokens = (np.arange(first, first + total) % vocab_size).astype(np.int64)
        with ShardWriter(prefix, vocab_size=vocab_size, **options) as writer:
            writer.add_documents(tokens, np.asarray(lengths))
        return prefix

    return make
