"""Where each answer begins and ends in a rendered conversation, in positions of its layout.

With `{% generation %}` the template says it. Without, the template is asked: what it renders for the messages before an
answer, with the generation prompt, is what the model will see, so the answer begins where that ends; it ends after the
last control token that follows its last character when nothing comes after it. The text of the answer is never looked
for. Everything is compared symbolically, so the result holds for every record the same trace serves. Costs two template
runs for each answer, once for each shape of record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mmdata.chat.segments import Data, Literal, Mark, Segment
from mmdata.chat.tracer import Tracer
from mmdata.errors import ChatTemplateError

Atom = Literal | Data
Position = tuple[int, int]
"""(atom, characters into it); an offset other than 0 only inside a literal."""

EMPTY_THINKING = "<think>\n\n</think>\n\n"
_EMPTY_BLOCK = re.compile(r"\s*<think>\s*</think>\s*")
_BLOCK_OPENS = re.compile(r"\s*<think>\s*\Z")
_BLOCK_CLOSES = re.compile(r"\s*</think>\s*")


@dataclass(frozen=True)
class Layout:
    """One rendered conversation: atoms with no two literals side by side, and the `{% generation %}` ranges."""

    atoms: tuple[Atom, ...]
    marked: tuple[tuple[Position, Position], ...]

    @staticmethod
    def of(segments: Sequence[Segment]) -> Layout:
        """The layout of a rendered text; its marks must be nested rightly, as Jinja's blocks are."""
        atoms: list[Atom] = []
        opened: list[Position] = []
        marked: list[tuple[Position, Position]] = []
        for segment in segments:
            last = atoms[-1] if atoms else None
            if isinstance(segment, Mark):
                here = (len(atoms) - 1, len(last.text)) if isinstance(last, Literal) else (len(atoms), 0)
                if segment.step > 0:
                    opened.append(here)
                else:
                    marked.append((opened.pop(), here))
            elif isinstance(segment, Data):
                atoms.append(segment)
            elif segment.text:
                if isinstance(last, Literal):
                    atoms[-1] = Literal(last.text + segment.text)
                else:
                    atoms.append(segment)
        return Layout(tuple(atoms), tuple(marked))

    def with_slots(self, slots: Sequence[int]) -> Layout:
        """The same with slot i called `slots[i]`."""
        return Layout(tuple(Data(slots[a.slot], a.text) if isinstance(a, Data) else a for a in self.atoms), self.marked)


@dataclass(frozen=True)
class Turn:
    """One answer: what the model is to produce. `empty_until`: the end of an empty thinking block at its start."""

    start: Position
    end: Position
    empty_until: Position | None = None


Render = Callable[[int, bool], Layout | None]
"""The layout of the first n messages, with or without generation prompt; None where the template refuses."""


