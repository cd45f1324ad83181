"""Cuts a file that holds one JSON array into pieces of whole elements, in memory bounded by the largest element.

Only strings and brackets are understood here, at some 600 MB/s; whether an element
is JSON is judged where it is parsed, so a bad element is rejected alone. What cannot be told apart any more raises: an
array that ends in the middle, or anything but white space behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from mmdata.errors import InputCorruptError, InputError, InputTruncatedError
from mmdata.reading.pieces import Limits, Piece

_MARK = re.compile(rb'["\[\]{},]')
_SPACE = b" \t\r\n"


@dataclass(slots=True)
class _Scan:
    """Where in the grammar the scan stands between two chunks."""

    depth: int = 0
    in_string: bool = False
    after_backslash: bool = False
    ended: bool = False
    ends: list[int] = field(default_factory=list)  # ends of elements in the chunk just scanned, the array's end last

    def feed(self, chunk: bytes) -> int:
        """Scan to the end of the chunk, or to just behind the array's closing bracket; returns where it stopped."""
        position, size = 0, len(chunk)
        if self.after_backslash and position < size:
            position, self.after_backslash = position + 1, False
        while position < size:
            if self.in_string:
                quote = chunk.find(b'"', position)
                end = size if quote < 0 else quote
                escaped = _odd_backslashes(chunk, position, end)
                if quote < 0:
                    self.after_backslash = escaped
                    break
                self.in_string = escaped
                position = quote + 1
                continue
            mark = _MARK.search(chunk, position)
            if mark is None:
                break
            position = mark.end()
            self._step(chunk[position - 1], position)
            if self.ended:
                return position
        return size

    def _step(self, letter: int, position: int) -> None:
        if letter == 0x22:
            self.in_string = True
        elif letter in b"[{":
            self.depth += 1
        elif letter == 0x2C:
            if self.depth == 1:
                self.ends.append(position - 1)
        else:
            self.depth -= 1
            if self.depth == 0:
                self.ends.append(position - 1)
                self.ended = True


def _odd_backslashes(chunk: bytes, begin: int, end: int) -> bool:
    """Whether an odd number of backslashes stands before `end`, so that the byte there is escaped."""
    first = end
    while first > begin and chunk[first - 1] == 0x5C:
        first -= 1
    return (end - first) % 2 == 1


def cut_array(chunks: Iterator[bytes], limits: Limits, offset: int, index: int) -> Iterator[Piece]:
    """Pieces whose `bounds` are the ends of elements in `data`; a resumed read starts behind a comma.

    Raises InputTruncatedError when the file ends before the array does, InputCorruptError when something follows it.
    """
    builder = _Builder(limits, offset, index)
    scan = _Scan(depth=1)
    chunk = b""
    if not index:
        chunk = _after_bracket(chunks, builder)
    while True:
        scan.ends.clear()
        stop = scan.feed(chunk)
        yield from builder.take(chunk[:stop], scan.ends, scan.ended)
        if scan.ended:
            break
        try:
            chunk = next(chunks, b"")
        except InputError:
            yield from builder.flush()
            raise
        if not chunk:
            yield from builder.flush()
            raise InputTruncatedError("the JSON array ends in the middle")
    if chunk[stop:].strip(_SPACE) or any(rest.strip(_SPACE) for rest in chunks):
        yield from builder.flush()
        raise InputCorruptError("something follows the end of the JSON array")
    yield from builder.flush(last=True)


def _after_bracket(chunks: Iterator[bytes], builder: _Builder) -> bytes:
    """The text behind the opening bracket in the chunk that holds it."""
    for chunk in chunks:
        before, bracket, rest = chunk.partition(b"[")
        builder.cursor += len(before) + len(bracket)
        if bracket:
            builder.start = builder.cursor
            return rest
    raise InputTruncatedError("the JSON array ends in the middle")


@dataclass(slots=True)
class _Builder:
    """Collects elements until a piece is full. Offsets are the file's; bounds are relative to the piece."""

    limits: Limits
    start: int
    index: int
    cursor: int = 0
    parts: list[bytes] = field(default_factory=list)
    bounds: list[int] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self.cursor = self.start

    def take(self, text: bytes, ends: list[int], closing: bool) -> Iterator[Piece]:
        begin = 0
        most = self.limits.block_records
        for end in ends:
            self.bounds.append(self.cursor + end - begin - self.start)
            if closing and end == ends[-1]:
                break
            full = most is not None and len(self.bounds) >= most
            if full or self.bounds[-1] >= self.limits.block_bytes:
                self.parts.append(text[begin : end + 1])
                self.cursor += end + 1 - begin
                begin = end + 1
                yield from self.flush()
        body = text[begin:-1] if closing else text[begin:]
        self.parts.append(body)
        self.cursor += len(body)
        self.closed = closing

    def flush(self, last: bool = False) -> Iterator[Piece]:
        """The whole elements held. Behind the last comma of a closed array stands nothing when the array is empty."""
        data = b"".join(self.parts)
        if self.closed and self.index + len(self.bounds) == 1 and not data.strip(_SPACE):
            self.bounds.clear()
        if self.bounds:
            size = min(self.bounds[-1] + 1, len(data)) if not self.closed else self.bounds[-1]
            stop = self.start + size
            following = self.index + len(self.bounds)
            yield Piece(self.index, self.start, stop, data[: self.bounds[-1]], following, tuple(self.bounds), last)
            self.start, self.index = stop, following
            self.parts, self.bounds = [data[size:]], []
            self.cursor = self.start + len(data) - size
