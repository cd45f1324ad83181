"""Reading and writing of JSON lines and their kin: the public door of `mmdata.reading`.

    inputs = find_inputs(["corpus/", "more-*.jsonl.gz"])
    for block in read_blocks(inputs, ReadOptions()):
        parsed = parse_block(block, RecordOptions())      # mmdata.records; pure, in any process

Reads .jsonl, .json (one array, or lines), .txt, each plain, gzip or zstd, .parquet (extra `parquet`), folders, patterns
and standard input. Parsing is `mmdata.records`' affair.
"""

from __future__ import annotations

from mmdata.reading.blocks import Block, Position, ReadOptions, read_blocks
from mmdata.reading.inputs import (
    InputFile,
    LeftOut,
    describe_place,
    find_inputs,
    stat_inputs,
    total_bytes,
)
from mmdata.reading.outputs import check_outputs, output_stem, refuse_nothing
from mmdata.reading.writer import JsonlWriter

__all__ = [
    "Block", "InputFile", "JsonlWriter", "LeftOut", "Position", "ReadOptions",
    "check_outputs", "describe_place", "find_inputs", "output_stem", "read_blocks", "refuse_nothing",
    "stat_inputs", "total_bytes",
]  # fmt: skip
