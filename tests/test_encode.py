"""Documents to token arrays: every id in its place, every empty document accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdata.document import Document, Part
from mmdata.encode import EncodeOptions, append_eod, encode_documents
from mmdata.errors import TokenizerTextError, UsageError
from mmdata.tokenizers.base import TokenBatch, Tokenizer, batch_from_lists, refuse_surrogates

UINT16, INT32 = np.dtype(np.uint16), np.dtype(np.int32)


class Bytes:
    """One id for each UTF-8 byte; a lone space has none."""

    vocab_size = 257

    def encode_batch(self, texts: Sequence[str]) -> TokenBatch:
        refuse_surrogates(texts)
        return batch_from_lists([list(text.strip(" ").encode()) for text in texts])


BYTES = cast(Tokenizer, Bytes())


def documents(*texts: str, **more: str) -> list[Document]:
    parts = [tuple([Part("text", "text", text), *(Part(k, "text", v) for k, v in more.items())]) for text in texts]
    return [Document("in.jsonl", 3, 10 + number, f"id{number}", {}, part) for number, part in enumerate(parts)]


def test_every_document_ends_with_the_end_token_in_the_dtype_of_the_shard() -> None:
    batch = encode_documents(documents("ab", "c"), BYTES, EncodeOptions(UINT16, eod_id=256))
    text = batch.keys["text"]
    assert text.tokens.tolist() == [97, 98, 256, 99, 256] and text.tokens.dtype == np.uint16
    assert text.lengths.tolist() == [3, 2] and text.lengths.dtype == np.int64
    assert batch.kept.tolist() == [0, 1] and batch.drops == []


def test_without_an_end_token_the_ids_stand_alone() -> None:
    batch = encode_documents(documents("ab", "c"), BYTES, EncodeOptions(INT32, append_eod=False))
    assert batch.keys["text"].tokens.tolist() == [97, 98, 99] and batch.keys["text"].tokens.dtype == np.int32
    assert batch.keys["text"].lengths.tolist() == [2, 1]


def test_a_text_of_no_tokens_is_dropped_and_the_end_token_does_not_save_it() -> None:
    batch = encode_documents(documents("", "a", "  ", "b", ""), BYTES, EncodeOptions(UINT16, eod_id=256))
    assert batch.keys["text"].tokens.tolist() == [97, 256, 98, 256] and batch.kept.tolist() == [1, 3]
    assert [(d.path, d.input_number, d.line, d.id, d.stage, d.reason, d.value) for d in batch.drops] == [
        ("in.jsonl", 3, 10, "id0", "encode", "empty", "text"),
        ("in.jsonl", 3, 12, "id2", "encode", "empty", "text"),
        ("in.jsonl", 3, 14, "id4", "encode", "empty", "text"),
    ]


def test_nothing_in_gives_empty_arrays_of_the_right_kind() -> None:
    for given_documents in ([], documents("", " ")):
        batch = encode_documents(given_documents, BYTES, EncodeOptions(UINT16, eod_id=0))
        assert batch.keys["text"].tokens.dtype == np.uint16 and batch.keys["text"].lengths.dtype == np.int64
        assert len(batch.keys["text"].tokens) == len(batch.keys["text"].lengths) == len(batch.kept) == 0


def test_all_keys_hold_the_same_documents() -> None:
    rows = documents("ab", "c", title="T")
    rows += documents("d", title=" ") + documents("", title="U")
    batch = encode_documents(rows, BYTES, EncodeOptions(UINT16, ("title", "text"), eod_id=256))
    assert list(batch.keys) == ["title", "text"] and batch.kept.tolist() == [0, 1]
    assert batch.keys["title"].tokens.tolist() == [84, 256, 84, 256]
    assert batch.keys["text"].tokens.tolist() == [97, 98, 256, 99, 256]
    assert [drop.value for drop in batch.drops] == ["title", "text"]


@given(st.lists(st.lists(st.integers(0, 200), max_size=5), max_size=20))
def test_the_end_token_is_spliced_after_each_document(rows: list[list[int]]) -> None:
    batch = batch_from_lists(rows)
    expected = [token for row in rows for token in [*row, 255]]
    assert append_eod(batch.tokens, batch.lengths, 255, UINT16).tolist() == expected


def test_a_lone_surrogate_is_named_by_file_line_and_place() -> None:
    with pytest.raises(TokenizerTextError, match=r"in\.jsonl:11: lone surrogate U\+D800 at character 1"):
        encode_documents(documents("a", "b\ud800"), BYTES, EncodeOptions(UINT16, eod_id=0))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": UINT16}, "none is given; see --eod-token"),
        ({"dtype": UINT16, "eod_id": 65536}, "65536 does not fit uint16"),
        ({"dtype": INT32, "eod_id": -1}, "-1 does not fit int32"),
        ({"dtype": INT32, "eod_id": 0, "json_keys": ()}, "at least one"),
        ({"dtype": INT32, "eod_id": 0, "json_keys": ("a", "a")}, "give each key once"),
    ],
)
def test_wrong_options_are_refused_with_the_value(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        EncodeOptions(**options)


def test_a_vocabulary_beyond_the_dtype_is_refused_not_wrapped() -> None:
    class Large(Bytes):
        vocab_size = 70000

    with pytest.raises(UsageError, match="a vocabulary of 70000 does not fit uint16"):
        encode_documents(documents("a"), cast(Tokenizer, Large()), EncodeOptions(UINT16, eod_id=0))
