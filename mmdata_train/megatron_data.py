"""The data of a Megatron command line: shards, their vocabulary from manifest or tokenizer, mock data.

Looks at manifests and tokenizer files; reads no tokens. A vocabulary is taken from `--vocab-size`, else the tokenizer,
else the manifests of the shards, which must agree.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from mmdata.errors import ShardError, TokenizerError
from mmdata.indexed.manifest import Manifest, read_manifest
from mmdata.indexed.paths import idx_path
from mmdata.indexed.writer import ShardWriter
from mmdata.samples.entries import parse_data_path, resolve
from mmdata.tokenizer import load_tokenizer
from mmdata_train.data.prepare import raw_inputs
from mmdata_train.megatron_parse import Given

_MOCK_VOCABULARY = 50257
_MOCK_TOKENS = 65_536
_MOCK_STEPS = 10
_MOCK_DOCUMENT = 512

TOKENIZER_TYPES = (
    "HuggingFaceTokenizer", "GPT2BPETokenizer", "SentencePieceTokenizer", "GPTSentencePieceTokenizer",
    "Llama2Tokenizer", "TikTokenizer", "NullTokenizer",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MockData:
    """A shard of counting tokens to write at `prefix`."""

    prefix: Path
    vocab_size: int
    tokens: int
    seed: int


@dataclass(slots=True)
class FoundData:
    """What the data flags come to. fields: by dotted name. vocab_size: None where nothing tells it."""

    fields: dict[str, Any] = field(default_factory=dict)
    vocab_size: int | None = None
    mock: MockData | None = None
    problems: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def find_data(given: Given, fields: dict[str, Any], vocab_size: int | None, *, from_folder: bool) -> FoundData:
    """Shards and vocabulary for the run. vocab_size: as the flags say. from_folder: the model brings its own.

    What is missing or contradicts is in `problems`; nothing is raised.
    """
    found = FoundData(vocab_size=vocab_size)
    tokenizer = _tokenizer(given, found)
    if given.get("mock-data"):
        _mock(given, fields, found)
    else:
        manifests = _manifests(given, fields, found)
        _agree(manifests, tokenizer, found, from_folder=from_folder)
        if not from_folder and found.vocab_size is None and fields.get("data.train") and not found.problems:
            found.problems.append(
                "the vocabulary is not known: no shard of --data-path has a manifest that tells it; give --vocab-size,"
                " or --tokenizer-model with the tokenizer's files"
            )
    return found


def _tokenizer(given: Given, found: FoundData) -> str | None:
    """Fingerprint of the tokenizer the flags name, None where they name none; its size counts if none was given."""
    kind, merges = given.get("tokenizer-type"), given.get("merge-file")
    if kind is not None and kind not in TOKENIZER_TYPES:
        found.problems.append(f"--tokenizer-type {kind} is not offered; choose from {', '.join(TOKENIZER_TYPES)}")
        return None
    flag = given.first(("tokenizer-model", "vocab-file"))
    if kind == "NullTokenizer" or flag is None:
        if kind == "NullTokenizer" and found.vocab_size is None:
            found.problems.append("--tokenizer-type NullTokenizer needs --vocab-size")
        elif kind not in (None, "NullTokenizer"):
            found.problems.append(f"--tokenizer-type {kind} needs --tokenizer-model (or --vocab-file) with its files")
        return None
    path = given.get(flag)
    try:
        loaded = load_tokenizer(path if merges is None else (path, merges), engine="none")
    except TokenizerError as error:
        found.problems.append(f"--{flag}: {error}")
        return None
    if merges is None:
        found.fields["tokenizer"] = path
    elif (Path(path).name, Path(merges).name) == ("vocab.json", "merges.txt"):
        found.fields["tokenizer"] = str(Path(path).parent)
    if found.vocab_size is None:
        found.vocab_size = loaded.vocab_size
    return loaded.fingerprint


def _manifests(given: Given, fields: dict[str, Any], found: FoundData) -> list[tuple[str, Manifest]]:
    """(prefix, manifest) of every shard that has one; what is not there is a problem."""
    words: Sequence[str] = fields.get("data.train") or ()
    if not words:
        # What was written but cannot be read is a problem already; it is not missing too.
        if not (given.absent("data-path") and given.absent("train-data-path")):
            return []
        found.problems.append(
            "--data-path is missing: give the shards to train on, such as --data-path my_text_document or"
            " --data-path 0.3 a_text_document 0.7 b_text_document (or --mock-data to try the command without data)"
        )
        return []
    paths = [path for path, _ in parse_data_path([*words])] + list(fields.get("data.valid", {}).values())
    manifests = []
    for path in paths:
        # Raw files are converted when the run starts, with the tokenizer given.
        if raw_inputs(path):
            continue
        try:
            for prefix in resolve(path).shards:
                manifest = read_manifest(prefix)
                if manifest is not None:
                    manifests.append((prefix, manifest))
        except (ShardError, OSError) as error:
            found.problems.append(f"--data-path: {error}")
    return manifests


def _agree(
    manifests: Sequence[tuple[str, Manifest]], tokenizer: str | None, found: FoundData, *, from_folder: bool
) -> None:
    """One tokenizer for all shards, and the vocabulary it tells."""
    known = [(prefix, one) for prefix, one in manifests if one.tokenizer_fingerprint is not None]
    for prefix, one in known:
        wanted = tokenizer or known[0][1].tokenizer_fingerprint
        if one.tokenizer_fingerprint != wanted:
            other = "the tokenizer of the command line" if tokenizer else known[0][0]
            found.problems.append(
                f"{prefix} was made with the tokenizer {one.tokenizer_fingerprint}, but {other} is {wanted};"
                " use shards and a tokenizer that belong together"
            )
            return
    sizes = [one.vocab_size for _, one in manifests if one.vocab_size is not None]
    if found.vocab_size is None and sizes:
        found.vocab_size = max(sizes)
        # A model folder has its own, which the engine holds against the shards'.
        if from_folder:
            return
        found.notices.append(f"vocabulary of {found.vocab_size:,} tokens, from the shard's manifest")


def _mock(given: Given, fields: dict[str, Any], found: FoundData) -> None:
    if found.vocab_size is None:
        found.vocab_size = _MOCK_VOCABULARY
        if given.absent("vocab-size"):
            found.notices.append(f"--mock-data without --vocab-size: a vocabulary of {_MOCK_VOCABULARY:,} as GPT-2's")
    if "train.steps" not in fields and "data.num_samples" not in fields:
        found.fields["train.steps"] = _MOCK_STEPS
        if given.absent("train-iters") and given.absent("train-samples"):
            found.notices.append(f"--mock-data has no epoch: {_MOCK_STEPS} steps unless --train-iters is given")
    length = int(fields.get("data.seq_length", 1))
    tokens = max(_MOCK_TOKENS, 4 * length + 1)
    output = Path(fields.get("output.dir", "runs/finetune"))
    prefix = output / "mock" / f"{found.vocab_size}_{tokens}_{given.get('seed')}_text_document"
    found.mock = MockData(prefix, found.vocab_size, tokens, given.get("seed"))
    found.fields["data.train"] = [str(prefix)]


def write_mock(mock: MockData) -> None:
    """Write the shard unless it is there; ranks that come second wait. Documents count upwards from random starts."""
    mock.prefix.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{mock.prefix}.lock"):
        if os.path.exists(idx_path(str(mock.prefix))):
            return
        generator = np.random.default_rng(mock.seed)
        steps = np.arange(_MOCK_DOCUMENT, dtype=np.int64)
        with ShardWriter(mock.prefix, vocab_size=mock.vocab_size) as writer:
            for start in generator.integers(0, mock.vocab_size, -(-mock.tokens // _MOCK_DOCUMENT)):
                writer.add_document((start + steps) % mock.vocab_size)
