"""Small real tokenizers of every kind, trained here, so that the tests need no file from outside."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import tokenizers
from small_tokenizers import CORPUS, QWEN_SPLIT, byte_level, meddlesome, train_sentencepiece
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from mmdata.tokenizers.vocabulary import byte_level_bytes


@pytest.fixture(scope="session")
def bpe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model's folder: byte-level BPE with everything meddlesome, eos declared as the end of a turn."""
    folder = tmp_path_factory.mktemp("bpe")
    meddlesome(byte_level()).save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": "{{ messages }}", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def pair_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2's way: vocab.json with `<|endoftext|>` as its last piece, and merges.txt."""
    folder = tmp_path_factory.mktemp("pair")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    model["vocab"]["<|endoftext|>"] = len(model["vocab"])
    (folder / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def unigram_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unigram with `</s>` among its pieces, where the model itself would match it in text."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    path = tmp_path_factory.mktemp("unigram") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session")
def wordpiece_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    path = tmp_path_factory.mktemp("wordpiece") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session")
def sp_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sp") / "tokenizer.model"
    options = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    return train_sentencepiece(path, model_type="bpe", byte_fallback=True, **options)


@pytest.fixture(scope="session")
def rank_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiktoken ranks that are the pieces of `byte_level`, as a Llama 3 style `tokenizer.model`."""
    model = json.loads(byte_level().to_str())["model"]
    singles = sorted((piece for piece in model["vocab"] if len(piece) == 1), key=lambda piece: model["vocab"][piece])
    pieces = [*singles, *("".join(pair) for pair in model["merges"])]
    lines = [
        f"{base64.b64encode(byte_level_bytes(piece)).decode()} {rank}\n"
        for rank, piece in enumerate(dict.fromkeys(pieces))
    ]
    path = tmp_path_factory.mktemp("ranks") / "tokenizer.model"
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def rank_specials(rank_file: Path) -> Path:
    count = rank_file.read_text(encoding="utf-8").count("\n")
    special = {"<|endoftext|>": count, "<|im_start|>": count + 3}
    path = rank_file.with_name("special_tokens.json")
    path.write_text(json.dumps({"pattern": QWEN_SPLIT, "special_tokens": special}), encoding="utf-8")
    return path
