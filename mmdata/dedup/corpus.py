"""`mmdata.dedup(...)`: files of records in, the same records without duplicates out, and a full account.

    report = mmdata.dedup(["corpus/"], "out/unique.jsonl", threshold=0.8, index="out/index", workers=2)

Beside OUT (suffix .gz or .zst compresses): OUT_dropped.jsonl.gz names for each dropped record the kept one,
OUT_rejects.jsonl holds what could not be read, OUT_report.json the statistics. Workers parse, sign and pack; the
parent decides and writes. Scratch lies in OUT.work and is removed at the end; a killed run starts anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from mmdata.dedup.barrier import Barrier, BarrierOptions, FrameDecision, SignedBlock, drop_of, sign_documents
from mmdata.dedup.decide import DEFAULT_MEMORY, remove_scratch
from mmdata.dedup.index import DedupIndex
from mmdata.dedup.keeper import KeeperPolicy
from mmdata.dedup.params import DedupParams
from mmdata.dedup.plan import Plan
from mmdata.dedup.rewrite import copy_kept
from mmdata.dedup.signer import SLOW_NOTE, Signer, compile_kernels
from mmdata.dedup.spool import SpoolReader
from mmdata.document import Reject
from mmdata.errors import InputChangedError, OutputExistsError, UsageError
from mmdata.jsonl import Block, InputFile, JsonlWriter, ReadOptions, find_inputs, read_blocks, stat_inputs
from mmdata.records import RecordOptions, RecordParser, parse_block
from mmdata.run.executor import Executor, make_executor

ParserFactory = Callable[[], RecordParser]
AVERAGE_RECORD = 2000
"""Bytes a record, assumed by the plan for compressed input it has not read."""
COMPRESSION = 4
DROP_FIELDS = ("path", "line", "id", "stage", "reason", "value", "limit", "kept", "similarity")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusOptions:
    """How a command over files runs. keep: see KeeperPolicy.parse. index: folder of the incremental index.

    format: of records; every one but `text` needs `parser`, a picklable factory of a record parser. notice: told what
    the user should know. None of workers, block_bytes, memory and overwrite can change a result.
    """

    keep: str = "first"
    index: str | os.PathLike[str] | None = None
    memory: int = DEFAULT_MEMORY
    workers: int | None = 1
    executor: str = "local"
    overwrite: bool = False
    json_keys: tuple[str, ...] = ("text",)
    format: str = "text"
    parser: ParserFactory | None = None
    encoding: str = "utf-8"
    txt_document: str = "file"
    block_bytes: int = 4 << 20
    notice: Callable[[str], None] = lambda text: None

    @property
    def records(self) -> RecordOptions:
        """Which texts of a record count."""
        return RecordOptions(self.json_keys, self.format)  # type: ignore[arg-type]

    @property
    def read(self) -> ReadOptions:
        """How inputs are read."""
        return ReadOptions(self.encoding, self.txt_document, self.block_bytes)  # type: ignore[arg-type]


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


@dataclass(slots=True)
class _Counts:
    records: int = 0
    kept: int = 0
    dropped: int = 0
    rejected: int = 0
    blank: int = 0


@dataclass(frozen=True, slots=True)
class _Signed:
    """A worker's result for one block of input."""

    block: SignedBlock
    rejects: list[Reject]
    records: int
    blank: int


def dedup(inputs: Any, output: str | os.PathLike[str], **options: Any) -> DedupReport:
    """Write the records of `inputs` that duplicate no kept one to `output`, in input order.

    inputs: files, folders, patterns or `-`. options: the fields of DedupParams (what a duplicate is) and of
    CorpusOptions (how the run goes). Raises UsageError, InputError, OutputError, DedupError, RunError and their kin;
    nothing stands at the final names then.
    """
    params, run = split_options(options)
    return _Deduplication(as_list(inputs), os.fspath(output), params, run).execute()


