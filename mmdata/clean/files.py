"""`mmdata clean`: files of records in, the cleaned records out, with what was dropped and rejected beside them.

Reading and cleaning run in workers, one block at a time; the parent writes in input order, so the output's bytes do
not depend on the number of workers and memory is a few blocks. Every field of a record is kept; only its texts change.
Outputs appear under their names when the run has finished; nothing is written with dry_run. Every few seconds the
position is committed to a ledger in OUT.work/: after any kind of end the same command goes on there to the same bytes
(standard input, which cannot be read again, starts from the beginning).
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmdata.clean.account import CleanReport
from mmdata.clean.pipeline import Cleaner, CleanResult, with_key, with_pii
from mmdata.clean.recipe import Recipe, load_recipe
from mmdata.document import Document, Drop, Reject
from mmdata.errors import (
    InputError,
    InputReadError,
    InputRejectedError,
    LedgerDamagedError,
    LedgerMismatchError,
    OutputError,
    OutputExistsError,
    UsageError,
)
from mmdata.indexed.durable import disk_faults
from mmdata.jsonl import (
    Block,
    InputFile,
    JsonlWriter,
    Position,
    ReadOptions,
    check_outputs,
    find_inputs,
    output_stem,
    read_blocks,
    refuse_nothing,
    stat_inputs,
)
from mmdata.reading.excerpt import mask
from mmdata.records import RecordOptions, RecordParser, parse_block
from mmdata.run.executor import make_executor
from mmdata.run.ledger import Ledger
from mmdata.run.progress import Progress, SilentProgress

BLOCK_BYTES = 4 << 20
ParserFactory = Callable[[], RecordParser]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanOptions:
    """How `clean` runs.

    recipe: a built-in name, a path, or a Recipe. pii: off, count, replace, hash, or None for the recipe's own; pii_key:
    the secret of hash. keys: JSON fields to clean, all strings. show: before/after samples kept for each reason;
    sample_drops: dropped texts kept for each reason. on_error: skip (count and set aside) or fail on a bad record.
    format: of the records (text, auto, alpaca, sharegpt, messages); all but text need `parser`, a picklable factory of
    a record parser such as `functools.partial(mmdata.chat.formats.chat_parser, "auto")`. commit_seconds: between two
    entries of the ledger. notice: is told in words when kernels are being compiled.
    """

    recipe: Recipe | str = "auto"
    pii: str | None = None
    pii_key: str | None = None
    keys: tuple[str, ...] = ("text",)
    encoding: str = "utf-8"
    on_error: str = "skip"
    show: int = 0
    sample_drops: int = 0
    dry_run: bool = False
    overwrite: bool = False
    workers: int | None = 1
    executor: str = "local"
    shard: str | None = None
    format: str = "text"
    parser: ParserFactory | None = None
    commit_seconds: float = 5.0
    block_bytes: int = BLOCK_BYTES
    notice: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        """Raises UsageError, before a worker or a folder is made."""
        _ = self.records, self.read  # both check what they are made of
        if self.on_error not in ("fail", "skip"):
            raise UsageError(f"--on-error {self.on_error!r}: one of fail, skip")
        for option, count in (("--show", self.show), ("--sample-drops", self.sample_drops)):
            if count < 0:
                raise UsageError(f"{option} {count}: must be at least 0")

    @property
    def records(self) -> RecordOptions:
        """Which texts of a record count."""
        return RecordOptions(self.keys, self.format)  # type: ignore[arg-type]

    @property
    def read(self) -> ReadOptions:
        """How inputs are read."""
        return ReadOptions(self.encoding, block_bytes=self.block_bytes)


@dataclass(slots=True)
class Outcome:
    """One block after cleaning: the result without its documents, the kept records to write, and the rejects."""

    result: CleanResult
    records: list[dict[str, Any]]
    rejects: list[Reject]
    blank: int
    bytes_in: int
    bytes_out: int
    consumed: int
    end: Position


def build_worker(
    cleaner: Cleaner, records: RecordOptions, parser: ParserFactory | None = None
) -> Callable[[Block], Outcome]:
    """The function a worker applies to blocks."""
    parse = None if parser is None else parser()

    def work(block: Block) -> Outcome:
        parsed = parse_block(block, records, parse)
        bytes_in = sum(_size(document) for document in parsed.documents)
        before = {id(document.record): document for document in parsed.documents}
        result = cleaner.clean_documents(parsed.documents)
        bytes_out = sum(_size(document) for document in result.kept)
        kept = [write_back(document, before[id(document.record)]) for document in result.kept]
        result.kept, result.encoded = [], []  # nobody asks for them any more, and a result travels between processes
        return Outcome(result, kept, parsed.rejects, parsed.blank, bytes_in, bytes_out, len(block.data), block.end)

    return work


def _size(document: Document) -> int:
    return sum(len(part.text.encode("utf-8", "surrogatepass")) for part in document.parts)


_STEP = re.compile(r"([^.\[\]]+)|\[([0-9]+)\]")


def write_back(document: Document, before: Document | None = None) -> dict[str, Any]:
    """The document's record with its texts replaced, every other field as it was; the record given is not changed.

    before: the document as it was read; texts equal to its are not written, so the record keeps its own spelling. A
    value that is no string, such as the arguments of a tool call given as an object, is read back from the new text's
    JSON. Raises OutputError where that is no longer possible.
    """
    record = dict(document.record)
    old = document.parts if before is None else before.parts
    for part, was in zip(document.parts, old, strict=True):
        if before is not None and part.text == was.text:
            continue
        if part.json_path in record:
            record[part.json_path] = part.text
            continue
        steps = [name if name else int(index) for name, index in _STEP.findall(part.json_path)]
        place: Any = record
        for step in steps[:-1]:
            place[step] = place[step].copy()
            place = place[step]
        place[steps[-1]] = _like(place[steps[-1]], part.text, document)
    return record


def _like(value: Any, text: str, document: Document) -> Any:
    if isinstance(value, str):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        where = f"{document.path}:{document.line}"
        raise OutputError(f"{where}: cleaned arguments of a tool call are no JSON: {text[:80]!r}") from error


def clean(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> CleanReport:
    """Clean files of records into `output`; `OUT_dropped.jsonl.gz` and `OUT_rejects.jsonl` stand beside it.

    inputs: files, folders, patterns or `-`. settings: fields of CleanOptions. Raises RecipeError, UsageError,
    InputError (InputRejectedError with on_error="fail") and OutputError.
    """
    options = CleanOptions(**settings)
    prefix = output_stem(os.fspath(output))
    cleaner = Cleaner(_recipe(options), show=max(options.show, options.sample_drops))
    report = CleanReport(cleaner.recipe.name, cleaner.fingerprint, None if options.dry_run else os.fspath(output))
    make_executor(options.executor, options.workers, options.shard)  # says now what is not offered
    found = find_inputs([os.fspath(item) for item in inputs])
    names = (os.fspath(output), f"{prefix}_dropped.jsonl.gz", f"{prefix}_rejects.jsonl")
    if not options.dry_run:
        check_outputs(found, names)
    shown = progress or SilentProgress()
    cleaner.prepare(options.notice)  # once here, so that workers load machine code
    if options.dry_run:
        for outcome in _outcomes(cleaner, options, found, Position()):
            _count(report, outcome, options, shown)
    else:
        with disk_faults(names[0]):
            os.makedirs(os.path.dirname(names[0]) or ".", exist_ok=True)
        with _ledger(f"{prefix}.work", cleaner, options, found, names[0]) as ledger:
            _write_all(names, cleaner, options, found, report, ledger, shown)
    shown.close()
    return report


def _outcomes(cleaner: Cleaner, options: CleanOptions, found: list[InputFile], start: Position) -> Iterator[Outcome]:
    """Every block from `start` on, cleaned, in order. Raises InputRejectedError with on_error="fail"."""
    executor = make_executor(options.executor, options.workers, options.shard)
    blocks = read_blocks(found, options.read, start)
    build = partial(build_worker, cleaner, options.records, options.parser)
    outcomes = executor.map(build, blocks, describe=lambda block: f"{block.path} from line {block.first_line} on")
    with closing(outcomes):
        for outcome in outcomes:
            if outcome.rejects and options.on_error == "fail":
                reject = outcome.rejects[0]
                raise InputRejectedError(f"{reject.path}:{reject.line}: {reject.reason}; --on-error skip sets it aside")
            yield outcome


def _count(report: CleanReport, outcome: Outcome, options: CleanOptions, shown: Progress) -> None:
    report.add(outcome, options.show, options.sample_drops)
    shown.advance(text_bytes=outcome.consumed, documents=len(outcome.records))


def _ledger(work: str, cleaner: Cleaner, options: CleanOptions, found: list[InputFile], output: str) -> Ledger:
    """The ledger of this command; an unfinished run of another command is only overwritten on request."""
    chosen = {"recipe": cleaner.fingerprint, "keys": options.keys, "encoding": options.encoding, "output": output,
              "format": options.format, "on_error": options.on_error, "shard": options.shard}  # fmt: skip
    fingerprint = {"options": chosen, "inputs": stat_inputs(found)}
    try:
        return Ledger(work, fingerprint, start_over=any(source.path == "-" for source in found))
    except (LedgerMismatchError, LedgerDamagedError):
        if not options.overwrite:
            raise
        return Ledger(work, fingerprint, start_over=True)


def _write_all(
    names: Sequence[str], cleaner: Cleaner, options: CleanOptions, found: list[InputFile], report: CleanReport,
    ledger: Ledger, shown: Progress,
) -> None:  # fmt: skip
    """Clean from the ledger's last position on and publish the outputs.

    After a fault the files stay for the next run where something was committed, and go where nothing was.
    """
    state = ledger.last()
    position = Position()
    if state is not None:
        report.restore(state["report"])
        position = Position.from_json(state["position"])
        shown.advance(text_bytes=report.bytes_in, documents=report.kept)
    writers = _open(names, options.overwrite, None if state is None else state["outputs"])
    due = time.monotonic() + options.commit_seconds
    first: Reject | None = None
    try:
        for outcome in _outcomes(cleaner, options, found, position):
            _count(report, outcome, options, shown)
            _write(writers, outcome)
            first = first or next(iter(outcome.rejects), None)
            if time.monotonic() >= due:
                ledger.commit({"position": outcome.end.to_json(), "report": report.as_json(),
                               "outputs": [writer.checkpoint() for writer in writers]})  # fmt: skip
                due = time.monotonic() + options.commit_seconds
        refuse_nothing(report.records, report.rejected.total(), report.blank, first)
        for writer in writers:
            writer.close()
    except BaseException as error:
        lasting = isinstance(error, InputError) and not isinstance(error, InputReadError)  # what is in them stays there
        over = ledger.last() is None or lasting
        for writer in writers:
            if over:
                writer.abort()
            else:
                writer.suspend()
        if over:
            ledger.finish()
        raise
    ledger.finish()


def _recipe(options: CleanOptions) -> Recipe:
    recipe = load_recipe(options.recipe) if isinstance(options.recipe, str) else options.recipe
    return with_key(recipe if options.pii is None else with_pii(recipe, options.pii), options.pii_key)


def _open(names: Sequence[str], overwrite: bool, states: Sequence[dict[str, Any]] | None) -> list[JsonlWriter]:
    for name in names:
        if os.path.exists(name) and not overwrite:
            raise OutputExistsError(f"{name} exists; choose another name or give --overwrite")
    return [
        JsonlWriter(name, overwrite=overwrite, state=None if states is None else states[i])
        for i, name in enumerate(names)
    ]


def _write(writers: list[JsonlWriter], outcome: Outcome) -> None:
    kept, dropped, rejected = writers
    for record in outcome.records:
        kept.write(record)
    for drop in outcome.result.drops:
        dropped.write(drop_line(drop))
    for reject in outcome.rejects:
        rejected.write(
            {"path": reject.path, "line": reject.line, "reason": reject.reason, "excerpt": reject.excerpt}
        )  # fmt: skip


def drop_line(drop: Drop) -> dict[str, Any]:
    """A Drop as the drop file holds it; the id is masked as excerpts are."""
    names = ("path", "line", "id", "stage", "reason", "value", "limit", "kept", "similarity")
    return {name: getattr(drop, name) for name in names} | {"id": None if drop.id is None else mask(drop.id)}
