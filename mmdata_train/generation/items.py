"""Questions with their references, and answers made elsewhere, from JSON lines. Needs no torch and no model.

A record gives its question as `messages`, as ShareGPT's `conversations`, as Alpaca's `instruction` and `input`, or as
`prompt`, `question` or `query`; what is wanted as `references` or `answers` (lists), `reference`, `answer`, `output`,
`response` or `target`, or as the last message of the assistant; an answer made elsewhere as `prediction`, `generated`
or `completion`. Other names are given by the caller. The whole file is held in memory.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from mmdata_train.errors import EvaluationError

PROMPT_KEYS = ("prompt", "question", "query")
REFERENCE_KEYS = ("references", "answers", "reference", "answer", "output", "response", "target")
ANSWER_KEYS = ("prediction", "generated", "completion")
_SHAREGPT = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of a record's fields where they are not the usual ones."""

    prompt: str | None = None
    reference: str | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One question. messages: what the model is to answer, the last one the user's. references: accepted answers.

    answer: made elsewhere, None where the record has none. source: what the record says it belongs to, for scores by
    source.
    """

    path: str
    line: int
    id: str
    messages: tuple[Mapping[str, Any], ...]
    references: tuple[str, ...]
    answer: str | None = None
    source: str | None = None
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """FILE:LINE, as messages name it."""
        return f"{self.path}:{self.line}"

    @property
    def prompt(self) -> str:
        """The question as one text: the contents of its messages, a line feed between them."""
        return "\n".join(str(message["content"]) for message in self.messages)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def read_records(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line from 1, record) of a JSON lines file, also .gz; blank lines are passed over. Raises EvaluationError."""
    try:
        with gzip.open(path, "rb") if str(path).endswith(".gz") else open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if not line.strip():
                    continue
                try:
                    record = orjson.loads(line)
                except orjson.JSONDecodeError as error:
                    if not _is_utf8(line):
                        raise not_utf8(path, line, f"{path}:{number}") from None
                    raise EvaluationError(f"{path}:{number}: not JSON: {error}") from None
                if not isinstance(record, dict):
                    raise EvaluationError(f"{path}:{number}: holds a {type(record).__name__}, not an object")
                yield number, record
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be read: {error.strerror or error}") from None


def not_utf8(path: str | Path, data: bytes, place: str = "") -> EvaluationError:
    """The error for bytes of a file that are no UTF-8: what they seem to be, and how to convert them.

    place: FILE:LINE where it is known; of a file in another encoding no line is worth looking at.
    """
    encoding = "UTF-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "GB18030"
    try:
        if encoding == "GB18030":  # a line of UTF-16 need not end at a whole character
            data.decode(encoding)
    except UnicodeDecodeError:
        return EvaluationError(f"{place or path}: not UTF-8; save the file as UTF-8")
    return EvaluationError(
        f"{place or path}: not UTF-8 but, it seems, {encoding}; convert the file:"
        f" iconv -f {encoding} -t UTF-8 {path} > NEW_FILE"
    )


def source_of(record: Mapping[str, Any], path: str) -> str:
    """What a text's record says it belongs to, else its file."""
    return str(record.get("source") or path)


def read_items(path: str | Path, keys: Keys = Keys(), *, need: Sequence[str] = ("prompt",)) -> list[Item]:
    """Every record as an Item. need: which of `prompt`, `reference` and `answer` each record must have.

    Raises EvaluationError with file and line, and on a file without records or with one id twice.
    """
    items: list[Item] = []
    seen: dict[str, int] = {}
    for line, record in read_records(path):
        item = _item(str(path), line, record, keys)
        given = {"prompt": bool(item.messages), "reference": bool(item.references), "answer": item.answer is not None}
        for name in need:
            if not given[name]:
                raise EvaluationError(f"{path}:{line}: no {name}: {_looked_for(name, keys, record)}")
        if item.id in seen:
            raise EvaluationError(f"{path}:{line}: the id {item.id!r} stands in line {seen[item.id]} already")
        seen[item.id] = line
        items.append(item)
    if not items:
        raise EvaluationError(f"{path}: holds no record")
    return items


