"""`mmdata.decontaminate(...)`: training records that contain evaluation text leave, or are only reported.

    report = mmdata.decontaminate(["train.jsonl"], against=["gsm8k_test.jsonl"], output="out/clean.jsonl")

Beside OUT: OUT_dropped.jsonl.gz (each record's best matching item under `kept`), OUT_rejects.jsonl and
OUT_report.json with the coverage of every evaluation item. Streams: memory grows with the evaluation set alone. The
same command after a kill goes on where it stopped.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup.files import (
    FileOptions,
    ParserFactory,
    describe_block,
    drop_record,
    reject_record,
    sibling,
    split_options,
)
from mmdata.dedup.overlap import EvalGrams, Overlap, collect_grams, gram_params, overlap_of
from mmdata.dedup.rewrite import record_lines, write_json
from mmdata.dedup.session import PUBLISH, Place, Session
from mmdata.dedup.signer import compile_kernels
from mmdata.document import Document, Drop, Reject
from mmdata.errors import DedupParameterError, InputChangedError
from mmdata.jsonl import (
    Block,
    InputFile,
    Position,
    ReadOptions,
    check_outputs,
    find_inputs,
    read_blocks,
    refuse_nothing,
    stat_inputs,
)
from mmdata.records import RecordOptions, parse_block
from mmdata.run.executor import make_executor

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecontaminateOptions:
    """ngram: words in a row that count as overlap. shortest: items of fewer words are not checked.

    min_grams: distinct grams from which on a record leaves. report_only: write every record, count what would leave.
    against_format, against_keys and against_parser: as format, json_keys and parser, for the evaluation records.
    """

    ngram: int = 13
    shortest: int = 8
    min_grams: int = 1
    unit: str = "word"
    report_only: bool = False
    against_format: str = "text"
    against_keys: tuple[str, ...] = ("text",)
    against_parser: ParserFactory | None = None

    def __post_init__(self) -> None:
        """Raises DedupParameterError."""
        for name, value, least in (("shortest", self.shortest, 1), ("min_grams", self.min_grams, 1)):
            if value < least:
                raise DedupParameterError(f"{name} {value}: must be at least {least}")
        gram_params(self.ngram, self.unit)


@dataclass(frozen=True, slots=True)
class DecontaminationReport:
    """records = kept + dropped + rejected; contaminated = dropped unless report_only.

    items: for each evaluation record path, line, id, its number of grams, how many of them the training records hold,
    the share of them (coverage; None where it was too short to check), and how many training records share one.
    """

    output: str
    records: int
    kept: int
    dropped: int
    contaminated: int
    rejected: int
    blank: int
    items: list[dict[str, Any]]

    def lines(self) -> str:
        """The account in words, with the most covered items."""
        checked = [item for item in self.items if item["coverage"] is not None]
        covered = sorted((i for i in checked if i["found"]), key=lambda i: (-i["coverage"], i["path"], i["line"]))
        return "\n".join([
            f"{self.records:,} records read: {self.contaminated:,} contaminated, {self.kept:,} kept, {self.dropped:,} "
            f"dropped, {self.rejected:,} rejected ({self.blank:,} blank lines)",
            f"{len(covered):,} of {len(checked):,} evaluation items have overlap; {len(self.items) - len(checked):,} "
            "too short to check",
            *(f"  {i['path']}:{i['line']}: {i['coverage']:.1%} in {i['documents']:,} records" for i in covered[:10]),
            f"kept records: {self.output}",
        ])  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Checked:
    """A worker's result for one block: lines of the records that stay, and everything counted."""

    kept: list[bytes]
    dropped: list[dict[str, Any]]
    overlap: Overlap
    contaminated: int
    rejects: list[Reject]
    records: int
    blank: int
    end: Position


