"""Parity with megatron-core's own writer and reader, and with its split arithmetic."""

from __future__ import annotations

import warnings
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from small_shards import contents, plain_shard, random_documents

from mmdata.indexed import IndexedDataset, ShardWriter, merge_shards
from mmdata.indexed.layout import dtype_for_vocabulary
from mmdata.indexed.split import order_bounds

pytestmark = pytest.mark.peer

# Documents as lists of sequences: empty documents, several sequences, an empty sequence inside.
DOCUMENTS = [[[1, 2, 3]], [], [[4], [5]], [[6, 7], [], [8]], [], [[9] * 50]]


@pytest.fixture(scope="module")
def megatron() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("megatron.core.datasets.indexed_dataset")


def theirs(megatron: ModuleType, prefix: Path, dtype: Any, documents: list[Any], modes: bool = False) -> None:
    import torch

    builder = megatron.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype, multimodal=modes)
    for document in documents:
        tokens = torch.tensor([token for sequence in document for token in sequence], dtype=torch.int64)
        lengths = [len(sequence) for sequence in document]
        builder.add_document(tokens, lengths, [n % 3 for n in range(len(lengths))] if modes else None)
    builder.finalize(f"{prefix}.idx")


def ours(prefix: Path, dtype: Any, documents: list[Any], modes: bool = False) -> None:
    with ShardWriter(prefix, dtype=dtype, multimodal=modes) as writer:
        for document in documents:
            lengths = [len(sequence) for sequence in document]
            tokens = [token for sequence in document for token in sequence]
            writer.add_document(tokens, lengths, [n % 3 for n in range(len(lengths))] if modes else None)


@pytest.mark.parametrize("modes", [False, True], ids=["text", "multimodal"])
@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_same_documents_give_the_same_bytes(tmp_path: Path, megatron: ModuleType, dtype: Any, modes: bool) -> None:
    documents = DOCUMENTS + [[tokens] for tokens in random_documents(200)]
    theirs(megatron, tmp_path / "theirs", dtype, documents, modes)
    ours(tmp_path / "ours", dtype, documents, modes)
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"ours{ending}").read_bytes() == (tmp_path / f"theirs{ending}").read_bytes()


@pytest.mark.parametrize("mmap", [True, False], ids=["mmap", "file"])
@pytest.mark.parametrize("modes", [False, True], ids=["text", "multimodal"])
def test_megatron_reads_ours(tmp_path: Path, megatron: ModuleType, mmap: bool, modes: bool) -> None:
    ours(tmp_path / "x", np.uint16, DOCUMENTS, modes)
    read = megatron.IndexedDataset(str(tmp_path / "x"), multimodal=modes, mmap=mmap)
    wanted = [sequence for document in DOCUMENTS for sequence in document]
    got = [read[i] for i in range(len(read))]
    assert [(item[0] if modes else item).tolist() for item in got] == wanted
    assert read.document_indices.tolist() == [0, 1, 1, 3, 6, 6, 7]
    assert read.get(6, 10, 5).tolist() == [9] * 5 if not modes else True
    if modes:
        assert [int(item[1]) for item in got] == [0, 0, 1, 0, 1, 2, 0]


@pytest.mark.parametrize("modes", [False, True], ids=["text", "multimodal"])
def test_we_read_megatron(tmp_path: Path, megatron: ModuleType, modes: bool) -> None:
    theirs(megatron, tmp_path / "x", np.int32, DOCUMENTS, modes)
    ds = IndexedDataset(tmp_path / "x", multimodal=modes)
    assert [s.tolist() for s in ds] == [sequence for document in DOCUMENTS for sequence in document]
    assert [ds.document(i).tolist() for i in range(6)] == [list(chain(*document)) for document in DOCUMENTS]
    if modes:
        assert ds.sequence_modes is not None and ds.sequence_modes.tolist() == [0, 0, 1, 0, 1, 2, 0]


def test_merging_gives_the_bytes_of_megatrons_add_index(tmp_path: Path, megatron: ModuleType) -> None:
    parts = [plain_shard(tmp_path / f"p{n}", random_documents(20, seed=n)) for n in range(3)]
    ours(tmp_path / "p3", np.uint16, DOCUMENTS)
    parts.append(tmp_path / "p3")
    builder = megatron.IndexedDatasetBuilder(f"{tmp_path / 'theirs'}.bin", dtype=np.uint16)
    for part in parts:
        builder.add_index(str(part))
    builder.finalize(f"{tmp_path / 'theirs'}.idx")
    merge_shards(parts, tmp_path / "ours")
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"ours{ending}").read_bytes() == (tmp_path / f"theirs{ending}").read_bytes()
    assert contents(tmp_path / "ours") == list(chain(*(contents(part) for part in parts)))


@pytest.mark.parametrize("vocabulary", [None, 1, 65499, 65500, 65536, 151_669])
def test_dtype_rule_is_megatrons(megatron: ModuleType, vocabulary: int | None) -> None:
    assert dtype_for_vocabulary(vocabulary) == np.dtype(megatron.DType.optimal_dtype(vocabulary))


@pytest.mark.parametrize("ratio", ["969,30,1", "1,1,1", "0.9,0.1", "99,1,0", "1", "949,50,1", "0,1,0", "7,2,2"])
def test_ranges_by_order_are_megatrons(megatron: ModuleType, ratio: str) -> None:
    from megatron.core.datasets import blended_megatron_dataset_config as config

    vector = config.parse_and_normalize_split(ratio)
    matrix = config.convert_split_vector_to_split_matrix(vector)
    for count in (*range(1, 120), 999, 12_345, 10_000_019):
        bounds = order_bounds(count, ratio)
        ranges = list(zip([0, *bounds[:-1]], bounds, strict=True))
        for span, mine in zip(matrix, [*ranges, None, None], strict=False):
            if span is not None:
                wanted = tuple(int(round(bound * float(count))) for bound in span)  # noqa: RUF046 - their expression
                assert mine == wanted
