"""Small real tokenizers trained on the spot, and what the libraries themselves say about a text."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [
    "人工智能正在改变医疗行业，患者需要更准确的诊断。",
    "The quick brown fox jumps over the lazy dog. The dog doesn't mind; it's used to it.",
    "第一条 为了保护民事主体的合法权益，调整民事关系，维护社会和经济秩序，制定本法。",
    "def encode(text):\n    return [token for token in text]\n\n\nprint(encode('hello world'))\n",
    "Das Gericht hat die Klage abgewiesen. 2024年3月15日，原告向法院提起诉讼。",
] * 20


def clean_copy(path: Path, *, keep_added: bool = False) -> tokenizers.Tokenizer:
    """The library's own tokenizer with template, truncation and padding off: what our ids are compared with."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if not keep_added:
        document["added_tokens"] = []
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def reference_ids(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def byte_level(vocab_size: int = 600) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def meddlesome(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Special and added tokens, a template that adds two tokens, truncation and padding: all that must not show."""
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<think>", "</think>"])
    first, last = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>", special_tokens=[("<|im_start|>", first), ("<|im_end|>", last)]
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8, pad_id=0)
    return tokenizer


def train_sentencepiece(path: Path, **options: Any) -> Path:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=400, minloglevel=2, num_threads=1, **options
    )
    path.write_bytes(model.getvalue())
    return path