def decontaminate(inputs: Any, against: Any, output: str | os.PathLike[str], **options: Any) -> DecontaminationReport:
    """Write the records of `inputs` that share no evaluation n-gram with `against` to `output`.

    options: the fields of DecontaminateOptions and FileOptions (keep, index and memory have no meaning here). Raises
    UsageError, InputError, OutputError and their kin, DedupParameterError for an evaluation set with nothing to check.
    """
    rule, run = split_options(options, DecontaminateOptions, FileOptions)
    evaluation, against_facts = read_evaluation(against, rule, run)
    inputs = find_inputs([inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs))
    output = os.fspath(output)
    ends = {"dropped": "_dropped.jsonl.gz", "rejects": "_rejects.jsonl"}
    outputs = {"kept": output, **{role: sibling(output, end) for role, end in ends.items()}}
    from_stream = any(source.path == "-" for source in inputs)
    place = Place(
        Path(sibling(output, ".work")), outputs, sibling(output, "_report.json"), run.overwrite, from_stream,
        run.commit_seconds,
    )  # fmt: skip
    check_outputs((*inputs, *evaluation_files(against)), (*outputs.values(), place.report))
    place.check()
    compile_kernels(gram_params(rule.ngram, rule.unit), run.notice)
    with Session(place, _fingerprint(inputs, against_facts, rule, run)) as session:
        totals = _Totals(evaluation)
        _check(inputs, (evaluation, rule, run), session, totals)
        totals.refuse_nothing()
        session.publish()
        report = totals.report(output)
        write_json(place.report, {name: getattr(report, name) for name in DecontaminationReport.__slots__})
        session.finish()
    return report


def _fingerprint(
    inputs: list[InputFile], against: dict[str, Any], rule: DecontaminateOptions, run: FileOptions
) -> dict[str, Any]:
    from mmdata import __version__

    rules = {name: getattr(rule, name) for name in DecontaminateOptions.__slots__ if name != "against_parser"}
    chosen = {"command": "decontaminate", **rules, **run.shaping()}
    return {"options": chosen, "inputs": stat_inputs(inputs), "against": against, "version": __version__}


def _check(
    inputs: list[InputFile],
    how: tuple[EvalGrams, DecontaminateOptions, FileOptions],
    session: Session,
    totals: _Totals,
) -> None:
    """Every block from where the session's state says. Raises InputChangedError."""
    run, state, position = how[2], session.state, Position()
    facts = stat_inputs(inputs)
    if state is not None:
        run.notice(f"going on with the unfinished run in {session.place.work}")
        totals.restore(state["totals"])
        position = Position.from_json(state["position"])
        if state["phase"] == PUBLISH:
            return
    kept, dropped, rejects = (session.writers[role] for role in ("kept", "dropped", "rejects"))
    blocks = read_blocks(inputs, run.read, position)
    build = partial(_build_worker, how[0], how[1], run.for_workers())
    with closing(make_executor(run.executor, run.workers).map(build, blocks, describe=describe_block)) as results:
        for result in results:
            for line in result.kept:
                kept.write_line(line)
            for record in result.dropped:
                dropped.write(record)
            for reject in result.rejects:
                rejects.write(reject_record(reject))
            totals.add(result)
            reached = partial(totals.checkpoint, "check", result.end)
            session.commit_if_due(reached)
            position = result.end
    if stat_inputs(inputs) != facts:
        raise InputChangedError("an input changed while it was read: run the command again")
    session.commit(totals.checkpoint(PUBLISH, position))


def evaluation_files(against: Any) -> list[InputFile]:
    """The evaluation files: one path, or several."""
    return find_inputs([against] if isinstance(against, (str, os.PathLike)) else list(against))


def read_evaluation(against: Any, rule: DecontaminateOptions, run: FileOptions) -> tuple[EvalGrams, dict[str, Any]]:
    """The evaluation items' grams, and sizes and times of their files.

    Raises DedupParameterError when no item is long enough, or one is unreadable.
    """
    files = evaluation_files(against)
    parser = None if rule.against_parser is None else rule.against_parser()
    records = RecordOptions(rule.against_keys, rule.against_format)  # type: ignore[arg-type]
    documents: list[Document] = []
    for block in read_blocks(files, ReadOptions(run.encoding)):
        parsed = parse_block(block, records, parser)
        for reject in parsed.rejects:
            raise DedupParameterError(
                f"{reject.path}:{reject.line}: unreadable evaluation record ({reject.reason}): its text could not be "
                "looked for; mend it or name its keys and format"
            )
        documents += parsed.documents
    evaluation = collect_grams(documents, rule.ngram, rule.shortest, rule.unit)
    if not evaluation.tables:
        raise DedupParameterError(
            f"none of {len(documents)} evaluation records has {min(rule.shortest, rule.ngram)} words: nothing to look "
            "for; lower shortest"
        )
    return evaluation, stat_inputs(files)