def _looked_for(name: str, keys: Keys, record: Mapping[str, Any]) -> str:
    """What is wrong with the field that is there, else the names that were looked for."""
    chosen = getattr(keys, name)
    usual = {"prompt": PROMPT_KEYS, "reference": REFERENCE_KEYS, "answer": ANSWER_KEYS}[name]
    names = [chosen] if chosen else list(usual)
    there = next((field for field in names if field in record), None)
    if there is not None:
        wanted = "a text, or a list of texts" if name == "reference" else "a text"
        return f'{there} is {_kind(record[there])}; it must be {wanted}, in quotation marks ("" where it is empty)'
    return f"no text in {', '.join(names)}; rename the field (`evaluate` also takes its name as --{name}-key)"


def _kind(value: Any) -> str:
    """A JSON value in words; of numbers and the like the value too."""
    if isinstance(value, list):
        return "an empty list" if not value else "a list"
    if isinstance(value, dict):
        return "an object"
    if value is None:
        return "null"
    return f"{'true or false' if isinstance(value, bool) else 'a number'} ({orjson.dumps(value).decode()})"


def _item(path: str, line: int, record: dict[str, Any], keys: Keys) -> Item:
    messages, last = _messages(path, line, record, keys)
    names: tuple[str, ...] = (keys.reference,) if keys.reference else REFERENCE_KEYS
    references = next((found for name in names if (found := _texts(record.get(name)))), ())
    names = (keys.answer,) if keys.answer else ANSWER_KEYS
    answer = next((record[name] for name in names if isinstance(record.get(name), str)), None)
    if not references and last is not None and keys.reference is None:
        references = (last,)
    source = record.get("source", record.get("subject"))
    name = record.get("id")
    return Item(
        path, line, str(line) if name is None else str(name), tuple(messages), references, answer,
        None if source is None else str(source), record,
    )  # fmt: skip


def _texts(value: Any) -> tuple[str, ...]:
    """One text, several, or SQuAD's `{text: [...]}`."""
    if isinstance(value, dict):
        value = value.get("text")
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return (str(value),)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return tuple(value)
    return ()


def _messages(path: str, line: int, record: dict[str, Any], keys: Keys) -> tuple[list[dict[str, Any]], str | None]:
    """The messages to answer, and the answer the record holds behind them, if any."""
    if keys.prompt is None:
        for name in ("messages", "conversations"):
            if isinstance(record.get(name), list):
                return _split_answer([_message(path, line, name, item) for item in record[name]])
        if isinstance(record.get("instruction"), str):
            parts = [record["instruction"], record.get("input") or ""]
            return _with_system(record, "\n".join(part for part in parts if part)), None
    for name in (keys.prompt,) if keys.prompt else PROMPT_KEYS:
        if isinstance(record.get(name), str):
            return _with_system(record, record[name]), None
    return [], None


def _with_system(record: dict[str, Any], text: str) -> list[dict[str, Any]]:
    system = record.get("system")
    head = [{"role": "system", "content": system}] if isinstance(system, str) and system else []
    return [*head, {"role": "user", "content": text}]


def _message(path: str, line: int, name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        role, content = value.get("role", value.get("from")), value.get("content", value.get("value"))
        role = _SHAREGPT.get(str(role), role)
        if role in ("system", "user", "assistant", "tool") and isinstance(content, str):
            return {"role": role, "content": content}
    raise EvaluationError(f"{path}:{line}: {name} holds something that is no message with a role and a text")


def _split_answer(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str | None]:
    if messages and messages[-1]["role"] == "assistant":
        return messages[:-1], str(messages[-1]["content"])
    return messages, None
