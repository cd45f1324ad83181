"""Whether a line is a record, decided twice: by this project and by the standard library held to the same rules."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.reading.judge import MAX_DEPTH, Refused, read_object

SEEDS = [
    b'{"text": "a\\n\\u4e2d\\ud83d\\ude00 \xe5\xa4\xb4", "n": [1, -2.5e3, 12345678901234567890123], "d": {"x": null}}',
    b' {"text":"","text":"b","big":18446744073709551616,"f":1.7976931348623157e308,"z":-0.0,"y":true}\r',
    b'{"text": "\\u0000\\\\\\"\\/", "k\\u0800": 1}',
    b'[{"text": "a"}]',
]
PIECES = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\xff", b"\xe5", b"\t", b"\0", b"NaN", b"Infinity", b"-", b"0",
    b"9" * 25, b"1e999", b"\\ud800", b"\\udc00", b"\\u12", b"\xed\xa0\x80", b"\xc0\x80", b" ", b"'", b"\xef\xbb\xbf",
]  # fmt: skip


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth_of(item) for item in value.values()), default=0)
    return 1 + max((depth_of(item) for item in value), default=0) if isinstance(value, list) else 0


def refuse(name: str) -> Any:
    raise ValueError(name)


def finite(digits: str) -> float:
    if math.isinf(float(digits)):
        raise ValueError(digits)
    return float(digits)


def oracle(raw: bytes) -> dict[str, Any] | None:
    """The rules in the plainest words, slow and with the standard library alone."""
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, parse_constant=refuse, parse_float=finite)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and depth_of(value) <= MAX_DEPTH else None


def judged(raw: bytes) -> dict[str, Any] | None:
    try:
        return read_object(raw)
    except Refused:
        return None


def check(raw: bytes) -> None:
    ours, theirs = judged(raw), oracle(raw)
    assert ours == theirs, raw
    assert repr(ours) == repr(theirs), raw  # 1 and 1.0 and -0.0 are told apart


def test_damaged_records_are_judged_as_by_the_rules() -> None:
    draw = random.Random(20240229)
    accepted = 0
    for _ in range(20_000):
        raw = bytearray(draw.choice(SEEDS))
        for _ in range(draw.choice((0, 1, 1, 1, 2, 3))):
            place = draw.randrange(len(raw) + 1)
            kind = draw.randrange(3)
            if kind == 0:
                raw[place:place] = draw.choice(PIECES)
            elif kind == 1:
                del raw[place : place + draw.choice((1, 1, 5))]
            else:
                raw[place : place + 1] = bytes([draw.randrange(256)])
        check(bytes(raw))
        accepted += judged(bytes(raw)) is not None
    assert 2000 < accepted < 18_000


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    ),
    st.booleans(),
)
def test_whole_records_are_read_exactly(value: Any, plain: bool) -> None:
    line = json.dumps({"text": value}, ensure_ascii=plain).encode("utf-8", "surrogatepass")
    check(line)
    found = judged(line)
    if found is not None:
        assert found["text"] == value


@pytest.mark.parametrize("depth", [1, 253, 254, 255, 511, 512, 513, 1000, 1023, 1024, 1025, 3000])
@pytest.mark.parametrize("lists", [True, False])
def test_depth_is_judged_alike_by_every_parser(depth: int, lists: bool) -> None:
    opening, closing = (b"[", b"]") if lists else (b'{"a":', b"}")
    inner = opening * (depth - 1) + (b"" if lists else b"1") + closing * (depth - 1)
    raw = b'{"text": "a", "x": ' + (inner or b"1") + b"}"
    assert (judged(raw) is not None) == (depth <= MAX_DEPTH)
    raw = b'{"big": 123456789012345678901, "x": ' + (inner or b"1") + b"}"
    assert (judged(raw) is not None) == (depth <= MAX_DEPTH)
