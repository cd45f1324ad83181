"""From what a user writes after `--tokenizer` to the files of a tokenizer and their kind.

Looks at local files only. A `tokenizer.model` is told apart by its first byte: SentencePiece models start with 0x0A (a
protocol-buffer tag), rank files (Llama 3 style) with base64 text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from mmdata.errors import TokenizerFormatError, TokenizerNotFoundError
from mmdata.tokenizers.rank_encodings import ENCODINGS

FOLDER_CHOICES = (
    "tokenizer.json",
    "vocab.json + merges.txt",
    "*-vocab.json + *-merges.txt",
    "tokenizer.model",
    "*.model",
    "*.tiktoken",
)
Where = str | Path | Sequence[str | Path]


@dataclass(slots=True, frozen=True)
class Source:
    """Files of one tokenizer.

    kind: `json` (tokenizer.json), `pair` (vocab.json and merges.txt), `sentencepiece` or `ranks`. files: one path, two
    for a pair. encoding: the tiktoken NAME given before a rank file, else None.
    """

    kind: str
    files: tuple[Path, ...]
    encoding: str | None = None

    @property
    def folder(self) -> Path:
        """Where its first file lies."""
        return self.files[0].parent

    def sibling(self, name: str) -> dict[str, Any]:
        """A JSON object beside the tokenizer, or {} where there is none."""
        path = self.folder / name
        return read_json_object(path) if path.is_file() else {}


def locate(where: Where) -> Source:
    """The source at a path, `NAME:FILE`, or a pair (vocab file, merges file).

    Raises TokenizerNotFoundError when nothing is there and TokenizerFormatError when what is there is not enough.
    """
    if not isinstance(where, (str, Path)):
        return _pair([Path(part) for part in where])
    path = Path(where)
    if path.is_dir():
        return _in_folder(path)
    if path.is_file():
        return _of_file(path)
    name, colon, rest = str(where).partition(":")
    if colon and Path(rest).is_file():
        return _named_ranks(name, Path(rest))
    raise TokenizerNotFoundError(
        f"{where}: no such file or folder; a tokenizer is a tokenizer.json, a folder with {', '.join(FOLDER_CHOICES)}, "
        "a SentencePiece .model, or NAME:FILE for a tiktoken rank file"
    )


def _pair(paths: list[Path]) -> Source:
    if len(paths) != 2:
        raise TokenizerFormatError(f"a vocabulary file and a merges file are two paths, not {len(paths)}")
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise TokenizerNotFoundError(f"{' and '.join(missing)}: no such file (vocabulary and merges file were given)")
    return Source("pair", (paths[0], paths[1]))


def _named_ranks(name: str, path: Path) -> Source:
    if name not in ENCODINGS:
        raise TokenizerFormatError(
            f"{name}:{path}: unknown encoding {name!r}; known: {', '.join(sorted(ENCODINGS))}; for any other give the "
            "file alone with --special-tokens FILE"
        )
    if first_byte(path) == 0x0A:
        raise TokenizerFormatError(f"{path}: a SentencePiece model, not a rank file; give it without {name}:")
    return Source("ranks", (path,), name)


def _in_folder(folder: Path) -> Source:
    def present(pattern: str) -> list[Path]:
        return sorted(path for path in folder.glob(pattern) if path.is_file())

    if present("tokenizer.json"):
        return Source("json", (folder / "tokenizer.json",))
    for vocab, merges in (("vocab.json", "merges.txt"), ("*-vocab.json", "*-merges.txt")):
        if len(present(vocab)) == 1 and len(present(merges)) == 1:
            return Source("pair", (present(vocab)[0], present(merges)[0]))
    for pattern in ("tokenizer.model", "*.model", "*.tiktoken"):
        found = present(pattern)
        if len(found) == 1:
            return _of_file(found[0])
        if found:
            raise TokenizerFormatError(f"{folder}: several of {pattern}: {', '.join(p.name for p in found)}; name one")
    there = ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
    raise TokenizerNotFoundError(f"{folder}: looked for {', '.join(FOLDER_CHOICES)}; found {there}")


def _of_file(path: Path) -> Source:
    start = first_byte(path)
    if start is None:
        raise TokenizerFormatError(f"{path}: the file is empty")
    if path.suffix == ".json" or start == ord("{"):
        return _of_json(path)
    if start == 0x0A:
        return Source("sentencepiece", (path,))
    if path.name.endswith("merges.txt"):
        vocab = path.with_name(path.name.replace("merges.txt", "vocab.json"))
        if vocab.is_file():
            return Source("pair", (vocab, path))
        raise TokenizerNotFoundError(f"{path}: merges need their vocabulary; looked for {vocab}")
    if looks_like_ranks(path):
        return Source("ranks", (path,))
    raise TokenizerFormatError(
        f"{path}: neither JSON, nor a SentencePiece model (first byte 0x0A; it is 0x{start:02X}), nor a tiktoken rank "
        "file (lines of base64 and a rank)"
    )


def _of_json(path: Path) -> Source:
    if path.name == "tokenizer.json":  # its loader checks what is inside; parsing 10 MB twice would cost 0.15 s
        return Source("json", (path,))
    document = read_json_object(path)
    if isinstance(document.get("model"), dict):  # a vocab.json may hold the piece `model`
        return Source("json", (path,))
    if document and all(isinstance(value, int) for value in document.values()):
        merges = path.with_name(path.name.replace("vocab.json", "merges.txt"))
        if merges != path and merges.is_file():
            return Source("pair", (path, merges))
        raise TokenizerNotFoundError(f"{path}: a vocabulary needs its merges; looked for {merges.name} beside it")
    raise TokenizerFormatError(f"{path}: JSON, but neither a tokenizer.json (no `model`) nor a vocab.json")


def first_byte(path: Path) -> int | None:
    """The first byte of a file, None when it is empty."""
    with path.open("rb") as file:
        start = file.read(1)
    return start[0] if start else None


def looks_like_ranks(path: Path) -> bool:
    """Whether the first line is base64 text, blanks and a number."""
    with path.open("rb") as file:
        fields = file.readline(4096).split()
    return len(fields) == 2 and fields[1].isdigit()


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file whose top is an object. Raises TokenizerFormatError, saying where it broke."""
    try:
        document = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise TokenizerFormatError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise TokenizerFormatError(f"{path}: the top of the file is a {type(document).__name__}, not an object")
    return document
