"""Which kind of conversation a record is, and its messages.

Knows OpenAI messages, ShareGPT, Alpaca, prompt/completion, question/answer, input/output, and any field names through a
mapping. A record becomes a Document whose parts are the texts of its messages and whose `meta["chat"]` holds the
structure they came from as plain JSON values, so that cleaned texts can be put back (`conversation_of`). Costs a few
microseconds a record. Images and audio are refused; the text of a multi-part content is joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from mmdata.chat.conversation import SIMPLE, Builder, Fault
from mmdata.chat.turns import TurnPolicy, order_fault, repair
from mmdata.chat.usual import PAIRS, ROLES, SHORT_ROLES, TURN_KEYS, UsualReader
from mmdata.document import Document, Part
from mmdata.errors import ChatRecordError, UsageError
from mmdata.reading.excerpt import mask
from mmdata.records import FORMATS, RecordParser, record_id

MAP_TARGETS = ("system", "user", "input", "assistant", "history", "tools", "messages", "role", "content", "text")
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True)
class FieldMap:
    """Names of a record's fields by what they mean, from `--map field=role`. `words`: more role names of messages."""

    fields: Mapping[str, str]
    words: Mapping[str, str]

    @staticmethod
    def of(mapping: Sequence[tuple[str, str]]) -> FieldMap:
        """Raises UsageError for an unknown target or two fields for one."""
        fields: dict[str, str] = {}
        words: dict[str, str] = {}
        for name, target in mapping:
            if target not in MAP_TARGETS and target not in ROLES:
                known = (*MAP_TARGETS, "tool")
                near = get_close_matches(target, known, n=1, cutoff=0.0)[0]
                raise UsageError(
                    f"--map {name}={target}: did you mean {name}={near}? A field can be {', '.join(known)}"
                )
            role = ROLES.get(target, target)
            words[name] = role
            if target in fields and target not in ("user", "assistant", "system", "tool"):
                raise UsageError(f"--map {name}={target}: {fields[target]!r} is already mapped to {target!r}")
            fields.setdefault(role, name)
        return FieldMap(fields, words)

    def name(self, role: str, *usual: str) -> tuple[str, ...]:
        """The field names that may hold `role`."""
        return (self.fields[role], *usual) if self.fields and role in self.fields else usual


def chat_parser(
    format: str = "auto", mapping: Sequence[tuple[str, str]] = (), on_turns: TurnPolicy = "reject"
) -> RecordParser:
    """The parser `mmdata.records.parse_block` calls for each record. Raises UsageError for an unknown format."""
    if format not in FORMATS:
        near = get_close_matches(format, FORMATS, n=1, cutoff=0.0)[0]
        raise UsageError(f"--format {format!r}: did you mean {near!r}? One of: {', '.join(FORMATS)}")
    options = ParseOptions(format, FieldMap.of(mapping), on_turns)
    usual = UsualReader(format)

    def parse(record: dict[str, Any], path: str, input_number: int, line: int) -> Document | str:
        parts = usual.parts(record)
        if parts is None:
            return parse_chat_record(record, path, input_number, line, options)
        name = record_id(record) if "id" in record else None
        meta = {} if parts[0].role == "text" else {"chat": SIMPLE}
        return Document(path, input_number, line, name, record, parts, None, meta)

    def parse_mapped(record: dict[str, Any], path: str, input_number: int, line: int) -> Document | str:
        return parse_chat_record(record, path, input_number, line, options)

    return parse_mapped if mapping else parse


@dataclass(frozen=True)
class ParseOptions:
    """format: one of FORMATS. fields: see FieldMap. on_turns: what to do about turns out of order."""

    format: str = "auto"
    fields: FieldMap = FieldMap({}, {})
    on_turns: TurnPolicy = "reject"


def parse_chat_record(
    record: dict[str, Any], path: str, input_number: int, line: int, options: ParseOptions
) -> Document | str:
    """The Document of a record, or `cause: reason`. A plain text record becomes a Document without `meta["chat"]`.

    Causes: unknown-format, missing-key, not-a-string, unknown-role, bad-turns, empty-answer, empty-message, no-answer,
    bad-tool-call, not-text.
    """
    kind = options.format if options.format != "auto" else detect_format(record, options.fields)
    if kind is None:
        turns = next((name for name in options.fields.name("messages", *TURN_KEYS) if name in record), None)
        if turns is not None:
            return f"bad-turns: {_no_list(turns, record[turns])}"
        return f"unknown-format: the keys {_names(record)} fit none of {', '.join(FORMATS[1:])}; use --map field=role"
    try:
        if kind == "text":
            return _plain(record, path, input_number, line, options.fields)
        builder = to_messages(record, kind, options.fields)
        fault = order_fault(builder.messages)
        repairs: list[str] = []
        if fault is not None and options.on_turns == "repair":
            repairs = repair(builder)
            fault = order_fault(builder.messages)
        if fault is not None:
            return str(fault)
    except Fault as fault:
        return str(fault)
    meta: dict[str, Any] = {"chat": builder.structure()}
    if repairs:
        meta["chat_repairs"] = repairs
    return Document(path, input_number, line, record_id(record), record, tuple(builder.parts), meta=meta)


