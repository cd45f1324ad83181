"""The smallest real tokenizer: every byte is a token, and one token ends documents."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers, trainers


def write_byte_tokenizer(folder: Path) -> None:
    """Make `folder` with a tokenizer.json in it."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.train_from_iterator(["a small corpus"], trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
