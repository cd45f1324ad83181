"""Looks into a shard for a person: counts, length histogram, one document decoded, where a document came from.

`overview` reads the index only. `find_source` and `search` walk the origin sidecar or the tokens in blocks; searching
decodes every document, at about the speed of the tokenizer's decoder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from mmdata.errors import ManifestError, TokenizerMismatchError, UsageError
from mmdata.indexed.paths import clean_prefix
from mmdata.indexed.reader import IndexedDataset
from mmdata.indexed.sidecars import ORIGIN_WIDTH, decode_origins
from mmdata.tokenizer import Tokenizer, load_tokenizer

BAR_WIDTH = 40
_BLOCK = 1 << 16


@dataclass(slots=True, frozen=True)
class DocumentView:
    """One document for display. segments: decoded text with whether its tokens count in the loss."""

    index: int
    tokens: list[int]
    origin: str | None
    segments: list[tuple[str, bool]]

    @property
    def text(self) -> str:
        """The whole text, undivided."""
        return "".join(text for text, _ in self.segments)


def overview(prefix: str) -> dict[str, Any]:
    """Counts, dtype, tokenizer and the length histogram, as plain JSON values."""
    dataset = IndexedDataset(prefix)
    manifest = dataset.manifest
    lengths = np.asarray(dataset.sequence_lengths)
    return {
        "prefix": clean_prefix(prefix),
        "sequences": len(dataset),
        "documents": dataset.document_count,
        "tokens": dataset.token_count,
        "dtype": dataset.dtype.name,
        "shortest": int(lengths.min()) if lengths.size else 0,
        "longest": int(lengths.max()) if lengths.size else 0,
        "mean": round(float(lengths.mean()), 2) if lengths.size else 0.0,
        "median": float(np.median(lengths)) if lengths.size else 0.0,
        "loss": manifest.loss if manifest is not None else "all",
        "manifest": manifest is not None,
        "tokenizer": None if manifest is None else manifest.tokenizer_fingerprint,
        "eod_id": None if manifest is None else manifest.eod_id,
        "histogram": _histogram(lengths),
    }


def histogram_lines(histogram: list[dict[str, int]]) -> list[str]:
    """The histogram as bars of text, one line for each power of two."""
    most = max((entry["sequences"] for entry in histogram), default=1) or 1
    return [
        f"{entry['from']:>10,} - {entry['to']:<12,} {entry['sequences']:>12,}  "
        + "█" * max(round(BAR_WIDTH * entry["sequences"] / most), 1 if entry["sequences"] else 0)
        for entry in histogram
    ]


def tokenizer_of(prefix: str, given: str | None) -> Tokenizer:
    """The tokenizer `given`, else the one the run's report names; its fingerprint must be the manifest's.

    Raises UsageError when none is known, TokenizerMismatchError when it is another tokenizer.
    """
    manifest = IndexedDataset(prefix).manifest
    where: Any = given or _from_report(clean_prefix(prefix))
    if where is None:
        raise UsageError(f"{prefix}: no report beside it names the tokenizer; give it with --tokenizer")
    tokenizer = load_tokenizer(where, engine="none")
    wanted = manifest.tokenizer_fingerprint if manifest is not None else None
    if wanted is not None and tokenizer.fingerprint != wanted:
        raise TokenizerMismatchError(
            f"{where} has fingerprint {tokenizer.fingerprint}, but the shard was made with {wanted}",
            path=clean_prefix(prefix), remedy="name the shard's own tokenizer with --tokenizer",
        )  # fmt: skip
    return tokenizer


def view_document(prefix: str, index: int, tokenizer: Tokenizer | None) -> DocumentView:
    """Document `index` (negative from the end), decoded when there is a tokenizer. Raises SequenceRangeError."""
    dataset = IndexedDataset(prefix)
    tokens = np.asarray(dataset.document(index))
    number = index if index >= 0 else index + dataset.document_count
    origin = dataset.origin(number) if dataset.sidecar("origin") is not None else None
    place = None if origin is None else f"{origin.path}:{origin.line}"
    segments = [] if tokenizer is None else list(_segments(dataset, number, tokens, tokenizer))
    return DocumentView(number, tokens.tolist(), place, segments)


def find_source(prefix: str, place: str) -> list[int]:
    """Documents that came from `FILE:LINE` (the file by its recorded path or its end). Raises UsageError."""
    match = re.fullmatch(r"(.+):(\d+)", place)
    dataset = IndexedDataset(prefix)
    rows, manifest = dataset.sidecar("origin"), dataset.manifest
    if match is None:
        raise UsageError(f"--source needs FILE:LINE, such as corpus.jsonl:17; got {place!r}")
    if rows is None or manifest is None:
        raise ManifestError(
            "there is no origin sidecar or no manifest, so sources are unknown", path=clean_prefix(prefix),
            remedy="keep PREFIX_origin.* and PREFIX.json beside the shard",
        )  # fmt: skip
    wanted, line = match[1].replace(os.sep, "/"), int(match[2])
    names = [item.path for item in manifest.inputs]
    inputs = [number for number, name in enumerate(names) if name == wanted or _same_end(name, wanted)]
    if not inputs:
        raise UsageError(f"{wanted}: is no input of this shard; its inputs are {', '.join(names[:8])}")
    found: list[int] = []
    for first in range(0, len(rows), _BLOCK):
        count = min(_BLOCK, len(rows) - first)
        flat = np.asarray(rows.tokens[first * ORIGIN_WIDTH : (first + count) * ORIGIN_WIDTH])
        numbers, lines, _ = decode_origins(flat.reshape(count, ORIGIN_WIDTH))
        found += (np.flatnonzero(np.isin(numbers, inputs) & (lines == line)) + first).tolist()
    return found


def search(prefix: str, text: str, tokenizer: Tokenizer, limit: int = 20) -> list[dict[str, Any]]:
    """The first `limit` documents that contain `text`, each with an excerpt around it."""
    dataset = IndexedDataset(prefix)
    found: list[dict[str, Any]] = []
    for number in range(dataset.document_count):
        decoded = tokenizer.decode(dataset.document(number))
        at = decoded.find(text)
        if at >= 0:
            found.append({"document": number, "excerpt": decoded[max(0, at - 40) : at + len(text) + 40]})
            if len(found) == limit:
                break
    return found


def _segments(
    dataset: IndexedDataset, number: int, tokens: np.ndarray[Any, Any], tokenizer: Tokenizer
) -> Iterator[tuple[str, bool]]:
    """Runs of counted and uncounted tokens, decoded. Plain shards are one run that counts."""
    if dataset.manifest is not None and dataset.manifest.layout == "pai":
        yield from _runs(*_pai_row(tokens), tokenizer)
        return
    if not dataset.has_loss_spans:
        yield tokenizer.decode(tokens), True
        return
    counted = np.zeros(tokens.size, np.bool_)
    base = 0
    for sequence in range(*dataset.document_sequences(number)):
        for start, stop in dataset.loss_spans(sequence):
            counted[base + start : base + stop] = True
        base += int(dataset.sequence_lengths[sequence])
    yield from _runs(tokens, counted, tokenizer)


def _runs(
    tokens: np.ndarray[Any, Any], counted: np.ndarray[Any, Any], tokenizer: Tokenizer
) -> Iterator[tuple[str, bool]]:
    edges = [0, *(np.flatnonzero(np.diff(counted)) + 1).tolist(), tokens.size]
    for start, stop in pairwise(edges):
        if stop > start:
            yield tokenizer.decode(tokens[start:stop]), bool(counted[start])


def _pai_row(row: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Tokens of a row in Pai-Megatron-Patch's layout, end marks undone, and which count (see mmdata.chat.pai)."""
    marked, labels = np.split(row, 2)
    counted = np.zeros(marked.size, np.bool_)
    counted[1:] = labels[:-1] >= 0
    return np.where(marked < 0, -1 - marked, marked), counted


def _histogram(lengths: np.ndarray[Any, Any]) -> list[dict[str, int]]:
    if lengths.size == 0:
        return []
    bins = np.bincount(np.frexp(lengths.astype(np.float64))[1])
    first = int(np.flatnonzero(bins)[0])
    return [
        {"from": 1 << (number - 1) if number else 0, "to": (1 << number) - 1, "sequences": int(bins[number])}
        for number in range(first, bins.size)
    ]


def _same_end(name: str, wanted: str) -> bool:
    return name.endswith("/" + wanted) or wanted.endswith("/" + name)


def _from_report(prefix: str) -> str | list[str] | None:
    """The tokenizer path in the report of the run that wrote this shard, if it is still beside it."""
    folder, name = os.path.split(prefix)
    for end in range(len(name) - 1, 0, -1):
        path = os.path.join(folder, f"{name[:end]}_report.json")
        if name[end] == "_" and os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                where = json.load(file).get("run", {}).get("tokenizer")
            return where if isinstance(where, (str, list)) else None
    return None
