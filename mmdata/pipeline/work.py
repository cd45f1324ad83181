"""What a worker does to a block: parse, clean, encode. Pure functions of the block, so they run anywhere.

`Stages` is the picklable description of a run; a worker builds it once (loading the tokenizer) and applies it to every
block. Results carry arrays and counts only, never where a block was cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mmdata.chat.formats import chat_parser
from mmdata.chat.render import ChatOptions, ChatRenderer
from mmdata.chat.turns import TurnPolicy
from mmdata.collector import collector_paused
from mmdata.document import Document, Drop, Reject
from mmdata.encode import EncodeOptions, KeyTokens, encode_documents
from mmdata.jsonl import Block, Position
from mmdata.records import ParsedBlock, RecordOptions, RecordParser, parse_block
from mmdata.report.tally import Tally
from mmdata.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mmdata.clean.recipe import Recipe

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
class Preparation:
    """What parsing and cleaning need: no tokenizer, so that workers which only prepare do not load one.

    chats: records of `records.format` may be conversations; else every record is plain text.
    """

    records: RecordOptions
    recipe: Recipe | None
    chats: bool
    turn_order: TurnPolicy


@dataclass(slots=True, frozen=True)
class Stages:
    """Everything a worker needs, small to pickle: the tokenizer travels as its path and fingerprint.

    recipe: None cleans nothing. chat: None takes every record as plain text; else records of `records.format` are
    rendered. turn_order: what happens to conversations whose roles are out of order.
    """

    records: RecordOptions
    encode: EncodeOptions
    tokenizer: Tokenizer
    recipe: Recipe | None = None
    chat: ChatOptions | None = None
    turn_order: TurnPolicy = "reject"

    @property
    def preparation(self) -> Preparation:
        """The part of it that comes before tokens."""
        return Preparation(self.records, self.recipe, self.chat is not None, self.turn_order)


def build_encoder(stages: Stages) -> Callable[[Block], BlockResult]:
    """The function that turns blocks into tokens; called once in each worker."""
    prepare, encode = Preparer(stages.preparation), DocumentEncoder(stages)

    def work(block: Block) -> BlockResult:
        # The documents are gone when this ends; looking for cycles among them before would cost a tenth of the time.
        with collector_paused():
            return encoded(block)

    def encoded(block: Block) -> BlockResult:
        tally = Tally()
        made = prepare(block, tally)
        rows, more = encode(made.documents, tally)
        drops = in_input_order(made.drops, more)
        return BlockResult(rows, made.parsed.rejects, drops, tally, block.end, block.consumed, made.parsed.gb18030)

    return work


def describe_block(block: Block) -> str:
    """Names a block in messages: a file and its first line."""
    return f"{block.path} from line {block.first_line} on ({len(block.data):,} bytes)"


@dataclass(slots=True, frozen=True)
class Prepared:
    """The block as parsed, the documents left, their texts in UTF-8 where cleaning had to make them (else None), and
    the drops so far, all in input order."""

    parsed: ParsedBlock
    documents: list[Document]
    encoded: list[bytes] | None
    drops: list[Drop]


def record_parser(records: RecordOptions, turn_order: TurnPolicy) -> RecordParser:
    """What reads records of a format that may be conversations, the user's own field names among them."""
    key = records.keys[0]
    mapping = records.mapping if key == "text" else (*records.mapping, (key, "text"))
    return chat_parser(records.format, mapping, turn_order)


class Preparer:
    """Parses and cleans blocks; counts into the tally it is given."""

    def __init__(self, plan: Preparation) -> None:
        self._options = plan.records
        self._parse = record_parser(plan.records, plan.turn_order) if plan.chats else None
        self._cleaner = None
        if plan.recipe is not None and plan.recipe.steps:
            from mmdata.clean.pipeline import Cleaner

            self._cleaner = Cleaner(plan.recipe)

    def __call__(self, block: Block, tally: Tally) -> Prepared:
        """What is left of the block."""
        with Timer(tally, "read"):
            parsed = parse_block(block, self._options, self._parse)
        source = tally.source(block.input_number)
        source.records += parsed.records
        source.blank += parsed.blank
        tally.count_rejects(parsed.rejects)
        tally.text_bytes += _text_bytes(block, parsed.documents)
        if self._cleaner is None:
            return Prepared(parsed, parsed.documents, None, [])
        with Timer(tally, "clean"):
            result = self._cleaner.clean_documents(parsed.documents)
        tables = {
            "changed": result.changed, "review": result.review, "flagged": result.flagged,
            "language": result.languages, "bytes_removed": result.bytes_removed,
        }  # fmt: skip
        for table, counts in tables.items():
            tally.count_table(f"clean.{table}", counts)
        tally.count_table("pii", result.pii)
        tally.count_table("clean", {"changed_documents": result.changed_documents})
        for step, seconds in result.seconds.items():
            tally.seconds[f"clean.{step}"] = tally.seconds.get(f"clean.{step}", 0.0) + seconds
        drops = with_text(result.drops, parsed.documents)
        tally.count_drops(drops)
        return Prepared(parsed, result.kept, result.encoded, drops)