class _Totals:
    """Adds up what the workers found."""

    def __init__(self, evaluation: EvalGrams) -> None:
        self._evaluation = evaluation
        self._met = [np.zeros(len(table.grams), dtype=np.bool_) for table in evaluation.tables]
        self._documents = np.zeros(len(evaluation.items), dtype=np.int64)
        self._counts = {"records": 0, "kept": 0, "dropped": 0, "contaminated": 0, "rejected": 0, "blank": 0}

    def add(self, result: _Checked) -> None:
        """Take one block."""
        for met, found in zip(self._met, result.overlap.found, strict=True):
            met[found] = True
        items, counts = result.overlap.item_documents
        self._documents[items] += counts
        kept, dropped, rejected = len(result.kept), len(result.dropped), len(result.rejects)
        added = (result.records, kept, dropped, result.contaminated, rejected, result.blank)
        for name, count in zip(self._counts, added, strict=True):
            self._counts[name] += count

    def refuse_nothing(self) -> None:
        """Raise InputError where no record could be read."""
        refuse_nothing(self._counts["records"], self._counts["rejected"], self._counts["blank"])

    def checkpoint(self, phase: str, position: Position) -> dict[str, Any]:
        """A state for the ledger: what was added so far, as JSON values."""
        met = [base64.b64encode(np.packbits(one).tobytes()).decode("ascii") for one in self._met]
        places = np.flatnonzero(self._documents)
        documents = [places.tolist(), self._documents[places].tolist()]
        totals = {"met": met, "documents": documents, "counts": self._counts}
        return {"phase": phase, "position": position.to_json(), "totals": totals}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over the `totals` of `checkpoint`."""
        for met, packed in zip(self._met, state["met"], strict=True):
            bits = np.frombuffer(base64.b64decode(packed), dtype=np.uint8)
            met[:] = np.unpackbits(bits, count=len(met)).astype(np.bool_)
        places, counts = state["documents"]
        self._documents[:] = 0
        self._documents[places] = counts
        self._counts = dict(state["counts"])

    def report(self, output: str) -> DecontaminationReport:
        """The account, with each item's coverage."""
        found = np.zeros(len(self._evaluation.items), dtype=np.int64)
        for table, met in zip(self._evaluation.tables, self._met, strict=True):
            of_gram = np.repeat(met, np.diff(table.starts))
            found += np.bincount(table.items[of_gram], minlength=len(found))
        items = [
            {
                "path": item.path, "line": item.line, "id": item.id, "grams": item.grams, "found": int(found[i]),
                "coverage": float(found[i] / item.grams) if item.grams else None,
                "documents": int(self._documents[i]),
            }
            for i, item in enumerate(self._evaluation.items)
        ]  # fmt: skip
        return DecontaminationReport(output=output, items=items, **self._counts)


def _build_worker(evaluation: EvalGrams, rule: DecontaminateOptions, run: FileOptions) -> Callable[[Block], _Checked]:
    parser = None if run.parser is None else run.parser()

    def work(block: Block) -> _Checked:
        parsed = parse_block(block, run.records, parser)
        documents = parsed.documents
        overlap = overlap_of([document.text for document in documents], evaluation)
        hit = overlap.grams >= rule.min_grams
        leaves = np.zeros_like(hit) if rule.report_only else hit
        lines = np.fromiter((document.line for document in documents), np.int64, len(documents))
        kept = record_lines(block, lines[~leaves], lambda _: ((d.line, d.record) for d in documents))
        dropped = [_drop(documents[i], overlap, i, evaluation, rule) for i in np.flatnonzero(leaves).tolist()]
        return _Checked(kept, dropped, overlap, int(hit.sum()), parsed.rejects, parsed.records, parsed.blank, block.end)

    return work


def _drop(
    document: Document, overlap: Overlap, place: int, evaluation: EvalGrams, rule: DecontaminateOptions
) -> dict[str, Any]:
    item = evaluation.items[int(overlap.item[place])]
    drop = Drop(
        document.path, document.input_number, document.line, document.id, "decontaminate", "contaminated",
        value=int(overlap.grams[place]), limit=rule.min_grams, kept=f"{item.path}:{item.line}",
    )  # fmt: skip
    if document.path == "-":
        drop = replace(drop, text=document.text)
    return drop_record(drop)
