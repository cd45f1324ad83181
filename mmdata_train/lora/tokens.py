"""New tokens beside LoRA: their ids, the pieces they begin as, and a tokenizer that knows them. No torch here.

A token gets the first free id behind the tokenizer's last, as `add_tokens` of transformers gives it; the model's
vocabulary grows only where its rows do not reach that far (Qwen's have some to spare). Needs a tokenizer.json, alone or
in a folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
from tokenizers import Tokenizer

from mmdata_train.errors import ConfigError
from mmdata_train.hf_folder import read_json

TOKENIZER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
NOT_TOKENIZER = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".index.json")


@dataclass(frozen=True, slots=True)
class AddedTokens:
    """`tokens[i]` has id `ids[i]` (ids follow one another) and was `pieces[i]` before it was a token."""

    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    pieces: tuple[tuple[int, ...], ...]

    def vocabulary(self, size: int) -> int:
        """Rows a model of `size` rows needs."""
        return max(size, self.ids[-1] + 1)


def tokenizer_file(where: str | Path | None) -> Path:
    """The tokenizer.json at a path. Raises ConfigError where there is none."""
    path = Path(where or "")
    found = path / TOKENIZER if path.is_dir() else path
    if where is None or found.suffix != ".json" or not found.is_file():
        raise ConfigError(
            f"added_tokens need a tokenizer.json, alone or in a folder; {where} is none"
            " (transformers: AutoTokenizer.from_pretrained(...).save_pretrained(folder) writes one)"
        )
    return found


def _read(file: Path) -> dict[str, Any]:
    return read_json(file, ConfigError, "give a tokenizer.json")


def plan_tokens(where: str | Path | None, tokens: Sequence[str]) -> AddedTokens:
    """Ids and pieces of new tokens. A tokenizer that has them as added tokens already keeps their ids.

    Raises ConfigError for tokens that are repeated, empty, or ordinary pieces of the vocabulary, and for a tokenizer
    that is no tokenizer.json.
    """
    file = tokenizer_file(where)
    if len(set(tokens)) != len(tokens) or not all(tokens):
        raise ConfigError(f"added_tokens {list(tokens)} hold a token twice, or an empty one")
    raw = _read(file)
    entries = raw.get("added_tokens") or []
    known = {entry["content"]: int(entry["id"]) for entry in entries if entry["content"] in tokens}
    if known and len(known) != len(tokens):
        missing = [token for token in tokens if token not in known]
        raise ConfigError(f"{file} has {', '.join(known)} already but not {', '.join(missing)}; name all or none")
    raw["added_tokens"] = [entry for entry in entries if entry["content"] not in tokens]
    base = Tokenizer.from_str(json.dumps(raw))
    vocabulary = base.get_vocab(with_added_tokens=True)
    for token in tokens:
        if token in vocabulary:
            raise ConfigError(f"added_tokens: {token!r} is in the vocabulary of {file} already ({vocabulary[token]})")
    first = max(vocabulary.values(), default=-1) + 1
    ids = [known[token] for token in tokens] if known else list(range(first, first + len(tokens)))
    if sorted(ids) != list(range(min(ids), min(ids) + len(ids))):
        raise ConfigError(f"{file}: the ids of added_tokens do not follow one another: {ids}")
    pieces = {token: tuple(base.encode(token, add_special_tokens=False).ids) for token in tokens}
    empty = [token for token, ids_ in pieces.items() if not ids_]
    if empty:
        raise ConfigError(f"added_tokens: {empty[0]!r} has no pieces in {file}, so its row would have no start")
    order = sorted(zip(ids, tokens, strict=True))
    return AddedTokens(
        tuple(token for _, token in order), tuple(i for i, _ in order), tuple(pieces[token] for _, token in order)
    )


def _entry(token: str) -> dict[str, Any]:
    """Matched as it stands, before normalisation, and kept when special tokens are left out of a decoded text."""
    return {
        "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False,
    }  # fmt: skip


def write_extended(where: str | Path, added: AddedTokens, folder: Path) -> Path:
    """A copy of the tokenizer that knows the tokens, made whole or not at all.

    Ranks that ask at once wait for the first, which writes; the others find it done. The system lets go of the lock of
    a process that dies, and the next one removes what it left.
    """
    tokenizer_file(where)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder.with_name(f".{folder.name}.lock")):
        scratch = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            _write_copy(Path(where), added, scratch)
            if folder.is_dir() and _same_files(scratch, folder):
                return folder
            if folder.exists():
                shutil.rmtree(folder)
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _write_copy(where: Path, added: AddedTokens, scratch: Path) -> None:
    file = tokenizer_file(where)
    for other in sorted(file.parent.iterdir()) if where.is_dir() else [file]:
        if other.is_file() and not other.name.endswith(NOT_TOKENIZER):
            shutil.copyfile(other, scratch / other.name)
    (scratch / TOKENIZER).write_text(_dump(_extended(_read(file), added)), encoding="utf-8")
    settings = scratch / SETTINGS
    if settings.is_file():
        raw = _read(settings)
        if isinstance(raw.get("added_tokens_decoder"), dict):
            for token, number in zip(added.tokens, added.ids, strict=True):
                raw["added_tokens_decoder"].setdefault(str(number), _entry(token))
            settings.write_text(_dump(raw), encoding="utf-8")


def _same_files(wanted: Path, there: Path) -> bool:
    files = [(path, there / path.name) for path in wanted.iterdir()]
    return all(other.is_file() and other.read_bytes() == path.read_bytes() for path, other in files)


def _extended(raw: dict[str, Any], added: AddedTokens) -> dict[str, Any]:
    entries = [entry for entry in raw.get("added_tokens") or [] if entry["content"] not in added.tokens]
    new = [{"id": number, **_entry(token)} for token, number in zip(added.tokens, added.ids, strict=True)]
    return {**raw, "added_tokens": sorted([*entries, *new], key=lambda entry: int(entry["id"]))}


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
