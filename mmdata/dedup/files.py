"""What the commands over files share: options, reading and signing through workers, records of each frame again.

Workers parse, sign and pack; the parent takes their results in input order, so results do not depend on the number of
workers. Blocks may be cut anew at any position: records are found again by input and line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from mmdata.dedup.barrier import FrameDecision, SignedBlock, drop_of, sign_documents
from mmdata.dedup.decide import DEFAULT_MEMORY
from mmdata.dedup.keeper import KeeperPolicy
from mmdata.dedup.origins import Origins
from mmdata.dedup.params import DedupParams
from mmdata.dedup.plan import Plan
from mmdata.dedup.rewrite import record_lines
from mmdata.dedup.signer import Signer, compile_kernels
from mmdata.dedup.spool import SpoolReader
from mmdata.document import Document, Drop, Reject
from mmdata.errors import InputChangedError, UsageError
from mmdata.jsonl import (
    Block,
    InputFile,
    JsonlWriter,
    Position,
    ReadOptions,
    find_inputs,
    output_stem,
    read_blocks,
    stat_inputs,
)
from mmdata.reading.excerpt import mask
from mmdata.reading.writer import encode_record
from mmdata.records import RecordOptions, RecordParser, parse_block
from mmdata.run.executor import make_executor
from mmdata.run.sizes import check_memory

ParserFactory = Callable[[], RecordParser]
COMPRESSION = 4
"""How many times smaller compressed input is, assumed by plans."""
AVERAGE_RECORD = 2000
"""Bytes a record, assumed by the plan for input it has not read."""
DROP_FIELDS = ("path", "line", "id", "stage", "reason", "value", "limit", "kept", "similarity")


def silent(text: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """How a command over files runs. keep: see KeeperPolicy.parse. index: folder of the incremental index.

    format: of records; every one but `text` needs `parser`, a picklable factory of a record parser. notice: told what
    the user should know. commit_seconds: how much work a kill may cost. None of workers, block_bytes, memory,
    commit_seconds and overwrite can change a result.
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
    commit_seconds: float = 5.0
    notice: Callable[[str], None] = silent

    def __post_init__(self) -> None:
        """Raises UsageError, before a worker or a folder is made."""
        check_memory(self.memory)
        _ = self.records, self.read  # both check what they are made of

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

    def shaping(self) -> dict[str, Any]:
        """The options that can change a byte of the outputs, as JSON values."""
        index = None if self.index is None else os.path.abspath(self.index)
        return {
            "keep": self.keep, "index": index, "json_keys": list(self.json_keys), "format": self.format,
            "encoding": self.encoding, "txt_document": self.txt_document,
        }  # fmt: skip

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
    """A worker's result for one block of input. strata: the value of the field sampled by, for each document.

    end: where reading goes on.
    """

    block: SignedBlock
    rejects: list[Reject]
    records: int
    blank: int
    strata: list[str]
    end: Position


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
        compile_kernels(self.params, self.options.notice)

    def signed(self, start: Position) -> Generator[SignedInput, None, None]:
        """Every block from `start` on, parsed, signed and counted; close the generator when leaving early."""
        # Records of standard input cannot be read again, so they travel through the spool.
        build = partial(
            _build_worker, self.params, self.policy, self.options.for_workers(), (self.from_stream, self.by)
        )
        blocks = read_blocks(self.inputs, self.options.read, start)
        with closing(self.executor.map(build, blocks, describe=describe_block)) as results:
            for result in results:
                self.counts.records += result.records
                self.counts.blank += result.blank
                self.counts.rejected += len(result.rejects)
                yield result

    def lines(
        self, origins: Origins, reader: SpoolReader, start: tuple[Position, int]
    ) -> Iterator[tuple[Position, list[bytes]]]:
        """The records again as lines of JSON, from `start` on: (where reading goes on, the next documents' lines).

        start: a position and the number of the first document behind it. Raises InputChangedError when an input
        changed since it was read.
        """
        position, document = start
        if self.from_stream:
            for frame in range(len(reader)):
                yield position, [encode_record(one.record) for one in reader.documents(frame)]
            return
        for block in read_blocks(self.inputs, self.options.read, position):
            stop = origins.stop_of(document, block.input_number, block.end)
            yield block.end, record_lines(block, origins.lines(document, stop), self._parse_again)
            document = stop
        if stat_inputs(self.inputs) != self._facts or document != origins.documents:
            raise InputChangedError("an input changed while it was deduplicated: run the command again")

    def fingerprint(self, command: str, more: dict[str, Any]) -> dict[str, Any]:
        """What an unfinished run must have in common with this one to be gone on with; see Ledger."""
        from mmdata import __version__

        chosen = {"command": command, "parameters": self.params.relevant(), **self.options.shaping(), **more}
        return {"options": chosen, "inputs": self._facts, "version": __version__}

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
            if drop.path == "-":
                drop = replace(drop, text=reader.texts([decision.first_document + place])[0])
            file.write(drop_record(drop if reason is None else replace(drop, reason=reason)))
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
        return SignedInput(signed, parsed.rejects, parsed.records, parsed.blank, strata, block.end)

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


def sibling(output: str, ending: str) -> str:
    """`out/unique.jsonl.gz` and `_report.json` give `out/unique_report.json`. Raises UsageError as `output_stem`."""
    return output_stem(output) + ending


def plan_for(files: FilePass) -> Plan:
    """What the pass will need, guessed from the sizes of its inputs."""
    size = text_bytes_guess(files.inputs)
    return Plan(size // AVERAGE_RECORD + 1, size, files.params, files.options.memory)


def text_bytes_guess(inputs: Sequence[InputFile]) -> int:
    """Bytes of text in the inputs, compressed ones taken as a quarter of their text; standard input as none."""
    size = 0
    for source in inputs:
        if os.path.isfile(source.path):
            size += os.path.getsize(source.path) * (1 if source.compression == "none" else COMPRESSION)
    return size


def drop_record(drop: Drop) -> dict[str, Any]:
    """The line of the drop file, with the text where there is one. Id and text are masked as excerpts are."""
    record = {name: getattr(drop, name) for name in DROP_FIELDS} | {"id": masked(drop.id)}
    return record if drop.text is None else record | {"text": masked(drop.text)}


def masked(text: str | None) -> str | None:
    """A text without what looks private; line feeds stay."""
    return None if text is None else "\n".join(mask(line) for line in text.split("\n"))


def reject_record(reject: Reject) -> dict[str, Any]:
    """The line of the rejects file."""
    return {"path": reject.path, "line": reject.line, "reason": reject.reason, "excerpt": reject.excerpt}
