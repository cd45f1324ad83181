"""A rendered layout compiled for one tokenizer: fixed ids, texts still to encode, and where the counted ranges lie.

Control tokens are looked for in what the template wrote and nowhere else; the plain text between two of them, template
and record together, is one stretch and is encoded in one piece, so merges across the seam come out as in the rendered
string. Stretches without text of the record are encoded here, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmdata.chat.joined import seam_before
from mmdata.chat.segments import Data, Literal
from mmdata.chat.spans import Atom, Position
from mmdata.chat.stretches import StretchEncoder
from mmdata.chat.tracer import Step, instructions, text_instructions

Part = int | str


@dataclass(frozen=True, slots=True)
class Stretch:
    """Plain text to encode: slots and literals. A control token may swallow white space beside it (`lstrip`, `rstrip`
    of its AddedToken)."""

    parts: tuple[Part, ...]
    later: bool
    strip_left: bool = False
    strip_right: bool = False

    def plan(self) -> tuple[str, int, str] | None:
        """(prefix, slot, suffix) where that is all there is, which saves time; else None."""
        slots = [i for i, part in enumerate(self.parts) if isinstance(part, int)]
        if len(slots) != 1 or self.strip_left or self.strip_right:
            return None
        at = slots[0]
        prefix, suffix = "".join(map(str, self.parts[:at])), "".join(map(str, self.parts[at + 1 :]))
        return (prefix, int(self.parts[at]), suffix)

    def seam(self) -> str:
        """What `seam_before` says of every text of this stretch, or "" where that depends on the record."""
        first = self.parts[0]
        return "" if self.strip_left or isinstance(first, int) or not first else seam_before(first)

    def text(self, values: Sequence[Any]) -> str:
        """The text for one record."""
        return self.stripped("".join([part if isinstance(part, str) else values[part] for part in self.parts]))

    def stripped(self, text: str) -> str:
        """The text without what a control token beside it swallows."""
        if self.strip_left:
            text = text.lstrip()
        return text.rstrip() if self.strip_right else text

    def form(self) -> tuple[list[str], list[tuple[int, int]]]:
        """The parts as texts, and the (place, slot) of those that the record gives."""
        holes = [(place, part) for place, part in enumerate(self.parts) if isinstance(part, int)]
        return [part if isinstance(part, str) else "" for part in self.parts], holes


@dataclass(frozen=True, slots=True)
class Edge:
    """One end of a counted range: `token` tokens into `item`, or, inside a stretch, behind its first `parts`.

    stretch: which stretch, -1 for a fixed place. constant: the bytes of `parts` where they hold no text of the record.
    prefix: the ids of these parts by themselves; a stretch that begins with them has its edge behind them.
    """

    item: int
    token: int = 0
    stretch: int = -1
    parts: tuple[Part, ...] = ()
    constant: int = -1
    prefix: tuple[int, ...] = ()

    def before(self, values: Sequence[Any], stretch: Stretch) -> str:
        """The text of the stretch before this edge."""
        text = "".join([part if isinstance(part, str) else values[part] for part in self.parts])
        if stretch.strip_left:
            text = text.lstrip()
        return text[: len(stretch.text(values))] if stretch.strip_right else text


class Program:
    """What one shape of record becomes.

    code: how to get the slots of a record. text_code: the same from the contents alone, where takes_texts says that
    this is enough; slot i is then the content of message i, and what is made of them follows. stretches: the texts to
    encode, in order; plan: the same as (prefix, slot, suffix) where all are so simple; forms, seams: `Stretch.form` and
    `Stretch.seam` of each; later: whether text stands before each. item_lengths: int64, the number of tokens of each
    item, -1 for a stretch. fixed: int32, the ids of all fixed items. edges: start, end, start, ... of the counted
    ranges; edge_items, edge_tokens: the same as int64;
    inner_edges, inner_stretches, inner_sizes: int64, which of them lie inside a stretch, which one, and how many bytes
    into it (-1: depends on the record); prefixes, prefix_lengths: int32 and int64, the `Edge.prefix` of these.
    empty_blocks: empty thinking blocks rendered. text_parts: the string the template rendered. reusable: whether
    another record may replay it. replays: how often one was compared with the template.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        items: Items,
        text_parts: tuple[Part, ...] = (),
        empty_blocks: int = 0,
        *,
        reusable: bool = True,
        contents_first: bool = False,
    ) -> None:
        self.code = instructions(steps)
        self.text_code = text_instructions(steps) if contents_first else ()
        self.takes_texts = contents_first
        self.stretches = tuple(items.stretches)
        plans = [stretch.plan() for stretch in items.stretches]
        self.plan = None if None in plans else tuple(plan for plan in plans if plan is not None)
        self.forms = tuple(stretch.form() for stretch in items.stretches)
        self.seams = tuple(stretch.seam() for stretch in items.stretches)
        self.later = np.array([stretch.later for stretch in items.stretches], bool)
        self.item_lengths = np.array(items.lengths, np.int64)
        self.fixed = np.array(items.fixed, np.int32)
        self.edges = tuple(items.edges)
        self.edge_items = np.array([edge.item for edge in self.edges], np.int64)
        self.edge_tokens = np.array([edge.token for edge in self.edges], np.int64)
        inner = [number for number, edge in enumerate(self.edges) if edge.stretch >= 0]
        self.inner_edges = np.array(inner, np.int64)
        self.inner_stretches = np.array([self.edges[number].stretch for number in inner], np.int64)
        self.inner_sizes = np.array([self.edges[number].constant for number in inner], np.int64)
        self.prefix_lengths = np.array([len(self.edges[number].prefix) for number in inner], np.int64)
        self.prefixes = np.array([token for number in inner for token in self.edges[number].prefix], np.int32)
        self.text_parts, self.empty_blocks, self.reusable = text_parts, empty_blocks, reusable
        self.replays = 0

    def texts(self, values: Sequence[Any]) -> Sequence[str]:
        """The texts to encode for one record."""
        if self.plan is None:
            made = []
            for stretch, (pieces, holes) in zip(self.stretches, self.forms, strict=True):
                pieces = pieces.copy()
                for place, slot in holes:
                    pieces[place] = values[slot]
                made.append(stretch.stripped("".join(pieces)))
            return made
        return [prefix + values[slot] + suffix for prefix, slot, suffix in self.plan]

    def text_rows(self, columns: Sequence[Sequence[Any]]) -> Iterable[Sequence[str]]:
        """The same for many records at once, whose values are `columns`."""
        if not self.plan:
            return [self.texts(values) for values in zip(*columns, strict=True)]
        made = []
        for prefix, slot, suffix in self.plan:
            column = columns[slot]
            made.append([prefix + text + suffix for text in column] if suffix else [prefix + text for text in column])
        return zip(*made, strict=True)

    def text(self, values: Sequence[Any]) -> str:
        """The rendered conversation as one string."""
        return "".join([part if isinstance(part, str) else values[part] for part in self.text_parts])


