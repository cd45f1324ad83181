"""Dicts and lists of a record whose texts are traced and whose shape is guarded only where the template looks.

`TracedDict` and `TracedList` behave like the JSON value they stand for. Reading a key, iterating or asking for the
length leaves a guard; `to_json` turns the whole value into one text without looking inside, so tools and arguments of
any shape replay from one trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mmdata.chat.segments import Data
from mmdata.chat.traced import TracedStr, find_tracer, pin, plain, untraceable
from mmdata.chat.tracer import Path, Tracer


def wrap(tracer: Tracer, value: Any, path: Path, owner: int) -> Any:
    """The traced form of a JSON value found at `path`; numbers, booleans and null are pinned."""
    if isinstance(value, str):
        slot = tracer.leaf(path, value, owner)
        return TracedStr.make(tracer, (Data(slot, value),))
    if isinstance(value, dict):
        return TracedDict(tracer, value, path, owner)
    if isinstance(value, list):
        return TracedList(tracer, value, path, owner)
    slot = tracer.leaf(path, value, owner)
    return tracer.pin(slot)


class _Traced:
    """What dicts and lists share: the raw value, its path, and one slot for the whole."""

    _raw: Any
    _tracer: Tracer
    _path: Path
    _owner: int

    def _enter(self, tracer: Tracer, raw: Any, path: Path, owner: int) -> None:
        self._raw, self._tracer, self._path, self._owner = raw, tracer, path, owner

    def _slot(self) -> int:
        return self._tracer.leaf(self._path, self._raw, self._owner)

    def _child(self, key: str | int) -> Any:
        return wrap(self._tracer, self._raw[key], (*self._path, key), self._owner)

    def _size(self) -> int:
        return int(self._tracer.guard(self._slot(), "length", len))

    def _pinned(self) -> Any:
        return self._tracer.pin(self._slot())

    def __bool__(self) -> bool:
        return bool(self._tracer.guard(self._slot(), "truth", bool))

    def __len__(self) -> int:
        return self._size()

    def __eq__(self, other: Any) -> bool:
        return bool(self._pinned() == pin(other))

    def __ne__(self, other: Any) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        text: str = untraceable(self._tracer, "str", str(self._pinned()), (self,))
        return text

    __repr__ = __str__


class TracedDict(_Traced, dict):  # type: ignore[type-arg]
    """A JSON object. `fixed`: keys whose values are trusted words (the role), given as they are and never traced."""

    def __init__(
        self, tracer: Tracer, raw: dict[str, Any], path: Path, owner: int, fixed: frozenset[str] = frozenset()
    ) -> None:
        dict.__init__(self, raw)
        self._enter(tracer, raw, path, owner)
        self._fixed = fixed

    def _has(self, key: str) -> bool:
        if self._fixed:  # a message: its keys are part of the shape a trace is kept for
            return key in self._raw
        return bool(self._tracer.guard(self._slot(), ("has", key), lambda value: key in value))

    def __getitem__(self, key: Any) -> Any:
        key = pin(key)
        if not self._has(key):
            raise KeyError(key)
        return self._raw[key] if key in self._fixed else self._child(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """As dict.get; a guard holds whether the key is there."""
        return self[key] if pin(key) in self else default

    def __contains__(self, key: object) -> bool:
        return self._has(pin(key))

    def _keys(self) -> list[Any]:
        names = list(self._raw)
        if not self._fixed:
            names = self._tracer.guard(self._slot(), "keys", list)
        return [TracedStr.make(self._tracer, (Data(self._tracer.constant(n, self._owner), n),)) for n in names]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys())

    def keys(self) -> Any:
        """The keys as a list of traced texts; a guard holds that they are these, in this order."""
        return self._keys()

    def values(self) -> Any:
        """The values as a list, each traced; guarded as `keys`."""
        return [self[key] for key in self._keys()]

    def items(self) -> Any:
        """The (key, value) pairs as a list, each traced; guarded as `keys`."""
        return [(key, self[key]) for key in self._keys()]

    def copy(self) -> Any:
        """An ordinary dict of traced keys and values."""
        return dict(self.items())


class TracedList(_Traced, list):  # type: ignore[type-arg]
    """A JSON array."""

    def __init__(self, tracer: Tracer, raw: list[Any], path: Path, owner: int) -> None:
        list.__init__(self, raw)
        self._enter(tracer, raw, path, owner)

    def _all(self) -> list[Any]:
        return [self._child(i) for i in range(self._size())]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all())

    def __reversed__(self) -> Iterator[Any]:
        return iter(self._all()[::-1])

    def __getitem__(self, key: Any) -> Any:
        return self._all()[key]

    def __contains__(self, item: object) -> bool:
        return item in self._all()

    def __add__(self, other: Any) -> Any:
        return self._all() + list(other)

    def index(self, *args: Any) -> int:
        """As list.index; the values compared are pinned. Raises ValueError."""
        return self._all().index(*args)

    def count(self, item: Any) -> int:
        """As list.count; the values compared are pinned."""
        return self._all().count(item)

    def copy(self) -> Any:
        """An ordinary list of traced items; a guard holds their number."""
        return self._all()


def to_json(value: Any, **options: Any) -> Any:
    """`json.dumps` of any value, traced or not. A traced value becomes one text, all of it the record's."""
    tracer = find_tracer(value)
    if tracer is None:
        return json.dumps(value, **options)
    name = ("json", tuple(sorted((key, repr(option)) for key, option in options.items())))

    dump = json.JSONEncoder(**options).encode

    if isinstance(value, (_Traced, TracedStr)):
        owner_slot = value._slot()
        slot = tracer.derive(owner_slot, name, dump)
        return TracedStr.make(tracer, (Data(slot, tracer.values[slot]),))
    return untraceable(tracer, "tojson", dump(pin(value)), (value,))


__all__ = ["TracedDict", "TracedList", "plain", "to_json", "wrap"]
