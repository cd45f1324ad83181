"""Which copy is kept: the order in which documents are taken, as a number each and then as a rank each.

`first` needs nothing. The other policies turn a document into one float64, greater is kept first, ties by input
order; the rank is an external sort in 8 bytes of memory a document at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mmdata.document import Document
from mmdata.errors import DedupFieldError, DedupParameterError

U32 = NDArray[np.uint32]
F64 = NDArray[np.float64]
READ = 1 << 18
SPLITTERS = 256
DATE_FIELDS = ("timestamp", "date", "time", "created_at", "updated_at", "published")


@dataclass(frozen=True, slots=True)
class KeeperPolicy:
    """kind: first, longest, newest or field; field: the record key whose greatest number or latest date is kept."""

    kind: str = "first"
    field: str = ""

    @classmethod
    def parse(cls, text: str) -> KeeperPolicy:
        """`first`, `longest`, `newest`, `newest:NAME`, `field:NAME` or `score:NAME`. Raises DedupParameterError."""
        kind, _, name = text.partition(":")
        if kind in ("first", "longest") and not name:
            return cls(kind)
        if kind == "newest":
            return cls("newest", name)
        if kind in ("field", "score") and name:
            return cls("field", name)
        raise DedupParameterError(
            f"keeper policy {text!r}: must be first, longest, newest, newest:NAME, field:NAME or score:NAME"
        )

    @property
    def ranks(self) -> bool:
        """Whether documents must be ranked at all."""
        return self.kind != "first"

    def order_keys(self, documents: Sequence[Document]) -> F64:
        """One float64 a document, greatest kept first; a missing value is -inf and loses to every other.

        `longest` counts characters of the text. Numbers count as they are, ISO 8601 dates as UTC seconds (naive ones
        as UTC). Raises DedupFieldError naming file and line for any other value.
        """
        if self.kind == "longest":
            return np.array([float(len(document.text)) for document in documents])
        if self.kind == "first":
            return np.zeros(len(documents))
        return np.array([self._field_value(document) for document in documents], dtype=np.float64)

    def _field_value(self, document: Document) -> float:
        names = (self.field,) if self.field else DATE_FIELDS
        value = next((document.record[name] for name in names if document.record.get(name) is not None), None)
        if value is None:
            return -math.inf
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value):
            return float(value)
        if isinstance(value, str):
            number = _number_or_date(value)
            if number is not None:
                return number
        raise DedupFieldError(
            f"{document.path}:{document.line}: the keeper field {' or '.join(names)} holds {str(value)[:40]!r}, "
            "neither a number nor an ISO 8601 date"
        )


def _number_or_date(text: str) -> float | None:
    try:
        number = float(text)
        return None if math.isnan(number) else number
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


def descending_bits(values: F64) -> NDArray[np.uint64]:
    """Map float64 to uint64 so that ascending integers are descending numbers; -0.0 equals 0.0."""
    bits = (values + 0.0).view(np.uint64)
    sign = np.uint64(1 << 63)
    ascending = np.where(bits & sign != 0, ~bits, bits | sign)
    return ~ascending


def rank_in_memory(values: F64) -> U32:
    """Each document's place when sorted by descending value, ties in input order."""
    order = np.argsort(descending_bits(values), kind="stable")
    rank = np.empty(len(values), dtype=np.uint32)
    rank[order] = np.arange(len(values), dtype=np.uint32)
    return rank


def rank_on_disk(path: Path, total: int) -> U32:
    """As `rank_in_memory` for `total` little-endian float64 in a file; 4 bytes a document and a partition at a time.

    Splitters from a sample cut the values into open ranges and single values; a single value, however common, needs
    no sort, since its documents come in input order already.
    """
    step = max(total // (SPLITTERS * 64), 1)
    sample = np.sort(np.concatenate([np.zeros(0, dtype=np.uint64), *(k[::step] for _, k in _read_keys(path, total))]))
    splitters = np.unique(sample[:: max(len(sample) // SPLITTERS, 1)])
    rank = np.empty(total, dtype=np.uint32)
    counts = np.zeros(2 * len(splitters) + 1, dtype=np.int64)
    for _, keys in _read_keys(path, total):
        counts += np.bincount(_range_of(keys, splitters), minlength=len(counts))
    firsts = np.concatenate([[0], np.cumsum(counts)])
    # Windows of a million documents, or a sixteenth of a larger corpus (one byte a document): at most 16 readings then.
    low = 0
    while low < len(counts):
        high = low + 1
        while high < len(counts) and firsts[high + 1] - firsts[low] <= max(4 * READ, total // 16):
            high += 1
        _rank_ranges(path, total, splitters, (low, high), int(firsts[low]), rank)
        low = high
    return rank


def _rank_ranges(
    path: Path, total: int, splitters: NDArray[np.uint64], ranges: tuple[int, int], first: int, rank: U32
) -> None:
    """Rank the documents whose range number lies in [low, high), which come `first` and later."""
    low, high = ranges
    placed, held_keys, held_numbers = first, [], []
    for start, keys in _read_keys(path, total):
        numbers = _range_of(keys, splitters)
        inside = np.flatnonzero((numbers >= low) & (numbers < high))
        if high == low + 1 and low % 2 == 1:
            rank[start + inside] = np.arange(placed, placed + len(inside), dtype=np.uint32)
            placed += len(inside)
        elif len(inside):
            held_keys.append(keys[inside])
            held_numbers.append(start + inside)
    if held_keys:
        order = np.argsort(np.concatenate(held_keys), kind="stable")
        documents = np.concatenate(held_numbers)[order]
        rank[documents] = np.arange(first, first + len(documents), dtype=np.uint32)


def _range_of(keys: NDArray[np.uint64], splitters: NDArray[np.uint64]) -> NDArray[np.int64]:
    """2i for keys between splitters i - 1 and i, 2i + 1 for keys equal to splitter i."""
    left = np.searchsorted(splitters, keys, side="left")
    equal = np.searchsorted(splitters, keys, side="right") > left
    return (2 * left + equal).astype(np.int64)


def _read_keys(path: Path, total: int) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """(first document, sortable keys) over the file of float64."""
    with path.open("rb") as file:
        for start in range(0, total, READ):
            values = np.fromfile(file, dtype="<f8", count=min(READ, total - start))
            yield start, descending_bits(values.astype(np.float64))
