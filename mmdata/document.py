"""The one record that travels between stages.

Reading makes Documents, cleaning maps their parts, deduplication and rules turn them into Drops, encoding turns
what is left into tokens. Costs about half a microsecond to build. Holds no tokens and knows no file format.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, frozen=True)
class Part:
    """One text of a record.

    json_path: where the text stands in the record, such as `text` or `messages[2].content`.
    role: `text` for plain documents, else `system`, `user`, `assistant` or `tool`.
    """

    json_path: str
    role: str
    text: str


@dataclass(slots=True)
class Document:
    """One input record with the texts that count.

    path: the input's path as the user gave it, relative where it was relative. input_number: its position in the
    list of inputs, from 0. line: 1-based line (or array index) in that input. record: the parsed JSON object.
    language: set by language detection (`zh`, `en`, ...), else None. meta: what stages want to tell later ones.
    """

    path: str
    input_number: int
    line: int
    id: str | None
    record: dict[str, Any]
    parts: tuple[Part, ...]
    language: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The parts joined by a line feed: what deduplication compares."""
        return self.parts[0].text if len(self.parts) == 1 else "\n".join(part.text for part in self.parts)

    def with_texts(self, texts: list[str]) -> Document:
        """A copy whose parts hold `texts`, one for each part in order."""
        parts = tuple(Part(p.json_path, p.role, text) for p, text in zip(self.parts, texts, strict=True))
        return Document(
            self.path, self.input_number, self.line, self.id, self.record, parts, self.language, self.meta
        )  # fmt: skip


@dataclass(slots=True, frozen=True)
class Drop:
    """Why a whole record left the pipeline; one line of `PREFIX_dropped.jsonl.gz`.

    stage: `clean`, `dedup` or `encode`. reason: the rule's name. value and limit: what was measured and what was
    allowed. kept and similarity: for duplicates, `path:line` of the document kept and the exact Jaccard similarity.
    text: only for standard input, where the line cannot be looked up again.
    """

    path: str
    input_number: int
    line: int
    id: str | None
    stage: str
    reason: str
    value: float | int | str | None = None
    limit: float | int | str | None = None
    kept: str | None = None
    similarity: float | None = None
    text: str | None = None


@dataclass(slots=True, frozen=True)
class Reject:
    """A record that could not be read; one line of `PREFIX_rejects.jsonl`.

    cause: a short fixed name the report counts by, such as `bad-json`. reason: the whole sentence. excerpt: the
    record's first characters, masked.
    """

    path: str
    input_number: int
    line: int
    cause: str
    reason: str
    excerpt: str
