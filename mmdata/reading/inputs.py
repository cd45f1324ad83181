"""Turns the arguments of a command into the list of files to read, always in the same order.

Files, folders (searched below, hidden names skipped), patterns and `-` (standard input). Arguments keep their order;
what a folder or pattern stands for is sorted naturally, so `part-2` comes before `part-10`, by code points and never
by the locale. What a file holds is decided by its name, its compression by its first bytes. Costs one small read for
each file. Does not read remote addresses.
"""

from __future__ import annotations

import glob
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mmdata.errors import InputError, UsageError
from mmdata.reading.sources import STDIN, ByteSource, Compression, sniff_compression

Kind = Literal["jsonl", "json", "parquet", "txt"]

_KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".jl": "jsonl", ".json": "json", ".parquet": "parquet", ".txt": "txt",
}  # fmt: skip
_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_READABLE = ".jsonl, .json, .txt (each also .gz or .zst) and .parquet"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file to read. number: from 0, in reading order. path: as given; below a folder, joined to it with `/`."""

    number: int
    path: str
    kind: Kind
    compression: Compression


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a folder holds beside the files that are read. files: how many; example: the first by name."""

    folder: str
    files: int
    example: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.files:,} files left out, such as {self.example}; read are {_READABLE}"


def find_inputs(
    arguments: Sequence[str | os.PathLike[str]], left_out: Callable[[LeftOut], None] | None = None
) -> list[InputFile]:
    """The files the arguments stand for, numbered in reading order.

    left_out: called for each folder with files whose names say no format (hidden ones aside); None logs a warning.
    Raises InputError for what does not exist, cannot be read, matches nothing or has a name that says no format, and
    UsageError for a file named twice (through any spelling or link).
    """
    found: list[InputFile] = []
    seen: dict[str, str] = {}
    for argument in arguments:
        for path in _expand(os.fspath(argument), left_out or _warn):
            identity = path if path == STDIN else os.path.normcase(os.path.realpath(path))
            if identity in seen:
                raise UsageError(
                    f"{path} is named twice (as {seen[identity]} and as {path}): every record would count twice. "
                    "Name it once; to weigh a file more, give its shard a weight when training"
                )
            seen[identity] = path
            found.append(_classify(len(found), path))
    if not found:
        raise UsageError(f"no input: name files, folders or patterns ({_READABLE}), or - for standard input")
    return found


def describe_place(source: InputFile, line: int) -> str:
    """`path:line`, or `path[index]` for the element of an array in a `.json` file."""
    return f"{source.path}[{line}]" if source.kind == "json" else f"{source.path}:{line}"


def stat_inputs(inputs: Sequence[InputFile]) -> dict[str, Any]:
    """Size in bytes and modification time in ns by path: what a resumed run compares. Standard input gives None."""
    facts: dict[str, Any] = {}
    for source in inputs:
        info = None if source.path == STDIN else os.stat(source.path)
        facts[source.path] = None if info is None else {"size": info.st_size, "mtime_ns": info.st_mtime_ns}
    return facts


def total_bytes(inputs: Sequence[InputFile]) -> int | None:
    """Bytes on disk of all inputs, for progress; None when one is standard input or a pipe."""
    total = 0
    for source in inputs:
        if source.path == STDIN or not os.path.isfile(source.path):
            return None
        total += os.path.getsize(source.path)
    return total


