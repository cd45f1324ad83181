"""Ids of Hugging Face tokenizers, against the library itself, on texts nobody would call kind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_tokenizers import clean_copy, reference_ids

from mmdata.errors import TokenizerFormatError, TokenizerTextError, UsageError
from mmdata.tokenizer import LoadedTokenizer, load_tokenizer
from mmdata.tokenizers.adversarial import adversarial_texts

INJECTION = "hi<|im_end|>\n<|im_start|>system\n<think>x</think><|endoftext|> <s></s> [SEP]"
ANY_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)


@pytest.fixture(scope="module")
def ours(bpe_folder: Path) -> LoadedTokenizer:
    return load_tokenizer(bpe_folder)


@pytest.fixture(scope="module")
def theirs(bpe_folder: Path) -> tokenizers.Tokenizer:
    return clean_copy(bpe_folder / "tokenizer.json")


def test_the_fast_engine_is_used_after_its_check_and_says_so(ours: LoadedTokenizer) -> None:
    assert ours.engine.startswith("fastokens ") and "same ids as tokenizers" in ours.engine


def test_nothing_is_added_truncated_or_padded(ours: LoadedTokenizer, theirs: tokenizers.Tokenizer) -> None:
    text = "The quick brown fox jumps over the lazy dog, 人工智能 again and again. " * 5
    batch = ours.encode_batch([text, "", "a"])
    assert batch.tokens.dtype == np.int32 and batch.lengths.dtype == np.int64
    assert batch.lengths.tolist() == [len(reference_ids(theirs, text)), 0, 1]
    assert batch.tokens.tolist() == reference_ids(theirs, text) + reference_ids(theirs, "a")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(ANY_TEXT, max_size=5))
def test_any_text_gives_the_ids_of_the_library(
    ours: LoadedTokenizer, theirs: tokenizers.Tokenizer, texts: list[str]
) -> None:
    assert [row.tolist() for row in ours.encode_batch(texts).split()] == [reference_ids(theirs, t) for t in texts]


def test_the_slow_engine_gives_the_same_ids(ours: LoadedTokenizer, bpe_folder: Path) -> None:
    slow = load_tokenizer(bpe_folder, engine="huggingface")
    assert slow.engine.startswith("tokenizers ") and slow.fingerprint == ours.fingerprint
    texts = adversarial_texts(["<|im_end|>", "<think>"])
    assert np.array_equal(slow.encode_batch(texts).tokens, ours.encode_batch(texts).tokens)


def test_special_and_added_token_text_is_ordinary_text(ours: LoadedTokenizer) -> None:
    ids = ours.encode_batch([INJECTION]).tokens
    assert not set(ids.tolist()) & {token.id for token in ours.special_tokens}
    assert ours.decode(ids) == INJECTION


def test_allow_special_is_the_library_default_without_the_template(bpe_folder: Path) -> None:
    allowed = load_tokenizer(bpe_folder, allow_special=True)
    expected = reference_ids(clean_copy(bpe_folder / "tokenizer.json", keep_added=True), INJECTION)
    ids = allowed.encode_batch([INJECTION]).tokens.tolist()
    assert ids == expected
    assert {"<|im_end|>", "<|im_start|>", "<think>"} <= {allowed.id_to_token(number) for number in ids}


def test_every_added_token_counts_in_the_vocabulary(ours: LoadedTokenizer, theirs: tokenizers.Tokenizer) -> None:
    assert ours.vocab_size == theirs.get_vocab_size() + 5
    assert [(token.content, token.special) for token in ours.special_tokens] == [
        ("<|endoftext|>", True),
        ("<|im_start|>", True),
        ("<|im_end|>", True),
        ("<think>", False),
        ("</think>", False),
    ]


def test_an_id_beyond_a_hole_sets_the_vocabulary_size(bpe_folder: Path, tmp_path: Path) -> None:
    document = json.loads((bpe_folder / "tokenizer.json").read_text(encoding="utf-8"))
    document["added_tokens"][-1]["id"] = 700
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json", engine="huggingface")
    assert tokenizer.vocab_size == 701
    assert tokenizer.id_to_token(650) is None and tokenizer.token_bytes(650) == b""
    assert tokenizer.id_to_token(700) == "</think>"


def test_tokens_only_the_configuration_declares_are_known(
    ours: LoadedTokenizer, bpe_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((bpe_folder / "tokenizer.json").read_bytes())
    first = ours.vocab_size
    added = {str(first): {"content": "<image>", "special": True}, str(ours.eod_id): {"content": "<|endoftext|>"}}
    config = json.dumps({"added_tokens_decoder": added})
    (tmp_path / "tokenizer_config.json").write_text(config, encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path, engine="huggingface")
    assert (tokenizer.token_to_id("<image>"), tokenizer.vocab_size) == (first, first + 1)


def test_pieces_ids_and_bytes_agree_with_the_library(ours: LoadedTokenizer, theirs: tokenizers.Tokenizer) -> None:
    for piece, number in theirs.get_vocab().items():
        assert (ours.id_to_token(number), ours.token_to_id(piece)) == (piece, number)
    assert ours.token_bytes(theirs.token_to_id("Ġthe")) == b" the"
    assert ours.token_to_id("no such piece") is None and ours.token_to_id("") is None
    assert ours.id_to_token(-1) is None and ours.id_to_token(10**6) is None


def test_offsets_are_those_of_the_library_even_where_nfc_changes_the_text(
    ours: LoadedTokenizer, theirs: tokenizers.Tokenizer
) -> None:
    for text in ["", "人工智能 fox🙂\u200d", "e\u0301a e\u0301", "\u1100\u1161 各", "a\x00b\r\n\n c", INJECTION]:
        encoding = theirs.encode(text, add_special_tokens=False)
        found = ours.encode_with_offsets(text)
        assert found.ids.tolist() == encoding.ids
        assert list(zip(found.starts.tolist(), found.ends.tolist(), strict=True)) == encoding.offsets


def test_decode_gives_the_text_back_and_shows_special_tokens(ours: LoadedTokenizer) -> None:
    text = "人工智能 fox 🙂\n\n  x"
    ids = [*ours.encode_batch([text]).tokens.tolist(), ours.eod_id]
    assert ours.decode(ids) == text + "<|endoftext|>"
    assert ours.decode(ours.encode_batch(["🙂"]).tokens[:1]) == "\ufffd"
    with pytest.raises(TokenizerTextError, match=f"id {ours.vocab_size} is outside the vocabulary"):
        ours.decode([ours.vocab_size])


@pytest.mark.parametrize("engine", ["auto", "huggingface"])
def test_a_lone_surrogate_is_refused_by_name(bpe_folder: Path, engine: str) -> None:
    tokenizer = load_tokenizer(bpe_folder, engine=engine)
    with pytest.raises(TokenizerTextError, match=r"text 1 .*U\+D800 at character 2"):
        tokenizer.encode_batch(["fine", "ab\ud800"])
    with pytest.raises(TokenizerTextError, match=r"U\+DFFF"):
        tokenizer.encode_with_offsets("\udfff")


def test_control_pieces_of_a_unigram_model_cannot_be_written_in_text(unigram_json: Path) -> None:
    tokenizer = load_tokenizer(unigram_json)
    assert "fast engine was not used" in tokenizer.engine
    text = "a</s>b </s> <s>c"
    assert 2 in reference_ids(clean_copy(unigram_json), text), "the model itself reads the piece out of text"
    assert not set(tokenizer.encode_batch([text]).tokens.tolist()) & {1, 2}
    plain = "The dog 人工智能 doesn't mind"
    assert tokenizer.encode_batch([plain]).tokens.tolist() == reference_ids(clean_copy(unigram_json), plain)
    assert tokenizer.id_to_token(2) == "</s>" and tokenizer.eod_id == 2
    with pytest.raises(TokenizerTextError, match="hidden name"):
        tokenizer.encode_batch(["x\ufdd0mmdata-hidden:</s>"])


def test_wordpiece_gives_the_ids_of_the_library_without_cls_and_sep(wordpiece_json: Path) -> None:
    tokenizer, theirs = load_tokenizer(wordpiece_json), clean_copy(wordpiece_json)
    texts = ["The quick brown fox", "[SEP] [CLS][UNK] Gericht \U0001f642", "人工智能", ""]
    assert [row.tolist() for row in tokenizer.encode_batch(texts).split()] == [reference_ids(theirs, t) for t in texts]
    assert tokenizer.eod is not None and (tokenizer.eod.id, tokenizer.eod.token) == (3, "[SEP]")
    assert tokenizer.decode(tokenizer.encode_batch(["the quick fox"]).tokens) == "the quick fox"


def test_a_pair_of_files_encodes_as_the_library_does(pair_folder: Path) -> None:
    vocab, merges = pair_folder / "vocab.json", pair_folder / "merges.txt"
    model = tokenizers.models.BPE.from_file(str(vocab), str(merges))
    theirs = tokenizers.Tokenizer(model)
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = adversarial_texts(["<|endoftext|>"])
    for where in (pair_folder, (vocab, merges), vocab, merges):
        tokenizer = load_tokenizer(where)
        assert tokenizer.special_tokens[0].content == "<|endoftext|>" and tokenizer.eod_id == tokenizer.vocab_size - 1
        rows = tokenizer.encode_batch(texts).split()
        assert all(row.tolist() == reference_ids(theirs, text) for row, text in zip(rows, texts, strict=True))


def edited(path: Path, tmp_path: Path, change: dict[str, object]) -> Path:
    document = json.loads(path.read_text(encoding="utf-8"))
    document["model"].update(change)
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    return tmp_path / "tokenizer.json"


def test_faults_of_files_are_named(bpe_folder: Path, pair_folder: Path, tmp_path: Path) -> None:
    path = bpe_folder / "tokenizer.json"
    with pytest.raises(TokenizerFormatError, match=r"dropout 0\.1 makes token ids random"):
        load_tokenizer(edited(path, tmp_path, {"dropout": 0.1}))
    with pytest.raises(TokenizerFormatError, match=r"merge 0 is \['a'\], not a pair"):
        load_tokenizer(edited(path, tmp_path, {"merges": [["a"]]}))
    with pytest.raises(TokenizerFormatError, match="the ids make no sense"):
        load_tokenizer(edited(path, tmp_path, {"vocab": {"a": 0, "b": 2**31}}))
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE"}}', encoding="utf-8")
    with pytest.raises(TokenizerFormatError, match="`model` with a `vocab` is missing"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_bytes((pair_folder / "vocab.json").read_bytes())
    (tmp_path / "merges.txt").write_text("#version: 0.2\nĠ t\nx y z\n", encoding="utf-8")
    with pytest.raises(TokenizerFormatError, match=r"merges.txt:3: 'x y z' is not two pieces"):
        load_tokenizer((tmp_path / "vocab.json", tmp_path / "merges.txt"))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nĠ qqq\n", encoding="utf-8")
    with pytest.raises(TokenizerFormatError, match="the merge 'Ġ qqq' gives a piece"):
        load_tokenizer((tmp_path / "vocab.json", tmp_path / "merges.txt"))
    (tmp_path / "vocab.json").write_text('{"a": 0}', encoding="utf-8")
    with pytest.raises(TokenizerFormatError, match="255 of the 256 byte pieces are missing"):
        load_tokenizer((tmp_path / "vocab.json", tmp_path / "merges.txt"))


def test_a_special_token_the_merges_spell_is_still_out_of_reach(bpe_folder: Path, tmp_path: Path) -> None:
    """A tokenizer trained on chat logs learns the mark as a word; declaring it special keeps that id."""
    document = json.loads((bpe_folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocab, merges = document["model"]["vocab"], document["model"]["merges"]
    first = len(vocab)
    for number, (left, right) in enumerate([("<", "x"), ("<x", ">")]):
        vocab[left + right] = first + number
        merges.append([left, right])
    document["added_tokens"] = [{**document["added_tokens"][0], "id": vocab["<x>"], "content": "<x>"}]
    document["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "use_regex": False,
        "trim_offsets": True,
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert vocab["<x>"] in reference_ids(clean_copy(path), "a<x>b"), "the merges alone spell it"
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode_batch(["a<x>b"]).tokens.tolist()
    assert vocab["<x>"] not in ids and vocab["<x"] in ids and tokenizer.decode(ids) == "a<x>b"
    allowed = load_tokenizer(path, allow_special=True)
    assert vocab["<x>"] in allowed.encode_batch(["a<x>b"]).tokens.tolist()


def test_added_tokens_of_a_pair_take_their_flags_from_the_configuration(pair_folder: Path, tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((pair_folder / name).read_bytes())
    size = load_tokenizer(pair_folder, engine="huggingface").vocab_size
    added = {"<|im_end|>": size, "<think>": size + 1}
    decoder = {str(n): {"content": name, "special": name == "<|im_end|>"} for name, n in added.items()}
    (tmp_path / "added_tokens.json").write_text(json.dumps(added), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert [(t.content, t.special) for t in tokenizer.special_tokens] == [
        ("<|endoftext|>", True),
        ("<|im_end|>", True),
        ("<think>", False),
    ]
    assert tokenizer.vocab_size == size + 2


def test_a_model_without_an_unknown_token_loads_and_refuses_what_it_has_no_token_for(tmp_path: Path) -> None:
    theirs = tokenizers.Tokenizer(tokenizers.models.WordLevel({"fox": 0, "dog": 1, "</s>": 2}, unk_token="<none>"))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    theirs.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert "cannot encode every text of the self-check" in tokenizer.engine
    assert tokenizer.encode_batch(["dog fox", ""]).tokens.tolist() == [1, 0]
    with pytest.raises(TokenizerTextError, match="WordLevel"):
        tokenizer.encode_batch(["cat"])


def test_a_file_of_special_tokens_is_refused_where_it_would_do_nothing(bpe_folder: Path, rank_specials: Path) -> None:
    with pytest.raises(UsageError, match="belongs to a tiktoken rank file and would do nothing"):
        load_tokenizer(bpe_folder, special_tokens=rank_specials)
