"""What a cleaning run tells of itself: counts added up block by block, as one JSON object or as lines for a person."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from mmdata.clean.pipeline import Counts, Sample

if TYPE_CHECKING:
    from mmdata.clean.files import Outcome


@dataclass(slots=True)
class CleanReport(Counts):
    """Counts of a run: read = kept + dropped + rejected; changed documents are among the kept.

    seconds: process CPU time by step, over all workers. bytes_removed: UTF-8 bytes by step.
    """

    recipe: str
    fingerprint: str
    output: str | None
    records: int = 0
    blank: int = 0
    kept: int = 0
    unchanged: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome, show: int, sample_drops: int) -> None:
        """Count one block."""
        result = outcome.result
        self.records += len(outcome.records) + len(result.drops) + len(outcome.rejects)
        self.blank += outcome.blank
        self.kept += len(outcome.records)
        self.add_counts(result)
        self.unchanged = self.kept - self.changed_documents
        self.bytes_in += outcome.bytes_in
        self.bytes_out += outcome.bytes_out
        self.rejected.update(reject.cause for reject in outcome.rejects)
        for sample in result.samples:
            limit = max(show, sample_drops) if sample.after is None else show
            if sum(other.reason == sample.reason for other in self.samples) < limit:
                self.samples.append(sample)

    def as_json(self) -> dict[str, Any]:
        """Plain values for one JSON object."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        data["samples"] = [asdict(sample) for sample in self.samples]
        return {key: dict(value) if isinstance(value, Counter) else value for key, value in data.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over the counts that `as_json` of an unfinished run gave."""
        for item in fields(self):
            value = state[item.name]
            if item.name == "samples":
                value = [Sample(**sample) for sample in value]
            elif isinstance(getattr(self, item.name), Counter):
                value = Counter(value)
            setattr(self, item.name, value)

    def summary(self) -> str:
        """The report as lines for a person."""
        dropped, rejected = sum(self.dropped.values()), sum(self.rejected.values())
        lines = [
            f"{self.records:,} records = {self.kept:,} kept ({self.changed_documents:,} changed) + {dropped:,} dropped "
            f"+ {rejected:,} rejected; {self.blank:,} blank lines",
            f"{self.bytes_in:,} bytes of text in, {self.bytes_out:,} out; recipe {self.recipe} {self.fingerprint}",
        ]
        for name in ("dropped", "rejected", "review", "flagged", "languages", "pii"):
            counts: Counter[str] = getattr(self, name)
            if counts:
                lines.append(f"{name}: " + ", ".join(f"{key} {n:,}" for key, n in sorted(counts.items(), key=_first)))
        for step in self.seconds:
            if self.changed[step] or self.seconds[step] >= 0.05:
                what = f"changed {self.changed[step]:,} documents, removed {self.bytes_removed[step]:,} bytes"
                lines.append(f"  {step}: {what}, {self.seconds[step]:.2f} s")
        lines += [_shown(sample) for sample in self.samples]
        return "\n".join(lines)


def _first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _shown(sample: Sample, width: int = 200) -> str:
    """A sample around its first difference, control characters escaped."""
    before, after = sample.before, sample.after
    if after is None:
        return f"- {sample.reason} {sample.path}:{sample.line}\n    dropped: {_escape(before[:width])}"
    start = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    start = max(0, start - 30)
    return (
        f"- {sample.reason} {sample.path}:{sample.line}\n    before: {_escape(before[start : start + width])}\n"
        f"    after:  {_escape(after[start : start + width])}"
    )


def _escape(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