@dataclass(frozen=True)
class TurnFinder:
    """Finds the answers of one layout.

    control_ends: the end offsets of the control tokens in a literal. owners: message of each slot.
    """

    full: Layout
    render: Render
    tracer: Tracer
    control: re.Pattern[str]

    def turns(self, answers: Sequence[int]) -> list[Turn]:
        """The answers' ranges in order. `answers`: the numbers of the assistant messages."""
        if self.full.marked:
            found = [Turn(start, end) for start, end in self.full.marked if start != end]
        else:
            found = [turn for number in answers if (turn := self._turn(number)) is not None]
        return [Turn(turn.start, turn.end, self._empty_block(turn.start)) for turn in found]

    def _turn(self, number: int) -> Turn | None:
        mine = [i for i, atom in enumerate(self.full.atoms) if self._owner(atom) == number]
        if not mine:
            return None
        start, end = self._start(number, mine[0]), self._end(number, mine[-1])
        inside = self.full.atoms[start[0] : end[0] + (1 if end[1] else 0)]
        strangers = {self._owner(atom) for atom in inside} - {None, number}
        if start > (mine[0], 0) or strangers:
            raise ChatTemplateError(
                f"the template does not keep the answer in message {number} in one piece (it mixes it with "
                f"{'message ' + str(min(strangers, key=str)) if strangers else 'text before the prompt'}), so the "
                "tokens to train on cannot be told; add {% generation %} marks to the template"
            )
        return Turn(start, end)

    def _owner(self, atom: Atom) -> int | None:
        return self.tracer.owners[atom.slot] if isinstance(atom, Data) else None

    def _start(self, number: int, first: int) -> Position:
        """Where the prompt for this answer ends in the full conversation."""
        prompt = self.render(number, True)
        if prompt is not None:
            position, matched = self._common(prompt.atoms)
            if matched == len(prompt.atoms):
                return position
            base = self.render(number, False)
            rest_is_literal = matched == len(prompt.atoms) - 1 and isinstance(prompt.atoms[-1], Literal)
            if rest_is_literal and base is not None and self._common(base.atoms)[1] == len(base.atoms):
                return self._outside_control(position)
            if base is not None and (position_here := self._start_locally(number, first, prompt, base)) is not None:
                return self._outside_control(position_here)
        raise ChatTemplateError(
            f"the template renders the messages before message {number} differently once the answer follows (it "
            "rewrites history), so where the prompt ends cannot be told; add {% generation %} marks to the template"
        )

    def _start_locally(self, number: int, first: int, prompt: Layout, base: Layout) -> Position | None:
        """Where the prompt ends when messages further back are rendered differently once the answer follows.

        What stands between the message before and the answer must begin with what follows that message in the prompt.
        """
        between = self.full.atoms[first - 1] if first else None
        tail, shorter = self._tail(prompt, number - 1), self._tail(base, number - 1)
        if not isinstance(between, Literal) or tail is None or shorter is None or first < 2:
            return None
        if self._owner(self.full.atoms[first - 2]) != number - 1 or not between.text.startswith(shorter):
            return None
        return (first - 1, _common_length(tail, between.text))

    def _tail(self, layout: Layout, number: int) -> str | None:
        """What a layout writes behind the last text of message `number`, if it ends there."""
        mine = [i for i, atom in enumerate(layout.atoms) if self._owner(atom) == number]
        if not mine or mine[-1] + 2 < len(layout.atoms):
            return None
        last = layout.atoms[-1]
        return last.text if isinstance(last, Literal) else ""

    def _end(self, number: int, last: int) -> Position:
        """Behind the control token that ends the turn, else behind the last character that is no white space."""
        after = self.full.atoms[last + 1] if last + 1 < len(self.full.atoms) else None
        if not isinstance(after, Literal):
            return (last + 1, 0)
        alone = self.render(number + 1, False)
        if alone is None:
            raise ChatTemplateError(
                f"the template refuses the conversation up to message {number}, so where that answer ends cannot be "
                "told; add {% generation %} marks to the template"
            )
        mine = [i for i, atom in enumerate(alone.atoms) if self._owner(atom) == number]
        tail = alone.atoms[mine[-1] + 1] if mine and mine[-1] + 1 < len(alone.atoms) else None
        shared = _common_length(tail.text, after.text) if isinstance(tail, Literal) else 0
        ends = [match.end() for match in self.control.finditer(after.text) if match.end() <= shared]
        length = ends[-1] if ends else len(after.text[:shared].rstrip())
        return (last + 1, length)

    def _common(self, atoms: Sequence[Atom]) -> tuple[Position, int]:
        """How far the full layout agrees with `atoms`: the position, and how many of `atoms` agree entirely."""
        full = self.full.atoms
        for i, atom in enumerate(atoms):
            other = full[i] if i < len(full) else None
            if isinstance(atom, Data) and isinstance(other, Data) and atom.slot == other.slot:
                continue
            if isinstance(atom, Literal) and isinstance(other, Literal):
                shared = _common_length(atom.text, other.text)
                if shared == len(atom.text) and (shared == len(other.text) or i == len(atoms) - 1):
                    if shared == len(other.text):
                        continue
                    return (i, shared), i + 1
                return (i, shared), i
            return (i, 0), i
        return (len(atoms), 0), len(atoms)

    def _outside_control(self, position: Position) -> Position:
        atom = self.full.atoms[position[0]] if position[0] < len(self.full.atoms) else None
        if isinstance(atom, Literal):
            for match in self.control.finditer(atom.text):
                if match.start() < position[1] < match.end():
                    return (position[0], match.start())
        return position

    def _empty_block(self, start: Position) -> Position | None:
        """The end of a thinking block without content at `start`, or None; a guard holds that it is blank."""
        index, offset = start
        atoms = self.full.atoms
        atom = atoms[index] if index < len(atoms) else None
        if isinstance(atom, Literal) and offset == len(atom.text):
            index, offset = index + 1, 0
            atom = atoms[index] if index < len(atoms) else None
        if not isinstance(atom, Literal):
            return None
        if (match := _EMPTY_BLOCK.match(atom.text, offset)) is not None:
            return (index, match.end())
        if index + 2 < len(atoms) and _BLOCK_OPENS.match(atom.text[offset:]):
            inner, closing = atoms[index + 1], atoms[index + 2]
            if isinstance(inner, Data) and isinstance(closing, Literal):
                match = _BLOCK_CLOSES.match(closing.text)
                if match is not None and not self.tracer.guard(inner.slot, "solid", _has_text):
                    return (index + 2, match.end())
        return None


def _has_text(value: str) -> bool:
    return bool(value.strip())


def _common_length(a: str, b: str) -> int:
    size = min(len(a), len(b))
    if a[:size] == b[:size]:
        return size
    return next(i for i in range(size) if a[i] != b[i])
