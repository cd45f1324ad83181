"""Records what a template does with the texts of a record, so that the next record needs no template run.

A template run over traced values yields steps: where a text is found in the record (`leaf`), what is made of it
(`derive`: strip, split, ...), and what the template asked about it (`guard`: is it empty, does it contain `</think>`).
Replaying the steps on another record gives its texts, or None when a guard answers otherwise: then the template runs
again. A step costs about 0.1 microsecond. Holds no Jinja and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, repeat
from operator import contains
from typing import Any

Path = tuple[str | int, ...]
Function = Callable[[Any], Any]

# A replay that cannot follow a path, index or method has met a record of another shape.
MISMATCH = (KeyError, IndexError, TypeError, AttributeError, ValueError)


@dataclass(frozen=True, slots=True)
class Leaf:
    """Step: the value at `path` of {"messages": ..., "tools": ...}, which must be of `kind` exactly."""

    path: Path
    kind: type


@dataclass(frozen=True, slots=True)
class Derive:
    """Step: `function(values[source])`."""

    source: int
    function: Function


@dataclass(frozen=True, slots=True)
class Join:
    """Step: the concatenation of `parts`, an int naming an earlier value and a str standing for itself."""

    parts: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    """Step: a value that earlier guards pin."""

    value: Any


@dataclass(frozen=True, slots=True)
class Guard:
    """No value: `function(values[source])` must equal `expected`."""

    source: int
    function: Function
    expected: Any


@dataclass(frozen=True, slots=True)
class Contains:
    """Function: whether `item` is in a value; recognisable, unlike a lambda."""

    item: Any

    def __call__(self, value: Any) -> bool:
        return self.item in value


Step = Leaf | Derive | Join | Constant | Guard


class Tracer:
    """The steps of one or more template runs over the same record, and the concrete value of each slot.

    owners: for each slot the number of the message it came from, or -1 for the tools.
    """

    def __init__(self, is_control: Callable[[str], bool]) -> None:
        """is_control: whether a text holds a token that the template alone may write."""
        self.is_control = is_control
        self.steps: list[Step] = []
        self.values: list[Any] = []
        self.owners: list[int] = []
        self.pinned_characters = 0
        self._known: dict[Hashable, Any] = {}

    def leaf(self, path: Path, value: Any, owner: int) -> int:
        """The slot of the value found at `path`."""
        key = ("leaf", path)
        if key not in self._known:
            self._known[key] = self._push(Leaf(path, type(value)), value, owner)
        return int(self._known[key])

    def derive(self, source: int, key: Hashable, function: Function) -> int:
        """The slot of `function(value of source)`; `key` names the function and its arguments."""
        full = ("derive", source, key)
        if full not in self._known:
            value = function(self.values[source])
            self._known[full] = self._push(Derive(source, function), value, self.owners[source])
        return int(self._known[full])

    def join(self, parts: tuple[int | str, ...]) -> int:
        """The slot of the concatenated parts."""
        key = ("join", parts)
        if key not in self._known:
            slots = [part for part in parts if isinstance(part, int)]
            value = "".join([part if isinstance(part, str) else self.values[part] for part in parts])
            self._known[key] = self._push(Join(parts), value, self.owners[slots[0]])
        return int(self._known[key])

    def constant(self, value: str, owner: int) -> int:
        """The slot of a text that only holds while the pinned values stay as they are."""
        return self._push(Constant(value), value, owner)

    def guard(self, source: int, key: Hashable, function: Function) -> Any:
        """What `function` says about the slot's value; a replay must find the same."""
        full = ("guard", source, key)
        if full not in self._known:
            answer = function(self.values[source])
            self.steps.append(Guard(source, function, answer))
            self._known[full] = answer
        return self._known[full]

    def pin(self, source: int) -> Any:
        """The slot's value, with a guard that it is this very value."""
        value = self.values[source]
        if isinstance(value, str):
            self.guard(source, "value", _itself)
        else:
            self.guard(source, "repr", repr)  # 1, 1.0 and True are equal but not written alike
        key = ("pinned", source)
        if key not in self._known:
            self._known[key] = True
            self.pinned_characters += len(value) if isinstance(value, str) else 1
        return value

    def _push(self, step: Step, value: Any, owner: int) -> int:
        self.steps.append(step)
        self.values.append(value)
        self.owners.append(owner)
        return len(self.values) - 1


def _itself(value: Any) -> Any:
    return value


def contents_first(steps: Sequence[Step], count: int) -> tuple[list[Step], list[int]] | None:
    """The steps in another order, so that slot i is the content of message i (of `count`) and what is made of them
    follows; and the new slot of each old one. None where more than the contents is looked at.

    Reading early changes nothing: a replay fails as a whole or not at all.
    """
    slots: list[int] = []
    following = count
    for step in steps:
        if isinstance(step, Leaf):
            if len(step.path) != 3 or step.path[0] != "messages" or step.path[2] != "content" or step.kind is not str:
                return None
            slots.append(int(step.path[1]))
        elif not isinstance(step, Guard):
            slots.append(following)
            following += 1
    made: list[Step] = [Leaf(("messages", i, "content"), str) for i in range(count)]
    for step in steps:
        if isinstance(step, (Guard, Derive)):
            made.append(replace(step, source=slots[step.source]))
        elif isinstance(step, Join):
            made.append(Join(tuple(slots[part] if isinstance(part, int) else part for part in step.parts)))
        elif isinstance(step, Constant):
            made.append(step)
    return made, slots


