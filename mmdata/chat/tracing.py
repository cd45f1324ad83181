"""Programs for conversations: found among those kept, or made by running the template over traced values.

A program is kept for each shape (roles and keys of the messages, tools or none) and each set of answers to what the
template asked. Its first replays are compared with an ordinary run of the template, character by character, so a
template that does something unfollowed is refused instead of mis-rendered. What is kept is bounded; it only saves time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import compress, product
from typing import Any, NamedTuple

import jinja2

from mmdata.chat.conversation import with_objects
from mmdata.chat.program import Compiler, Program
from mmdata.chat.sandbox import ChatEnvironment
from mmdata.chat.segments import Data
from mmdata.chat.spans import Layout, Position, Turn, TurnFinder
from mmdata.chat.stretches import StretchEncoder
from mmdata.chat.templates import ChatTemplate
from mmdata.chat.thinking import BLOCK_KEY, GAP_KEY, Thinking, edit_blocks
from mmdata.chat.traced import TracedStr, pin, segments_of
from mmdata.chat.traced_json import TracedDict, wrap
from mmdata.chat.tracer import Contains, Tracer, contents_first, replay, replay_rows
from mmdata.errors import ChatTemplateError

Messages = Sequence[dict[str, Any]]

_CHECKED_REPLAYS = 2
_KEPT_VARIANTS = 32
_KEPT_STEPS = 400_000
_KEPT_SIMPLE = 512
_PINNED_LIMIT = 64  # characters; a program that only fits records repeating more than this is not kept
_BLOCK_END = "</think>"
_SIMPLE_KEYS = {"role", "content"}
_HIDDEN = (BLOCK_KEY, GAP_KEY, "_uncounted")
_RAW_ARGUMENTS = '{"probe":  1e5}'  # two blanks and 1e5: nothing that reads and writes JSON gives it back like this
_PROBED_CALL = {"id": "abcdef123", "type": "function", "function": {"name": "f", "arguments": _RAW_ARGUMENTS}}
_PROBED_SHAPE = {"type": "object", "properties": {"probe": {"type": "number", "description": "d"}}, "required": []}
_PROBED_TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": _PROBED_SHAPE}}
_RUNTIME_FAULTS = (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class TraceOptions:
    """What decides a program beside template and tokenizer; see ChatOptions. tail: ids behind each conversation."""

    train_on: str = "assistant"
    thinking: Thinking = "keep"
    count_empty_thinking: bool = False
    today: date | None = None
    tail: tuple[int, ...] = ()


class Found(NamedTuple):
    """One program and the conversations it serves: their numbers, and for each slot of the program a column of values
    as long as `numbers`."""

    program: Program
    numbers: list[int]
    columns: list[Any]


class Programs:
    """All programs of one template, tokenizer and set of options."""

    def __init__(self, template: ChatTemplate, encoder: StretchEncoder, options: TraceOptions) -> None:
        self._template, self._encoder, self._options = template, encoder, options
        self._environment = ChatEnvironment(options.today)
        self._compiled = self._compile(template.source)
        self._for_tools = self._compile(template.tool_source) if template.tool_source else self._compiled
        self._kept: dict[Any, list[Program]] = {}
        self._simple: dict[tuple[str, ...], tuple[tuple[Program, tuple[int, ...]], ...]] = {}
        self._steps = 0
        self._texts_fit: dict[bool, bool] = {}
        self.traced = 0

    def find(self, messages: Messages, tools: list[Any] | None) -> tuple[Program, list[Any]]:
        """The program of a conversation and its values.

        Raises jinja2.TemplateError where the template refuses the conversation, ChatTemplateError where what it does
        cannot be followed.
        """
        if any("tool_calls" in message for message in messages) and not self._writes_texts(tools is not None):
            messages = with_objects(messages)
        record = {"messages": messages, "tools": tools}
        shape = (tools is None, tuple([(message["role"], *message) for message in messages]))
        for program in self._kept.get(shape, ()):
            values = replay(program.code, record)
            if values is not None:
                self._check(program, values, messages, tools)
                return program, values
        program, values = self._trace(messages, tools)
        self._check_text(program, values, messages, tools)
        if program.reusable:
            self._keep(shape, program)
        return program, values

    def _writes_texts(self, has_tools: bool) -> bool:
        """Whether the template writes arguments that are JSON text as they are, as one does that asks `is string`.

        Found by rendering a call of our own, so that it is the same for every record. Other templates go through the
        arguments, fail on a text, or write it as JSON once more, in quotation marks: they are given objects.
        """
        for_tools = has_tools and self._for_tools is not self._compiled
        if for_tools not in self._texts_fit:
            choices = [True] if for_tools else [True, False] if self._for_tools is self._compiled else [False]
            self._texts_fit[for_tools] = any(
                self._probe_call(content, tools) for content, tools in product(("", "c"), choices)
            )
        return self._texts_fit[for_tools]

    def _probe_call(self, content: str, has_tools: bool) -> bool:
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": content, "tool_calls": [_PROBED_CALL]},
            {"role": "tool", "content": "r", "name": "f", "tool_call_id": "abcdef123"},
            {"role": "assistant", "content": "a"},
        ]
        try:
            return _RAW_ARGUMENTS in self._render(messages, [_PROBED_TOOL] if has_tools else None, False)
        except (jinja2.TemplateError, ChatTemplateError):
            return False

    def knows(self, roles: tuple[str, ...]) -> bool:
        """Whether `find_simple` has a program for messages with these roles."""
        return roles in self._simple

    def find_simple(self, roles: tuple[str, ...], rows: Sequence[Sequence[str]]) -> Iterator[Found]:
        """The programs of many conversations whose messages have these roles and a content and nothing else.

        rows: the contents of each. Not found are those with an empty text or with a thinking block in an answer, and
        those for which no program that was checked is at hand.
        """
        left = [number for number, texts in enumerate(rows) if "" not in texts]
        for program, unasked in self._simple.get(roles, ()):
            if not left:
                return
            places, columns = replay_rows(program.text_code, [rows[number] for number in left])
            numbers = [left[place] for place in places]
            if numbers:
                gone = set(numbers)
                left = [number for number in left if number not in gone]
                yield _without_blocks(Found(program, numbers, columns), unasked)

    def explain(self, messages: Messages) -> str:
        """What is wrong where the template refuses `messages`, as an ordinary run says it, with the template's line."""
        try:
            self._render([_plain_message(message) for message in messages], None, False)
        except jinja2.TemplateError as error:
            line = _template_line(error)
            return f"line {line}: {error}" if line else str(error)
        return "it only fails where texts are followed"

    def _compile(self, source: str) -> jinja2.Template:
        try:
            return self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"{self._template.name}: line {error.lineno}: not a Jinja template: {error.message}"
            ) from None

    def _keep(self, shape: Any, program: Program) -> None:
        variants = self._kept.setdefault(shape, [])
        variants.append(program)
        self._steps += len(program.code)
        if len(variants) > _KEPT_VARIANTS:
            self._steps -= len(variants.pop(0).code)
        while self._steps > _KEPT_STEPS and len(self._kept) > 1:
            self._steps -= sum(len(gone.code) for gone in self._kept.pop(next(iter(self._kept))))

    def _check(self, program: Program, values: list[Any], messages: Messages, tools: list[Any] | None) -> None:
        if program.replays >= _CHECKED_REPLAYS:
            return
        self._check_text(program, values, messages, tools)
        program.replays += 1
        simple = tools is None and all(message.keys() == _SIMPLE_KEYS for message in messages)
        if simple and program.takes_texts and program.replays == _CHECKED_REPLAYS:
            if len(self._simple) >= _KEPT_SIMPLE:
                self._simple.clear()
            roles = tuple([message["role"] for message in messages])
            found = (program, _unasked(program, roles))
            self._simple[roles] = (*self._simple.get(roles, ())[-_KEPT_VARIANTS:], found)

    def _check_text(self, program: Program, values: list[Any], messages: Messages, tools: list[Any] | None) -> None:
        """Raise unless the program gives what the template gives without tracing."""
        plain = [_plain_message(message) for message in messages]
        expected = self._render(plain, tools, False)
        if program.text(values) != expected:
            raise ChatTemplateError(
                f"{self._template.name}: the template treats the text of messages in a way that cannot be followed "
                "(its output depends on more than was seen); simplify it or use a built-in"
            )

    def _render(self, messages: Sequence[Any], tools: Any, prompt: bool) -> str:
        """Run the template; jinja's own errors pass, anything else it trips over becomes one."""
        compiled = self._for_tools if tools else self._compiled
        try:
            return compiled.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=prompt,
                **self._template.variables,
            )
        except _RUNTIME_FAULTS as error:
            raise jinja2.TemplateError(f"{type(error).__name__}: {error}") from error

    def _trace(self, messages: Messages, tools: list[Any] | None) -> tuple[Program, list[Any]]:
        self.traced += 1
        tracer = Tracer(self._encoder.is_control)
        # Where reasoning is removed, what `prepare` left of it is always the empty text.
        fixed = frozenset({"role"} if self._options.thinking == "keep" else {"role", "reasoning_content"})
        traced = [_Message(tracer, message, i, fixed) for i, message in enumerate(messages)]
        traced_tools = None if tools is None else wrap(tracer, tools, ("tools",), -1)

        def run(count: int, prompt: bool) -> Layout:
            return Layout.of(segments_of(self._render(traced[:count], traced_tools, prompt)))

        def attempt(count: int, prompt: bool) -> Layout | None:
            try:
                return run(count, prompt)
            except jinja2.TemplateError:
                return None

        self._environment.tracer = tracer
        try:
            full = run(len(messages), False)
            answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
            finder = TurnFinder(full, attempt, tracer, self._encoder.control)
            turns = finder.turns(answers) if self._needs_turns(full) else []
        finally:
            self._environment.tracer = None
        return self._compile_program(tracer, full, turns, messages)

    def _needs_turns(self, full: Layout) -> bool:
        return self._options.train_on != "all" or self._options.thinking != "keep" or bool(full.marked)

    def _compile_program(
        self, tracer: Tracer, full: Layout, turns: list[Turn], messages: Messages
    ) -> tuple[Program, list[Any]]:
        """The program of a layout, and the values of its slots."""
        options = self._options
        edited, moved = full, turns
        if options.thinking != "keep":
            edited, moved = edit_blocks(full, turns, options.thinking)
        ranges = self._counted(moved, edited, tracer, messages)
        steps, values = tracer.steps, tracer.values
        reordered = contents_first(steps, len(messages))
        if reordered is not None:
            steps, slots = reordered
            edited, full = edited.with_slots(slots), full.with_slots(slots)
            made = [value for slot, value in zip(slots, values, strict=True) if slot >= len(messages)]
            values = [*(message["content"] for message in messages), *made]
        items = Compiler(self._encoder, options.tail).compile(edited.atoms, ranges)
        text_parts = tuple(a.slot if isinstance(a, Data) else a.text for a in full.atoms)
        empty = sum(turn.empty_until is not None for turn in moved)
        reusable = tracer.pinned_characters <= _PINNED_LIMIT
        program = Program(steps, items, text_parts, empty, reusable=reusable, contents_first=reordered is not None)
        return program, values

    def _counted(
        self, turns: list[Turn], layout: Layout, tracer: Tracer, messages: Messages
    ) -> list[tuple[Position, Position]]:
        """The ranges whose tokens count, in order."""
        if self._options.train_on == "all":
            return []
        chosen = turns[-1:] if self._options.train_on == "last" else turns
        counted = []
        for turn in chosen:
            owners = {
                tracer.owners[atom.slot]
                for atom in layout.atoms[turn.start[0] : turn.end[0] + 1]
                if isinstance(atom, Data)
            }
            if any(owner >= 0 and messages[owner].get("_uncounted") for owner in owners):
                continue
            skip = turn.empty_until if not self._options.count_empty_thinking else None
            start = skip or turn.start
            if start < turn.end:
                counted.append((start, turn.end))
        return counted


