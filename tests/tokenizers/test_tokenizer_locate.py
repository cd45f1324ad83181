"""Which files a path means, and what is said when it means none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmdata.errors import TokenizerFormatError, TokenizerNotFoundError
from mmdata.tokenizers.locate import locate


def test_each_way_of_naming_a_tokenizer_is_understood(
    bpe_folder: Path, pair_folder: Path, sp_model: Path, rank_file: Path
) -> None:
    vocab, merges = pair_folder / "vocab.json", pair_folder / "merges.txt"
    cases = {
        str(bpe_folder): ("json", (bpe_folder / "tokenizer.json",)),
        str(bpe_folder / "tokenizer.json"): ("json", (bpe_folder / "tokenizer.json",)),
        str(pair_folder): ("pair", (vocab, merges)),
        str(vocab): ("pair", (vocab, merges)),
        str(merges): ("pair", (vocab, merges)),
        str(sp_model): ("sentencepiece", (sp_model,)),
        str(sp_model.parent): ("sentencepiece", (sp_model,)),
        str(rank_file): ("ranks", (rank_file,)),
        f"llama3:{rank_file}": ("ranks", (rank_file,)),
    }
    for where, (kind, files) in cases.items():
        source = locate(where)
        assert (source.kind, source.files) == (kind, files), where
    assert locate(f"llama3:{rank_file}").encoding == "llama3"
    assert locate([vocab, merges]).files == (vocab, merges)


def test_megatron_file_names_of_gpt2_are_found(pair_folder: Path, tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / f"gpt2-{name}").write_bytes((pair_folder / name).read_bytes())
    expected = (tmp_path / "gpt2-vocab.json", tmp_path / "gpt2-merges.txt")
    assert locate(tmp_path).files == expected
    assert locate(tmp_path / "gpt2-vocab.json").files == expected


def test_a_vocabulary_that_holds_the_piece_model_is_still_a_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"model": 0, "a": 1}), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("", encoding="utf-8")
    assert locate(tmp_path / "vocab.json").kind == "pair"


def test_a_folder_without_a_tokenizer_says_what_was_looked_for_and_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(
        TokenizerNotFoundError, match=r"looked for tokenizer\.json, vocab\.json \+ .*found config\.json"
    ):
        locate(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.json", b"{", "not valid JSON"),
        ("x.json", b"[1]", "the top of the file is a list"),
        ("x.json", b'{"a": "b"}', r"neither a tokenizer\.json \(no `model`\) nor a vocab\.json"),
        ("vocab.json", b'{"a": 0}', r"needs its merges; looked for merges\.txt"),
        ("merges.txt", b"#version", r"looked for .*vocab\.json"),
        ("tokenizer.model", b"", "the file is empty"),
        ("tokenizer.model", b"\x50\x4b\x03\x04", r"first byte 0x0A; it is 0x50"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused_with_the_reason(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises((TokenizerFormatError, TokenizerNotFoundError), match=says):
        locate(tmp_path / name)


def test_a_path_that_is_not_there_lists_what_a_tokenizer_is(tmp_path: Path) -> None:
    with pytest.raises(TokenizerNotFoundError, match=r"no such file or folder; a tokenizer is a tokenizer\.json"):
        locate(tmp_path / "nowhere")
    with pytest.raises(TokenizerNotFoundError, match="vocabulary and merges file were given"):
        locate((tmp_path / "vocab.json", tmp_path / "merges.txt"))
    with pytest.raises(TokenizerFormatError, match="two paths, not 1"):
        locate([tmp_path])


def test_an_unknown_encoding_lists_the_known_ones(rank_file: Path, sp_model: Path) -> None:
    with pytest.raises(TokenizerFormatError, match="unknown encoding 'qwen9'; known: cl100k_base, llama3"):
        locate(f"qwen9:{rank_file}")
    with pytest.raises(TokenizerFormatError, match="a SentencePiece model, not a rank file"):
        locate(f"qwen:{sp_model}")


def test_several_models_in_a_folder_are_not_guessed_between(tmp_path: Path, sp_model: Path) -> None:
    for name in ("a.model", "b.model"):
        (tmp_path / name).write_bytes(sp_model.read_bytes())
    with pytest.raises(TokenizerFormatError, match=r"several of \*\.model: a\.model, b\.model; name one"):
        locate(tmp_path)
