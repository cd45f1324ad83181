"""The pai layout, read by a reader written from the published format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chat_cases import SHAPES, answer, user

from mmdata.chat.formats import chat_parser
from mmdata.chat.pai import PaiLayout, pai_rows
from mmdata.chat.render import ChatOptions, ChatRenderer, RenderedBatch
from mmdata.document import Document
from mmdata.errors import ChatError
from mmdata.samples.pack import pack
from mmdata.tokenizer import LoadedTokenizer

PAD = 0


def read_row(row: Any, seq_length: int) -> list[tuple[list[int], list[int]]]:
    """(ids, labels) of each packed sequence. A negative id t ends a sequence and stands for -1 - t."""
    assert row.dtype == np.int32 and len(row) == 2 * seq_length
    tokens, labels = row[:seq_length].tolist(), row[seq_length:].tolist()
    found, start = [], 0
    for position, token in enumerate(tokens):
        if token < 0:
            ids = [*tokens[start:position], -1 - token]
            found.append((ids, labels[start : position + 1]))
            start = position + 1
    assert all(token == PAD for token in tokens[start:]) and all(label == -100 for label in labels[start:])
    return found


def batch_of(tokenizer: LoadedTokenizer) -> RenderedBatch:
    talks = [
        SHAPES["one question"],
        SHAPES["three questions"],
        SHAPES["question left open"],
        [user("长"), answer("短" * 9)],
    ]
    documents = [chat_parser()({"messages": talk}, "x", 0, 1) for talk in talks]
    return ChatRenderer(tokenizer, ChatOptions(template="chatml")).render_documents(
        [document for document in documents if isinstance(document, Document)]
    )


def wanted(batch: RenderedBatch) -> list[tuple[list[int], list[int]]]:
    """Ids and shifted labels, the slow way."""
    result, token, span = [], 0, 0
    for length, numbers in zip(batch.lengths.tolist(), batch.span_lengths.tolist(), strict=True):
        ids = batch.tokens[token : token + length].tolist()
        labels = [-100] * length
        for start, end in batch.spans[span : span + numbers].reshape(-1, 2).tolist():
            for j in range(start, end):
                labels[j - 1] = ids[j]
        result.append((ids, labels))
        token, span = token + length, span + numbers
    return result


def test_each_sequence_in_a_row_of_its_own(tokenizer: LoadedTokenizer) -> None:
    batch = batch_of(tokenizer)
    rows = pai_rows(batch, PaiLayout(seq_length=128, pad_id=PAD))
    assert rows.shape == (4, 256)
    assert [read_row(row, 128) for row in rows] == [[one] for one in wanted(batch)]


def test_packed_rows_hold_every_sequence_once(tokenizer: LoadedTokenizer) -> None:
    batch = batch_of(tokenizer)
    size = int(batch.lengths.max()) + int(batch.lengths.min())
    bins = pack(batch.lengths, size, seed=3)
    rows = pai_rows(batch, PaiLayout(size, PAD, bins))
    assert len(rows) == len(bins) < 4
    for number, row in enumerate(rows):
        assert read_row(row, size) == [wanted(batch)[i] for i in bins[number].tolist()]


def test_a_row_that_is_full_and_a_sequence_that_is_too_long(tokenizer: LoadedTokenizer) -> None:
    batch = batch_of(tokenizer)
    longest = int(batch.lengths.max())
    rows = pai_rows(batch, PaiLayout(longest, PAD))
    assert read_row(rows[int(batch.lengths.argmax())], longest) == [wanted(batch)[int(batch.lengths.argmax())]]
    with pytest.raises(ChatError, match=f"--max-length {longest - 1}"):
        pai_rows(batch, PaiLayout(longest - 1, PAD))


@pytest.mark.peer
def test_megatron_core_reads_the_rows_back(tokenizer: LoadedTokenizer, tmp_path: Any) -> None:
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    batch = batch_of(tokenizer)
    rows = pai_rows(batch, PaiLayout(128, PAD))
    builder = indexed.IndexedDatasetBuilder(str(tmp_path / "x.bin"), dtype=np.int32)
    for row in rows:
        builder.add_document(row, [len(row)])
    builder.finalize(str(tmp_path / "x.idx"))
    dataset = indexed.IndexedDataset(str(tmp_path / "x"))
    assert [read_row(np.asarray(dataset[i]), 128) for i in range(len(dataset))] == [[one] for one in wanted(batch)]
