"""Decides what is a record: the fast path is orjson, every refusal is looked at again with the standard library.

orjson refuses a few numbers the rules accept and turns integers beyond 64 bits into floats; those records are read
again exactly. What both refuse gets a reason in this project's words, the same for every version of the two. Costs
what orjson costs for good records; a refused line is parsed twice more.
"""

from __future__ import annotations

import json
import math
import re
from itertools import chain
from typing import Any

import orjson

from mmdata.reading.encodings import UNDECODED

MAX_DEPTH = 512  # orjson stops at 1024; writing a record back and handing it between processes at about 900
_EXACT_BELOW = float(2**63)
_OBJECTS = {dict}
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_TOO_DEEP = f"nesting-too-deep: the record nests more than {MAX_DEPTH} levels"


class Refused(ValueError):
    """The text is no record; the message is `cause: reason`, the cause a fixed short name."""


def read_object(raw: bytes | memoryview) -> dict[str, Any]:
    """The JSON object in `raw` (one line or array element, white space around it allowed); raises Refused."""
    try:
        value: Any = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = _exact(bytes(raw))
    if type(value) is not dict:
        raise Refused(f"not-an-object: the record is {name_of_type(value)}")
    if _needs_exact(value):
        value = _exact(bytes(raw))
    record: dict[str, Any] = value
    return record


def name_of_type(value: object) -> str:
    """What a JSON user calls the type of `value`."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _needs_exact(record: dict[str, Any]) -> bool:
    """Whether a float may stand for an integer orjson could not hold. Raises Refused when nested beyond MAX_DEPTH."""
    nested: list[Any] = []
    for value in record.values():
        kind = type(value)
        if kind is float:
            if not -_EXACT_BELOW < value < _EXACT_BELOW:
                return True
        elif kind is dict or kind is list:
            nested.append(value)
    return bool(nested) and _any_inexact(nested)


def _any_inexact(level: list[Any]) -> bool:
    found = False
    for _ in range(MAX_DEPTH - 1):
        # All values of a level at once: most records nest many small objects of nothing but texts.
        items = list(chain.from_iterable([value.values() if type(value) is dict else value for value in level]))
        kinds = set(map(type, items))
        if float in kinds:
            found = found or not all([-_EXACT_BELOW < n < _EXACT_BELOW for n in items if type(n) is float])
        if dict not in kinds and list not in kinds:
            return found
        level = items if kinds == _OBJECTS else [item for item in items if type(item) is dict or type(item) is list]
    raise Refused(_TOO_DEEP)


def _exact(raw: bytes) -> Any:
    """What the standard library reads, held to this project's rules; raises Refused with the reason."""
    text = decode(raw)
    if text.startswith("\ufeff"):
        raise Refused("bad-json: a byte order mark inside the file")
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        if type(value) is dict:
            _needs_exact(value)
        if _SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as fault:
        raise Refused(_bad_json(fault)) from None
    except UnicodeEncodeError as fault:
        raise Refused(f"lone-surrogate: \\u{ord(fault.object[fault.start]):04x} is half a character") from None
    except RecursionError:
        raise Refused(_TOO_DEEP) from None
    except Refused:
        raise
    except ValueError:  # int() refuses what CPython's sys.set_int_max_str_digits guards against
        raise Refused("number-out-of-range: an integer of more than 4300 digits") from None
    return value


def decode(raw: bytes) -> str:
    """The text of `raw`; raises Refused naming the first byte that is not UTF-8 and its 0-based place."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        if raw.startswith(UNDECODED, fault.start):
            place = len(raw[: fault.start].decode("utf-8"))
            raise Refused(f"bad-encoding: bytes that do not decode at character {place} of the line") from None
        hint = "; the line is valid GB18030" if looks_like_gb18030(raw) else ""
        where = f"byte 0x{raw[fault.start]:02X} at byte {fault.start} of the line"
        raise Refused(f"bad-encoding: not UTF-8, {where}{hint}") from None


def looks_like_gb18030(raw: bytes) -> bool:
    """Whether bytes that are no UTF-8 are Chinese in GB18030.

    They must decode, and half of the first 200 characters beyond ASCII must be in GB 2312: Latin-1 text also decodes
    as GB18030, but into rare characters.
    """
    try:
        beyond = [letter for letter in raw.decode("gb18030") if letter > "\x7f"][:200]
    except UnicodeDecodeError:
        return False
    common = sum("\u3000" <= letter <= "\u9fff" and _in_gb2312(letter) for letter in beyond)
    return common * 2 > len(beyond)


def _in_gb2312(letter: str) -> bool:
    try:
        letter.encode("gb2312")
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(name: str) -> Any:
    raise Refused(f"bad-json: {name} is not a JSON value")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise Refused(f"number-out-of-range: {digits[:30]} is beyond a double")
    return value


def _bad_json(fault: json.JSONDecodeError) -> str:
    column = fault.pos + 1
    letter = fault.doc[fault.pos : fault.pos + 1]
    if fault.msg.startswith("Extra data"):
        return f"bad-json: more text after the record at column {column}"
    if fault.msg.startswith("Invalid control character"):
        return f"bad-json: raw control character U+{ord(letter):04X} in a string at column {column}"
    if fault.msg.startswith("Unterminated string"):
        return f"bad-json: the string at column {column} does not end"
    if fault.msg.startswith("Invalid") and "escape" in fault.msg:
        return f"bad-json: a bad \\ escape at column {column}"
    if not letter:
        return "bad-json: the record ends too early"
    return f"bad-json: unexpected character at column {column}"
