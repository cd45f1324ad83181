"""Strings that know who wrote each of their characters: the template, or the record.

`TracedStr` is a str that a Jinja template handles like any other; concatenating, stripping, splitting, slicing and
replacing keep the authorship, asking (`in`, `startswith`, `==`, truth) leaves a guard with the tracer. What is not
followed character by character makes the whole result the record's, and is refused where that would turn a control
token of the template into plain text. `TracedDict` and `TracedList` do the same for tool calls and tools.
About 1 microsecond an operation; used once for each shape of record (see `mmdata.chat.tracer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import eq, itemgetter, methodcaller
from typing import Any

from mmdata.chat.segments import Data, Literal, Mark, Segment
from mmdata.chat.tracer import Contains, Tracer
from mmdata.errors import ChatTemplateError

# Methods whose result is one string, decided by the whole string: followed on a text that is all the record's.
_WHOLE: tuple[str, ...] = ("upper", "lower", "title", "capitalize", "casefold", "swapcase", "expandtabs", "zfill")
_WHOLE += ("removeprefix", "removesuffix", "center", "ljust", "rjust")
# Methods whose result is several strings.
_PARTS = ("split", "rsplit", "splitlines", "partition", "rpartition")
# Methods that answer a question.
_ASK: tuple[str, ...] = ("startswith", "endswith", "count", "find", "rfind", "index", "rindex", "isalnum", "isalpha")
_ASK += ("isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace")
_ASK += ("istitle", "isupper")
_REST = ("format", "format_map", "encode", "translate", "maketrans")


class TracedStr(str):
    """A str with its segments."""

    __slots__ = ("_segments", "_tracer")
    _segments: tuple[Segment, ...]
    _tracer: Tracer

    @staticmethod
    def make(tracer: Tracer, segments: tuple[Segment, ...]) -> TracedStr:
        """The str of these segments, followed by `tracer`."""
        made = TracedStr("".join([segment.text for segment in segments]))
        made._segments, made._tracer = segments, tracer
        return made

    # -- what the tracer sees

    def _slot(self) -> int:
        """One slot for the whole string."""
        solid = [segment for segment in self._segments if not isinstance(segment, Mark)]
        if len(solid) == 1 and isinstance(solid[0], Data):
            return solid[0].slot
        parts = tuple(segment.slot if isinstance(segment, Data) else segment.text for segment in solid)
        return self._tracer.join(parts)

    def _is_literal(self) -> bool:
        return not any(isinstance(segment, Data) for segment in self._segments)

    def _is_one_datum(self) -> bool:
        return len(self._segments) == 1 and isinstance(self._segments[0], Data)

    def _ask(self, key: Any, function: Callable[[Any], Any]) -> Any:
        if self._is_literal():
            return function(plain(self))
        return self._tracer.guard(self._slot(), key, function)

    def _derived(self, key: Any, function: Callable[[Any], Any]) -> TracedStr:
        slot = self._tracer.derive(self._slot(), key, function)
        return TracedStr.make(self._tracer, (Data(slot, self._tracer.values[slot]),))

    def _range(self, start: int, stop: int) -> TracedStr:
        """Characters start..stop with their authors, all values pinned."""
        pin(self)
        segments: list[Segment] = []
        position = 0
        for segment in self._segments:
            text = segment.text[max(start - position, 0) : max(stop - position, 0)]
            position += len(segment.text)
            if text and isinstance(segment, Data):
                owner = self._tracer.owners[segment.slot]
                segments.append(Data(self._tracer.constant(text, owner), text))
            elif text:
                segments.append(Literal(text))
        return TracedStr.make(self._tracer, tuple(segments))

    # -- joining

    def __str__(self) -> str:
        return self

    def __repr__(self) -> str:
        return str(untraceable(self._tracer, "repr", str.__repr__(plain(self)), (self,)))

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, str):
            return NotImplemented
        return TracedStr.make(self._tracer, self._segments + segments_of(other))

    def __radd__(self, other: Any) -> Any:
        if not isinstance(other, str):
            return NotImplemented
        return TracedStr.make(self._tracer, segments_of(other) + self._segments)

    def __mul__(self, times: Any) -> TracedStr:
        return TracedStr.make(self._tracer, self._segments * int(times))

    __rmul__ = __mul__

    def join(self, items: Any) -> TracedStr:
        """As str.join; raises TypeError for an item that is no str."""
        segments: list[Segment] = []
        for number, item in enumerate(items):
            segments.extend(self._segments if number else ())
            segments.extend(segments_of(item))
        return TracedStr.make(self._tracer, tuple(segments))

    # -- cutting

    def strip(self, chars: Any = None) -> TracedStr:
        """As str.strip."""
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: Any = None) -> TracedStr:
        """As str.lstrip; a guard holds which texts are stripped away altogether."""
        return self._strip_side("lstrip", chars)

    def rstrip(self, chars: Any = None) -> TracedStr:
        """As str.rstrip, likewise."""
        return self._strip_side("rstrip", chars)

    def _strip_side(self, side: str, chars: Any) -> TracedStr:
        chars = pin(chars)
        call = methodcaller(side, chars)
        segments = list(self._segments if side == "lstrip" else reversed(self._segments))
        kept: list[Segment] = []
        while segments:
            segment = segments.pop(0)
            if isinstance(segment, Mark):
                kept.append(segment)
                continue
            if isinstance(segment, Data):
                slot = self._tracer.derive(segment.slot, (side, chars), call)
                kept.append(Data(slot, self._tracer.values[slot]))
                if not segments or self._tracer.guard(slot, "truth", bool):
                    break
                kept.pop()
            elif text := call(segment.text):
                kept.append(Literal(text))
                break
        kept += segments
        return TracedStr.make(self._tracer, tuple(kept if side == "lstrip" else reversed(kept)))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            key = slice(pin(key.start), pin(key.stop), pin(key.step))
            name: Any = ("slice", key.start, key.stop, key.step)
        else:
            key = pin(key)
            name = ("item", key)
        if self._is_one_datum():
            return self._derived(name, itemgetter(key))
        size = str.__len__(self)
        chosen = range(size)[key]
        if isinstance(chosen, int):
            return self._range(chosen, chosen + 1)
        if chosen.step == 1:
            return self._range(chosen.start, chosen.stop)
        return self._empty().join([self._range(i, i + 1) for i in chosen])

    def __iter__(self) -> Iterator[Any]:
        return iter([self._range(i, i + 1) for i in range(str.__len__(self))])

    def replace(self, old: Any, new: Any, count: Any = -1, /) -> TracedStr:
        """As str.replace; where template and record meet in the text, its values are pinned."""
        old, count = pin(old), pin(count)
        plain_new = isinstance(new, str) and type(new) is str and not self._tracer.is_control(new)
        if plain_new and self._is_one_datum():
            return self._derived(("replace", old, new, count), methodcaller("replace", old, new, count))
        if not old:
            done = plain(self).replace(old, plain(new), count)
            made: TracedStr = untraceable(self._tracer, "replace", done, (self, new))
            return made
        pieces, position, text = [], 0, plain(self)
        while count != 0 and (found := text.find(old, position)) >= 0:
            pieces += [self._range(position, found), new]
            position, count = found + len(old), count - 1
        if not pieces and not self._is_literal():
            self._ask(("count", old), methodcaller("count", old))
            return self
        return self._empty().join([*pieces, self._range(position, len(text))])

    def _parts(self, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> list[TracedStr]:
        args = tuple(pin(value) for value in args)
        options = {name: pin(value) for name, value in options.items()}
        call = methodcaller(method, *args, **options)
        name = (method, args, tuple(sorted(options.items())))
        if self._is_one_datum():
            count = self._ask((*name, "parts"), lambda value: len(call(value)))
            return [self._derived((*name, i), _part_of(call, i)) for i in range(count)]
        found: list[TracedStr] = []
        position, text = 0, plain(self)
        gap = len(args[0]) if method in ("split", "rsplit") and args and args[0] else 0
        for part in call(text):
            position = text.index(part, position)
            found.append(self._range(position, position + len(part)))
            position += len(part) + gap
        return found

    # -- asking

    def __contains__(self, item: Any) -> bool:
        item = pin(item)
        return bool(self._ask(("in", item), Contains(item)))

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, str):
            return False
        wanted = pin(other)
        return bool(self._ask(("eq", wanted), lambda value: eq(value, wanted)))

    def __ne__(self, other: Any) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return bool(pin(self) < pin(other))

    def __le__(self, other: Any) -> bool:
        return bool(pin(self) <= pin(other))

    def __gt__(self, other: Any) -> bool:
        return bool(pin(self) > pin(other))

    def __ge__(self, other: Any) -> bool:
        return bool(pin(self) >= pin(other))

    def __hash__(self) -> int:
        return hash(pin(self))

    def __bool__(self) -> bool:
        return bool(self._ask("truth", bool))

    def __len__(self) -> int:
        return int(self._ask("length", len))

    def __mod__(self, values: Any) -> Any:
        return untraceable(self._tracer, "%", plain(self) % pin(values), (self, values))

    def __rmod__(self, pattern: Any) -> Any:
        return untraceable(self._tracer, "%", pattern % pin(self), (pattern, self))

    def __format__(self, spec: str) -> str:
        return str(untraceable(self._tracer, "format", format(plain(self), spec), (self,)))

    def _empty(self) -> TracedStr:
        return TracedStr.make(self._tracer, ())


def plain(value: str) -> str:
    """The same characters as an ordinary str; leaves no guard."""
    return str.__str__(value)


def _part_of(call: Callable[[Any], Any], number: int) -> Callable[[Any], Any]:
    return lambda value: call(value)[number]


def segments_of(value: Any) -> tuple[Segment, ...]:
    """The segments of a str; those of an ordinary one are the template's."""
    if isinstance(value, TracedStr):
        return value._segments
    if not isinstance(value, str):
        raise TypeError(f"sequence item: expected str, {type(value).__name__} found")
    return (Literal(value),) if value else ()


