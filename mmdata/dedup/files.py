"""What the commands over files share: options, reading and signing through workers, records of each frame again.

Workers parse, sign and pack; the parent spools, decides and writes in input order, so results do not depend on the
number of workers. Scratch lies in OUT.work and is removed at the end; a killed run starts anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from mmdata.dedup.barrier import Barrier, FrameDecision, SignedBlock, drop_of, sign_documents
from mmdata.dedup.decide import DEFAULT_MEMORY
from mmdata.dedup.keeper import KeeperPolicy
from mmdata.dedup.params import DedupParams
from mmdata.dedup.rewrite import record_lines
from mmdata.dedup.signer import SLOW_NOTE, Signer, compile_kernels
from mmdata.dedup.spool import SpoolReader
from mmdata.document import Document, Reject
from mmdata.errors import InputChangedError, OutputExistsError, UsageError
from mmdata.jsonl import Block, InputFile, JsonlWriter, ReadOptions, find_inputs, read_blocks, stat_inputs
from mmdata.reading.writer import encode_record
from mmdata.records import RecordOptions, RecordParser, parse_block
from mmdata.run.executor import make_executor

ParserFactory = Callable[[], RecordParser]
COMPRESSION = 4
"""How many times smaller compressed input is, assumed by plans."""
DROP_FIELDS = ("path", "line", "id", "stage", "reason", "value", "limit", "kept", "similarity")


def silent(text: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
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
    notice: Callable[[str], None] = silent

    @property
    def records(self) -> RecordOptions:
        """Which texts of a record count."""
        return RecordOptions(self.json_keys, self.format)  # type: ignore[arg-type]

    @property
    def read(self) -> ReadOptions:
        """How inputs are read."""
        return ReadOptions(self.encoding, self.txt_document, self.block_bytes)  # type: ignore[arg-type]

    def for_workers(self) -> FileOptions:
        """The same without what cannot travel to another process."""
        return replace(self, notice=silent)

    def parse(self, block: Block) -> list[Document]:
        """The documents of a block."""
        return parse_block(block, self.records, None if self.parser is None else self.parser()).documents


@dataclass(slots=True)
class Counts:
    """records = kept + dropped + rejected (+ sampled); blank lines are no records."""

    records: int = 0
    kept: int = 0
    dropped: int = 0
    rejected: int = 0
    blank: int = 0


@dataclass(frozen=True, slots=True)
class SignedInput:
    """A worker's result for one block of input. strata: the value of the field sampled by, for each document."""

    block: SignedBlock
    rejects: list[Reject]
    records: int
    blank: int
    strata: list[str]


