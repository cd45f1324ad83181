"""Parquet: rows by number, batches within row groups, values JSON does not know, and the message without pyarrow."""

from __future__ import annotations

import builtins
import datetime
import decimal
from pathlib import Path
from typing import Any

import pytest
from reading_samples import Read, parse_all

from mmdata.errors import InputCorruptError, MissingPackageError
from mmdata.jsonl import ReadOptions, find_inputs, read_blocks
from mmdata.reading.writer import encode_record


def write(path: Path, rows: list[dict[str, Any]], row_group: int = 4) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=row_group)
    return path


ROWS = [{"id": f"r{number}", "text": f"第 {number} 行", "n": number} for number in range(11)]


@pytest.mark.parametrize("block_bytes", [1, 200, 1 << 22])
@pytest.mark.parametrize("block_records", [None, 1, 3])
def test_rows_are_records_with_their_number(tmp_path: Path, block_bytes: int, block_records: int | None) -> None:
    path = write(tmp_path / "a.parquet", ROWS)
    options = ReadOptions(block_bytes=block_bytes, block_records=block_records)
    blocks = list(read_blocks(find_inputs([path]), options))
    parsed = parse_all(blocks)
    assert [(document.line, document.id, document.record) for document in parsed.documents] == [
        (number, row["id"], row) for number, row in enumerate(ROWS, 1)
    ]
    assert blocks[-1].consumed == path.stat().st_size
    for number, block in enumerate(blocks, 1):
        assert parse_all(list(read_blocks(find_inputs([path]), options, block.end))) == parse_all(blocks[number:])


def test_values_json_does_not_know_become_text_or_null(tmp_path: Path, read: Read) -> None:
    row = {
        "text": "a",
        "when": datetime.datetime(2024, 2, 29, 12, 30),
        "day": datetime.date(2024, 2, 29),
        "price": decimal.Decimal("1.50"),
        "raw": "头".encode(),
        "nan": float("nan"),
        "nested": [{"x": [decimal.Decimal("2.00"), None]}],
    }
    document = read(write(tmp_path / "a.parquet", [row])).documents[0]
    assert document.record == {
        "text": "a",
        "when": "2024-02-29T12:30:00",
        "day": "2024-02-29",
        "price": "1.50",
        "raw": "头",
        "nan": None,
        "nested": [{"x": ["2.00", None]}],
    }
    assert encode_record(document.record).startswith(b'{"text":"a","when":"2024-02-29T12:30:00"')


def test_a_binary_text_column_is_read_as_utf_8_and_bad_rows_rejected(tmp_path: Path, read: Read) -> None:
    parsed = read(write(tmp_path / "a.parquet", [{"text": "头".encode()}, {"text": b"a\xff"}, {"text": None}]))
    assert [document.text for document in parsed.documents] == ["头"]
    assert [(reject.line, reject.cause, reject.reason) for reject in parsed.rejects] == [
        (2, "bad-encoding", "not UTF-8, byte 0xFF at byte 1 of a binary column"),
        (3, "not-a-string", '"text" holds null; the record has "text"'),
    ]


def test_a_missing_column_rejects_each_row(tmp_path: Path, read: Read) -> None:
    parsed = read(write(tmp_path / "a.parquet", [{"body": "zhang@example.com"}]))
    assert [(reject.cause, reject.reason) for reject in parsed.rejects] == [
        ("missing-key", 'no "text"; the record has "body"')
    ]
    assert "zhang" not in parsed.rejects[0].excerpt


def test_a_file_that_is_no_parquet_is_an_error(tmp_path: Path, read: Read) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really PAR1")
    with pytest.raises(InputCorruptError, match=r"a\.parquet: not a readable parquet file"):
        read(tmp_path / "a.parquet")


def test_without_pyarrow_the_message_gives_the_pip_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    real = builtins.__import__

    def without_pyarrow(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    with pytest.raises(MissingPackageError, match=r"pip install 'mmdata\[parquet\]'"):
        list(read_blocks(find_inputs([tmp_path / "a.parquet"]), ReadOptions()))


@pytest.mark.peer
def test_rows_equal_what_pyarrow_reads(tmp_path: Path, read: Read) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"text": f"{number}" * (number % 7), "a": {"b": [number, None]}, "f": number / 3} for number in range(500)]
    path = write(tmp_path / "a.parquet", rows, row_group=64)
    records = [document.record for document in read(path, block_bytes=1000).documents]
    assert records == parquet.read_table(path).to_pylist() == rows
