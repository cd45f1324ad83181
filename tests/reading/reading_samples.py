"""Records for tests of reading that need many of them, and what a list of blocks holds."""

from __future__ import annotations

import json
from collections.abc import Callable

from mmdata.jsonl import Block
from mmdata.records import ParsedBlock, RecordOptions, parse_block

Read = Callable[..., ParsedBlock]


def lines_of(count: int) -> bytes:
    """`count` lines of JSON that do not compress to nothing."""
    numbers = (number * 2654435761 % 2**32 for number in range(count))
    return b"".join(json.dumps({"id": n, "text": f"{n:x} {n * n:x} 头痛"}).encode() + b"\n" for n in numbers)


def parse_all(blocks: list[Block], keys: tuple[str, ...] = ("text",)) -> ParsedBlock:
    whole = ParsedBlock()
    for block in blocks:
        parsed = parse_block(block, RecordOptions(keys=keys))
        whole.documents += parsed.documents
        whole.rejects += parsed.rejects
        whole.blank += parsed.blank
        whole.gb18030 += parsed.gb18030
    return whole
