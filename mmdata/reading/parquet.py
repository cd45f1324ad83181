"""Parquet through the extra `parquet`: rows in file order, a block as an Arrow IPC stream, read batch by batch.

Memory follows the batch, not the row group's number of rows; all columns are read, since a record keeps every field.
Values JSON does not know become text: times as ISO 8601, decimals as digits, binary as UTF-8 (a row whose binary value
is no UTF-8 is rejected); NaN and infinities become null.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from mmdata.errors import InputCorruptError, MissingPackageError
from mmdata.reading.pieces import Piece


def _pyarrow(path: str) -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingPackageError(f"{path}: reading parquet needs pyarrow; pip install 'mmdata[parquet]'") from None
    return pyarrow, pyarrow.parquet


def cut_parquet(
    path: str, block_bytes: int, block_records: int | None, first_row: int
) -> Iterator[tuple[Piece, float]]:
    """Pieces of rows from the 0-based `first_row` on, each with the share of the file read; start and stop count rows.

    Raises MissingPackageError without pyarrow, InputCorruptError for what is no parquet file.
    """
    pyarrow, parquet = _pyarrow(path)
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as opened:
            base = 0
            for group in range(opened.metadata.num_row_groups):
                facts = opened.metadata.row_group(group)
                if base + facts.num_rows > first_row:
                    rows = _rows_for(facts, block_bytes, block_records)
                    batches = opened.iter_batches(batch_size=rows, row_groups=[group])
                    for piece in _pieces(pyarrow, batches, base, first_row):
                        yield piece, piece.stop / opened.metadata.num_rows
                base += facts.num_rows
    except (OSError, pyarrow.ArrowException) as fault:
        raise InputCorruptError(f"{path}: not a readable parquet file ({fault})") from fault


def _rows_for(facts: Any, block_bytes: int, block_records: int | None) -> int:
    row_bytes: int = max(1, facts.total_byte_size // max(1, facts.num_rows))
    rows = max(1, block_bytes // row_bytes)
    return rows if block_records is None else min(rows, block_records)


def _pieces(pyarrow: Any, batches: Iterator[Any], base: int, first_row: int) -> Iterator[Piece]:
    for whole in batches:
        batch = whole.slice(max(0, first_row - base))
        start = base + whole.num_rows - batch.num_rows
        base += whole.num_rows
        if batch.num_rows:
            sink = pyarrow.BufferOutputStream()
            with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            yield Piece(start + 1, start, base, sink.getvalue().to_pybytes(), base + 1)


def rows_of(data: bytes) -> Iterator[dict[str, Any] | str]:
    """The rows of a block as JSON-like records, or the reason why a row is none."""
    pyarrow, _ = _pyarrow("a parquet block")
    with pyarrow.ipc.open_stream(data) as stream:
        for batch in stream:
            for row in batch.to_pylist():
                try:
                    yield {name: _plain(value) for name, value in row.items()}
                except UnicodeDecodeError as fault:
                    where = f"byte 0x{fault.object[fault.start]:02X} at byte {fault.start} of a binary column"
                    yield f"bad-encoding: not UTF-8, {where}"


def _plain(value: Any) -> Any:
    """A value as JSON would hold it."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (datetime.timedelta, decimal.Decimal)):
        return str(value)
    return str(value)
