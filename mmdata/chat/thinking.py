"""What happens to reasoning: `reasoning_content` and `<think>` blocks at the start of an answer.

keep: rendered as the template does it; where the template knows nothing of reasoning, a block is written before the
answer, its two tags as control tokens. strip: reasoning is removed and the template's empty block is not rendered.
empty: reasoning is removed and every answer begins with an empty block. An empty block is not counted in the loss
unless asked. Looks at two keys of each message.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from mmdata.chat.segments import Literal as LiteralText
from mmdata.chat.spans import EMPTY_THINKING, Atom, Layout, Position, Turn
from mmdata.chat.templates import ChatTemplate

Thinking = Literal["keep", "strip", "empty"]
THINKING = ("keep", "strip", "empty")
Kind = Literal["with", "empty", "without"]

BLOCK_KEY = "_thinking"
"""A message whose answer has its block apart: this key holds what stands between the tags."""

GAP_KEY = "_thinking_gap"
"""The white space between an empty block and the answer; it belongs to the block, which does not count."""

_BLOCK = re.compile(r"\A\s*<think>(.*?)</think>", re.DOTALL)


def prepare(
    messages: list[dict[str, Any]], mode: Thinking, template: ChatTemplate
) -> tuple[list[dict[str, Any]], Kind]:
    """The messages to render, and whether the record reasons: with text, with empty blocks only, or not at all."""
    kind: Kind = "without"
    result = messages
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        if "reasoning_content" not in message and "</think>" not in message["content"]:
            continue
        made, found = _prepare_one(message, mode, template)
        if found == "with" or kind == "without":
            kind = found
        if made is not message:
            result = [*messages] if result is messages else result
            result[i] = made
    return result, kind


def _prepare_one(message: dict[str, Any], mode: Thinking, template: ChatTemplate) -> tuple[dict[str, Any], Kind]:
    """One assistant message that mentions reasoning."""
    block = _BLOCK.match(message["content"])
    own = message.get("reasoning_content")
    inner = own if own is not None and own.strip() else block.group(1) if block else None
    kind: Kind = "without" if inner is None and own is None else "with" if inner and inner.strip() else "empty"
    bare = {key: value for key, value in message.items() if key != "reasoning_content"}
    if mode != "keep":
        content = message["content"][block.end() :].lstrip("\n") if block else message["content"]
        if own is not None and template.reads_reasoning and "</think>" in content:
            bare["reasoning_content"] = ""  # without the key a template would split the content at that tag
        return {**bare, "content": content}, kind
    kept = bare
    if own is not None and template.reads_reasoning:
        kept = {**message, "thinking": own}  # the older name some templates read
        if own.strip() or block is None:
            return kept, kind
    elif own is not None and own.strip():
        return {**bare, BLOCK_KEY: f"\n{own}\n", "content": f"\n\n{message['content']}"}, kind
    elif block is None or template.splits_thinking:
        return bare if own is not None else message, kind
    rest = message["content"][block.end() :]
    solid = rest.lstrip()
    if kind == "with" or not solid:
        return {**kept, BLOCK_KEY: block.group(1), "content": rest}, kind
    gap = rest[: len(rest) - len(solid)]
    return {**kept, BLOCK_KEY: block.group(1), GAP_KEY: gap, "content": solid}, kind


def edit_blocks(layout: Layout, turns: list[Turn], mode: Thinking) -> tuple[Layout, list[Turn]]:
    """Remove (strip) or add (empty) the empty block at the start of each turn; positions follow."""
    atoms = list(layout.atoms)
    moved = list(turns)
    for number in reversed(range(len(turns))):
        turn = moved[number]
        if mode == "strip" and turn.empty_until is not None and turn.empty_until[0] == _solid(atoms, turn.start)[0]:
            start = _solid(atoms, turn.start)
            _splice(atoms, moved, start, turn.empty_until[1] - start[1], "")
            moved[number] = Turn(start, moved[number].end)
        elif mode == "empty" and turn.empty_until is None:
            start = _as_literal(atoms, moved, turn.start)
            _splice(atoms, moved, start, 0, EMPTY_THINKING)
            until = (start[0], start[1] + len(EMPTY_THINKING))
            moved[number] = Turn(start, moved[number].end, until)
    return Layout(tuple(atoms), ()), moved


def _solid(atoms: list[Atom], position: Position) -> Position:
    """The same position, never at the end of a literal that has a successor."""
    index, offset = position
    if offset and index + 1 < len(atoms) and offset == len(atoms[index].text):
        return (index + 1, 0)
    return position


def _as_literal(atoms: list[Atom], turns: list[Turn], position: Position) -> Position:
    """The same position inside a literal, so that text can be put there; a text of the record before it is kept."""
    index = position[0]
    atom = atoms[index] if index < len(atoms) else None
    if isinstance(atom, LiteralText):
        return position
    before = atoms[index - 1] if index else None
    if isinstance(before, LiteralText):
        return (index - 1, len(before.text))
    atoms.insert(index, LiteralText(""))

    def after(at: Position) -> Position:
        return (at[0] + 1, at[1]) if at[0] >= index else at

    turns[:] = [Turn(after(t.start), after(t.end), t.empty_until and after(t.empty_until)) for t in turns]
    return (index, 0)


def _splice(atoms: list[Atom], turns: list[Turn], at: Position, removed: int, added: str) -> None:
    """Replace `removed` characters of a literal by `added`; positions behind move along."""
    index, offset = at
    text = atoms[index].text
    atoms[index] = LiteralText(text[:offset] + added + text[offset + removed :])

    def shift(position: Position) -> Position:
        if position[0] == index and position[1] >= offset + removed and position[1] > offset:
            return (index, position[1] - removed + len(added))
        return position

    turns[:] = [Turn(shift(t.start), shift(t.end), t.empty_until and shift(t.empty_until)) for t in turns]
