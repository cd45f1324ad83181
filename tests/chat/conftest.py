"""A small byte-level tokenizer with the control tokens of every built-in, so that chat tests need no files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_cases import ADDED, SPECIALS

from mmdata.tokenizer import LoadedTokenizer, load_tokenizer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: tokenizer.json (NFC, byte-level BPE) and tokenizer_config.json."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    corpus = ['user assistant system hello world the answer is\n\n\n 你好世界 的一是 <|im_end|> < | "name": 1 2'] * 20
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(corpus, trainer)
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    made.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    path = tmp_path_factory.mktemp("small")
    made.save(str(path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "tokenizer_class": "PreTrainedTokenizerFast"}
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> LoadedTokenizer:
    return load_tokenizer(folder)


@pytest.fixture(scope="session")
def hf(folder: Path) -> Any:
    """The same tokenizer in transformers."""
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )


@pytest.fixture(scope="session")
def qwen3(shared: Path) -> LoadedTokenizer:
    return load_tokenizer(shared / "tokenizers" / "qwen3")


@pytest.fixture(scope="session")
def hf_qwen3(shared: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(shared / "tokenizers" / "qwen3"))
