"""Words of a Megatron command line to typed values; everything wrong is collected, so that one run shows all of it.

`--a-b` and `--a_b` are the same, `--a=b` and `--a b` too; a switch may be followed by true or false; a flag given twice
counts as given last, so that scripts can override. Names may not be shortened.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from mmdata_train.config import LIMITS
from mmdata_train.limits import MOST, MOST_RANKS, Limit, shown_value
from mmdata_train.megatron_table import FLAGS, REFUSED_FAMILIES, Flag

_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
_COUNTED_RANKS = ("num-distributed-optimizer-instances", "num-virtual-stages-per-pipeline-rank")
_TYPES = {"i": (int, "a whole number"), "f": (float, "a number"), "s": (str, "text")}


class Given:
    """The flags of one command line by name. Reads are noted, so that a test can tell a flag no rule looks at.

    broken: flags that were written with a value that cannot be used: there is a problem for each already.
    """

    def __init__(self, values: dict[str, Any], broken: Iterable[str] = ()) -> None:
        self.values = values
        self.broken = frozenset(broken) - set(values)
        self.read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Whether the flag was written on the command line."""
        self.read.add(name)
        assert name in FLAGS, name
        return name in self.values

    def absent(self, name: str) -> bool:
        """Whether the flag was not written at all, not even with a wrong value: only then may it be called missing."""
        return name not in self and name not in self.broken

    def get(self, name: str) -> Any:
        """The flag's value, or Megatron's default, or None."""
        if name in self:
            return self.values[name]
        flag = FLAGS[name]
        return None if flag.default is None else typed(flag, [flag.default])

    def first(self, names: Iterable[str]) -> str | None:
        """The first of the flags that was given and is not false."""
        return next((name for name in names if name in self and self.values[name] is not False), None)


def typed(flag: Flag, words: Sequence[str]) -> Any:
    """The value of a flag from its words. Raises ValueError with what is wrong."""
    if flag.type == "b":
        if not words:
            return True
        if words[0].lower() not in _BOOLEANS:
            raise ValueError(f"--{flag.name} {words[0]!r} is neither true nor false")
        return _BOOLEANS[words[0].lower()]
    if not words:
        raise ValueError(f"--{flag.name} needs a value")
    if flag.type == "l":
        return list(words)
    if flag.choices:
        return _chosen(flag, words[0])
    kind, name = _TYPES[flag.type]
    try:
        value = kind(words[0])
    except ValueError:
        raise ValueError(f"--{flag.name} {words[0]!r} is not {name}") from None
    if kind is not str:
        _check_number(flag, value)
    return value


def _check_number(flag: Flag, value: float) -> None:
    """Finite, in the range of the field it sets, and of a size that any rule can count with. Raises ValueError.

    Where a rule works the field out, counts below 0 may mean "all" or "none" (`--most-recent-k -1`).
    """
    limit = LIMITS.get(flag.target) if flag.fate == "=" or not math.isfinite(value) else None
    if limit is None and (flag.name.endswith("-parallel-size") or flag.name in _COUNTED_RANKS):
        limit = Limit(1, MOST_RANKS)
    if limit is not None and not limit.holds(value):
        raise ValueError(f"--{flag.name} is {shown_value(value)}; it must be {limit.words(value)}")
    if not math.isfinite(value) or abs(value) > (MOST if flag.type == "i" else sys.float_info.max):
        most = f" of at most {MOST:,}" if flag.type == "i" else ""
        raise ValueError(f"--{flag.name} is {shown_value(value)}; it must be a finite number{most}")


def _chosen(flag: Flag, word: str) -> str:
    if word in flag.choices:
        return word
    close = difflib.get_close_matches(word, flag.choices, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise ValueError(f"--{flag.name} {word!r} is unknown; choose from {', '.join(flag.choices)}{hint}")


def parse(arguments: Sequence[str]) -> tuple[Given, list[str]]:
    """The flags given, and one sentence for each word that cannot be used."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    broken: set[str] = set()
    for name, words in _grouped(arguments, problems):
        flag = FLAGS.get(name)
        if flag is None:
            problems.append(_unknown(name))
            continue
        flag = FLAGS[flag.target] if flag.fate == ">" else flag
        limit = {"l": len(words), "b": 1}.get(flag.type, 1)
        problems += [f"{word!r} after --{name} belongs to no flag; flags start with --" for word in words[limit:]]
        try:
            values[flag.name] = typed(flag, words[:limit])
        except ValueError as error:
            problems.append(str(error))
            broken.add(flag.name)
    return Given(values, broken), problems + _refused(values)


def _grouped(arguments: Sequence[str], problems: list[str]) -> list[tuple[str, list[str]]]:
    """Each flag's name, with dashes, and the words that follow it."""
    groups: list[tuple[str, list[str]]] = []
    for word in arguments:
        if word.startswith("--") and len(word) > 2:
            name, equals, attached = word[2:].partition("=")
            groups.append((name.replace("_", "-"), [attached] if equals else []))
        elif groups:
            groups[-1][1].append(word)
        else:
            problems.append(f"{word!r} belongs to no flag; flags start with --")
    return groups


def _unknown(name: str) -> str:
    for start, reason in REFUSED_FAMILIES.items():
        if name.startswith(start):
            return f"--{name} is not offered: {reason}"
    close = difflib.get_close_matches(name, FLAGS, n=1)
    return f"--{name} is unknown" + (f"; did you mean --{close[0]}?" if close else "; docs/megatron-flags.md lists all")


def _refused(values: dict[str, Any]) -> list[str]:
    problems = []
    for name, value in values.items():
        flag = FLAGS[name]
        if flag.fate == "!" and value is not False:
            problems.append(f"--{name} is not offered: {flag.note}")
        if flag.fate == "?" and flag.default is not None and value != typed(flag, [flag.default]):
            problems.append(f"--{name} {value} is not offered: {flag.note}; leave it out or use {flag.default}")
    return problems
