"""Parses blocks into Documents and Rejects: pure, so it runs in any worker, and blind to where blocks were cut.

Plain long records run at the speed of orjson. Knows plain text records; instruction and chat records are turned into
Documents by a function the caller passes in, so that reading does not depend on the stages behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, get_args

from mmdata.collector import collector_paused
from mmdata.document import Document, Part, Reject
from mmdata.errors import UsageError
from mmdata.reading.blocks import Block
from mmdata.reading.excerpt import excerpt_of, mask
from mmdata.reading.judge import Refused, decode, name_of_type, read_object
from mmdata.reading.pieces import BLANK_LINE

Format = Literal[
    "auto", "text", "messages", "sharegpt", "alpaca", "prompt-completion", "question-answer", "input-output"
]
FORMATS: tuple[Format, ...] = get_args(Format)

# (record, path, input number, line) -> the Document, or why there is none, as `cause: reason` with the cause a short
# fixed name such as `missing-key`; without one the cause is `bad-record`.
RecordParser = Callable[[dict[str, Any], str, int, int], Document | str]

_SHOWN_KEYS = 12
_CAUSE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """Which texts of a record count. keys: for `text`, all must be there and strings. mapping: (field, role) pairs."""

    keys: tuple[str, ...] = ("text",)
    format: Format = "text"
    mapping: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            near = get_close_matches(str(self.format), FORMATS, n=1, cutoff=0.0)[0]
            raise UsageError(f"--format {self.format!r}: did you mean {near!r}? One of: {', '.join(FORMATS)}")
        if not self.keys or len(set(self.keys)) < len(self.keys) or not all(self.keys):
            raise UsageError(f"--json-keys needs one key or more, none empty and each once: {list(self.keys)}")


@dataclass(slots=True)
class ParsedBlock:
    """What a block held: records = len(documents) + len(rejects); blank lines are counted apart, in `blank`.

    gb18030: how many rejects are no UTF-8 but good GB18030 (see encoding_hint).
    """

    documents: list[Document] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    blank: int = 0
    gb18030: int = 0

    @property
    def records(self) -> int:
        return len(self.documents) + len(self.rejects)


def parse_block(block: Block, options: RecordOptions, parse_record: RecordParser | None = None) -> ParsedBlock:
    """Documents and rejects of a block, each in input order.

    parse_record: needed for every format but `text`; called for each record that is a JSON object. Causes of rejects
    here: bad-json, bad-encoding, nesting-too-deep, number-out-of-range, lone-surrogate, not-an-object, missing-key,
    not-a-string.
    """
    if parse_record is None and options.format != "text":
        raise UsageError(f"records of format {options.format} need a parser for chat records")
    with collector_paused():
        return _parse(block, options, parse_record)


def _parse(block: Block, options: RecordOptions, parse_record: RecordParser | None) -> ParsedBlock:
    if block.kind == "txt":
        return _parse_texts(block, options, parse_record)
    if block.kind == "parquet":
        from mmdata.reading.parquet import rows_of

        return _parse_rows(block, rows_of(block.data), _parser_for(options, parse_record))
    return _parse_json(block, _parser_for(options, parse_record))


def encoding_hint(records: int, gb18030: int) -> str | None:
    """Advice when most of the records are Chinese in GB18030 read as UTF-8, else None."""
    if 2 * gb18030 <= records:
        return None
    return f"{gb18030} of {records} records are not UTF-8 but valid GB18030: try --encoding gb18030"


def text_parser(keys: tuple[str, ...]) -> RecordParser:
    """A parser of plain records: one Part for each key, in the order of `keys`."""
    single = keys[0] if len(keys) == 1 else None

    def parse(record: dict[str, Any], path: str, input_number: int, line: int) -> Document | str:
        if single is not None and type(text := record.get(single)) is str:
            return Document(path, input_number, line, record_id(record), record, (Part(single, "text", text),))
        for key in keys:
            if key not in record:
                return f"missing-key: no {_quoted(key)}; the record has {_keys_of(record)}"
            if type(record[key]) is not str:
                held = name_of_type(record[key])
                return f"not-a-string: {_quoted(key)} holds {held}; the record has {_keys_of(record)}"
        parts = tuple(Part(key, "text", record[key]) for key in keys)
        return Document(path, input_number, line, record_id(record), record, parts)

    return parse


def record_id(record: dict[str, Any]) -> str | None:
    """The record's own `id` where it is a string or an integer."""
    own = record.get("id")
    if type(own) is str:
        return own
    return str(own) if type(own) is int else None


