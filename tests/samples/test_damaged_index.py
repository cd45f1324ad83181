"""A damaged `.idx` is named with the place in it before a sample is made, whichever entry lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmdata.errors import DocumentIndexError, SequenceLengthError
from mmdata.samples import GPTSamples, PackedSamples

MakeShard = Any
HEADER, COUNT = 34, 900


def damage(prefix: str, at: int, value: int, size: int) -> None:
    path = Path(prefix + ".idx")
    content = bytearray(path.read_bytes())
    content[at : at + size] = value.to_bytes(size, "little", signed=True)
    path.write_bytes(content)


@pytest.mark.parametrize("kind", [GPTSamples, PackedSamples])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("entry", "value", "document"),
    [
        (400, 400 + 2**37, 400), (400, 5, 399), (400, -3, 399), (400, COUNT + 1, 400), (400, -(2**63), 400),
        (400, 2**63 - 1, 400), (1, COUNT, 1), (COUNT - 1, -1, COUNT - 2),
    ],
)  # fmt: skip
def test_a_document_that_runs_backwards_is_named_with_its_index(
    kind: Any, shards: int, entry: int, value: int, document: int, make_shard: MakeShard, tmp_path: Path
) -> None:
    prefixes = [make_shard(f"s{number}", [9, 3, 12] * (COUNT // 3)) for number in range(shards)]
    damage(prefixes[-1], HEADER + 12 * COUNT + 8 * entry, value, 8)
    for cache in (None, tmp_path / "cache"):
        with pytest.raises(DocumentIndexError, match=rf"s{shards - 1}\.idx, document {document}: .*backwards.*verify"):
            kind(prefixes, 64, cache_dir=cache)


@pytest.mark.parametrize("kind", [GPTSamples, PackedSamples])
@pytest.mark.parametrize(("entry", "value"), [(0, 1), (COUNT, COUNT - 1), (COUNT, -1), (0, -(2**40))])
def test_document_indices_that_begin_or_end_elsewhere_are_named(
    kind: Any, entry: int, value: int, make_shard: MakeShard
) -> None:
    prefix = make_shard("s", [9, 3, 12] * (COUNT // 3))
    damage(prefix, HEADER + 12 * COUNT + 8 * entry, value, 8)
    with pytest.raises(DocumentIndexError, match=r"s\.idx: document indices run from .* they must run from 0 to 900"):
        kind(prefix, 64)


@pytest.mark.parametrize("kind", [GPTSamples, PackedSamples])
@pytest.mark.parametrize("value", [-1, -836, -(2**31)])
def test_a_negative_length_is_named_with_its_sequence(kind: Any, value: int, make_shard: MakeShard) -> None:
    prefix = make_shard("s", [9, 3, 12] * (COUNT // 3))
    damage(prefix, HEADER + 4 * 400, value, 4)
    with pytest.raises(SequenceLengthError, match=r"s\.idx, sequence 400: "):
        kind(prefix, 64)


@pytest.mark.parametrize("kind", [GPTSamples, PackedSamples])
def test_empty_documents_and_documents_of_many_sequences_are_no_damage(kind: Any, tmp_path: Path) -> None:
    from mmdata.indexed.writer import ShardWriter

    prefix = str(tmp_path / "s")
    with ShardWriter(prefix, vocab_size=60_000) as writer:
        writer.add_documents(np.arange(40), np.array([9, 3, 12, 0, 16]), np.array([2, 0, 1, 2]))
    assert sum(len(sample) for sample in (kind(prefix, 32, None)[i] for i in range(len(kind(prefix, 32, None))))) >= 33
