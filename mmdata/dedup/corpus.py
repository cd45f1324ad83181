"""`mmdata.dedup(...)`: files of records in, the same records without duplicates out, and a full account.

    report = mmdata.dedup(["corpus/"], "out/unique.jsonl", threshold=0.8, index="out/index", workers=2)

Beside OUT (suffix .gz or .zst compresses): OUT_dropped.jsonl.gz names for each dropped record the kept one,
OUT_rejects.jsonl holds what could not be read, OUT_report.json the statistics.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mmdata.dedup.barrier import Barrier, BarrierOptions
from mmdata.dedup.decide import remove_scratch
from mmdata.dedup.files import FileOptions, FilePass, check_outputs, sibling, split_options, text_bytes_guess
from mmdata.dedup.index import DedupIndex
from mmdata.dedup.params import DedupParams
from mmdata.dedup.plan import Plan
from mmdata.dedup.repeated import UnitReport, remove_repeated
from mmdata.dedup.rewrite import write_json
from mmdata.jsonl import JsonlWriter

AVERAGE_RECORD = 2000
"""Bytes a record, assumed by the plan for input it has not read."""


@dataclass(frozen=True, slots=True)
class DedupReport:
    """records = kept + dropped + rejected; blank lines are counted apart. statistics: see DedupStatistics.to_json."""

    output: str
    records: int
    kept: int
    dropped: int
    rejected: int
    blank: int
    engine: str
    statistics: dict[str, Any]

    def lines(self) -> str:
        """The account in words."""
        s = self.statistics
        described = [
            f"{self.records:,} records read: {self.kept:,} kept, {self.dropped:,} dropped, {self.rejected:,} rejected "
            f"({self.blank:,} blank lines)",
            f"{s['never_compared']:,} documents without a word were not compared; {s['comparisons']:,} exact "
            f"comparisons; engine {self.engine}",
        ]
        described += [
            f"  {row['source']}: {row['dropped']:,} of {row['documents']:,} dropped ({row['share']:.1%})"
            for row in s["sources"]
        ]
        return "\n".join([*described, f"kept records: {self.output}"])


def dedup(inputs: Any, output: str | os.PathLike[str], **options: Any) -> DedupReport:
    """Write the records of `inputs` that duplicate no kept one to `output`, in input order.

    inputs: files, folders, patterns or `-`. options: the fields of DedupParams (what a duplicate is) and of
    FileOptions (how the run goes). Raises UsageError, InputError, OutputError, DedupError, RunError and their kin;
    nothing stands at the final names then.
    """
    params, run = split_options(options, DedupParams, FileOptions)
    return _Deduplication(inputs, os.fspath(output), params, run).execute()


def dedup_at(inputs: Any, output: str | os.PathLike[str], level: str, **options: Any) -> DedupReport | UnitReport:
    """`dedup` for the level `document`, else `remove_repeated` with the options it knows."""
    if level == "document":
        return dedup(inputs, output, **options)
    known = {field.name for field in fields(FileOptions)} - {"keep", "index", "parser"}
    chosen = {name: value for name, value in options.items() if name in known}
    return remove_repeated(inputs, output, level=level, normalize=options["normalize"] or ("space",), **chosen)


def plan_dedup(inputs: Any, output: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
    """What `dedup` would need with the same arguments, after all its checks: JSON values, `lines` for a person."""
    params, run = split_options(options, DedupParams, FileOptions)
    plan = _Deduplication(inputs, os.fspath(output), params, run).plan()
    numbers = {"documents": plan.documents, "ram": plan.ram, "scratch": plan.scratch, "spool": plan.spool}
    return {**numbers, "parameters": params.relevant(), "lines": plan.lines()}


class _Deduplication:
    """One call of dedup."""

    def __init__(self, inputs: Any, output: str, params: DedupParams, run: FileOptions) -> None:
        self._params, self._run, self._output = params, run, output
        self._files = FilePass(inputs, params, run)
        self._dropped = sibling(output, "_dropped.jsonl.gz")
        self._rejects = sibling(output, "_rejects.jsonl")
        self._report = sibling(output, "_report.json")
        check_outputs(self._files.inputs, (output, self._dropped, self._rejects, self._report), run.overwrite)
        self._index = None if run.index is None else DedupIndex(Path(run.index), params)

    def plan(self) -> Plan:
        """From the sizes of the inputs."""
        size = text_bytes_guess(self._files.inputs)
        return Plan(size // AVERAGE_RECORD + 1, size, self._params, self._run.memory)

    def execute(self) -> DedupReport:
        folder = Path(self._output + ".work")
        remove_scratch(folder)
        folder.mkdir()
        try:
            plan = self.plan()
            plan.check(folder)
            for line in plan.lines()[:3]:
                self._run.notice(line)
            self._files.prepare_kernels()
            options = BarrierOptions(self._files.policy, self._run.memory, self._index)
            barrier = Barrier(folder, self._params, options)
            try:
                return self._through(barrier)
            finally:
                barrier.close()
        finally:
            remove_scratch(folder)

    def _through(self, barrier: Barrier) -> DedupReport:
        """All outputs get their names together, after the index took the batch: nothing is half done."""
        overwrite, counts = self._run.overwrite, self._files.counts
        with (
            JsonlWriter(self._rejects, overwrite=overwrite) as rejects,
            JsonlWriter(self._dropped, overwrite=overwrite) as dropped,
            JsonlWriter(self._output, overwrite=overwrite) as kept,
        ):
            for _ in self._files.read(barrier, rejects):
                pass
            with barrier.reader() as reader:
                for decision, lines in self._files.frames(barrier, reader):
                    for line, stays in zip(lines, decision.kept.tolist(), strict=True):
                        if stays:
                            kept.write_line(line)
                            counts.kept += 1
                    self._files.write_dropped(dropped, reader, decision)
            statistics = barrier.statistics.to_json(self._files.names)
            if self._index is not None:
                barrier.add_to_index()
        report = DedupReport(self._output, **asdict(counts), engine=barrier.signer.engine, statistics=statistics)
        write_json(self._report, {name: getattr(report, name) for name in DedupReport.__slots__})
        return report
