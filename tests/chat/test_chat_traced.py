"""Traced strings: the same characters as str gives, the right authors, and replays that hold for other records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.chat.segments import Data, Literal
from mmdata.chat.traced import TracedStr, plain, segments_of
from mmdata.chat.traced_json import to_json, wrap
from mmdata.chat.tracer import Tracer, instructions, replay

texts = st.text(alphabet="ab |\n\té中", max_size=12)
OPERATIONS: dict[str, Any] = {
    "strip": lambda s: s.strip(),
    "strip chars": lambda s: s.strip("a|"),
    "lstrip": lambda s: s.lstrip("\n"),
    "rstrip": lambda s: s.rstrip(),
    "upper": lambda s: s.upper(),
    "title": lambda s: s.title(),
    "replace": lambda s: s.replace("a", "x"),
    "replace long": lambda s: s.replace("b|", "--"),
    "replace once": lambda s: s.replace("a", "", 1),
    "slice": lambda s: s[1:5],
    "backwards": lambda s: s[::-1],
    "first": lambda s: s[0] if s else s,
    "split last": lambda s: s.split("|")[-1],
    "split first": lambda s: s.split(None, 1)[0] if s.split() else s,
    "rsplit": lambda s: s.rsplit("b", 1)[0],
    "partition": lambda s: s.partition("a")[2],
    "add": lambda s: "<" + s + ">",
    "twice": lambda s: s * 2,
    "join": lambda s: s.join(["a", s, "b"]),
    "if in": lambda s: s if "b" in s else s + "!",
    "if starts": lambda s: s if s.startswith("a") else "?" + s,
    "if ends": lambda s: s if s.endswith(("\n", "a")) else s + ".",
    "if empty": lambda s: s if s else "none",
    "if equal": lambda s: "same" if s == "ab" else s,
    "if longer": lambda s: s[:3] if len(s) > 3 else s,
    "find": lambda s: s[max(s.find("|"), 0) :],
    "isspace": lambda s: "" if s.isspace() else s,
}


def trace(value: str, operations: list[str]) -> tuple[Tracer, Any]:
    tracer = Tracer(lambda text: False)
    made: Any = wrap(tracer, value, ("messages", 0, "content"), 0)
    for name in operations:
        made = OPERATIONS[name](made)
    return tracer, made


def untraced(value: str, operations: list[str]) -> str:
    for name in operations:
        value = OPERATIONS[name](value)
    return value


@settings(max_examples=300, deadline=None)
@given(texts, texts, st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=5))
def test_tracing_changes_no_character_and_a_replay_is_right_or_declined(
    value: str, other: str, operations: list[str]
) -> None:
    tracer, made = trace(value, operations)
    assert plain(made) == untraced(value, operations)
    assert "".join(segment.text for segment in segments_of(made)) == plain(made)
    for record in (value, other):
        values = replay(instructions(tracer.steps), {"messages": [{"content": record}], "tools": None})
        if values is None:
            assert record != value, "a record must replay its own trace"
            continue
        parts = [values[s.slot] if isinstance(s, Data) else s.text for s in segments_of(made)]
        assert "".join(parts) == untraced(record, operations)


@settings(max_examples=200, deadline=None)
@given(
    texts, st.lists(st.sampled_from(["add", "strip", "slice", "replace long", "split last", "backwards"]), max_size=5)
)
def test_characters_of_the_record_are_never_called_the_templates(value: str, operations: list[str]) -> None:
    # The record's characters are moved to a private range, so who wrote a character shows in the character.
    marked = "".join(chr(0xE000 + ord(c) % 256) for c in value)
    _, made = trace(marked, operations)
    for segment in segments_of(made):
        if isinstance(segment, Literal):
            assert not any(0xE000 <= ord(c) < 0xE100 for c in segment.text)


def test_every_method_of_str_is_traced() -> None:
    inherited = [
        name
        for name in dir(str)
        if name not in vars(TracedStr) and not name.startswith("__") and name not in ("maketrans",)
    ]
    assert inherited == []


def test_dicts_and_lists_guard_only_what_was_looked_at() -> None:
    tracer = Tracer(lambda text: False)
    call = {"name": "f", "arguments": {"a": [1, "x"], "b": {"c": None}}}
    traced = wrap(tracer, call, ("tools",), -1)
    assert traced["name"] == "f" and "id" not in traced
    text = to_json(traced["arguments"])
    assert plain(text) == '{"a": [1, "x"], "b": {"c": null}}'
    code = instructions(tracer.steps)
    again = replay(code, {"messages": [], "tools": {"name": "f", "arguments": {"z": 2}}})
    assert again is not None and again[segments_of(text)[0].slot] == '{"z": 2}'
    assert replay(code, {"messages": [], "tools": {"name": "g", "arguments": {}}}) is None
    assert replay(code, {"messages": [], "tools": {"name": "f", "id": 1, "arguments": {}}}) is None
    assert replay(code, {"messages": [], "tools": {"name": "f", "arguments": "{}"}}) is None


@pytest.mark.parametrize(("first", "second"), [(1, True), (1, 1.0), (0, False), (None, 0)])
def test_numbers_that_are_equal_but_written_otherwise_do_not_replay(first: Any, second: Any) -> None:
    tracer = Tracer(lambda text: False)
    traced = wrap(tracer, {"n": first}, ("tools",), -1)
    assert str(traced["n"]) == str(first)
    assert replay(instructions(tracer.steps), {"messages": [], "tools": {"n": second}}) is None