def find_tracer(value: Any) -> Tracer | None:
    """The tracer of the first traced value in `value`, looking into lists, tuples and dicts."""
    if isinstance(value, (str, dict, list)):
        found = getattr(value, "_tracer", None)
        if isinstance(found, Tracer):
            return found
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple)):
        for item in value:
            if (found := find_tracer(item)) is not None:
                return found
    return None


def pin(value: Any) -> Any:
    """`value` without tracing; what the record gave is guarded to stay exactly so."""
    if isinstance(value, TracedStr):
        for segment in value._segments:
            if isinstance(segment, Data):
                value._tracer.pin(segment.slot)
        return plain(value)
    if isinstance(value, (dict, list)) and (release := getattr(value, "_pinned", None)) is not None:
        return release()
    if type(value) in (list, tuple):
        return type(value)(pin(item) for item in value)
    if type(value) is dict:
        return {pin(key): pin(item) for key, item in value.items()}
    return value


def untraceable(tracer: Tracer, operation: str, result: Any, inputs: tuple[Any, ...]) -> Any:
    """The result of an operation that is not followed: pinned, and every character the record's.

    Raises ChatTemplateError when the template's own part of the inputs holds a control token.
    """
    pin(inputs)
    if isinstance(result, (list, tuple)):
        return [untraceable(tracer, operation, item, inputs) for item in result]
    if not isinstance(result, str):
        return result
    written = "\0".join(_literals(inputs))
    if tracer.is_control(written):
        raise ChatTemplateError(
            f"the template applies {operation!r} to a text in which it has already put control tokens beside text of "
            "the record; which of the two wrote what can then not be told; apply it before adding the control tokens"
        )
    return TracedStr.make(tracer, (Data(tracer.constant(plain(result), _owner_of(inputs)), plain(result)),))