def _without_blocks(found: Found, unasked: tuple[int, ...]) -> Found:
    """The same without the conversations that have a thinking block in one of the messages `unasked`."""
    blocked = {at for i in unasked for at, text in enumerate(found.columns[i]) if _BLOCK_END in text}
    if not blocked:
        return found
    free = [at not in blocked for at in range(len(found.numbers))]
    columns = [list(compress(column, free)) for column in found.columns]
    return Found(found.program, list(compress(found.numbers, free)), columns)


def _unasked(program: Program, roles: tuple[str, ...]) -> tuple[int, ...]:
    """The answers of which a replay does not find out by itself that they have no thinking block."""
    asks = Contains(_BLOCK_END)
    asked = {source for function, source, expected in program.text_code if function == asks and expected is False}
    return tuple(i for i, role in enumerate(roles) if role == "assistant" and i not in asked)


def _template_line(error: BaseException) -> int | None:
    """The line of the template that raised `error`; jinja gives its frames the template's own lines."""
    found, seen = None, error.__cause__ or error
    trace = seen.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            found = trace.tb_lineno
        trace = trace.tb_next
    return found


class _Message(TracedDict):
    """A message as a template sees it: the role is a trusted word, a separate thinking block is part of the content."""

    def __init__(self, tracer: Tracer, message: dict[str, Any], number: int, fixed: frozenset[str]) -> None:
        super().__init__(tracer, message, ("messages", number), number, fixed)

    def _has(self, key: str) -> bool:
        return key not in _HIDDEN and super()._has(key)

    def __getitem__(self, key: Any) -> Any:
        if key == "content" and BLOCK_KEY in self._raw:
            block, content = self._child(BLOCK_KEY), self._child("content")
            assert isinstance(block, TracedStr)
            gap = pin(self._child(GAP_KEY)) if GAP_KEY in self._raw else ""
            return "<think>" + block + "</think>" + gap + content
        return super().__getitem__(key)

    def _keys(self) -> list[Any]:
        return [key for key in self._raw if key not in _HIDDEN]


def _plain_message(message: dict[str, Any]) -> dict[str, Any]:
    """The same message for an ordinary run."""
    made = {key: value for key, value in message.items() if key not in _HIDDEN}
    if BLOCK_KEY in message:
        made["content"] = f"<think>{message[BLOCK_KEY]}</think>{message.get(GAP_KEY, '')}{message['content']}"
    return made