def detect_format(record: Mapping[str, Any], fields: FieldMap = FieldMap({}, {})) -> str | None:
    """The format a record's keys show, or None. Mapped names count as the names they stand for."""
    for name in fields.name("messages", *TURN_KEYS):
        if name in record and isinstance(turns := record[name], list):
            first = next((turn for turn in turns if isinstance(turn, dict)), {})
            return "sharegpt" if "from" in first and "role" not in first else "messages"
    if "user" in fields.fields and "assistant" in fields.fields and fields.fields["user"] in record:
        return "alpaca"
    if "instruction" in record and ("output" in record or "response" in record):
        return "alpaca"
    for kind, (question, answers) in PAIRS.items():
        if question in record and not record.keys().isdisjoint(answers):
            return kind
    if any(name in record for name in fields.name("text", "text")):
        return "text"
    return None


def to_messages(record: Mapping[str, Any], kind: str, fields: FieldMap = FieldMap({}, {})) -> Builder:
    """The messages of a record of a known format. Raises Fault."""
    builder = Builder()
    if kind in ("messages", "sharegpt"):
        _from_turns(record, builder, fields)
    elif kind == "alpaca":
        _from_alpaca(record, builder, fields)
    else:
        question, answers = PAIRS[kind]
        _system(record, builder, fields)
        builder.add("user", [_text(record, fields.name("user", question))])
        builder.add("assistant", [_text(record, fields.name("assistant", *answers))])
    return builder


def _plain(record: dict[str, Any], path: str, input_number: int, line: int, fields: FieldMap) -> Document:
    name, text = _text(record, fields.name("text", "text"))
    return Document(path, input_number, line, record_id(record), record, (Part(name, "text", text),))


def _system(record: Mapping[str, Any], builder: Builder, fields: FieldMap) -> None:
    for name in fields.name("system", "system"):
        if record.get(name):
            builder.add("system", [_text(record, (name,))])
            return


def _from_alpaca(record: Mapping[str, Any], builder: Builder, fields: FieldMap) -> None:
    _system(record, builder, fields)
    for name in fields.name("history", "history"):
        for i, pair in enumerate(record.get(name) or ()):
            if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
                raise Fault("bad-turns", f"{name}[{i}] is not [question, answer]")
            builder.add("user", [(f"{name}[{i}][0]", pair[0])])
            builder.add("assistant", [(f"{name}[{i}][1]", pair[1])])
    pieces = [_text(record, fields.name("user", "instruction"))]
    for name in fields.name("input", "input"):
        if record.get(name):
            pieces.append(_text(record, (name,)))
    if len(pieces) > 1 and not pieces[0][1]:  # the question stands in `input` alone: no empty line before it
        del pieces[0]
    builder.add("user", pieces)
    builder.add("assistant", [_text(record, fields.name("assistant", "output", "response"))])


def _from_turns(record: Mapping[str, Any], builder: Builder, fields: FieldMap) -> None:
    where = next((n for n in fields.name("messages", *TURN_KEYS) if n in record), None)
    turns = record.get(where) if where else None
    if where is None:
        raise Fault("missing-key", f"no list of messages among the keys {_names(record)}")
    if not isinstance(turns, list) or not turns:
        raise Fault("bad-turns", _no_list(where, turns))
    if _role_of(turns[0], fields) != "system":
        _system(record, builder, fields)
    builder.set_tools(_tools(record, fields))
    usual = not fields.fields and not fields.words
    for i, turn in enumerate(turns):
        if usual and (short := _short_turn(turn)) is not None:
            builder.add_text(short[0], f"{where}[{i}].{short[1]}", short[2])
            continue
        at = f"{where}[{i}]"
        if not isinstance(turn, dict):
            raise Fault("bad-turns", f"{at} is not an object")
        role = _role_of(turn, fields)
        if role is None:
            word = next((turn[n] for n in fields.name("role", "role", "from") if n in turn), None)
            raise Fault(
                "unknown-role", f"{at} has the role {_shown(word)}; known: {', '.join(ROLES)}; use --map word=role"
            )
        _add_turn(builder, turn, role, at, fields)