@dataclass(slots=True)
class _Unit:
    """A control token (with its id), a literal, or a slot."""

    part: Part
    control: int | None = None


class Compiler:
    """Turns a layout and its counted ranges into items."""

    def __init__(self, encoder: StretchEncoder, tail: Sequence[int] = ()) -> None:
        """tail: ids behind every conversation; they never count."""
        self._encoder, self._tail = encoder, list(tail)

    def compile(self, atoms: Sequence[Atom], ranges: Sequence[tuple[Position, Position]]) -> Items:
        """Items of the layout and the edges of `ranges`."""
        units, at = self._units(atoms, ranges)
        items = Items()
        place: dict[int, tuple[int, int]] = {}  # unit -> (group, units of the group before it)
        groups: list[list[_Unit]] = []
        for number, unit in enumerate(units):
            if unit.control is not None or not groups or groups[-1][0].control is not None:
                groups.append([])
            place[number] = (len(groups) - 1, len(groups[-1]))
            groups[-1].append(unit)
        place[len(units)] = (len(groups), 0)
        wanted = [(place[at[(start, "start")]], place[at[(end, "end")]]) for start, end in ranges]
        self._emit(groups, items, wanted)
        return items

    def _units(
        self, atoms: Sequence[Atom], ranges: Sequence[tuple[Position, Position]]
    ) -> tuple[list[_Unit], dict[tuple[Position, str], int]]:
        """Atoms cut at control tokens and at the ends of ranges, and the unit each end stands before.

        A range that begins or ends within a control token takes the whole token.
        """
        cuts: dict[int, set[tuple[int, str]]] = {}
        for pair in ranges:
            for (index, offset), side in zip(pair, ("start", "end"), strict=True):
                cuts.setdefault(index, set()).add((offset, side))
        units: list[_Unit] = []
        at: dict[tuple[Position, str], int] = {}
        for number, atom in enumerate((*atoms, None)):
            mine = cuts.get(number, set())
            if not isinstance(atom, Literal):
                for offset, side in mine:
                    assert offset == 0, "only a literal can be cut"
                    at[((number, 0), side)] = len(units)
                if isinstance(atom, Data):
                    units.append(_Unit(atom.slot))
                continue
            self._cut_literal(atom.text, number, mine, units, at)
        return units, at

    def _cut_literal(
        self,
        text: str,
        number: int,
        cuts: set[tuple[int, str]],
        units: list[_Unit],
        at: dict[tuple[Position, str], int],
    ) -> None:
        tokens = [(match.start(), match.end()) for match in self._encoder.control.finditer(text)]
        moved = {cut: cut[0] for cut in cuts}
        for first, last in tokens:
            for offset, side in cuts:
                if first < offset < last:
                    moved[(offset, side)] = first if side == "start" else last
        bounds = {0, len(text), *moved.values(), *(edge for pair in tokens for edge in pair)}
        ordered = sorted(bounds)
        begins = dict(tokens)
        index_at: dict[int, int] = {}
        for start, stop in zip(ordered, [*ordered[1:], len(text)], strict=True):
            index_at[start] = len(units)
            if start < stop:
                piece = text[start:stop]
                is_token = begins.get(start) == stop
                units.append(_Unit(piece, self._encoder.specials[piece].id if is_token else None))
        for cut, offset in moved.items():
            at[((number, cut[0]), cut[1])] = index_at[offset]

    def _emit(self, groups: list[list[_Unit]], items: Items, wanted: Sequence[Any]) -> None:
        """Groups become items; edges are resolved where their group is fixed."""
        flags = [self._strips(group) for group in groups]
        where: dict[tuple[tuple[int, int], str], Edge] = {}
        ends = [(edge, side) for pair in wanted for edge, side in zip(pair, ("start", "end"), strict=True)]
        for number, group in enumerate(groups):
            inner = {(place, side) for place, side in ends if place[0] == number}
            if group[0].control is not None:
                base = items.add_fixed([group[0].control])
                where.update({key: base for key in inner})
                continue
            left = number > 0 and flags[number - 1][1]
            right = number + 1 < len(groups) and flags[number + 1][0]
            stretch = Stretch(tuple(unit.part for unit in group), number > 0, left, right)
            if any(isinstance(part, int) for part in stretch.parts):
                item = items.add_stretch(stretch)
                for place, side in inner:
                    where[(place, side)] = self._edge_in(item, len(items.stretches) - 1, stretch, place[1])
            else:
                where.update(self._fixed_stretch(stretch, items, inner))
        final = items.add_fixed([])
        items.add_fixed(self._tail)
        for start, end in wanted:
            items.edges.append(where.get((start, "start"), final))
            items.edges.append(where.get((end, "end"), final))

    def _fixed_stretch(
        self, stretch: Stretch, items: Items, inner: set[tuple[tuple[int, int], str]]
    ) -> dict[tuple[tuple[int, int], str], Edge]:
        text = stretch.text([])
        base = items.add_fixed(self._encoder.encode([text], [stretch.later]).tokens.tolist() if text else [])
        found = {}
        for place, side in inner:
            before = "".join(str(part) for part in stretch.parts[: place[1]])
            offset = len(before.lstrip()) if stretch.strip_left else len(before)
            if offset == 0 or not text:
                found[(place, side)] = base
                continue
            first, count = self._encoder.positions(text, stretch.later, min(offset, len(text)))
            found[(place, side)] = Edge(base.item, base.token + (first if side == "start" else count))
        return found

    def _edge_in(self, item: int, number: int, stretch: Stretch, count: int) -> Edge:
        """The edge behind the first `count` parts of a stretch."""
        parts = stretch.parts[:count]
        if not parts:
            return Edge(item)
        if stretch.strip_left or stretch.strip_right or any(isinstance(part, int) for part in parts):
            return Edge(item, 0, number, parts)
        text = "".join(map(str, parts))
        prefix = self._encoder.encode([text], [stretch.later]).tokens.tolist()
        return Edge(item, 0, number, parts, len(text.encode()), tuple(prefix))

    def _strips(self, group: list[_Unit]) -> tuple[bool, bool]:
        """Whether this control token swallows white space to its left and right."""
        if group[0].control is None:
            return False, False
        special = self._encoder.specials[str(group[0].part)]
        return special.lstrip, special.rstrip


class Items:
    """Items under construction; neighbouring fixed ids become one item."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.fixed: list[int] = []
        self.stretches: list[Stretch] = []
        self.edges: list[Edge] = []

    def add_fixed(self, ids: list[int]) -> Edge:
        """Append ids; the edge before them."""
        if not self.lengths or self.lengths[-1] < 0:
            self.lengths.append(0)
        edge = Edge(len(self.lengths) - 1, self.lengths[-1])
        self.lengths[-1] += len(ids)
        self.fixed.extend(ids)
        return edge

    def add_stretch(self, stretch: Stretch) -> int:
        """Append a text that is to be encoded for each record; the number of its item."""
        self.stretches.append(stretch)
        self.lengths.append(-1)
        return len(self.lengths) - 1


def plain_program(tail: Sequence[int]) -> Program:
    """A plain text, in slot 0, and `tail` behind it; every token counts."""
    items = Items()
    items.edges.append(Edge(items.add_stretch(Stretch((0,), False))))
    items.add_fixed(list(tail))
    items.edges.append(items.add_fixed([]))
    return Program((), items, (0,))
