"""Pieces, bytes and look-up of the flat vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from mmdata.tokenizers.vocabulary import (
    BYTE_LEVEL,
    Vocabulary,
    byte_level_blob,
    byte_level_bytes,
    metaspace_bytes,
    plain_bytes,
)

PIECES = ["Ġthe", None, "<s>", "a", "é中", "ĠĠ", "", "âĤ¬", "the"]


def test_the_byte_alphabet_is_that_of_the_library() -> None:
    assert {chr(point) for point in BYTE_LEVEL} == set(ByteLevel.alphabet())
    for byte in range(0x80):
        (spelled, _), *_ = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(chr(byte))
        assert byte_level_bytes(spelled) == bytes([byte])
    spelled = "".join(word for word, _ in ByteLevel(add_prefix_space=False).pre_tokenize_str("中文 🙂é"))
    assert byte_level_bytes(spelled) == "中文 🙂é".encode()


def test_pieces_and_bytes_are_found_by_id_and_holes_are_nothing() -> None:
    vocabulary = Vocabulary(PIECES, byte_level_bytes, {2})
    assert [vocabulary.piece(number) for number in range(-1, 10)] == [None, *PIECES, None]
    expected = [b" the", b"", b"<s>", b"a", "é中".encode(), b"  ", b"", "€".encode(), b"the"]
    assert [vocabulary.token_bytes(number) for number in range(9)] == expected
    assert vocabulary.byte_lengths.tolist() == [len(token) for token in expected]
    assert vocabulary.join(np.array([7, 0, 2, 1, 4])) == "€ the<s>é中".encode()
    assert vocabulary.join(np.array([], np.int64)) == b""


def test_a_piece_is_found_whole_and_not_inside_another() -> None:
    vocabulary = Vocabulary(PIECES, byte_level_bytes, {2})
    assert [vocabulary.find(piece) for piece in ("the", "Ġthe", "he", "", "é中")] == [8, 0, None, None, 4]


def test_a_literal_piece_stands_for_its_own_text_even_when_it_is_spelled_in_the_alphabet() -> None:
    assert Vocabulary(["Ġ", "Ġ"], byte_level_bytes, {1}).token_bytes(1) == "Ġ".encode()


@given(st.lists(st.text(max_size=6), max_size=12), st.sets(st.integers(0, 11)))
def test_the_bytes_of_all_pieces_at_once_are_those_one_by_one(pieces: list[str], literal: set[int]) -> None:
    pieces = [piece.encode(errors="ignore").decode() for piece in pieces]
    chosen = {number for number in literal if number < len(pieces)}
    blob, ends = byte_level_blob(pieces, chosen)
    expected = [piece.encode() if n in chosen else byte_level_bytes(piece) for n, piece in enumerate(pieces)]
    assert blob == b"".join(expected) and np.diff(ends, prepend=0).tolist() == [len(token) for token in expected]


@pytest.mark.parametrize(
    ("piece", "expected"),
    [("▁the", b" the"), ("<0xE4>", b"\xe4"), ("<0xZZ>", b"<0xZZ>"), ("<0x0A", b"<0x0A"), ("▁", b" ")],
)
def test_byte_pieces_and_marked_spaces_become_bytes(piece: str, expected: bytes) -> None:
    assert metaspace_bytes(piece) == expected


def test_a_vocabulary_of_bytes_keeps_what_is_not_utf8() -> None:
    vocabulary = Vocabulary.of_bytes([b"\xff", None, b"ab"])
    assert vocabulary.token_bytes(0) == b"\xff" and vocabulary.piece(0) == "\ufffd" and vocabulary.piece(1) is None
    assert vocabulary.rows(0, 10) == [(0, "ff"), (2, "6162")]
    assert Vocabulary(["a"], plain_bytes, set()).rows(0, 1) == [(0, "61")]
