"""Counts of one run, added block by block: what was read, kept, dropped, rejected, written.

A Tally is a sum, so the order in which blocks arrive does not matter; it survives in the ledger as plain JSON. The
accounting identity of the project is checked here: records read = kept + dropped + rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdata.document import Drop, Reject

LENGTH_BINS = 32  # Bin b holds documents of 2^(b-1) .. 2^b - 1 tokens; bin 0 those of no token.


@dataclass(slots=True)
class SourceTally:
    """What became of one input's records."""

    records: int = 0
    blank: int = 0
    kept: int = 0
    dropped: int = 0
    rejected: int = 0
    tokens: int = 0

    def add(self, other: SourceTally) -> None:
        """Add another tally of the same input."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Tally:
    """All counts of a run or of one block.

    dropped: `stage:reason` to records. rejected: cause to records. counters: what stages count beside, such as
    `clean.changed.nfc` or `pii.mobile`. seconds: processor seconds by stage, summed over workers (facts of the run,
    not of the result). lengths: tokens per document in powers of two.
    """

    kept: int = 0
    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=lambda: [0] * LENGTH_BINS)
    sources: dict[int, SourceTally] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Records read, blank lines aside."""
        return sum(source.records for source in self.sources.values())

    @property
    def blank(self) -> int:
        """Blank lines met."""
        return sum(source.blank for source in self.sources.values())

    def source(self, number: int) -> SourceTally:
        """The tally of input `number`."""
        return self.sources.setdefault(number, SourceTally())

    def count_drops(self, drops: Iterable[Drop]) -> None:
        """Count each dropped record under `stage:reason`."""
        for drop in drops:
            _bump(self.dropped, f"{drop.stage}:{drop.reason}", 1)
            self.source(drop.input_number).dropped += 1

    def count_rejects(self, rejects: Iterable[Reject]) -> None:
        """Count each rejected record under its cause."""
        for reject in rejects:
            _bump(self.rejected, reject.cause, 1)
            self.source(reject.input_number).rejected += 1

    def count_table(self, name: str, counts: Mapping[str, int]) -> None:
        """Add counts under `name.key`; zeros leave no entry."""
        for key, value in counts.items():
            if value:
                _bump(self.counters, f"{name}.{key}", value)

    def count_lengths(self, lengths: npt.NDArray[np.int64]) -> None:
        """Count documents by the power of two of their tokens."""
        bins = np.bincount(np.frexp(lengths.astype(np.float64))[1], minlength=LENGTH_BINS)
        self.lengths = [have + int(new) for have, new in zip(self.lengths, bins, strict=True)]

    def add(self, other: Tally) -> None:
        """Add another tally."""
        for name in ("kept", "documents", "tokens", "text_bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("dropped", "rejected", "counters", "seconds"):
            mine: dict[str, int | float] = getattr(self, name)
            for key, value in getattr(other, name).items():
                mine[key] = mine.get(key, 0) + value
        self.lengths = [a + b for a, b in zip(self.lengths, other.lengths, strict=True)]
        for number, source in other.sources.items():
            self.source(number).add(source)

    def check(self) -> None:
        """Fail loudly when a record got lost: that is a bug of ours, never the user's."""
        gone = sum(self.dropped.values()) + sum(self.rejected.values())
        assert self.records == self.kept + gone, f"{self.records} read, {self.kept} kept, {gone} dropped or rejected"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, keys sorted; `from_json` gives the tally back."""
        sources = {str(n): {k: getattr(s, k) for k in s.__slots__} for n, s in sorted(self.sources.items())}
        tables = ("dropped", "rejected", "counters", "seconds")
        return {
            "kept": self.kept, "documents": self.documents, "tokens": self.tokens, "text_bytes": self.text_bytes,
            **{name: dict(sorted(getattr(self, name).items())) for name in tables},
            "lengths": self.lengths, "sources": sources,
        }  # fmt: skip

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Tally:
        """The tally that `to_json` described."""
        values = dict(state)
        sources = {int(number): SourceTally(**source) for number, source in values.pop("sources").items()}
        return cls(sources=sources, **values)


def _bump(table: dict[str, int], key: str, amount: int) -> None:
    table[key] = table.get(key, 0) + amount
