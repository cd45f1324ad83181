"""Cutting a long text changes no id, and is done only where that is sure."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_tokenizers import CORPUS, QWEN_SPLIT, train_sentencepiece

from mmdata.tokenizer import load_tokenizer
from mmdata.tokenizers.long_texts import cut_for, encode_in_pieces, pattern_allows_cuts, pieces_of
from mmdata.tokenizers.rank_encodings import ENCODINGS
from mmdata.tokenizers.sentencepiece import SentencePieceEncoder

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
    assert list(pieces_of(text, "line", 1)) == ["aa\n", "bb\n\ncc。\n", "中文 dd\r\nee\n"]
    assert list(pieces_of(text, "line", 8)) == ["aa\nbb\n\ncc。\n", "中文 dd\r\nee\n"]
    assert list(pieces_of("", "line", 1)) == [""]


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
    cut = [word for piece in pieces_of(text, "line", 1) for word, _ in split.pre_tokenize_str(nfc.normalize_str(piece))]
    assert cut == whole


@pytest.mark.parametrize("engine", ["auto", "huggingface"])
def test_long_texts_among_short_ones_give_the_ids_of_the_whole(bpe_folder: Path, engine: str) -> None:
    tokenizer = load_tokenizer(bpe_folder, engine=engine)
    generator = random.Random(1)
    texts = ["\n".join(generator.choices(CORPUS, k=count)) for count in (0, 40, 1, 90, 60, 0)]
    whole = tokenizer._encoder.encode_batch(texts)
    cut = encode_in_pieces(tokenizer._encoder, texts, "line", size=200)
    assert cut.lengths.tolist() == whole.lengths.tolist() and np.array_equal(cut.tokens, whole.tokens)
    assert cut.tokens.dtype == np.int32 and encode_in_pieces(tokenizer._encoder, [], "line").tokens.dtype == np.int32


def test_only_known_patterns_without_prefix_space_are_cut_at_lines() -> None:
    def cut(normalizer: object, splitter: object, kind: str = "BPE") -> str | None:
        return cut_for({"kind": kind, "normalizer": normalizer, "pre_tokenizer": splitter}, [])

    sequence = {"type": "Sequence", "pretokenizers": QWEN_STEPS}
    assert cut({"type": "NFC"}, sequence) == cut(None, {"type": "ByteLevel", "add_prefix_space": False}) == "line"
    assert cut({"type": "NFKC"}, sequence) is None and cut({"type": "NFC"}, sequence, "Unigram") is None
    assert cut(None, {"type": "ByteLevel", "add_prefix_space": True}) is None and cut(None, None) is None
    other = [{**QWEN_STEPS[0], "pattern": {"Regex": r"\s+|\S+"}}, QWEN_STEPS[1]]
    assert cut(None, {"type": "Sequence", "pretokenizers": other}) is None
    assert not pattern_allows_cuts(r"\w+")


def test_text_is_cut_at_spaces_only_where_no_piece_spans_one() -> None:
    llama = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    }
    header = {"kind": "BPE", "normalizer": llama, "pre_tokenizer": None}
    assert cut_for(header, ["▁", "▁▁a", "b"]) == "space"
    assert cut_for(header, ["▁", "b▁"]) is None and cut_for(header, ["a"]) is None
    assert cut_for({**header, "pre_tokenizer": {"type": "Whitespace"}}, ["▁"]) is None
    assert list(pieces_of("ab  cd ▁e f ", "space", 1)) == ["ab", " cd", "▁e", "f "]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.sampled_from([" ", "  ", "▁", "fox", "a", "中", "🙂", "\n", "the ", "\x00", " ▁ "]), max_size=25)
)
def test_a_sentencepiece_model_gives_the_same_ids_in_pieces(sp_encoder: SentencePieceEncoder, parts: list[str]) -> None:
    text = "".join(parts)
    whole = sp_encoder.encode_batch([text])
    cut = [token for piece in pieces_of(text, "space", 1) for token in sp_encoder.encode_batch([piece]).tokens.tolist()]
    assert cut == whole.tokens.tolist()


@pytest.fixture(scope="module")
def sp_encoder(sp_model: Path) -> SentencePieceEncoder:
    assert load_tokenizer(sp_model)._kind.cut == "space"
    return SentencePieceEncoder(sp_model)


def test_the_sentencepiece_models_that_do_more_than_mark_spaces_stay_whole(tmp_path: Path) -> None:
    for name, more in {
        "unigram": {"model_type": "unigram", "normalization_rule_name": "identity"},
        "nmt": {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc"},
        "trimmed": {"model_type": "bpe", "normalization_rule_name": "identity", "remove_extra_whitespaces": True},
        "bare": {"model_type": "bpe", "normalization_rule_name": "identity", "add_dummy_prefix": False},
    }.items():
        options = {"remove_extra_whitespaces": False, "hard_vocab_limit": False, **more}
        path = train_sentencepiece(tmp_path / f"{name}.model", **options)
        assert load_tokenizer(path)._kind.cut is None, name


def test_the_real_llama_like_tokenizers_are_cut_at_spaces_without_a_change(shared: Path) -> None:
    text = "\n".join(CORPUS) + "  Once upon a  time, there was a little girl. " * 50
    for path in ("tokenizers/mistral_sp", "models/stories260K/tokenizer.json"):
        tokenizer = load_tokenizer(shared / path)
        assert tokenizer._kind.cut == "space"
        whole = tokenizer._encoder.encode_batch([text]).tokens
        assert np.array_equal(encode_in_pieces(tokenizer._encoder, [text], "space", size=50).tokens, whole)


def test_tokenizers_that_may_not_be_cut_say_so(bpe_folder: Path, unigram_json: Path) -> None:
    assert load_tokenizer(bpe_folder)._kind.cut == "line"
    assert load_tokenizer(bpe_folder, allow_special=True)._kind.cut is None
    assert load_tokenizer(unigram_json)._kind.cut is None
