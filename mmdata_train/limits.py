"""The range of every number in the configuration, and the one check that holds a dataclass to it.

A class states the limits of its numbers by field name and calls `check_numbers` when it is made. Every field that may
hold a number needs a limit, so that a new one cannot be forgotten; no number may be NaN or infinite, whatever its
range. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from mmdata_train.errors import ConfigError, TrainError

MOST = 2**63 - 1
"""The largest whole number: int64, in which steps and samples are counted."""
MOST_RANKS = 2**20
MOST_SEQUENCES = 2**20
"""Of a batch; the largest published ones are some ten thousand."""
MOST_TOKENS = 2**31 - 2
"""Of a sample: positions are int32, and a row holds one token more."""
MOST_LAYERS = 10_000
"""Layers are built one by one, 1 to 2 ms each; the deepest published decoders have some hundreds."""
MOST_WIDTH = 2**31 - 1
_FLOAT32_MOST = 2.0**127


@dataclass(frozen=True, slots=True)
class Limit:
    """A range, both ends included unless `above` (more than low) or `below` (less than high). hint: the remedy.

    Whole numbers are int64 whatever the range.
    """

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False
    hint: str = ""

    def holds(self, value: float) -> bool:
        """Whether the value is finite and in the range."""
        # Never as a float: whole numbers near 2^63 would be rounded.
        if not math.isfinite(value) or value < self.low or value > self._most(value):
            return False
        return not ((self.above and value == self.low) or (self.below and value == self.high))

    def _most(self, value: float) -> float:
        return min(self.high, MOST) if isinstance(value, int) else self.high

    def words(self, value: float) -> str:
        """What the value must be: the ends it missed, or both where it is no number at all."""
        low = f"{'above' if self.above else 'at least'} {_shown(self.low)}"
        high = f"{'below' if self.below else 'at most'} {_shown(self._most(value))}"
        bounded = self.high < MOST
        if not math.isfinite(value):
            told = f"finite, {low} and {high}" if bounded else f"finite and {low}"
        elif bounded:
            told = f"{low} and {high}"
        else:
            told = low if value <= self.low else high
        return told + (f"; {self.hint}" if self.hint else "")


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


AT_LEAST_0, AT_LEAST_1 = Limit(0), Limit(1)
CHANCE = Limit(0, 1, below=True, hint="it is a probability in [0, 1), 0 for none")
SHARE = Limit(0, 1, below=True, hint="it is a share in [0, 1)")
LOSS_SCALE = Limit(0, _FLOAT32_MOST, above=True, hint="usual: 65536 at first, 1 as the smallest")


@functools.cache
def number_fields(kind: type) -> tuple[str, ...]:
    """Names of a dataclass's fields whose annotation allows a whole number or a float (null or text beside it too)."""
    hints = get_type_hints(kind)
    return tuple(field.name for field in dataclasses.fields(kind) if _allows_number(hints[field.name]))


def _allows_number(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return any(_allows_number(choice) for choice in get_args(hint))
    return hint in (int, float)


def divisors(*values: int) -> list[int]:
    """Numbers that divide all the values, in order; in the time of a square root, for values of any size."""
    whole = math.gcd(*values)
    small = [number for number in range(1, math.isqrt(whole) + 1) if whole % number == 0]
    return small + [whole // number for number in reversed(small) if number * number != whole]


def check_numbers(owner: Any, prefix: str, limits: Mapping[str, Limit], error: type[TrainError] = ConfigError) -> None:
    """Hold every number of a dataclass to its limit; null is none. prefix: of its key for the user, such as `train.`.

    Raises `error` with value, limit and remedy.
    """
    for name in number_fields(owner.__class__):
        assert name in limits, f"{type(owner).__name__}.{name} has no limit"
        value, limit = getattr(owner, name), limits[name]
        if isinstance(value, (int, float)) and not limit.holds(value):
            raise error(f"{prefix}{name} is {shown_value(value)}; it must be {limit.words(value)}")


def shown_value(value: float) -> str:
    """A number for a message; whole numbers of thousands of digits are told by their size."""
    if isinstance(value, int) and value.bit_length() > sys.float_info.max_exp:
        return f"a whole number of {value.bit_length():,} bits"
    return str(value)
