"""Which token ends a document, for every kind of tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmdata.errors import TokenizerEodError
from mmdata.tokenizer import load_tokenizer
from mmdata.tokenizers.base import SpecialToken
from mmdata.tokenizers.eod import choose_eod, declared_eos


def chosen(vocabulary: dict[str, int], control: set[str] = frozenset(), declared: str | None = None) -> str | None:  # type: ignore[assignment]
    specials = [SpecialToken(vocabulary[name], name, special=True) for name in sorted(control)]
    eod = choose_eod(None, vocabulary.get, specials, declared)
    return eod.token if eod else None


def test_the_first_well_known_name_in_the_vocabulary_is_taken() -> None:
    names = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]"]
    for position in range(5):
        vocabulary = {name: number for number, name in enumerate(reversed(names[position:]))}
        assert chosen(vocabulary) == chosen(vocabulary, set(vocabulary)) == names[position]


def test_a_well_known_name_goes_before_the_declared_eos() -> None:
    assert (
        chosen({"<|im_end|>": 1, "<|endoftext|>": 0}, {"<|im_end|>", "<|endoftext|>"}, "<|im_end|>") == "<|endoftext|>"
    )
    assert chosen({"<|im_end|>": 1}, {"<|im_end|>"}, "<|im_end|>") == "<|im_end|>"
    assert chosen({"a": 1}, declared="<gone>") is None


def test_a_control_token_goes_before_a_piece_of_text_like_gemmas_html_mark() -> None:
    assert chosen({"</s>": 213, "<eos>": 1}, {"<eos>"}) == "<eos>"


def test_the_declared_eos_may_be_a_string_or_an_added_token() -> None:
    assert declared_eos({"eos_token": "</s>"}) == declared_eos({"eos_token": {"content": "</s>"}}) == "</s>"
    assert declared_eos({}) is declared_eos({"eos_token": None}) is None


def test_folder_and_bare_file_give_the_same_end(bpe_folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "renamed.json"
    bare.write_bytes((bpe_folder / "tokenizer.json").read_bytes())
    folder = load_tokenizer(bpe_folder, engine="huggingface")
    alone = load_tokenizer(bare, engine="huggingface")
    assert folder.eod == alone.eod and folder.fingerprint == alone.fingerprint
    assert folder.eod is not None and folder.eod.token == "<|endoftext|>"


def test_the_user_chooses_any_token_and_a_wrong_one_lists_others(bpe_folder: Path) -> None:
    tokenizer = load_tokenizer(bpe_folder, engine="huggingface", eod_token="<|im_end|>")
    assert tokenizer.eod_id == tokenizer.token_to_id("<|im_end|>")
    with pytest.raises(TokenizerEodError, match=r"'</done>' is not in the vocabulary; special tokens there: <\|endof"):
        load_tokenizer(bpe_folder, engine="huggingface", eod_token="</done>")


def test_without_any_end_the_error_lists_candidates_and_the_way_out(bpe_folder: Path, tmp_path: Path) -> None:
    document = json.loads((bpe_folder / "tokenizer.json").read_text(encoding="utf-8"))
    document["added_tokens"] = document["added_tokens"][2:]
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path, engine="huggingface")
    assert tokenizer.eod is None
    with pytest.raises(
        TokenizerEodError, match=r"none of <\|endoftext\|>, .*--eod-token.*special tokens there: <\|im_end"
    ):
        _ = tokenizer.eod_id
