#!/usr/bin/env python3
"""The whole way on a corpus every machine has: Python's own documentation strings.

Collects the docstrings of the standard library as JSONL, trains a small tokenizer on them, converts them to Megatron
shards with one call, verifies every token, and reads a document back. Where torch is installed it then trains a small
model on the shards. Run by `make demo`; takes about a minute, half of it training.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import logging
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

import mmdata

VOCABULARY = 4096


def docstrings(folder: Path) -> Iterator[dict[str, str]]:
    """Every docstring of at least 200 characters in the modules below `folder`, in a stable order."""
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).with_suffix("").as_posix()
        if "site-packages" in path.parts or "/test" in f"/{name}":
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node)
                if text and len(text) >= 200:
                    yield {"id": f"{name}:{getattr(node, 'name', 'module')}", "text": text}


def write_corpus(path: Path) -> int:
    """The corpus as JSONL, with two faulty lines as real corpora have them; returns its records."""
    records = list(docstrings(Path(sysconfig.get_path("stdlib"))))
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    lines[10:10] = ['{"text": "this line was cut off', ""]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(records)


def train_tokenizer(corpus: Path, folder: Path) -> None:
    """A byte-level BPE tokenizer of 4,096 pieces as a Hugging Face tokenizer.json."""
    texts = []
    for line in corpus.read_text(encoding="utf-8").split("\n"):
        try:
            texts.append(json.loads(line)["text"])
        except ValueError:
            continue
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def train_model(shard: str, tokenizer: Path, folder: Path) -> None:
    """Train a two-layer decoder from random weights for 120 steps of 2,048 tokens; prints the falling loss."""
    import torch

    from mmdata_train import TrainConfig, finetune
    from mmdata_train.config import OutputConfig, TrainingConfig
    from mmdata_train.data_config import DataConfig, LoadingConfig
    from mmdata_train.model.config import ModelConfig

    torch.manual_seed(0)
    logger = logging.getLogger("mmdata_train")
    logger.addHandler(logging.StreamHandler(sys.stdout))
    logger.setLevel(logging.INFO)
    config = TrainConfig(
        model=ModelConfig(vocab_size=VOCABULARY, hidden_size=128, num_layers=2, num_heads=4, max_positions=128),
        tokenizer=str(tokenizer),
        data=DataConfig(train=(shard,), seq_length=128, loading=LoadingConfig(workers=0)),
        train=TrainingConfig(
            micro_batch_size=16, global_batch_size=16, steps=120, lr=3e-3, warmup_steps=10, precision="fp32",
            log_every=20,
        ),
        output=OutputConfig(dir=folder, keep=1),
    )  # fmt: skip
    summary = finetune(config)
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
    first = next(record for record in map(json.loads, lines) if record["kind"] == "train")
    print(
        f"   the loss fell from {first['loss']:.2f} at step {first['step']} to {summary.loss:.2f} at step"
        f" {summary.steps}; a model that knows nothing has ln({VOCABULARY}) = 8.32"
    )
    print(f"   checkpoint: {folder / 'checkpoints'}, log: {folder / 'log.jsonl'}")


def main() -> int:
    """Run the demo below the folder given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    corpus, tokenizer, prefix = folder / "docstrings.jsonl", folder / "tokenizer", folder / "docstrings"
    print(f"1. {write_corpus(corpus):,} docstrings of Python's standard library -> {corpus}")
    train_tokenizer(corpus, tokenizer)
    print(f"2. a tokenizer of {VOCABULARY:,} pieces trained on them -> {tokenizer}")
    print("3. mmdata convert")
    report = mmdata.convert(corpus, prefix, tokenizer, workers=2, notice=print)
    print(report.summary())
    for shard in report.shards:
        result = mmdata.verify_shard(shard, deep=True)
        print(f"4. mmdata verify --deep: {shard} {'is sound' if result.ok else 'IS DAMAGED'}")
    dataset = mmdata.IndexedDataset(report.shards[0])
    origin = dataset.origin(0)
    print(f"5. document 0 ({len(dataset[0])} tokens) came from line {origin.line if origin else '?'} and reads:")
    print("   " + mmdata.load_tokenizer(tokenizer).decode(dataset[0])[:70].replace("\n", " ") + " ...")
    print(f"   the report: {prefix}_report.json")
    if importlib.util.find_spec("torch") is None:
        print("6. no training: torch is not installed (pip install 'mmdata[train]')")
        return 0
    print("6. mmdata-train finetune: a decoder of 2 layers and 128 wide, from random weights, on these shards")
    train_model(report.shards[0], tokenizer, folder / "run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