class FilePass:
    """The inputs of one command: read and signed once, and each frame's records again with its decision."""

    def __init__(self, arguments: Any, params: DedupParams, options: FileOptions, by: str | None = None) -> None:
        """by: a record field whose value the workers report as stratum."""
        self.params, self.options, self.by = params, options, by
        self.policy = KeeperPolicy.parse(options.keep)
        many = [arguments] if isinstance(arguments, (str, os.PathLike)) else list(arguments)
        self.inputs = find_inputs(many)
        self.names = [source.path for source in self.inputs]
        self.executor = make_executor(options.executor, options.workers)
        self.counts = Counts()
        self.from_stream = any(source.path == "-" for source in self.inputs)
        self._facts = stat_inputs(self.inputs)

    def prepare_kernels(self) -> None:
        """Compile once here, so that workers load machine code; says so, and says when numba is missing."""
        if not Signer(self.params).native:
            self.options.notice(SLOW_NOTE)
        compile_kernels(self.params, self.options.notice)

    def read(self, barrier: Barrier, rejects: JsonlWriter) -> Iterator[SignedInput]:
        """Sign everything into the barrier, yielding each block's result once it is taken."""
        # Records of standard input cannot be read again, so they travel through the spool.
        build = partial(
            _build_worker, self.params, self.policy, self.options.for_workers(), (self.from_stream, self.by)
        )
        blocks = read_blocks(self.inputs, self.options.read)
        for result in self.executor.map(build, blocks, describe=describe_block):
            barrier.take(result.block)
            self.counts.records += result.records
            self.counts.blank += result.blank
            self.counts.rejected += len(result.rejects)
            for reject in result.rejects:
                rejects.write(reject_record(reject))
            yield result

    def frames(self, barrier: Barrier, reader: SpoolReader) -> Iterator[tuple[FrameDecision, list[bytes]]]:
        """Decide, and give each frame's decisions with all its records as lines.

        Raises InputChangedError when an input changed since it was read.
        """
        decisions = barrier.decide(self.names)
        if self.from_stream:
            for decision in decisions:
                yield decision, [encode_record(document.record) for document in reader.documents(decision.frame)]
            return
        for decision, block in zip(decisions, read_blocks(self.inputs, self.options.read), strict=True):
            first = decision.first_document
            lines = barrier.origins.lines(first, first + len(decision.kept))
            yield decision, record_lines(block, lines, self._parse_again)
        if stat_inputs(self.inputs) != self._facts:
            raise InputChangedError("an input changed while it was deduplicated: run the command again")

    def _parse_again(self, block: Block) -> Iterator[tuple[int, dict[str, Any]]]:
        return ((document.line, document.record) for document in self.options.parse(block))

    def write_dropped(
        self, file: JsonlWriter, reader: SpoolReader, decision: FrameDecision, reason: str | None = None
    ) -> None:
        """The account of the frame's dropped documents; with their text where the input was standard input."""
        places = (decision.kept_of != -1).nonzero()[0].tolist()
        identities = reader.identities(decision.frame) if places else []
        for place in places:
            drop = drop_of(identities[place], decision, place, self.params)
            record = {name: getattr(drop, name) for name in DROP_FIELDS}
            if reason is not None:
                record["reason"] = reason
            if drop.path == "-":
                record["text"] = reader.texts([decision.first_document + place], 1)[0]
            file.write(record)
        self.counts.dropped += len(places)


def _build_worker(
    params: DedupParams, policy: KeeperPolicy, options: FileOptions, want: tuple[bool, str | None]
) -> Callable[[Block], SignedInput]:
    signer = Signer(params)
    parser = None if options.parser is None else options.parser()
    with_records, by = want

    def work(block: Block) -> SignedInput:
        parsed = parse_block(block, options.records, parser)
        signed = sign_documents(parsed.documents, signer, policy, with_records)
        strata = [] if by is None else [str(document.record.get(by)) for document in parsed.documents]
        return SignedInput(signed, parsed.rejects, parsed.records, parsed.blank, strata)

    return work


def split_options(options: dict[str, Any], *kinds: Any) -> list[Any]:
    """Options by name as instances of the given dataclasses. Raises UsageError naming the nearest name."""
    known = {field.name: kind for kind in kinds for field in fields(kind)}
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        near = get_close_matches(unknown[0], sorted(known), n=1, cutoff=0.0)[0]
        raise UsageError(f"no option {unknown[0]!r} here; did you mean {near!r}?")
    return [kind(**{name: value for name, value in options.items() if known[name] is kind}) for kind in kinds]


def describe_block(block: Block) -> str:
    """Names a block in messages."""
    return f"{block.path} from line {block.first_line} on ({len(block.data):,} bytes)"


def check_outputs(inputs: Sequence[InputFile], outputs: Sequence[str], overwrite: bool) -> None:
    """Make the outputs' folders. Raises OutputExistsError where one exists, UsageError where one is an input."""
    for path in outputs:
        if any(os.path.realpath(source.path) == os.path.realpath(path) for source in inputs if source.path != "-"):
            raise UsageError(f"{path} is an input too: choose another output")
        if os.path.exists(path) and not overwrite:
            raise OutputExistsError(f"{path} exists; choose another name or give --overwrite")
        Path(path).parent.mkdir(parents=True, exist_ok=True)


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
