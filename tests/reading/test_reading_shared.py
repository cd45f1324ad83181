"""Real corpora: every record equals what the standard library reads, line by line, compressed or not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from mmdata.jsonl import ReadOptions, find_inputs, read_blocks
from mmdata.records import RecordOptions, parse_block


def read_plainly(path: str) -> dict[int, Any]:
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as stream:
        return {number: json.loads(line) for number, line in enumerate(stream.read().split(b"\n"), 1) if line.strip()}


def test_real_files_are_read_as_the_standard_library_reads_them(shared: Path) -> None:
    inputs = find_inputs([path for path in (shared / "data").iterdir() if ".jsonl" in path.name])
    expected = {source.number: read_plainly(source.path) for source in inputs}
    got: dict[int, dict[int, Any]] = {source.number: {} for source in inputs}
    rejected = set()
    for block in read_blocks(inputs, ReadOptions(block_bytes=100_000)):
        parsed = parse_block(block, RecordOptions())
        got[block.input_number] |= {document.line: document.record for document in parsed.documents}
        rejected |= {(reject.input_number, reject.line, reject.cause) for reject in parsed.rejects}
    assert sum(len(records) for records in expected.values()) > 10_000
    for number, records in expected.items():
        whole = {line: record for line, record in records.items() if isinstance(record.get("text"), str)}
        assert got[number] == whole
        assert {line for at, line, _ in rejected if at == number} == records.keys() - whole.keys()
    assert {cause for _, _, cause in rejected} <= {"missing-key", "not-a-string"}