def _owner_of(value: Any) -> int:
    """The message the first traced text in `value` came from, else -1."""
    if isinstance(value, TracedStr):
        return next((value._tracer.owners[s.slot] for s in value._segments if isinstance(s, Data)), -1)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return next((owner for item in value if (owner := _owner_of(item)) >= 0), -1)
    return int(getattr(value, "_owner", -1))


def _literals(value: Any) -> Iterator[str]:
    if isinstance(value, TracedStr):
        yield from (segment.text for segment in value._segments if isinstance(segment, Literal))
    elif isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _literals(item)


def _add_methods() -> None:
    """Every other method of str, so that none is inherited and none forgets who wrote what."""

    def whole(name: str) -> Callable[..., TracedStr]:
        def method(self: TracedStr, *args: Any) -> TracedStr:
            args = tuple(pin(value) for value in args)
            call = methodcaller(name, *args)
            if self._is_one_datum():
                return self._derived((name, args), call)
            if self._is_literal():
                return TracedStr.make(self._tracer, segments_of(call(plain(self))))
            made: TracedStr = untraceable(self._tracer, name, call(plain(self)), (self,))
            return made

        return method

    def several(name: str) -> Callable[..., list[TracedStr]]:
        return lambda self, *args, **options: self._parts(name, args, options)

    def ask(name: str) -> Callable[..., Any]:
        def method(self: TracedStr, *args: Any) -> Any:
            args = tuple(pin(value) for value in args)
            return self._ask((name, args), methodcaller(name, *args))

        return method

    def rest(name: str) -> Callable[..., Any]:
        def method(self: TracedStr, *args: Any, **options: Any) -> Any:
            done = getattr(plain(self), name)(*pin(args), **pin(options))
            return untraceable(self._tracer, name, done, (self, list(args), list(options.values())))

        return method

    for names, build in ((_WHOLE, whole), (_PARTS, several), (_ASK, ask), (_REST, rest)):
        for name in names:
            setattr(TracedStr, name, build(name))


_add_methods()
