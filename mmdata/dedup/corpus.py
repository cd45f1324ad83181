"""`mmdata.dedup(...)`: files of records in, the same records without duplicates out, and a full account.

    report = mmdata.dedup(["corpus/"], "out/unique.jsonl", threshold=0.8, index="out/index", workers=2)

Beside OUT (suffix .gz or .zst compresses): OUT_dropped.jsonl.gz names for each dropped record the kept one,
OUT_rejects.jsonl holds what could not be read, OUT_report.json the statistics. Work files lie in OUT.work; the same
command after a kill goes on from there.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mmdata.dedup.file_run import FileRun, KeepOrDrop
from mmdata.dedup.files import FileOptions, FilePass, plan_for, sibling, split_options
from mmdata.dedup.index import Batch, DedupIndex
from mmdata.dedup.params import DedupParams
from mmdata.dedup.plan import Plan
from mmdata.dedup.repeated import UnitReport, remove_repeated
from mmdata.dedup.rewrite import write_json
from mmdata.dedup.session import Place, Session
from mmdata.dedup.signer import Signer
from mmdata.jsonl import check_outputs


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
        outputs = {
            "kept": output, "dropped": sibling(output, "_dropped.jsonl.gz"),
            "rejects": sibling(output, "_rejects.jsonl"),
        }  # fmt: skip
        self._place = Place(
            Path(sibling(output, ".work")), outputs, sibling(output, "_report.json"), run.overwrite,
            self._files.from_stream, run.commit_seconds,
        )  # fmt: skip
        check_outputs(self._files.inputs, (*outputs.values(), self._place.report))
        self._place.check()
        self._fingerprint = self._files.fingerprint("dedup", {})
        self._index: DedupIndex | None = None
        if run.index is not None:
            self._index = DedupIndex(Path(run.index), params, Batch.of(self._fingerprint, output, Path(run.index)))

    def plan(self) -> Plan:
        """From the sizes of the inputs."""
        return plan_for(self._files)

    def execute(self) -> DedupReport:
        """All outputs get their names together, after the index took the batch: nothing is half done."""
        if self._index is not None and self._index.holds_batch:
            self._run.notice(f"{self._run.index} holds this very batch already: its own documents do not count")
        with Session(self._place, self._fingerprint) as session:
            plan = self.plan()
            if session.state is None:
                plan.check(session.scratch)
            else:
                self._run.notice(f"going on with the unfinished run in {self._place.work}")
            for line in plan.lines()[:3]:
                self._run.notice(line)
            self._files.prepare_kernels()
            state = FileRun(self._files, session, KeepOrDrop(), self._index).execute()
            session.publish()
            counts, engine = asdict(self._files.counts), Signer(self._params).engine
            report = DedupReport(self._output, **counts, engine=engine, statistics=state["statistics"])
            write_json(self._place.report, {name: getattr(report, name) for name in DedupReport.__slots__})
            session.finish()
        return report