def plan_dedup(inputs: Any, output: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
    """What `dedup` would need with the same arguments, after all its checks: JSON values, `lines` for a person."""
    params, run = split_options(options)
    plan = _Deduplication(as_list(inputs), os.fspath(output), params, run).plan()
    numbers = {"documents": plan.documents, "ram": plan.ram, "scratch": plan.scratch, "spool": plan.spool}
    return {**numbers, "parameters": params.relevant(), "lines": plan.lines()}


def split_options(options: dict[str, Any]) -> tuple[DedupParams, CorpusOptions]:
    """Options by name as the two dataclasses. Raises UsageError naming the nearest option for an unknown one."""
    of_params = {field.name for field in fields(DedupParams)}
    of_run = {field.name for field in fields(CorpusOptions)}
    unknown = sorted(options.keys() - of_params - of_run)
    if unknown:
        near = get_close_matches(unknown[0], sorted(of_params | of_run), n=1, cutoff=0.0)[0]
        raise UsageError(f"deduplication has no option {unknown[0]!r}; did you mean {near!r}?")
    params = DedupParams(**{name: value for name, value in options.items() if name in of_params})
    return params, CorpusOptions(**{name: value for name, value in options.items() if name in of_run})


def as_list(inputs: Any) -> list[Any]:
    """One path or a sequence of them as a list."""
    return [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)


class _Deduplication:
    """One call of dedup."""

    def __init__(self, arguments: list[Any], output: str, params: DedupParams, run: CorpusOptions) -> None:
        self._params, self._run, self._output = params, run, output
        self._policy = KeeperPolicy.parse(run.keep)
        self._inputs = find_inputs(arguments)
        self._names = [source.path for source in self._inputs]
        check_output(self._inputs, output, run.overwrite)
        self._index = None if run.index is None else DedupIndex(Path(run.index), params)
        self._executor: Executor = make_executor(run.executor, run.workers)
        self._counts = _Counts()
        self._from_stream = any(source.path == "-" for source in self._inputs)
        self._facts = stat_inputs(self._inputs)

    def plan(self) -> Plan:
        """From the sizes of the inputs."""
        size = text_bytes_guess(self._inputs)
        return Plan(size // AVERAGE_RECORD + 1, size, self._params, self._run.memory)

    def execute(self) -> DedupReport:
        folder = Path(self._output + ".work")
        Path(self._output).parent.mkdir(parents=True, exist_ok=True)
        remove_scratch(folder)
        folder.mkdir()
        try:
            plan = self.plan()
            plan.check(folder)
            for line in plan.lines()[:3]:
                self._run.notice(line)
            self._prepare_kernels()
            barrier = Barrier(folder, self._params, BarrierOptions(self._policy, self._run.memory, self._index))
            try:
                self._read(barrier)
                report = self._write(barrier)
                if self._index is not None:
                    barrier.add_to_index()
                return report
            finally:
                barrier.close()
        finally:
            remove_scratch(folder)

    def _prepare_kernels(self) -> None:
        if not Signer(self._params).native:
            self._run.notice(SLOW_NOTE)
        compile_kernels(self._params, self._run.notice)

    def _read(self, barrier: Barrier) -> None:
        build = partial(
            _build_worker, self._params, self._policy, self._run.records, self._run.parser, self._from_stream
        )
        blocks = read_blocks(self._inputs, self._run.read)
        with JsonlWriter(sibling(self._output, "_rejects.jsonl"), overwrite=self._run.overwrite) as rejects:
            for result in self._executor.map(build, blocks, describe=describe_block):
                barrier.take(result.block)
                self._counts.records += result.records
                self._counts.blank += result.blank
                self._counts.rejected += len(result.rejects)
                for reject in result.rejects:
                    rejects.write(reject_record(reject))

    def _write(self, barrier: Barrier) -> DedupReport:
        overwrite = self._run.overwrite
        with (
            JsonlWriter(self._output, overwrite=overwrite) as kept_file,
            JsonlWriter(sibling(self._output, "_dropped.jsonl.gz"), overwrite=overwrite) as dropped_file,
            SpoolReader(barrier.spool_path) as reader,
        ):
            copy = self._copy_spooled if self._from_stream else self._copy_again
            for decision in copy(kept_file, barrier, reader):
                self._counts.kept += int(decision.kept.sum())
                self._write_dropped(dropped_file, reader, decision)
            if not self._from_stream and stat_inputs(self._inputs) != self._facts:
                raise InputChangedError("an input changed while it was deduplicated: run the command again")
            report = self._report(barrier)
        write_json(sibling(self._output, "_report.json"), {name: getattr(report, name) for name in report.__slots__})
        return report

    def _copy_again(self, kept_file: JsonlWriter, barrier: Barrier, reader: SpoolReader) -> Iterator[FrameDecision]:
        """Read the inputs a second time: block by block, the frame that was made of it decides."""
        parser = None if self._run.parser is None else self._run.parser()
        blocks = read_blocks(self._inputs, self._run.read)
        for decision, block in zip(barrier.decide(self._names), blocks, strict=True):
            first = decision.first_document
            lines = barrier.origins.lines(first, first + len(decision.kept))
            copy_kept(kept_file, block, lines[decision.kept], self._run.records, parser)
            yield decision

    def _copy_spooled(self, kept_file: JsonlWriter, barrier: Barrier, reader: SpoolReader) -> Iterator[FrameDecision]:
        """Standard input cannot be read again: its records are in the spool."""
        for decision in barrier.decide(self._names):
            for place, document in enumerate(reader.documents(decision.frame)):
                if decision.kept_of[place] == -1:
                    kept_file.write(document.record)
            yield decision

    def _write_dropped(self, file: JsonlWriter, reader: SpoolReader, decision: FrameDecision) -> None:
        places = np.flatnonzero(~decision.kept).tolist()
        if not places:
            return
        identities = reader.identities(decision.frame)
        for place in places:
            drop = drop_of(identities[place], decision, place, self._params)
            record = {name: getattr(drop, name) for name in DROP_FIELDS}
            if drop.path == "-":
                record["text"] = reader.texts([decision.first_document + place], 1)[0]
            file.write(record)
        self._counts.dropped += len(places)

    def _report(self, barrier: Barrier) -> DedupReport:
        statistics = barrier.statistics.to_json(self._names)
        return DedupReport(self._output, **asdict(self._counts), engine=barrier.signer.engine, statistics=statistics)


def _build_worker(
    params: DedupParams, policy: KeeperPolicy, records: RecordOptions, parser: ParserFactory | None, with_records: bool
) -> Callable[[Block], _Signed]:
    signer = Signer(params)
    parse_record = None if parser is None else parser()

    def work(block: Block) -> _Signed:
        parsed = parse_block(block, records, parse_record)
        signed = sign_documents(parsed.documents, signer, policy, with_records)
        return _Signed(signed, parsed.rejects, parsed.records, parsed.blank)

    return work


def describe_block(block: Block) -> str:
    """Names a block in messages."""
    return f"{block.path} from line {block.first_line} on ({len(block.data):,} bytes)"


def check_output(inputs: Sequence[InputFile], output: str, overwrite: bool) -> None:
    """Raises OutputExistsError where output or its siblings exist, UsageError where it is an input."""
    if any(os.path.realpath(source.path) == os.path.realpath(output) for source in inputs if source.path != "-"):
        raise UsageError(f"{output} is an input too: choose another output")
    for path in (output, *(sibling(output, end) for end in ("_dropped.jsonl.gz", "_rejects.jsonl", "_report.json"))):
        if os.path.exists(path) and not overwrite:
            raise OutputExistsError(f"{path} exists; choose another name or give --overwrite")


def sibling(output: str, ending: str) -> str:
    """`out/unique.jsonl.gz` and `_report.json` give `out/unique_report.json`."""
    folder, name = os.path.split(output)
    for suffix in (".gz", ".zst", ".jsonl", ".json", ".ndjson"):
        name = name.removesuffix(suffix)
    return os.path.join(folder, name + ending)


def text_bytes_guess(inputs: Sequence[InputFile]) -> int:
    """Bytes of text in the inputs, compressed ones taken as a quarter of their text; standard input as none."""
    size = 0
    for source in inputs:
        if os.path.isfile(source.path):
            size += os.path.getsize(source.path) * (1 if source.compression == "none" else COMPRESSION)
    return size


def reject_record(reject: Reject) -> dict[str, Any]:
    """The line of the rejects file."""
    return {"path": reject.path, "line": reject.line, "reason": reject.reason, "excerpt": reject.excerpt}


def write_json(path: str, value: dict[str, Any]) -> None:
    """Write a small JSON file at once: under a temporary name, then renamed."""
    temporary = f"{path}.partial"
    with open(temporary, "wb") as file:
        file.write(orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
