"""A small tokenizer and a small ugly corpus for whole runs, made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

SENTENCES = (
    "第一条 为了保护民事主体的合法权益，调整民事关系，制定本法。",
    "患者，男，45岁，因反复上腹痛3年，加重1周入院。",
    "The quick brown fox jumps over the lazy dog.",
    "def main():\n    return 42\n",
    "Once upon a time there was a shard\u2028with a line separator and an emoji 🧪.",
)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"],
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """240 records over two files; every 40th line is bad, every 50th blank, every 60th an empty text."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for part in range(2):
        lines = []
        for number in range(120):
            if number % 40 == 39:
                lines.append('{"text": "never closed')
            elif number % 50 == 49:
                lines.append("")
            elif number % 60 == 58:
                lines.append(json.dumps({"id": number, "text": ""}))
            else:
                text = f"{part}-{number} " + SENTENCES[number % len(SENTENCES)] * (1 + number % 7)
                lines.append(json.dumps({"id": number, "text": text}, ensure_ascii=number % 2 == 0))
        (folder / f"part-{part}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
