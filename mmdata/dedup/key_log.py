"""Keys as they come: an append-only log in segments, one write and one fsync a checkpoint.

A row is a document's number and its keys (uint64 each). `drain` hands the rows on and deletes each segment once it is
read, so keys never stand on disk twice but for one segment. In memory without a folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import DedupStateError

U64 = NDArray[np.uint64]
SEGMENT_ROWS = 1 << 17
BATCH_ROWS = 1 << 13


class KeyLog:
    """Rows of one number and `width` keys."""

    def __init__(self, folder: Path | None, width: int) -> None:
        self.folder, self.width, self.rows = folder, width, 0
        self._kept: list[U64] = []
        self._file: BinaryIO | None = None

    @property
    def _row_bytes(self) -> int:
        return 8 * (self.width + 1)

    def append(self, numbers: U64, keys: U64) -> None:
        """Add rows: numbers (n,) and keys (n, width)."""
        rows = np.concatenate([numbers[:, None], keys], axis=1).astype("<u8", copy=False)
        if self.folder is None:
            self._kept.append(rows)
            self.rows += len(rows)
            return
        while len(rows):
            part = rows[: SEGMENT_ROWS - self.rows % SEGMENT_ROWS]
            if self._file is None:
                self._file = self._path(self.rows // SEGMENT_ROWS).open("ab")
            self._file.write(part.tobytes())
            self.rows += len(part)
            rows = rows[len(part) :]
            if self.rows % SEGMENT_ROWS == 0:
                self._close_segment()

    def checkpoint(self) -> dict[str, Any]:
        """Make all rows durable; JSON."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
        return {"rows": self.rows, "width": self.width}

    def resume(self, state: dict[str, Any]) -> None:
        """Continue after a checkpoint, cutting away later rows. Raises DedupStateError when rows are missing."""
        rows = int(state["rows"])
        assert self.folder is not None and state["width"] == self.width, "a log in memory has no checkpoint"
        last, rest = divmod(rows, SEGMENT_ROWS)
        for number in range(last + (rest > 0)):
            path = self._path(number)
            wanted = (rest if number == last else SEGMENT_ROWS) * self._row_bytes
            found = path.stat().st_size if path.exists() else 0
            if found < wanted:
                raise DedupStateError(f"{path}: {found} bytes, the checkpoint recorded {wanted}: start anew")
            os.truncate(path, wanted)
        for path in self.folder.glob("keys-*.log"):
            if int(path.stem.rpartition("-")[2]) >= last + (rest > 0):
                path.unlink()
        self.rows = rows

    def drain(self, consume: bool = True) -> Iterator[tuple[U64, U64]]:
        """(numbers, keys (n, width)) in order; consume: each segment is deleted once it is read."""
        self._close_segment(durable=False)
        kept, self._kept = self._kept, []
        for rows in kept:
            yield rows[:, 0], rows[:, 1:]
        if self.folder is None:
            return
        for number in range(-(-self.rows // SEGMENT_ROWS)):
            path = self._path(number)
            with path.open("rb") as file:
                while data := file.read(BATCH_ROWS * self._row_bytes):
                    rows = np.frombuffer(data, dtype="<u8").reshape(-1, self.width + 1)
                    yield rows[:, 0], rows[:, 1:]
            if consume:
                path.unlink()

    def _close_segment(self, durable: bool = True) -> None:
        """Segments become durable when they are full, so that a checkpoint has one file to look after."""
        if self._file is not None:
            file, self._file = self._file, None
            with file:
                file.flush()
                if durable:
                    os.fsync(file.fileno())

    def close(self) -> None:
        """Close the segment in hand."""
        self._close_segment()

    def _path(self, number: int) -> Path:
        assert self.folder is not None, "a log in memory has no files"
        return self.folder / f"keys-{number:06d}.log"