def natural_key(path: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts runs of digits by value and the rest by code point; equal values by spelling."""
    pieces = (piece for piece in re.split(r"([0-9]+)", path) if piece)
    return tuple((0, int(piece), piece) if piece.isascii() and piece.isdigit() else (1, 0, piece) for piece in pieces)


def _expand(argument: str, left_out: Callable[[LeftOut], None]) -> Iterator[str]:
    if argument == STDIN:
        yield STDIN
    elif "://" in argument:
        raise UsageError(f"{argument}: inputs are read from local files; copy it here or pipe it in as -")
    elif os.path.isdir(argument):
        yield from _below(argument, left_out)
    elif os.path.exists(argument):
        yield argument
    elif glob.has_magic(argument):
        matches = sorted(glob.glob(argument, recursive=True), key=natural_key)
        if "**" in argument:  # what is in the folders matches by itself
            matches = [path for path in matches if not os.path.isdir(path)]
        if not matches:
            raise InputError(f"the pattern {argument} matches no file")
        for path in matches:
            yield from _below(path, left_out) if os.path.isdir(path) else [path.replace(os.sep, "/")]
    else:
        raise InputError(f"there is no file or folder {argument}")


def _warn(left_out: LeftOut) -> None:
    _log.warning("%s", left_out)


def _below(folder: str, left_out: Callable[[LeftOut], None]) -> list[str]:
    kept: list[str] = []
    others: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=_cannot_list, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".") and not _leads_back(parent, name)]
        for name in names:
            if not name.startswith("."):
                path = os.path.join(parent, name).replace(os.sep, "/")
                (others if kind_of_name(path) is None else kept).append(path)
    if not kept:
        raise InputError(f"the folder {folder} holds no file that can be read ({_READABLE})")
    if others:
        left_out(LeftOut(folder, len(others), min(others, key=natural_key)))
    return sorted(kept, key=natural_key)


def _cannot_list(fault: OSError) -> None:
    raise InputError(f"the folder {fault.filename} cannot be read: {fault.strerror}") from fault


def _leads_back(parent: str, name: str) -> bool:
    """Whether a link points to a folder it lies in, which would never end."""
    path = os.path.join(parent, name)
    return os.path.islink(path) and Path(os.path.realpath(parent)).is_relative_to(os.path.realpath(path))


def kind_of_name(path: str) -> Kind | None:
    """The kind a name promises; None when it promises none. `corpus.gz` counts as JSON lines."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes[-2:]]
    if suffixes and suffixes[-1] in _COMPRESSIONS:
        inner = _KINDS.get(suffixes[0]) if len(suffixes) > 1 else None
        return None if inner == "parquet" else inner or "jsonl"
    return _KINDS.get(suffixes[-1]) if suffixes else None


def _classify(number: int, path: str) -> InputFile:
    if path == STDIN:
        return InputFile(number, path, "jsonl", "none")
    if not path.isprintable() or any("\ud800" <= letter <= "\udfff" for letter in path):
        raise InputError(f"{path!a}: the name holds a line break, a control character or undecodable bytes; rename it")
    kind = kind_of_name(path)
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
        if kind is None and regular:
            raise InputError(f"{path}: the name does not say what it holds; read are {_READABLE}")
        if not regular:  # a pipe is read once, so its compression is found when it is read
            return InputFile(number, path, "jsonl" if kind in (None, "json") else kind, "none")
        with open(path, "rb") as stream:
            head = stream.read(64)
            compression = sniff_compression(head) if kind != "parquet" else "none"
    except OSError as fault:
        raise InputError(f"{path} cannot be read: {fault.strerror}") from fault
    promised = _COMPRESSIONS.get(Path(path).suffix.lower())
    if promised is not None and promised != compression:
        seen = head[:4].hex(" ") or "nothing: the file is empty"
        raise InputError(f"{path} is named as {promised} but its first bytes are {seen}; rename it or compress it")
    assert kind is not None
    return InputFile(number, path, _array_or_lines(path, compression) if kind == "json" else kind, compression)


def _array_or_lines(path: str, compression: Compression) -> Kind:
    """`json` when the first character is `[`, in any encoding offered; else the file is read as JSON lines."""
    with ByteSource(path, compression) as source:
        head = next(source.chunks(), b"")[:4096]
    for mark in (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\x84\x31\x95\x33"):  # UTF-8, UTF-16, GB18030
        head = head.removeprefix(mark)
    head = head.replace(b"\0", b"").lstrip(b" \t\r\n")
    if head.split(b"\n", 1)[0].strip() == b"{":
        raise InputError(
            f"{path} holds one JSON object spread over several lines; a .json input is one array of records, "
            "or one record on each line"
        )
    return "json" if head.startswith(b"[") else "jsonl"