def _parser_for(options: RecordOptions, parse_record: RecordParser | None) -> RecordParser:
    return text_parser(options.keys) if parse_record is None else parse_record


def _quoted(key: str) -> str:
    short = key if len(key) <= 40 else key[:39] + "…"
    return f'"{mask(short)}"'


def _keys_of(record: dict[str, Any]) -> str:
    if not record:
        return "no keys"
    shown = ", ".join(_quoted(key) for key in list(record)[:_SHOWN_KEYS])
    return shown if len(record) <= _SHOWN_KEYS else f"{shown} and {len(record) - _SHOWN_KEYS} more"


def _parse_json(block: Block, parse: RecordParser) -> ParsedBlock:
    parsed = ParsedBlock()
    keep, path, number = parsed.documents.append, block.path, block.input_number
    line = block.first_line - 1
    for raw in _elements(block) if block.kind == "json" else _lines(block.data):
        line += 1
        try:
            found = parse(read_object(raw), path, number, line)
        except Refused as fault:
            if block.kind == "jsonl" and not bytes(raw[:65536]).strip() and not bytes(raw).strip():
                parsed.blank += 1
                continue
            found = str(fault)
        if type(found) is Document:
            keep(found)
        else:
            _reject(parsed, block, line, str(found), bytes(raw))
    return parsed


def _reject(parsed: ParsedBlock, block: Block, line: int, reason: str, raw: bytes) -> None:
    cause, _, sentence = reason.partition(": ")
    if not _CAUSE.fullmatch(cause):
        cause, sentence = "bad-record", reason
    parsed.rejects.append(Reject(block.path, block.input_number, line, cause, sentence, excerpt_of(raw)))
    parsed.gb18030 += reason.endswith("valid GB18030")


def _lines(data: bytes) -> Iterator[memoryview]:
    """Each line without its line feed, as views: slicing a view copies nothing."""
    view, find, size, begin = memoryview(data), data.find, len(data), 0
    while begin < size:
        end = find(b"\n", begin)
        if end < 0:
            end = size
        yield view[begin:end]
        begin = end + 1


def _elements(block: Block) -> Iterator[memoryview]:
    view, begin = memoryview(block.data), 0
    for end in block.bounds:
        yield view[begin:end]
        begin = end + 1


def _parse_rows(block: Block, rows: Iterator[dict[str, Any] | str], parse: RecordParser) -> ParsedBlock:
    parsed = ParsedBlock()
    for line, row in enumerate(rows, block.first_line):
        found = row if isinstance(row, str) else parse(row, block.path, block.input_number, line)
        if isinstance(found, str):
            shown = "" if isinstance(row, str) else repr(row)[:2000]
            _reject(parsed, block, line, found, shown.encode("utf-8", "replace"))
        else:
            parsed.documents.append(found)
    return parsed


def _parse_texts(block: Block, options: RecordOptions, parse_record: RecordParser | None) -> ParsedBlock:
    """Plain text: each document becomes the record {key: text}; white space alone is counted as blank."""
    parsed = ParsedBlock()
    parse = _parser_for(options, parse_record)
    key = options.keys[0] if len(options.keys) == 1 else "text"
    separates = block.txt_document == "blank-line"
    for line, raw in _texts(block):
        if not raw.strip():
            parsed.blank += not separates
            continue
        try:
            found = parse({key: decode(raw)}, block.path, block.input_number, line)
        except Refused as fault:
            found = str(fault)
        if isinstance(found, str):
            _reject(parsed, block, line, found, raw)
        else:
            parsed.documents.append(found)
    return parsed


def _texts(block: Block) -> Iterator[tuple[int, bytes]]:
    """(line, text) of each document of a `.txt` block. Inner line ends are kept; a whole file keeps its last too."""
    data, line = block.data, block.first_line
    if block.txt_document == "file":
        yield line, data
        return
    if block.txt_document == "line":
        for number, view in enumerate(_lines(data), line):
            yield number, bytes(view).removesuffix(b"\r")
        return
    begin = 0
    for blank in BLANK_LINE.finditer(data):
        yield line, data[begin : blank.start()].removesuffix(b"\n").removesuffix(b"\r")
        line += data.count(b"\n", begin, blank.end())
        begin = blank.end()
    yield line, data[begin:].removesuffix(b"\n").removesuffix(b"\r")
