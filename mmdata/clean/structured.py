"""Cleaning inside texts that are JSON, such as the arguments of a tool call, so that they stay JSON.

A text counts as JSON when all of it is an object or an array. Its strings, keys included, are cleaned decoded and put
back escaped; a number that is personal data becomes a string; white space, order and everything untouched stay as
written. Without this a placeholder in place of a bare number, or a repair that yields a quotation mark, would leave
something that is no JSON any more, and `\\n` before a telephone number would hide it. Other texts cost a look at their
first character, JSON texts a parse and one scan. Not covered: JSON inside prose, save a bare number behind a key.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal

import orjson

from mmdata.clean.pii import PiiOptions, mask_pii

Cleaned = Callable[[str, str], str]
"""(text, label) -> text; label: the key the text stands under, such as `phone: `, else empty."""

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?', re.DOTALL)
_WHOLE_FLOAT = re.compile(r"-?[0-9]{1,40}\.0+|-?[0-9](?:\.[0-9]{1,20})?[eE]\+?[0-9]{1,2}")
"""Numbers that may be an integer written as a float, as languages do in which every number is one."""
_EXPONENT = re.compile(r"[0-9][eE]\+?[0-9]")
_COLON = re.compile(r"[ \t\r\n]*:")
_BLANK = " \t\r\n"


def is_json(text: str) -> bool:
    """Whether all of `text` is a JSON object or array."""
    if text[:1] not in "{[ \t\r\n" or text.lstrip(_BLANK)[:1] not in ("{", "["):
        return False
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        try:  # what only Python reads: long integers, lone surrogates as escapes
            json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return False
    return True


def clean_json(text: str, on_string: Cleaned, on_number: Cleaned | None = None) -> str:
    """JSON text with `on_string` applied to each decoded string and `on_number` to each number as it is written.

    A number that changes becomes a string. Keys that differ and would become alike get `#2`, `#3`, ... behind them, so
    that none overwrites another, leaving out what another key is called. The text must be JSON (see `is_json`).
    """
    pieces: list[str] = []
    names = _Names(text)
    position, label = 0, ""
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token[0] != '"':
            new = token if on_number is None else on_number(token, label)
            written = token if new == token else json.dumps(new, ensure_ascii=False)
        elif _COLON.match(text, match.end()):
            key = _decoded(token)
            written = _encoded(token, key, names.name(key, on_string(key, "")))
            label = f"{key}: "
        else:
            value = _decoded(token)
            written = _encoded(token, value, on_string(value, label))
        pieces += [text[position : match.start()], written]
        position = match.end()
    return "".join(pieces) + text[position:]


def repair_text(text: str, repair: Callable[[str], str]) -> str:
    """`repair(text)`, or where the text is JSON the same for each of its strings, in any depth."""
    return clean_json(text, lambda value, _: repair_text(value, repair)) if is_json(text) else repair(text)


def mask_text(text: str, options: PiiOptions, found: Counter[str], kinds: int = -1, label: str = "") -> str:
    """`mask_pii` for any text; in JSON each string, in any depth, and each number is looked at by itself."""
    if not is_json(text):
        return mask_pii(text, options, found, kinds, label)
    kinds = -1 if "\\" in text else kinds  # what stands behind an escape was hidden from the measuring pass

    def mask(value: str, key: str) -> str:
        return mask_text(value, options, found, kinds, key)

    def mask_number(token: str, key: str) -> str:
        masked = mask(token, key)
        if masked != token or not _WHOLE_FLOAT.fullmatch(token):
            return masked
        value = Decimal(token)
        whole = str(int(value)) if value == int(value) else token  # at most 100 digits, as the expression says
        treated = mask_pii(whole, options, found, -1, key)
        return token if treated == whole else treated

    return clean_json(text, mask, mask_number)


def may_hide(text: str) -> bool:
    """Whether the text may be JSON with escapes or exponents, in which the measuring pass overlooks personal data."""
    return text[:1] in "{[ \n\t\r" and ("\\" in text or _EXPONENT.search(text) is not None)


def _decoded(token: str) -> str:
    return token[1:-1] if "\\" not in token else str(json.loads(token))


def _encoded(token: str, old: str, new: str) -> str:
    """`new` as JSON, written as `token` was: with `\\u` escapes where it has them."""
    return token if new == old else json.dumps(new, ensure_ascii="\\u" in token)


class _Names:
    """What the keys of one JSON text are called after cleaning: no two alike that were unlike before."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: dict[str, str] = {}
        self._used: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._written: set[str] | None = None

    def name(self, key: str, new: str) -> str:
        """The name of `key`, which cleaning made `new`."""
        found = self._found.get(key)
        if found is None:
            found = self._unlike(new) if new in self._used else new
            self._found[key] = found
            self._used.add(found)
        return found

    def _unlike(self, new: str) -> str:
        if self._written is None:  # what stands there literally may come later and stay as it is
            matches = _TOKEN.finditer(self._text)
            keys = (m.group() for m in matches if m.group()[0] == '"' and _COLON.match(self._text, m.end()))
            self._written = {_decoded(key) for key in keys}
        number = self._numbers.get(new, 2)
        while f"{new}#{number}" in self._written or f"{new}#{number}" in self._used:
            number += 1
        self._numbers[new] = number + 1
        return f"{new}#{number}"


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
