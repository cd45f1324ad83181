"""What worker processes load while the parent still checks and loads for itself: so that none waits for the other.

Nothing here may compile kernels: that happens once, in the parent; `stages.load_kernels` follows it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mmdata.jsonl import InputFile, ReadOptions, read_blocks, total_bytes
from mmdata.pipeline.options import ConvertOptions
from mmdata.records import RecordOptions, parse_block
from mmdata.run.executor import available_cores

if TYPE_CHECKING:
    from mmdata.chat.turns import TurnPolicy

SMALL_INPUT = 16 << 20
"""Bytes of text that one process is done with before others have loaded what they need (about 2 s)."""
COMPRESSED_GROWTH = 4
SAMPLE_BYTES = 1 << 18
"""Of the first input, for the tokenizer's self-check."""


@dataclass(slots=True, frozen=True)
class WorkerNeeds:
    """What the workers of a run will need. tokenizer: as the user named it, with load_tokenizer's options."""

    tokenizer: Any
    tokenizer_options: dict[str, Any]
    cleans: bool
    compares: bool


def needs_of(tokenizer: Any, options: ConvertOptions, special_tokens: str | None, engine: str) -> WorkerNeeds:
    """The needs of a run with these options; special_tokens and engine as in RunOptions."""
    chosen = {
        "eod_token": options.eod_token, "allow_special": options.allow_special, "special_tokens": special_tokens,
        "engine": engine,
    }  # fmt: skip
    return WorkerNeeds(tokenizer, chosen, options.recipe != "none", options.dedup == "minhash")


def warm_worker(needs: WorkerNeeds) -> None:
    """Import and load everything a block will need; called in a worker. Raises what load_tokenizer raises."""
    import_module("mmdata.pipeline.work")
    if needs.cleans:
        import_module("mmdata.clean.pipeline")
    if needs.compares:
        import_module("mmdata.pipeline.dedup")
        import_module("mmdata.dedup.minhash_kernels")
    from mmdata.tokenizer import preload_tokenizer

    preload_tokenizer(needs.tokenizer, **needs.tokenizer_options)


def sample_texts(first: InputFile, encoding: str, records: RecordOptions, turn_order: TurnPolicy) -> list[str]:
    """Texts from the start of the first input, for the self-check; standard input and pipes are not touched."""
    if not os.path.isfile(first.path) or first.kind in ("parquet", "txt"):
        return []
    parse = None
    if records.format != "text":
        from mmdata.pipeline.work import record_parser

        parse = record_parser(records, turn_order)
    for block in read_blocks([first], ReadOptions(encoding, block_bytes=SAMPLE_BYTES)):
        return [document.text for document in parse_block(block, records, parse).documents[:200]]
    return []


def fitting_workers(inputs: Sequence[InputFile]) -> int:
    """How many workers to use where nobody said: one a core, but a single one for a small input."""
    size = total_bytes(list(inputs))
    packed = any(source.compression != "none" or source.kind == "parquet" for source in inputs)
    if size is not None and size * (COMPRESSED_GROWTH if packed else 1) < SMALL_INPUT:
        return 1
    return available_cores()
