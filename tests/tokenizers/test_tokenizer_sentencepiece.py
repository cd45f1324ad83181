"""SentencePiece models against the library's own `encode`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from small_tokenizers import train_sentencepiece

from mmdata.errors import TokenizerEngineError, TokenizerFormatError, TokenizerTextError, UsageError
from mmdata.tokenizer import LoadedTokenizer, load_tokenizer
from mmdata.tokenizers.adversarial import adversarial_texts


@pytest.fixture(scope="module")
def ours(sp_model: Path) -> LoadedTokenizer:
    return load_tokenizer(sp_model)


@pytest.fixture(scope="module")
def theirs(sp_model: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(sp_model))


def test_ids_are_those_of_encode_on_every_hard_text(
    ours: LoadedTokenizer, theirs: sentencepiece.SentencePieceProcessor
) -> None:
    texts = adversarial_texts(["<s>", "</s>"])
    rows = ours.encode_batch(texts).split()
    assert [row.tolist() for row in rows] == theirs.encode(texts, out_type=int)
    assert ours.encode_batch([]).tokens.dtype == np.int32


def test_control_pieces_are_never_read_out_of_text(ours: LoadedTokenizer) -> None:
    ids = ours.encode_batch(["a</s>b <s> </s>"]).tokens.tolist()
    assert not set(ids) & {1, 2}
    assert [(token.id, token.content) for token in ours.special_tokens] == [(0, "<unk>"), (1, "<s>"), (2, "</s>")]
    assert ours.eod_id == 2 and ours.vocab_size == 400


def test_decode_gives_text_back_and_shows_control_pieces(ours: LoadedTokenizer) -> None:
    text = "The dog 人工智能 𠀀 mind"
    ids = ours.encode_batch([text]).tokens
    assert ours.decode(ids) == text
    assert ours.decode([1, *ids.tolist(), 2]) == f"<s>{text}</s>"
    assert ours.token_bytes(ours.token_to_id("<0xE4>") or 0) == b"\xe4" and ours.token_bytes(2) == b"</s>"


def test_offsets_cover_whole_characters(ours: LoadedTokenizer) -> None:
    text = "fox 人𠀀 é"
    found = ours.encode_with_offsets(text)
    assert found.ids.tolist() == ours.encode_batch([text]).tokens.tolist()
    spans = [text[start:end] for start, end in zip(found.starts.tolist(), found.ends.tolist(), strict=True)]
    assert spans.count("𠀀") == 4 and all(spans), "each of the four bytes covers the character"
    assert (found.starts[0], found.ends[-1]) == (0, len(text))


def test_the_unigram_type_works_as_well(tmp_path: Path) -> None:
    path = train_sentencepiece(tmp_path / "spiece.model", model_type="unigram", hard_vocab_limit=False)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = load_tokenizer(tmp_path)
    texts = ["The quick fox", "ﬁne ＡＢＣ  two  spaces", "人工智能\n\n", "</s>"]
    assert [row.tolist() for row in tokenizer.encode_batch(texts).split()] == theirs.encode(texts, out_type=int)


def test_another_model_has_another_fingerprint(ours: LoadedTokenizer, tmp_path: Path) -> None:
    path = train_sentencepiece(tmp_path / "m.model", model_type="bpe", byte_fallback=True)
    assert load_tokenizer(path).fingerprint != ours.fingerprint
    assert load_tokenizer(ours.source).fingerprint == ours.fingerprint


def test_faults_are_named(sp_model: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x0e nonsense")
    with pytest.raises(TokenizerFormatError, match="not a SentencePiece model"):
        load_tokenizer(tmp_path)
    with pytest.raises(UsageError, match="--allow-special would do nothing"):
        load_tokenizer(sp_model, allow_special=True)
    with pytest.raises(TokenizerEngineError, match="no fast engine"):
        load_tokenizer(sp_model, engine="fast")
    with pytest.raises(TokenizerTextError, match=r"U\+D800"):
        load_tokenizer(sp_model).encode_batch(["\ud800"])


def test_tokens_added_beside_the_model_count_and_show(sp_model: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sp_model.read_bytes())
    (tmp_path / "added_tokens.json").write_text('{"<|im_end|>": 401, "<pad>": 400, "<s>": 1}', encoding="utf-8")
    decoder = {"401": {"content": "<|im_end|>", "special": True}, "400": {"content": "<pad>", "special": False}}
    config = json.dumps({"added_tokens_decoder": decoder, "eos_token": "<|im_end|>"})
    (tmp_path / "tokenizer_config.json").write_text(config, encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 402 and tokenizer.token_to_id("<|im_end|>") == 401
    assert [(t.id, t.special) for t in tokenizer.special_tokens] == [
        (0, True),
        (1, True),
        (2, True),
        (400, False),
        (401, True),
    ]
    ids = tokenizer.encode_batch(["fox <|im_end|>"]).tokens.tolist()
    assert max(ids) < 400 and tokenizer.decode([*ids, 401, 400]) == "fox <|im_end|><|im_end|><pad>"
    assert tokenizer.fingerprint != load_tokenizer(sp_model).fingerprint
