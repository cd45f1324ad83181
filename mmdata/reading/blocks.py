"""Cuts inputs into blocks of whole records: what travels to the workers.

Reading is one pass in the parent process; a block is a slice of the (decompressed, UTF-8) file that ends where a
record ends. Nothing may depend on where blocks were cut. Costs a copy and a newline count, about 0.5 ms for 4 MiB, plus
decompression. A record larger than a block becomes a block of its own, so memory is bounded by the largest record.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, SupportsIndex

from mmdata.errors import InputCorruptError, InputTruncatedError, UsageError
from mmdata.reading.arrays import cut_array
from mmdata.reading.encodings import resolve_encoding, utf8_from
from mmdata.reading.inputs import InputFile, Kind, describe_place
from mmdata.reading.pieces import Limits, Piece, cut_lines, cut_paragraphs, cut_whole
from mmdata.reading.sources import CHUNK_BYTES, ByteSource

TxtDocument = Literal["file", "line", "blank-line"]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How inputs are read. None of block_bytes and block_records changes any result, only memory and hand-overs.

    encoding: of every text input; see mmdata.reading.encodings. txt_document: what one document of a `.txt` file is.
    block_bytes: bytes a block aims at. block_records: most lines (or elements, rows) in a block, None for any number.
    taper: the last blocks of the last input, where it is a plain file of lines in UTF-8, are smaller and smaller, so
    that several workers end together.
    """

    encoding: str = "utf-8"
    txt_document: TxtDocument = "file"
    block_bytes: int = 4 << 20
    block_records: int | None = None
    taper: bool = False

    def __post_init__(self) -> None:
        resolve_encoding(self.encoding)
        if self.txt_document not in ("file", "line", "blank-line"):
            raise UsageError(f"--txt-document {self.txt_document!r}: one of file, line, blank-line")
        if self.block_bytes < 1 or (self.block_records is not None and self.block_records < 1):
            raise UsageError(f"blocks need at least one byte and one record: {self.block_bytes}, {self.block_records}")


@dataclass(frozen=True, slots=True)
class Position:
    """Where reading goes on: `asdict` of it is JSON.

    offset: in decompressed bytes (in an encoding other than UTF-8: of the UTF-8 text it becomes; in parquet: rows).
    line: the number of the next line, element or row. A position behind the last input means all was read.
    """

    input_number: int = 0
    offset: int = 0
    line: int = 1

    def to_json(self) -> dict[str, int]:
        """Plain JSON values; `from_json` gives the position back."""
        return {"input_number": self.input_number, "offset": self.offset, "line": self.line}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Position:
        """The position that `to_json` described."""
        return cls(int(state["input_number"]), int(state["offset"]), int(state["line"]))


@dataclass(frozen=True, slots=True)
class Block:
    """Whole records of one input. Picklable; `records.parse_block` understands it anywhere.

    first_line: 1-based line or row of the first record, 0-based index in an array. start, stop: offsets as in
    Position. data: UTF-8 text of the records, or an Arrow IPC stream for parquet. end: where reading goes on.
    bounds: for arrays, where each element ends in `data` (one comma stands between two). consumed: bytes of this file
    taken from the disk so far, compressed where it is, for progress. txt_document: for `txt`, what one document is.
    """

    input_number: int
    path: str
    kind: Kind
    first_line: int
    start: int
    stop: int
    data: bytes
    end: Position
    bounds: tuple[int, ...] = ()
    consumed: int = 0
    txt_document: TxtDocument = "file"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Offers `data` as a buffer, so that handing a block to another process copies it once less."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        data = values.pop("data")
        return _rebuild, (pickle.PickleBuffer(data) if int(protocol) >= 5 else data, values)


def _rebuild(data: bytes | memoryview, values: dict[str, Any]) -> Block:
    return Block(data=bytes(data), **values)


def read_blocks(inputs: Sequence[InputFile], options: ReadOptions, resume: Position | None = None) -> Iterator[Block]:
    """Every record of the inputs once, in order, from `resume` on.

    Raises InputError for what cannot be read at all, and, after the blocks before the fault, InputTruncatedError or
    InputCorruptError naming the last whole record.
    """
    start = resume or Position()
    for source in inputs[start.input_number :]:
        if source.number != start.input_number:
            start = Position(source.number)
        last = options.taper and source is inputs[-1]
        yield from _read_one(source, options if last else replace(options, taper=False), start)


def _read_one(source: InputFile, options: ReadOptions, start: Position) -> Iterator[Block]:
    if source.kind == "parquet":
        from mmdata.reading.parquet import cut_parquet

        for piece, share in cut_parquet(source.path, options.block_bytes, options.block_records, start.offset):
            yield _as_block(source, options, piece, int(share * os.path.getsize(source.path)))
        return
    with ByteSource(source.path, source.compression, min(CHUNK_BYTES, options.block_bytes)) as opened:
        offset, line, done = start.offset, start.line, start.offset > 0
        if source.kind == "json" and not done:
            line = 0
        try:
            offset, text = utf8_from(opened, resolve_encoding(options.encoding), offset)
            for piece in _cut(source, options, text, offset, line):
                line, offset, done = piece.next_line, piece.stop, True
                yield _as_block(source, options, piece, opened.consumed)
        except (InputTruncatedError, InputCorruptError) as fault:
            place = describe_place(source, line - 1)
            last = f"the last whole record is {place}, up to byte {offset}" if done else "no record is whole"
            named = "" if str(fault).startswith(source.path) else f"{source.path}: "
            raise type(fault)(f"{named}{fault}; {last}. Fetch the file again, or cut it there") from fault


def _cut(source: InputFile, options: ReadOptions, text: Iterator[bytes], offset: int, line: int) -> Iterator[Piece]:
    known = options.taper and source.compression == "none" and os.path.isfile(source.path)
    end = os.path.getsize(source.path) if known and resolve_encoding(options.encoding) == "utf-8" else None
    limits = Limits(options.block_bytes, options.block_records, end)
    if source.kind == "json":
        return cut_array(text, limits, offset, line)
    if source.kind == "txt" and options.txt_document == "file":
        return cut_whole(text)
    if source.kind == "txt" and options.txt_document == "blank-line":
        return cut_paragraphs(text, limits, offset, line)
    return cut_lines(text, limits, offset, line)


def _as_block(source: InputFile, options: ReadOptions, piece: Piece, consumed: int) -> Block:
    end = Position(source.number + 1) if piece.last else Position(source.number, piece.stop, piece.next_line)
    return Block(
        source.number, source.path, source.kind, piece.first_line, piece.start, piece.stop, piece.data, end,
        piece.bounds, consumed, options.txt_document,
    )  # fmt: skip
