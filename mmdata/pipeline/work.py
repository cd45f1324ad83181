"""What a worker does to a block: parse, clean, encode. Pure functions of the block, so they run anywhere.

`Stages` is the picklable description of a run; a worker builds it once (loading the tokenizer) and applies it to every
block. Results carry arrays and counts only, never where a block was cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdata.document import Document, Drop, Reject
from mmdata.encode import EncodeOptions, KeyTokens, encode_documents
from mmdata.jsonl import Block, Position
from mmdata.records import ParsedBlock, RecordOptions, parse_block
from mmdata.report.tally import Tally
from mmdata.tokenizer import Tokenizer

Int64 = npt.NDArray[np.int64]


@dataclass(slots=True, frozen=True)
class Rows:
    """Encoded documents in input order.

    keys: the tokens of each JSON key, all of the same documents. input_numbers, lines, parts: int64[n], where each
    document came from. spans: flat int32 loss spans and how many numbers each document has, or None for plain text.
    """

    keys: dict[str, KeyTokens]
    input_numbers: Int64
    lines: Int64
    parts: Int64
    spans: tuple[npt.NDArray[np.int32], Int64] | None = None


@dataclass(slots=True)
class BlockResult:
    """What became of one block. end: where reading goes on. consumed: bytes taken from the input file so far."""

    rows: Rows
    rejects: list[Reject]
    drops: list[Drop]
    tally: Tally
    end: Position
    consumed: int = 0
    gb18030: int = 0


@dataclass(slots=True, frozen=True)
class Stages:
    """Everything a worker needs, small to pickle: the tokenizer travels as its path and fingerprint."""

    records: RecordOptions
    encode: EncodeOptions
    tokenizer: Tokenizer


def build_encoder(stages: Stages) -> Callable[[Block], BlockResult]:
    """The function that turns blocks into tokens; called once in each worker."""

    def work(block: Block) -> BlockResult:
        tally = Tally()
        parsed = _parse(block, stages, tally)
        rows, drops = _encode(parsed.documents, stages, tally)
        return BlockResult(rows, parsed.rejects, drops, tally, block.end, block.consumed, parsed.gb18030)

    return work


def describe_block(block: Block) -> str:
    """Names a block in messages: a file and its first line."""
    return f"{block.path} from line {block.first_line} on ({len(block.data):,} bytes)"


def _parse(block: Block, stages: Stages, tally: Tally) -> ParsedBlock:
    with _Timer(tally, "read"):
        parsed = parse_block(block, stages.records)
    source = tally.source(block.input_number)
    source.records += parsed.records
    source.blank += parsed.blank
    tally.count_rejects(parsed.rejects)
    tally.text_bytes += len(block.data)
    return parsed


def _encode(documents: list[Document], stages: Stages, tally: Tally) -> tuple[Rows, list[Drop]]:
    with _Timer(tally, "encode"):
        batch = encode_documents(documents, stages.tokenizer, stages.encode)
    kept = [documents[position] for position in batch.kept.tolist()]
    drops = with_text(batch.drops, documents)
    tally.count_drops(drops)
    tally.kept += len(kept)
    tally.documents += len(kept)
    total = np.zeros(len(kept), np.int64)
    for key in batch.keys.values():
        total += key.lengths
    tally.count_lengths(total)
    tally.tokens += int(total.sum())
    for document, tokens in zip(kept, total.tolist(), strict=True):
        source = tally.source(document.input_number)
        source.kept += 1
        source.tokens += tokens
    return Rows(batch.keys, *_origins(kept)), drops


def _origins(documents: Sequence[Document]) -> tuple[Int64, Int64, Int64]:
    count = len(documents)
    numbers = np.fromiter((document.input_number for document in documents), np.int64, count)
    lines = np.fromiter((document.line for document in documents), np.int64, count)
    return numbers, lines, np.zeros(count, np.int64)


def with_text(drops: list[Drop], documents: Sequence[Document]) -> list[Drop]:
    """Drops of standard input with their text, since nobody can look it up there; others as they are."""
    if not drops or drops[0].path != "-":
        return drops
    texts = {document.line: document.text for document in documents}
    return [replace(drop, text=texts.get(drop.line)) for drop in drops]


class _Timer:
    """Adds the processor seconds of a `with` block to the tally's stage."""

    def __init__(self, tally: Tally, stage: str) -> None:
        self._tally, self._stage = tally, stage

    def __enter__(self) -> None:
        self._start = time.process_time()

    def __exit__(self, *_: Any) -> None:
        seconds = time.process_time() - self._start
        self._tally.seconds[self._stage] = self._tally.seconds.get(self._stage, 0.0) + seconds
