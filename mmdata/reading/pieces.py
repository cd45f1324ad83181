"""Cuts the UTF-8 text of one file into pieces of whole lines, paragraphs, or one whole file.

A piece is a Block before it knows its file. Cutting never looks inside a record; it copies each byte twice.
When reading fails in the middle, the whole records read so far are handed out before the error goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mmdata.errors import InputError
from mmdata.reading.sources import CHUNK_BYTES

BLANK_LINE = re.compile(rb"^[ \t\r\f\v]*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole records between the offsets start and stop. next_line: what follows; last: nothing but the end does."""

    first_line: int
    start: int
    stop: int
    data: bytes
    next_line: int
    bounds: tuple[int, ...] = ()
    last: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What a piece aims at: bytes, and at most so many records.

    taper_to: the offset where pieces end; towards it they get smaller, each a quarter of what is left, down to an
    eighth of block_bytes. None: all are alike.
    """

    block_bytes: int
    block_records: int | None
    taper_to: int | None = None

    def aim(self, offset: int) -> int:
        """Bytes that a piece which starts at this offset aims at."""
        if self.taper_to is None:
            return self.block_bytes
        return min(self.block_bytes, max((self.taper_to - offset) // 4, self.block_bytes // 8, 1))


def cut_lines(chunks: Iterator[bytes], limits: Limits, offset: int, line: int) -> Iterator[Piece]:
    """Pieces of whole lines; a line ends at a line feed or at the end of the file, nowhere else."""
    parts: list[bytes | memoryview] = []
    held = ready = 0  # bytes in parts, and how many of them are whole lines
    fault: InputError | None = None
    at_end = False
    aim = limits.aim(offset)
    while not at_end:
        try:
            chunk = next(chunks, b"")
        except InputError as reason:
            chunk, fault = b"", reason
        at_end = not chunk
        rest = b""
        if cut := chunk.rfind(b"\n") + 1:
            ready = held + cut
        if cut and ready >= aim:
            parts.append(memoryview(chunk)[:cut])
            rest = chunk[cut:]
        elif chunk:
            parts.append(chunk)
        if ready >= aim or at_end:
            whole = b"".join(parts)
            parts = []  # a huge line does not stand in memory twice
            if fault is not None:
                whole = whole[:ready]
            for piece in _split(whole, limits, offset, line):
                yield piece
                offset, line = piece.stop, piece.next_line
            parts, held, ready, aim = [rest], len(rest), 0, limits.aim(offset)
        else:
            held += len(chunk)
    if fault is not None:
        raise fault


def _split(data: bytes, limits: Limits, offset: int, line: int) -> Iterator[Piece]:
    begin = 0
    while begin < len(data):
        end = _end_of_piece(data, begin, limits.aim(offset + begin), limits.block_records)
        lines = data.count(b"\n", begin, end) + (data[end - 1] != 0x0A)
        body = data if end - begin == len(data) else data[begin:end]
        yield Piece(line, offset + begin, offset + end, body, line + lines)
        begin, line = end, line + lines


def _end_of_piece(data: bytes, begin: int, aim: int, most: int | None) -> int:
    end = len(data)
    if end - begin > aim + 2 * min(CHUNK_BYTES, aim):
        target = begin + aim
        end = data.rfind(b"\n", begin, target) + 1 or data.find(b"\n", target) + 1 or end
    if most is not None:
        stop = begin
        for _ in range(most):
            stop = data.find(b"\n", stop, end) + 1
            if not stop:
                return end
        end = stop
    return end


def cut_paragraphs(chunks: Iterator[bytes], limits: Limits, offset: int, line: int) -> Iterator[Piece]:
    """Pieces of whole paragraphs, each with the blank lines that follow it."""
    held: list[bytes] = []
    first_line, start = line, offset
    for lines in cut_lines(chunks, limits, offset, line):
        cut = _behind_last_blank_line(lines.data)
        if cut:
            held.append(lines.data[:cut])
            next_line = lines.first_line + lines.data.count(b"\n", 0, cut)
            yield Piece(first_line, start, lines.start + cut, b"".join(held), next_line)
            held, first_line, start = [], next_line, lines.start + cut
        if cut < len(lines.data):
            held.append(lines.data[cut:])
    if held:
        data = b"".join(held)
        yield Piece(first_line, start, start + len(data), data, first_line + data.count(b"\n"), last=True)


def _behind_last_blank_line(data: bytes) -> int:
    """Where the last blank line that a line feed ends is over; 0 when there is none. `data` starts with a line."""
    stop = data.rfind(b"\n")
    while stop >= 0:
        before = data.rfind(b"\n", 0, stop)
        if not data[before + 1 : stop].strip():
            return stop + 1
        stop = before
    return 0


def cut_whole(chunks: Iterator[bytes]) -> Iterator[Piece]:
    """The whole file as one piece; an empty file gives none."""
    data = b"".join(chunks)
    if data:
        yield Piece(1, 0, len(data), data, data.count(b"\n") + 1, last=True)
