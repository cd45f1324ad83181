"""What a report says about a deduplication: cluster sizes, shares and matrix by source, sampled pairs side by side.

Counted while decisions are read in input order; memory grows with the number of sources and of distinct cluster
sizes, not with the documents (cluster sizes go through an external sort of 16 bytes a dropped document).
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup.external import PairStore
from mmdata.dedup.params import DedupParams, catch_curve

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

INDEX = -1
"""Stands for the index among source numbers."""
SAMPLED_PAIRS = 20
SORT_MEMORY = 32 << 20
HISTOGRAM_BINS = 20


@dataclass(frozen=True, slots=True)
class SampledPair:
    """A dropped document and the one kept for it, with excerpts whose private data is masked."""

    dropped: str
    kept: str
    exact: float
    estimated: float
    dropped_text: str
    kept_text: str


@dataclass(slots=True)
class DedupStatistics:
    """documents, dropped, uncounted (empty, never compared) and compared (exact comparisons made) are totals."""

    params: DedupParams
    folder: Path | None = None
    documents: int = 0
    dropped: int = 0
    uncounted: int = 0
    compared: int = 0
    by_source: Counter[int] = field(default_factory=Counter)
    dropped_by_source: Counter[int] = field(default_factory=Counter)
    matrix: Counter[tuple[int, int]] = field(default_factory=Counter)
    similarities: NDArray[np.int64] = field(default_factory=lambda: np.zeros(HISTOGRAM_BINS, dtype=np.int64))
    pairs: list[SampledPair] = field(default_factory=list)
    _sampled: list[tuple[int, int, int, float]] = field(default_factory=list)
    _clusters: PairStore | None = None

    def count(self, start: int, sources: I64, kept_of: I64, similarity: F64, kept_sources: I64) -> None:
        """Take the decisions of documents start, start + 1, ...; kept_sources: for dropped ones, in order."""
        numbers, counts = np.unique(sources, return_counts=True)
        self.by_source.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        self.documents += len(sources)
        gone = np.flatnonzero(kept_of != -1)
        self.dropped += len(gone)
        self.dropped_by_source.update(sources[gone].tolist())
        self.matrix.update(zip(sources[gone].tolist(), kept_sources.tolist(), strict=True))
        bins = np.minimum((similarity[gone] * HISTOGRAM_BINS).astype(np.int64), HISTOGRAM_BINS - 1)
        self.similarities += np.bincount(bins, minlength=HISTOGRAM_BINS)
        if self._clusters is None:
            self._clusters = PairStore(self.folder, "clusters", 56)
        # Spread over partitions by an odd multiplier: a bijection, so equal kept documents stay equal.
        spread = kept_of[gone].view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self._clusters.append(spread, (gone + start).astype(np.uint64))
        self._sample(start, gone, kept_of, similarity)

    def _sample(self, start: int, gone: I64, kept_of: I64, similarity: F64) -> None:
        """Keep the dropped documents whose numbers hash lowest: the same for any batching."""
        hashes = (gone + start).astype(np.uint64) * np.uint64(0xC4CEB9FE1A85EC53)
        hashes ^= hashes >> np.uint64(29)
        for place in np.argsort(hashes, kind="stable")[:SAMPLED_PAIRS].tolist():
            at = int(gone[place])
            self._sampled.append((int(hashes[place]), start + at, int(kept_of[at]), float(similarity[at])))
        self._sampled = heapq.nsmallest(SAMPLED_PAIRS, self._sampled)

    def sampled(self) -> list[tuple[int, int, float]]:
        """(dropped document, kept document as in DecisionRange, exact similarity) of the sampled pairs, by document."""
        return sorted((document, kept, similarity) for _, document, kept, similarity in self._sampled)

    def cluster_sizes(self) -> dict[int, int]:
        """How many kept documents stand for 2, 3, ... documents (themselves and those dropped for them)."""
        sizes: Counter[int] = Counter()
        last, carried = None, 0
        for keys, _ in self._clusters.read_sorted(SORT_MEMORY, consume=False) if self._clusters is not None else ():
            _, counts = np.unique(keys, return_counts=True)
            runs = counts.tolist()
            if last is not None and keys[0] == last:
                runs[0] += carried
            elif carried:
                sizes[carried + 1] += 1
            last, carried = keys[-1], runs.pop()
            sizes.update(count + 1 for count in runs)
        if carried:
            sizes[carried + 1] += 1
        return dict(sorted(sizes.items()))

    def to_json(self, source_names: list[str]) -> dict[str, Any]:
        """Everything as JSON values; sources by name, the index as `index`."""

        def name(number: int) -> str:
            return "index" if number == INDEX else source_names[number]

        return {
            "documents": self.documents,
            "dropped": self.dropped,
            "never_compared": self.uncounted,
            "comparisons": self.compared,
            "parameters": self.params.relevant(),
            "catch_curve": [] if self.params.method == "exact" else catch_curve(self.params.bands, self.params.rows),
            "cluster_sizes": {str(size): count for size, count in self.cluster_sizes().items()},
            "similarities": self.similarities.tolist(),
            "sources": [
                {
                    "source": name(number),
                    "documents": self.by_source[number],
                    "dropped": self.dropped_by_source[number],
                    "share": self.dropped_by_source[number] / self.by_source[number],
                }
                for number in sorted(self.by_source)
            ],
            "matrix": [
                {"dropped_from": name(source), "kept_in": name(kept), "documents": count}
                for (source, kept), count in sorted(self.matrix.items())
            ],
            "pairs": [
                {field_name: getattr(pair, field_name) for field_name in SampledPair.__dataclass_fields__}
                for pair in self.pairs
            ],
        }

    def remove(self) -> None:
        """Delete the scratch file of cluster sizes."""
        if self._clusters is not None:
            self._clusters.remove()
