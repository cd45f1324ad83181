"""The records of one block of input as lines of JSON: the input's own bytes where it is JSON lines.

Reading again is cheaper than keeping whole records in the spool, and leaves kept lines untouched; elements of arrays,
rows of parquet and text documents become one line of JSON each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from mmdata.indexed.durable import write_durably
from mmdata.jsonl import Block
from mmdata.reading.writer import encode_record

I64 = NDArray[np.int64]
LINE_FEED = 10


def record_lines(
    block: Block, lines: I64, parse: Callable[[Block], Iterator[tuple[int, dict[str, Any]]]]
) -> list[bytes]:
    """The records of `block` that stand at `lines` (ascending), each as one line without its line feed.

    parse: gives (line, record) of every record, in order; called only where the block is no JSON lines.
    """
    if block.kind == "jsonl":
        return list(_own_lines(block, lines))
    wanted = set(lines.tolist())
    return [encode_record(record) for line, record in parse(block) if line in wanted]


def _own_lines(block: Block, lines: I64) -> Iterator[bytes]:
    data = block.data
    feeds = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == LINE_FEED) if data else np.zeros(0, dtype=np.int64)
    starts = np.concatenate([[0], feeds + 1])
    ends = np.append(feeds, len(data))
    places = lines - block.first_line
    for start, end in zip(starts[places].tolist(), ends[places].tolist(), strict=True):
        yield data[start:end].strip()


def write_json(path: str, value: dict[str, Any]) -> None:
    """Write a small JSON file in one step, durably. Raises OutputError, DiskFullError."""
    write_durably(path, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY) + b"\n")