Instruction = tuple[int, Any, Any, Any]
TextInstruction = tuple[Function, int, Any]
_GUARD, _DERIVE, _MESSAGE, _LEAF, _JOIN, _CONSTANT = range(6)
_ALL = -1  # the source of a step that takes all values
_MADE = object()  # stands for the answer of a step that makes a value


def instructions(steps: Sequence[Step]) -> tuple[Instruction, ...]:
    """The steps as plain tuples, which replay in half the time."""
    code: list[Instruction] = []
    for step in steps:
        if isinstance(step, Guard):
            code.append((_GUARD, step.source, step.function, step.expected))
        elif isinstance(step, Derive):
            code.append((_DERIVE, step.source, step.function, None))
        elif isinstance(step, Leaf):
            of_message = len(step.path) == 3 and step.path[0] == "messages"
            code.append((_MESSAGE, *step.path[1:], step.kind) if of_message else (_LEAF, step.path, step.kind, None))  # type: ignore[arg-type]
        elif isinstance(step, Join):
            code.append((_JOIN, step.parts, None, None))
        else:
            code.append((_CONSTANT, step.value, None, None))
    return tuple(code)


def text_instructions(steps: Sequence[Step]) -> tuple[TextInstruction, ...]:
    """The steps of `contents_first` for `replay_rows`."""
    code: list[TextInstruction] = []
    for step in steps:
        if isinstance(step, Guard):
            code.append((step.function, step.source, step.expected))
        elif isinstance(step, Derive):
            code.append((step.function, step.source, _MADE))
        elif isinstance(step, Join):
            code.append((partial(_joined, step.parts), _ALL, _MADE))
        elif isinstance(step, Constant):
            code.append((partial(_constant, step.value), _ALL, _MADE))
    return tuple(code)


def replay_rows(code: tuple[TextInstruction, ...], rows: Sequence[Sequence[str]]) -> tuple[list[int], list[Any]]:
    """Replay many records of one shape at once, step by step over columns, most of it inside the interpreter's C code.

    rows: the contents of each record's messages. Returns the numbers of the rows whose guards all hold, in order, and
    the column of each slot, as long as these (no column where no row is left).
    """
    try:
        return _replay_columns(code, rows)
    except MISMATCH:  # one of the rows has another shape
        if len(rows) == 1:
            return [], []
        half = len(rows) // 2
        (first, above), (second, below) = replay_rows(code, rows[:half]), replay_rows(code, rows[half:])
        if not first or not second:
            return first + [half + number for number in second], above or below
        pairs = zip(above, below, strict=True)
        return first + [half + number for number in second], [[*head, *tail] for head, tail in pairs]


def _replay_columns(code: tuple[TextInstruction, ...], rows: Sequence[Sequence[str]]) -> tuple[list[int], list[Any]]:
    alive = list(range(len(rows)))
    columns: list[Any] = list(zip(*rows, strict=True))
    for function, source, expected in code:
        if source == _ALL:
            answers = [function(values) for values in zip(*columns, strict=True)]
        elif type(function) is Contains:
            answers = list(map(contains, columns[source], repeat(function.item)))
        else:
            answers = list(map(function, columns[source]))
        if expected is _MADE:
            columns.append(answers)
        elif answers.count(expected) < len(answers):
            holds = [answer == expected for answer in answers]
            columns = [list(compress(column, holds)) for column in columns]
            alive = list(compress(alive, holds))
            if not alive:
                return [], []
    return alive, columns


def _joined(parts: tuple[int | str, ...], values: Sequence[Any]) -> str:
    return "".join([part if isinstance(part, str) else values[part] for part in parts])


def _constant(value: Any, _: Sequence[Any]) -> Any:
    return value


def replay(code: tuple[Instruction, ...], record: dict[str, Any]) -> list[Any] | None:
    """The values of all slots for another record, or None where a guard or a path does not hold."""
    values: list[Any] = []
    messages = record["messages"]
    value: Any
    try:
        for operation, what, how, wanted in code:
            if operation == _GUARD:
                if how(values[what]) != wanted:
                    return None
            elif operation == _MESSAGE:
                value = messages[what][how]
                if type(value) is not wanted:
                    return None
                values.append(value)
            elif operation == _DERIVE:
                values.append(how(values[what]))
            elif operation == _LEAF:
                value = record
                for key in what:
                    value = value[key]
                if type(value) is not how:
                    return None
                values.append(value)
            elif operation == _JOIN:
                values.append(_joined(what, values))
            else:
                values.append(what)
    except MISMATCH:
        return None
    return values
