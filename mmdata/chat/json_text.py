"""JSON inside texts of a record (the arguments of a call, `tools`), read by the rules that hold for records.

Integers of any size stay exact, and what no record may hold is refused: NaN and Infinity, a number beyond a double,
half a character, nesting beyond the limit. Of two equal keys the last counts, as in Python's json. Costs what orjson
costs, three times that for a text with a number of 19 digits or more.
"""

from __future__ import annotations

import json
import math
import re
from itertools import chain
from typing import Any

import orjson

from mmdata.reading.judge import MAX_DEPTH

_LONG = re.compile("[0-9]{19}")
"""The one thing that orjson accepts and reads otherwise: an integer beyond 64 bits, which it makes a float."""


class OutOfRangeError(ValueError):
    """The text is JSON but holds a value that no record may hold; the message says which."""


def read_json(text: str) -> Any:
    """The JSON value in `text`. Raises ValueError where it is no JSON, OutOfRangeError where it breaks a rule."""
    if _LONG.search(text) is None and text.count("[") + text.count("{") <= MAX_DEPTH:
        try:
            return orjson.loads(text)
        except ValueError:
            pass  # Python says whether it is JSON: it reads NaN, which is to be named
    try:
        value = json.loads(text, parse_constant=_refused, parse_float=_finite, parse_int=_integer)
    except RecursionError:
        raise OutOfRangeError(f"it nests more than {MAX_DEPTH} levels") from None
    _check_depth(value)
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as fault:
        raise OutOfRangeError(f"\\u{ord(fault.object[fault.start]):04x} is half a character") from None
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [item for item in level if type(item) is dict or type(item) is list]
        if not level:
            return
        level = list(chain.from_iterable([item.values() if type(item) is dict else item for item in level]))
    raise OutOfRangeError(f"it nests more than {MAX_DEPTH} levels")


def _refused(name: str) -> float:
    raise OutOfRangeError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise OutOfRangeError(f"{digits[:40]} is beyond what a double holds")
    return value


def _integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # what CPython's sys.set_int_max_str_digits guards against
        raise OutOfRangeError("an integer of more than 4300 digits") from None
