"""N-gram overlap between training documents and evaluation items: the pure part of decontamination.

An item's n-grams are runs of n words (13 by default, as GPT-3 and most since use), lower case, never across two parts
of a record; system prompts do not count. An item of fewer words counts as one gram of its own length, if it has at
least `shortest` words; shorter ones would match by chance and are reported as not checked. Costs about as much as
signing without the permutations, once more for each length of short items that occurs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup import plain
from mmdata.dedup.params import DedupParams
from mmdata.dedup.signer import ShingleSets, Signer
from mmdata.document import Document

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

FILTER_BITS = 22


@dataclass(frozen=True, slots=True)
class GramTable:
    """Grams of one length: distinct hashes ascending, and the items of gram g: items[starts[g]:starts[g + 1]]."""

    size: int
    grams: U64
    starts: I64
    items: I64
    low_bits: NDArray[np.bool_]

    def matches(self, sets: ShingleSets) -> tuple[I64, I64]:
        """(document, gram) for each distinct gram that occurs in each document, ordered by document."""
        # A table of the low bits turns most shingles away without a search.
        maybe = np.flatnonzero(self.low_bits[sets.values & np.uint64((1 << FILTER_BITS) - 1)])
        values = sets.values[maybe]
        place = np.minimum(np.searchsorted(self.grams, values), len(self.grams) - 1)
        found = self.grams[place] == values
        documents = np.searchsorted(sets.starts, maybe[found], side="right") - 1
        return documents.astype(np.int64), place[found].astype(np.int64)


@dataclass(frozen=True, slots=True)
class EvalItem:
    """path, line and id of one evaluation record; grams: how many distinct ones it has (0: too short to check)."""

    path: str
    line: int
    id: str | None
    grams: int


@dataclass(frozen=True, slots=True)
class EvalGrams:
    """All evaluation items, in reading order, and their grams by length."""

    items: list[EvalItem]
    tables: list[GramTable]
    unit: str

    def signer(self, size: int) -> Signer:
        """Makes the shingles of one length."""
        return Signer(gram_params(size, self.unit))


def gram_params(size: int, unit: str) -> DedupParams:
    """Shingles of `size` lower-case words or characters."""
    return DedupParams(ngram=size, unit=unit, normalize=("case",))


def collect_grams(documents: Sequence[Document], size: int, shortest: int, unit: str = "word") -> EvalGrams:
    """The grams of evaluation records. size: n. shortest: fewest words of an item that is checked at all."""
    by_size: dict[int, tuple[list[U64], list[I64]]] = {}
    counts = np.zeros(len(documents), dtype=np.int64)
    for number, document in enumerate(documents):
        found: dict[int, list[U64]] = {}
        for part in document.parts:
            if part.role == "system":
                continue
            units = plain.split_chars(part.text) if unit == "char" else plain.split_words(part.text)
            length = min(len(units), size)
            if length >= min(shortest, size):
                found.setdefault(length, []).append(Signer(gram_params(length, unit)).sets([part.text]).values)
        for length, arrays in found.items():
            grams = np.unique(np.concatenate(arrays))
            counts[number] += len(grams)
            hashes, owners = by_size.setdefault(length, ([], []))
            hashes.append(grams)
            owners.append(np.full(len(grams), number, dtype=np.int64))
    tables = [_table(length, *by_size[length]) for length in sorted(by_size)]
    items = [EvalItem(d.path, d.line, d.id, int(count)) for d, count in zip(documents, counts, strict=True)]
    return EvalGrams(items, tables, unit)


def _table(size: int, hashes: list[U64], owners: list[I64]) -> GramTable:
    values, items = np.concatenate(hashes), np.concatenate(owners)
    order = np.lexsort((items, values))
    values, items = values[order], items[order]
    grams, firsts = np.unique(values, return_index=True)
    low_bits = np.zeros(1 << FILTER_BITS, dtype=np.bool_)
    low_bits[grams & np.uint64((1 << FILTER_BITS) - 1)] = True
    return GramTable(size, grams, np.append(firsts, len(values)).astype(np.int64), items, low_bits)


@dataclass(frozen=True, slots=True)
class Overlap:
    """What one block of training documents shares with the items.

    grams: for each document how many distinct evaluation grams it holds. item: for each document the item it shares
    most grams with (lowest number among equals), -1 without any. found: for each table the numbers of grams met.
    item_documents: (items, counts): how many documents share a gram with each item met.
    """

    grams: I64
    item: I64
    found: list[I64]
    item_documents: tuple[I64, I64]


def overlap_of(texts: Sequence[str], evaluation: EvalGrams) -> Overlap:
    """Compare training texts with the evaluation; pure."""
    grams = np.zeros(len(texts), dtype=np.int64)
    found: list[I64] = []
    pairs: list[NDArray[np.int64]] = [np.zeros((0, 2), dtype=np.int64)]
    for table in evaluation.tables:
        documents, numbers = table.matches(evaluation.signer(table.size).sets(texts))
        grams += np.bincount(documents, minlength=len(texts))
        found.append(np.unique(numbers))
        counts = table.starts[numbers + 1] - table.starts[numbers]
        owner = np.repeat(documents, counts)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        items = table.items[np.repeat(table.starts[numbers], counts) + within]
        pairs.append(np.stack([owner, items], axis=1))
    distinct, shared = np.unique(np.concatenate(pairs), axis=0, return_counts=True)
    best, most = np.full(len(texts), -1, dtype=np.int64), np.zeros(len(texts), dtype=np.int64)
    # Pairs come by document, then item: a later item wins only with more grams.
    for (document, item), count in zip(distinct.tolist(), shared.tolist(), strict=True):
        if count > most[document]:
            best[document], most[document] = item, count
    items, documents_of = np.unique(distinct[:, 1], return_counts=True)
    return Overlap(grams, best, found, (items, documents_of.astype(np.int64)))
