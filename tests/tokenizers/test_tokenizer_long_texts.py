"""Cutting a long text changes no id, and is done only where that is sure."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_tokenizers import CORPUS, QWEN_SPLIT

from mmdata.tokenizer import load_tokenizer
from mmdata.tokenizers.long_texts import encode_in_pieces, header_allows_cuts, pattern_allows_cuts, pieces_of
from mmdata.tokenizers.rank_encodings import ENCODINGS

PARTS = st.sampled_from(
    [
        "\n",
        "\n\n",
        "\r\n",
        " ",
        "a",
        "B",
        "7",
        ".",
        "。",
        "中",
        "\u0301",
        "'s",
        "\t",
        "  \n",
        "é",
        "x\ny",
        "中\n文",
        "！\nA",
    ]
)
QWEN_STEPS = [
    {"type": "Split", "pattern": {"Regex": QWEN_SPLIT}, "behavior": "Isolated", "invert": False},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
]


def test_pieces_join_to_the_text_and_end_after_a_lone_line_feed() -> None:
    text = "aa\nbb\n\ncc。\n中文 dd\r\nee\n"
    assert list(pieces_of(text, 1)) == ["aa\n", "bb\n\ncc。\n", "中文 dd\r\nee\n"]
    assert list(pieces_of(text, 8)) == ["aa\nbb\n\ncc。\n", "中文 dd\r\nee\n"]
    assert list(pieces_of("", 1)) == [""]


@pytest.mark.parametrize("name", sorted(ENCODINGS))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(PARTS, max_size=30))
def test_cut_text_falls_into_the_same_words_for_every_known_pattern(name: str, parts: list[str]) -> None:
    """The words the split pattern makes decide the ids; compared through a tokenizer that has one id for each word."""
    import tokenizers

    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(ENCODINGS[name].pattern), "isolated")
    nfc = tokenizers.normalizers.NFC()
    text = "".join(parts)
    whole = [word for word, _ in split.pre_tokenize_str(nfc.normalize_str(text))]
    cut = [word for piece in pieces_of(text, 1) for word, _ in split.pre_tokenize_str(nfc.normalize_str(piece))]
    assert cut == whole


@pytest.mark.parametrize("engine", ["auto", "huggingface"])
def test_long_texts_among_short_ones_give_the_ids_of_the_whole(bpe_folder: Path, engine: str) -> None:
    tokenizer = load_tokenizer(bpe_folder, engine=engine)
    generator = random.Random(1)
    texts = ["\n".join(generator.choices(CORPUS, k=count)) for count in (0, 40, 1, 90, 60, 0)]
    whole = tokenizer._encoder.encode_batch(texts)
    cut = encode_in_pieces(tokenizer._encoder, texts, size=200)
    assert cut.lengths.tolist() == whole.lengths.tolist() and np.array_equal(cut.tokens, whole.tokens)
    assert cut.tokens.dtype == np.int32 and encode_in_pieces(tokenizer._encoder, []).tokens.dtype == np.int32


def test_only_known_patterns_without_prefix_space_are_cut() -> None:
    sequence = {"type": "Sequence", "pretokenizers": QWEN_STEPS}
    assert header_allows_cuts({"normalizer": {"type": "NFC"}, "pre_tokenizer": sequence})
    assert header_allows_cuts({"normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}})
    assert not header_allows_cuts({"normalizer": {"type": "NFKC"}, "pre_tokenizer": sequence})
    assert not header_allows_cuts(
        {"normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}
    )
    assert not header_allows_cuts({"normalizer": None, "pre_tokenizer": None})
    other = [{**QWEN_STEPS[0], "pattern": {"Regex": r"\s+|\S+"}}, QWEN_STEPS[1]]
    assert not header_allows_cuts({"normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": other}})
    assert not pattern_allows_cuts(r"\w+")


def test_tokenizers_that_may_not_be_cut_say_so(bpe_folder: Path, unigram_json: Path) -> None:
    assert load_tokenizer(bpe_folder)._kind.long_texts_cut
    assert not load_tokenizer(bpe_folder, allow_special=True)._kind.long_texts_cut
    assert not load_tokenizer(unigram_json)._kind.long_texts_cut