def _short_turn(turn: Any) -> tuple[str, str, str] | None:
    """(role, field, text) of a message that holds nothing but a usual role and a text; most are so. Else None."""
    if not isinstance(turn, dict) or len(turn) != 2:
        return None
    if "role" in turn:
        role, field = turn["role"], "content"
    else:
        role, field = turn.get("from"), "value"
    text = turn.get(field)
    known = SHORT_ROLES.get(role) if isinstance(role, str) else None
    return (known, field, text) if known is not None and isinstance(text, str) else None


def _role_of(turn: Any, fields: FieldMap) -> str | None:
    if not isinstance(turn, dict):
        return None
    word = next((turn[name] for name in fields.name("role", "role", "from") if name in turn), None)
    if not isinstance(word, str):
        return None
    return fields.words.get(word) or ROLES.get(word.lower())


def _add_turn(builder: Builder, turn: dict[str, Any], role: str, at: str, fields: FieldMap) -> None:
    name = next((n for n in fields.name("content", "content", "value") if n in turn), None)
    pieces = _pieces(turn[name], f"{at}.{name}") if name is not None else []
    if role == "call":
        if len(pieces) != 1:
            raise Fault("bad-tool-call", f"{at} holds no text")
        builder.add_call_text(*pieces[0])
        return
    if name is None and not turn.get("tool_calls"):
        raise Fault("missing-key", f"{at} has neither content nor value")
    index = builder.add(role, pieces)
    for key in REASONING_KEYS:
        if isinstance(turn.get(key), str) and role == "assistant":
            builder.set_text(index, "reasoning_content", f"{at}.{key}", turn[key])
            break
    for key in ("name", "tool_call_id"):
        if isinstance(turn.get(key), str):
            builder.messages[index][key] = turn[key]
    if role == "assistant" and turn.get("tool_calls"):
        builder.add_calls(index, turn["tool_calls"], f"{at}.tool_calls")
    if role == "assistant" and (turn.get("weight") == 0 or turn.get("train") is False or turn.get("loss") is False):
        builder.messages[index]["_uncounted"] = True


def _pieces(value: Any, at: str) -> list[tuple[str, str]]:
    """(json path, text) of a content: a string, null, or a list of text parts."""
    if value is None:
        return []
    if isinstance(value, str):
        return [(at, value)]
    if not isinstance(value, list):
        raise Fault("not-a-string", f"{at} holds {type(value).__name__}")
    pieces = []
    for i, part in enumerate(value):
        if isinstance(part, str):
            pieces.append((f"{at}[{i}]", part))
        elif isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
            pieces.append((f"{at}[{i}].text", part["text"]))
        else:
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise Fault("not-text", f"{at}[{i}] is {_shown(kind)}; only text can be rendered")
    return pieces


def _tools(record: Mapping[str, Any], fields: FieldMap) -> Any:
    return next((record[name] for name in fields.name("tools", "tools", "functions") if record.get(name)), None)


def _text(record: Mapping[str, Any], names: Sequence[str]) -> tuple[str, str]:
    """(field, text) of the first of `names` the record has. Raises Fault."""
    for name in names:
        if name in record:
            text = record[name]
            if isinstance(text, str):
                return name, text
            raise Fault("not-a-string", f"{name} holds {type(text).__name__}")
    raise Fault("missing-key", f"no {' or '.join(names)}; the record has {_names(record)}")


def _no_list(where: str, value: Any) -> str:
    kind = "an empty list" if value == [] else "null" if value is None else type(value).__name__
    return f"{where} holds {kind}, not a list of messages such as {{'role': 'user', 'content': '...'}}"


def _names(record: Mapping[str, Any]) -> str:
    return ", ".join(_shown(key) for key in list(record)[:12]) or "(none)"


def _shown(value: Any) -> str:
    """A key or value of a record as reasons quote it: masked, and at most 40 characters."""
    masked = mask(value if isinstance(value, str) else repr(value))[:40]
    return repr(masked) if isinstance(value, str) else masked


def normalised(messages: Sequence[Mapping[str, Any]], tools: Any = None) -> tuple[list[dict[str, Any]], Any]:
    """Messages as given by a program, in the form rendering works on. Raises ChatRecordError."""
    try:
        builder = to_messages({"messages": [dict(message) for message in messages], "tools": tools}, "messages")
    except Fault as fault:
        raise ChatRecordError(str(fault)) from None
    return builder.messages, builder.tools
