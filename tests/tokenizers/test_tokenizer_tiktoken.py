"""tiktoken rank files against `tiktoken.Encoding`."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tiktoken
from small_tokenizers import QWEN_SPLIT

from mmdata.errors import TokenizerFormatError, TokenizerTextError
from mmdata.tokenizer import LoadedTokenizer, load_tokenizer
from mmdata.tokenizers.adversarial import adversarial_texts
from mmdata.tokenizers.rank_encodings import ENCODINGS


@pytest.fixture(scope="module")
def ours(rank_file: Path, rank_specials: Path) -> LoadedTokenizer:
    return load_tokenizer(rank_file, special_tokens=rank_specials)


@pytest.fixture(scope="module")
def theirs(rank_file: Path, rank_specials: Path) -> tiktoken.Encoding:
    lines = [line.split() for line in rank_file.read_bytes().split(b"\n") if line]
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    special = json.loads(rank_specials.read_text(encoding="utf-8"))["special_tokens"]
    return tiktoken.Encoding("small", pat_str=QWEN_SPLIT, mergeable_ranks=ranks, special_tokens=special)


@pytest.mark.parametrize("engine", ["fast", "huggingface"])
def test_ids_are_those_of_encode_ordinary_on_every_hard_text(
    rank_file: Path, rank_specials: Path, theirs: tiktoken.Encoding, engine: str
) -> None:
    tokenizer = load_tokenizer(rank_file, special_tokens=rank_specials, engine=engine)
    texts = adversarial_texts(["<|endoftext|>", "<|im_start|>"])
    rows = tokenizer.encode_batch(texts).split()
    assert [row.tolist() for row in rows] == [theirs.encode_ordinary(text) for text in texts]
    assert tokenizer.engine.startswith("fastokens" if engine == "fast" else "tiktoken")


@pytest.mark.parametrize("engine", ["fast", "huggingface"])
def test_allow_special_is_encode_with_all_specials(
    rank_file: Path, rank_specials: Path, theirs: tiktoken.Encoding, engine: str
) -> None:
    tokenizer = load_tokenizer(rank_file, special_tokens=rank_specials, allow_special=True, engine=engine)
    text = "a<|im_start|>user<|endoftext|>\n<|endoftext"
    assert tokenizer.encode_batch([text]).tokens.tolist() == theirs.encode(text, allowed_special="all")


def test_the_vocabulary_counts_special_ids_and_holes(ours: LoadedTokenizer, theirs: tiktoken.Encoding) -> None:
    assert ours.vocab_size == theirs.n_vocab == theirs.max_token_value + 1
    assert ours.eod_id == theirs.encode_single_token("<|endoftext|>")
    assert ours.id_to_token(ours.eod_id + 1) is None
    for number in range(theirs.n_vocab - 4):
        assert ours.token_bytes(number) == theirs.decode_single_token_bytes(number)


def test_offsets_and_decode_agree_with_tiktoken(ours: LoadedTokenizer, theirs: tiktoken.Encoding) -> None:
    text = "The dog 人工智能 𠀀🙂\n\n"
    found = ours.encode_with_offsets(text)
    ids = found.ids.tolist()
    assert ours.decode(ids) == theirs.decode(ids) == text
    assert found.starts.tolist() == theirs.decode_with_offsets(ids)[1]
    assert found.ends[-1] == len(text)


def test_a_surrogate_is_refused_where_tiktoken_would_put_a_replacement_mark(ours: LoadedTokenizer) -> None:
    with pytest.raises(TokenizerTextError, match="lone surrogate"):
        ours.encode_batch(["a\ud800"])


def test_published_encodings_are_those_of_the_tiktoken_package() -> None:
    from tiktoken_ext import openai_public

    for name in ("r50k_base", "p50k_base", "cl100k_base", "o200k_base"):
        with mock.patch.object(openai_public, "load_tiktoken_bpe", lambda *args, **options: {}):
            theirs = getattr(openai_public, name)()
        assert (
            ENCODINGS[name].pattern == theirs["pat_str"] and ENCODINGS[name].special_tokens == theirs["special_tokens"]
        )


def test_llama_and_qwen_special_tokens_have_their_published_ids() -> None:
    llama, llama31, qwen = (ENCODINGS[name].special_tokens for name in ("llama3", "llama3.1", "qwen"))
    assert (llama["<|end_of_text|>"], llama["<|start_header_id|>"], llama["<|eot_id|>"]) == (128001, 128006, 128009)
    assert (llama31["<|eom_id|>"], llama31["<|python_tag|>"]) == (128008, 128010)
    assert sorted(llama.values()) == sorted(llama31.values()) == list(range(128000, 128256))
    assert (qwen["<|endoftext|>"], qwen["<|im_end|>"], qwen["<|extra_204|>"]) == (151643, 151645, 151850)


def test_faults_are_named(rank_file: Path, rank_specials: Path, tmp_path: Path) -> None:
    with pytest.raises(TokenizerFormatError, match="a rank file needs its encoding: write NAME:"):
        load_tokenizer(rank_file)
    with pytest.raises(TokenizerFormatError, match=r"no such file \(special tokens of"):
        load_tokenizer(rank_file, special_tokens=tmp_path / "none.json")
    specials = tmp_path / "specials.json"
    specials.write_text('{"<|endoftext|>": 600}', encoding="utf-8")
    with pytest.raises(TokenizerFormatError, match=r'needs \{"pattern"'):
        load_tokenizer(rank_file, special_tokens=specials)
    specials.write_text(json.dumps({"pattern": QWEN_SPLIT, "special_tokens": {"<|x|>": 3}}), encoding="utf-8")
    with pytest.raises(TokenizerFormatError, match=r"'<\|x\|>' has id 3: the file and the encoding do not belong"):
        load_tokenizer(rank_file, special_tokens=specials)
    broken = tmp_path / "x.tiktoken"
    broken.write_text("IQ== 0\nIg== one\n", encoding="utf-8")
    with pytest.raises(TokenizerFormatError, match=r"x\.tiktoken:2: b'Ig== one' is not base64 text and a rank"):
        load_tokenizer(broken, special_tokens=rank_specials)
    broken.write_text("IQ== 0\nIg== 1\n", encoding="utf-8")
    with pytest.raises(TokenizerFormatError, match="2 of the 256 single bytes have a rank"):
        load_tokenizer(broken, special_tokens=rank_specials)


def test_the_fingerprint_follows_pattern_and_special_tokens(
    ours: LoadedTokenizer, rank_file: Path, tmp_path: Path
) -> None:
    specials = tmp_path / "specials.json"
    for pattern, tokens in (("\\S+|\\s+", {"<|endoftext|>": ours.eod_id}), (QWEN_SPLIT, {})):
        specials.write_text(json.dumps({"pattern": pattern, "special_tokens": tokens}), encoding="utf-8")
        other = load_tokenizer(rank_file, special_tokens=specials, engine="huggingface")
        assert other.fingerprint != ours.fingerprint
    assert np.array_equal(ours.encode_batch(["x"]).lengths, [1])