def _text_bytes(block: Block, documents: Sequence[Document]) -> int:
    """UTF-8 bytes of the block's records, a number that adds up to the same sum wherever blocks were cut."""
    if block.kind == "parquet":  # as handed over, every block repeats the schema
        return sum(len(part.text.encode("utf-8", "surrogatepass")) for item in documents for part in item.parts)
    return len(block.data) - max(len(block.bounds) - 1, 0)  # the comma at a cut is in neither block


class DocumentEncoder:
    """Turns documents into tokens, plain or rendered; counts into the tally it is given.

    Where conversations are possible, documents without one take the same way through a renderer that needs no
    template, so that nothing depends on which documents happen to share a block.
    """

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._renderers: dict[bool, ChatRenderer] = {}

    def __call__(self, documents: list[Document], tally: Tally) -> tuple[Rows, list[Drop]]:
        """Encoded documents and the drops, both in input order."""
        with Timer(tally, "encode"):
            plain = self._stages.chat is None
            keys, spans, kept, drops = self._encode(documents) if plain else self._render(documents, tally)
        drops = with_text(drops, documents)
        tally.count_drops(drops)
        rows = Rows(keys, *_origins(documents, kept), spans)
        self._count(rows, kept, tally)
        return rows, drops

    def _encode(self, documents: list[Document]) -> _Encoded:
        batch = encode_documents(documents, self._stages.tokenizer, self._stages.encode)
        return batch.keys, None, batch.kept, batch.drops

    def _render(self, documents: list[Document], tally: Tally) -> _Encoded:
        conversations = any("chat" in document.meta for document in documents)
        batch = self._renderer(conversations).render_documents(documents)
        tally.count_table("chat", batch.counters)
        (key,) = self._stages.encode.json_keys
        tokens = KeyTokens(batch.tokens.astype(self._stages.encode.dtype, copy=False), batch.lengths)
        return {key: tokens}, (batch.spans, batch.span_lengths), batch.kept, batch.drops

    def _renderer(self, conversations: bool) -> ChatRenderer:
        """Made when first needed: a corpus without conversations needs no chat template."""
        assert self._stages.chat is not None
        if conversations not in self._renderers:
            self._renderers[conversations] = ChatRenderer(
                self._stages.tokenizer, self._stages.chat, conversations=conversations
            )
        return self._renderers[conversations]

    @staticmethod
    def _count(rows: Rows, kept: Int64, tally: Tally) -> None:
        total = np.zeros(len(kept), np.int64)
        for key in rows.keys.values():
            total += key.lengths
        tally.kept += len(np.unique(kept))
        tally.documents += len(kept)
        tally.tokens += int(total.sum())
        tally.count_lengths(total)
        for number in np.unique(rows.input_numbers).tolist():
            mine = rows.input_numbers == number
            source = tally.source(number)
            source.kept += len(np.unique(kept[mine]))
            source.tokens += int(total[mine].sum())


_Encoded = tuple[dict[str, KeyTokens], tuple[npt.NDArray[np.int32], Int64] | None, Int64, list[Drop]]


def _origins(documents: Sequence[Document], kept: Int64) -> tuple[Int64, Int64, Int64]:
    """Input numbers, lines and parts; a document kept several times has parts 0, 1, ..."""
    numbers = np.fromiter((document.input_number for document in documents), np.int64, len(documents))
    lines = np.fromiter((document.line for document in documents), np.int64, len(documents))
    first = np.searchsorted(kept, kept, side="left")
    return numbers[kept], lines[kept], np.arange(len(kept), dtype=np.int64) - first


def in_input_order(*lists: list[Drop]) -> list[Drop]:
    """Drops of several stages as one list by line; a record is dropped once at most."""
    return sorted((drop for drops in lists for drop in drops), key=lambda drop: (drop.input_number, drop.line))


def with_text(drops: list[Drop], documents: Sequence[Document]) -> list[Drop]:
    """Drops of standard input with their text, since nobody can look it up there; others as they are."""
    if not any(drop.path == "-" for drop in drops):
        return drops
    texts = {document.line: document.text for document in documents if document.path == "-"}
    return [replace(drop, text=texts.get(drop.line)) if drop.path == "-" else drop for drop in drops]


class Timer:
    """Adds the processor seconds of a `with` block, of the thread it runs in, to the tally's stage."""

    def __init__(self, tally: Tally, stage: str) -> None:
        self._tally, self._stage = tally, stage

    def __enter__(self) -> None:
        self._start = time.thread_time()

    def __exit__(self, *_: Any) -> None:
        seconds = time.thread_time() - self._start
        self._tally.seconds[self._stage] = self._tally.seconds.get(self._stage, 0.0) + seconds
