"""Where each document came from: input number and line, 12 bytes a document on disk, read back by document number."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import DedupStateError
from mmdata.jsonl import Position

I64 = NDArray[np.int64]
WINDOW = 4096
ENTRY = np.dtype([("input", "<u4"), ("line", "<u8")])


class Origins:
    """Appends in document order, then looks up; one file that `close` leaves in place."""

    def __init__(self, path: Path, state: dict[str, Any] | None = None) -> None:
        """state: from `checkpoint`; raises DedupStateError when the file is shorter than it says."""
        self.path = path
        size = 0 if state is None else int(state["documents"]) * ENTRY.itemsize
        found = path.stat().st_size if path.exists() else 0
        if found < size:
            raise DedupStateError(f"{path}: {found} bytes, the checkpoint recorded {size}: start anew")
        self._file: BinaryIO = path.open("rb+" if size else "wb+")
        self._file.truncate(size)
        self._file.seek(size)
        self.documents = size // ENTRY.itemsize

    def append(self, input_numbers: I64, lines: I64) -> None:
        """The next documents' input numbers and lines."""
        entries = np.empty(len(lines), dtype=ENTRY)
        entries["input"], entries["line"] = input_numbers, lines
        self._file.seek(0, os.SEEK_END)
        self._file.write(entries.tobytes())
        self.documents += len(lines)

    def checkpoint(self) -> dict[str, Any]:
        """Make everything appended durable; JSON."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"documents": self.documents}

    def inputs(self, start: int, stop: int) -> I64:
        """Input numbers of documents start to stop - 1."""
        return self._entries(start, stop)["input"].astype(np.int64)

    def lines(self, start: int, stop: int) -> I64:
        """Lines of documents start to stop - 1."""
        return self._entries(start, stop)["line"].astype(np.int64)

    def stop_of(self, start: int, input_number: int, end: Position) -> int:
        """The first document from `start` on that stands at or behind `end`, where a block of that input ends."""
        at = start
        while at < self.documents:
            entries = self._entries(at, min(at + WINDOW, self.documents))
            inside = entries["input"] <= input_number
            if end.input_number == input_number:
                inside &= (entries["input"] < input_number) | (entries["line"] < end.line)
            if not inside.all():
                return at + int(np.argmin(inside))
            at += len(entries)
        return at

    def _entries(self, start: int, stop: int) -> NDArray[np.void]:
        self._file.flush()
        self._file.seek(start * ENTRY.itemsize)
        return np.frombuffer(self._file.read((stop - start) * ENTRY.itemsize), dtype=ENTRY)

    def lookup(self, document: int) -> tuple[int, int]:
        """(input number, line) of one document."""
        entry = self._entries(document, document + 1)[0]
        return int(entry["input"]), int(entry["line"])

    def close(self) -> None:
        """Close the file."""
        self._file.close()
