"""The report of a run as JSON: every record accounted for, and apart from that the facts of this very run.

The schema only grows: later versions add keys, they never rename or remove one. Everything outside `run` is a pure
function of inputs and options; workers, times, engine and absolute paths stand below `run`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mmdata.report.tally import Tally

SCHEMA = "mmdata.report/1"


@dataclass(slots=True, frozen=True)
class RunReport:
    """What a command returns: `data` is the JSON document, `notices` what the user should be told."""

    data: dict[str, Any]
    notices: tuple[str, ...] = ()

    @property
    def shards(self) -> list[str]:
        """Prefixes of the shards written."""
        return [shard["prefix"] for shard in self.data["outputs"]]

    def summary(self) -> str:
        """A few lines for the terminal: the accounting, then the shards."""
        return "\n".join(_summary_lines(self.data))


@dataclass(slots=True)
class ReportParts:
    """What a report is built of. inputs and outputs: one JSON object each; run: facts of this run; stages: any JSON.

    left_out: folder, files and example of what was not read.
    """

    tally: Tally
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    options: dict[str, Any]
    tokenizer: dict[str, Any] | None
    run: dict[str, Any]
    stages: dict[str, Any] = field(default_factory=dict)
    left_out: list[dict[str, Any]] = field(default_factory=list)


def build_report(parts: ReportParts) -> dict[str, Any]:
    """The report as plain JSON values."""
    tally = parts.tally
    tally.check()
    for entry in parts.inputs:
        source = tally.source(entry["number"])
        entry |= {name: getattr(source, name) for name in source.__slots__}
    return {
        "schema": SCHEMA,
        "records": {
            "read": tally.records,
            "kept": tally.kept,
            "dropped": dict(sorted(tally.dropped.items())),
            "rejected": dict(sorted(tally.rejected.items())),
            "blank": tally.blank,
        },
        "documents": {"written": tally.documents, "made_by_splitting": tally.documents - tally.kept},
        "tokens": tally.tokens,
        "text_bytes": tally.text_bytes,
        "length_histogram": _histogram(tally.lengths),
        "counters": dict(sorted(tally.counters.items())),
        "inputs": parts.inputs,
        "left_out": parts.left_out,
        "outputs": parts.outputs,
        "options": parts.options,
        "tokenizer": parts.tokenizer,
        "stages": parts.stages,
        "run": {**parts.run, "stage_seconds": {name: round(value, 3) for name, value in sorted(tally.seconds.items())}},
    }


def _histogram(bins: list[int]) -> list[dict[str, int]]:
    """Documents by tokens: `{from, to, documents}` with `to` included, from the first to the last filled bin."""
    filled = [number for number, count in enumerate(bins) if count]
    if not filled:
        return []
    return [
        {"from": 1 << (number - 1) if number else 0, "to": (1 << number) - 1, "documents": bins[number]}
        for number in range(filled[0], filled[-1] + 1)
    ]


def _summary_lines(data: dict[str, Any]) -> list[str]:
    records = data["records"]
    dropped, rejected = records["dropped"], records["rejected"]
    lines = [
        f"records read {records['read']:,} = kept {records['kept']:,} + dropped {sum(dropped.values()):,} "
        f"+ rejected {sum(rejected.values()):,}   (blank lines {records['blank']:,})"
    ]
    lines += [f"  dropped  {count:>10,}  {reason}" for reason, count in dropped.items()]
    lines += [f"  rejected {count:>10,}  {cause}" for cause, count in rejected.items()]
    split_off = data["documents"]["made_by_splitting"]
    made = f" (of them {split_off:,} made by splitting)" if split_off else ""
    lines.append(f"documents written {data['documents']['written']:,}{made}, tokens {data['tokens']:,}")
    lines += [
        f"  {shard['prefix']}.bin/.idx  {shard['documents']:,} documents, {shard['tokens']:,} tokens"
        for shard in data["outputs"]
    ]
    return lines
