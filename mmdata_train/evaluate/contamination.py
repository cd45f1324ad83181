"""Whether evaluation items stand in what a model was trained on: 13-grams of the items against the decoded shards.

Uses the machinery of `mmdata decontaminate`: words (one Han character is one), lower case; items of fewer than 8 words
cannot be judged. An item counts as contaminated when at least a share of its grams is found: a statute's name of 13
characters that a law corpus holds as well is not yet an overlap. Cost: decoding the shards once, memory 32 MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmdata.dedup.overlap import EvalGrams, collect_grams, overlap_of
from mmdata.document import Document, Part
from mmdata.indexed.reader import IndexedDataset
from mmdata_train.errors import ContaminationError

NGRAM = 13
SHORTEST = 8
_BLOCK_CHARACTERS = 8_000_000
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class EvaluatedText:
    """One item's texts: question, options, references. path and line as the user knows them."""

    path: str
    line: int
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OverlapReport:
    """items: checked ones; unchecked: too short. touched: items with any gram in the training data. contaminated:
    (path, line, share) of those at or above the limit, the worst first.
    """

    items: int
    unchecked: int
    touched: int
    contaminated: tuple[tuple[str, int, float], ...]
    sources: tuple[str, ...]
    limit: float


def find_overlap(
    items: Sequence[EvaluatedText], training: Iterable[tuple[str, Iterable[str]]], limit: float
) -> OverlapReport:
    """Compare items with training texts, given as (source, texts). Pure but for reading `training`."""
    documents = [
        Document(item.path, 0, item.line, None, {}, tuple(Part("text", "text", text) for text in item.texts if text))
        for item in items
    ]
    grams = collect_grams(documents, NGRAM, SHORTEST)
    met = [np.zeros(len(table.grams), dtype=bool) for table in grams.tables]
    sources = []
    for source, texts in training:
        sources.append(source)
        for block in _blocks(texts):
            for seen, found in zip(met, overlap_of(block, grams).found, strict=True):
                seen[found] = True
    return _report(grams, met, tuple(sources), limit)


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    block: list[str] = []
    size = 0
    for text in texts:
        block.append(text)
        size += len(text)
        if size >= _BLOCK_CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


def _report(grams: EvalGrams, met: Sequence[Any], sources: tuple[str, ...], limit: float) -> OverlapReport:
    found = np.zeros(len(grams.items), dtype=np.int64)
    for table, seen in zip(grams.tables, met, strict=True):
        of_gram = np.repeat(seen, np.diff(table.starts))
        found += np.bincount(table.items[of_gram], minlength=len(found))
    checked = [(item, int(count)) for item, count in zip(grams.items, found, strict=True) if item.grams]
    shares = [(item.path, item.line, count / item.grams) for item, count in checked]
    bad = sorted((s for s in shares if s[2] >= limit), key=lambda s: (-s[2], s[0], s[1]))
    return OverlapReport(
        len(checked),
        len(grams.items) - len(checked),
        sum(count > 0 for _, count in checked),
        tuple(bad),
        sources,
        limit,
    )


def refuse(report: OverlapReport) -> None:
    """Raises ContaminationError, naming the worst items, where any is contaminated."""
    if not report.contaminated:
        return
    worst = "; ".join(f"{path}:{line} {share:.0%}" for path, line, share in report.contaminated[:_SHOWN])
    raise ContaminationError(
        f"{len(report.contaminated)} of {report.items} evaluation items stand in the training data (share of their"
        f" {NGRAM}-grams found: {worst}); take them out with `mmdata decontaminate`, or give --allow-contamination, and"
        " the results will say so"
    )


def decoded(shard: IndexedDataset, tokenizer: Any) -> Iterator[str]:
    """The text of each document of a shard."""
    for number in range(shard.document_count):
        yield tokenizer.decode(shard.document(number))
