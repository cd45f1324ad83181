"""Copies the kept records of one block of input to an output: the input's own bytes where it is JSON lines.

Reading again is cheaper than keeping whole records in the spool, and leaves kept lines untouched; elements of arrays,
rows of parquet and text documents become one line of JSON each.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mmdata.jsonl import Block, JsonlWriter
from mmdata.records import RecordOptions, RecordParser, parse_block

I64 = NDArray[np.int64]
LINE_FEED = 10


def copy_kept(
    writer: JsonlWriter, block: Block, lines: I64, records: RecordOptions, parser: RecordParser | None
) -> None:
    """Write the records of `block` that stand at `lines` (ascending)."""
    if block.kind == "jsonl":
        for line in kept_lines(block, lines):
            writer.write_line(line)
        return
    wanted = set(lines.tolist())
    for document in parse_block(block, records, parser).documents:
        if document.line in wanted:
            writer.write(document.record)


def kept_lines(block: Block, lines: I64) -> Iterator[bytes]:
    """The given lines of a block of JSON lines, without line feed and surrounding white space."""
    data = block.data
    feeds = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == LINE_FEED) if data else np.zeros(0, dtype=np.int64)
    starts = np.concatenate([[0], feeds + 1])
    ends = np.append(feeds, len(data))
    places = lines - block.first_line
    for start, end in zip(starts[places].tolist(), ends[places].tolist(), strict=True):
        yield data[start:end].strip()
