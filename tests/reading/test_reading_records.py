"""One line at a time: what is a record, what is rejected, and in which words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mmdata.document import Document
from mmdata.errors import UsageError
from mmdata.jsonl import Block, Position
from mmdata.reading.excerpt import excerpt_of
from mmdata.reading.writer import encode_record
from mmdata.records import RecordOptions, encoding_hint, parse_block

REJECTED = {
    "not JSON at all": (b"hello", "bad-json", "unexpected character at column 1"),
    "trailing garbage": (b'{"text": "a"} x', "bad-json", "more text after the record at column 15"),
    "two records on one line": (b'{"text":"a"}{"text":"b"}', "bad-json", "more text after the record at column 13"),
    "NaN": (b'{"text": "a", "x": NaN}', "bad-json", "NaN is not a JSON value"),
    "negative infinity": (b'{"text": "a", "x": -Infinity}', "bad-json", "-Infinity is not a JSON value"),
    "raw tab in a string": (b'{"text": "a\tb"}', "bad-json", "raw control character U+0009 in a string at column 12"),
    "raw NUL in a string": (b'{"text": "\0"}', "bad-json", "raw control character U+0000 in a string at column 11"),
    "NUL bytes behind the record": (b'{"text": "a"}\0\0', "bad-json", "more text after the record at column 14"),
    "a cut string": (b'{"text": "abc', "bad-json", "the string at column 10 does not end"),
    "a cut object": (b'{"text": "abc"', "bad-json", "the record ends too early"),
    "a bad escape": (b'{"text": "\\x41"}', "bad-json", "a bad \\ escape at column 11"),
    "single quotes": (b"{'text': 'a'}", "bad-json", "unexpected character at column 2"),
    "a leading zero": (b'{"text": "a", "n": 01}', "bad-json", "unexpected character at column 21"),
    "a mark of byte order inside the file": (
        b'\xef\xbb\xbf{"text": "a"}', "bad-json", "a byte order mark inside the file",
    ),
    "a bad byte": (b'{"text": "a\xffb"}', "bad-encoding", "not UTF-8, byte 0xFF at byte 11 of the line"),
    "a coded surrogate": (b'{"text": "\xed\xa0\x80"}', "bad-encoding", "not UTF-8, byte 0xED at byte 10 of the line"),
    "half a pair": (rb'{"text": "\ud83d"}', "lone-surrogate", "\\ud83d is half a character"),
    "half a pair elsewhere": (rb'{"text": "a", "x": ["\udc00"]}', "lone-surrogate", "\\udc00 is half a character"),
    "half a pair in a key": (rb'{"text": "a", "\ud800": 1}', "lone-surrogate", "\\ud800 is half a character"),
    "a double out of range": (b'{"text": "a", "x": 1e999}', "number-out-of-range", "1e999 is beyond a double"),
    "an integer of 5000 digits": (
        b'{"text": "a", "x": ' + b"7" * 5000 + b"}", "number-out-of-range", "an integer of more than 4300 digits",
    ),
    "nesting of 513": (
        b'{"text": "a", "x": ' + b"[" * 512 + b"]" * 512 + b"}",
        "nesting-too-deep", "the record nests more than 512 levels",
    ),
    "nesting of 100,000": (
        b'{"text": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "nesting-too-deep", "the record nests more than 512 levels",
    ),
    "a list": (b'["text"]', "not-an-object", "the record is a list"),
    "a string": (b'"text"', "not-an-object", "the record is a string"),
    "a number": (b"17", "not-an-object", "the record is a number"),
    "null": (b"null", "not-an-object", "the record is null"),
    "another key": (b'{"content": "a", "n": 1}', "missing-key", 'no "text"; the record has "content", "n"'),
    "no keys": (b"{}", "missing-key", 'no "text"; the record has no keys'),
    "a number for a text": (b'{"text": 5}', "not-a-string", '"text" holds a number; the record has "text"'),
    "null for a text": (b'{"text": null}', "not-a-string", '"text" holds null; the record has "text"'),
}  # fmt: skip

ACCEPTED: dict[str, tuple[bytes, str]] = {
    "CRLF": (b'{"text": "a"}\r', "a"),
    "white space around": (b' \t{"text": "a"} \t', "a"),
    "duplicate keys: the last wins": (b'{"text": "a", "text": "b"}', "b"),
    "escaped control characters": (rb'{"text": "a\u0000\t\u001fb"}', "a\0\t\x1fb"),
    "a surrogate pair": (rb'{"text": "\ud83d\ude00"}', "\U0001f600"),
    "an escaped backslash before ud800": (rb'{"text": "\\ud800"}', "\\ud800"),
    "raw U+2028, U+2029, U+0085": ('{"text": "a\u2028b\u2029c\x85d"}'.encode(), "a\u2028b\u2029c\x85d"),
    "DEL and C1": ('{"text": "a\x7f\x9fb"}'.encode(), "a\x7f\x9fb"),
    "a noncharacter": ('{"text": "\uffff"}'.encode(), "\uffff"),
    "nesting of 512": (b'{"text": "a", "x": ' + b"[" * 511 + b"]" * 511 + b"}", "a"),
    "the empty text": (b'{"text": ""}', ""),
}


def block_of(line: bytes, first_line: int = 7) -> Block:
    return Block(0, "a.jsonl", "jsonl", first_line, 0, len(line), line, Position(0, len(line), first_line + 1))


@pytest.mark.parametrize("name", REJECTED)
def test_a_bad_record_is_rejected_alone_with_its_reason(name: str) -> None:
    line, cause, reason = REJECTED[name]
    parsed = parse_block(block_of(b'{"text": "before"}\n' + line + b'\n{"text": "after"}'), RecordOptions())
    assert [(document.line, document.text) for document in parsed.documents] == [(7, "before"), (9, "after")]
    assert [(reject.path, reject.line, reject.cause, reject.reason) for reject in parsed.rejects] == [
        ("a.jsonl", 8, cause, reason)
    ]
    assert (parsed.records, parsed.blank) == (3, 0)


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_odd_but_good_record_is_read(name: str) -> None:
    line, text = ACCEPTED[name]
    parsed = parse_block(block_of(line), RecordOptions())
    assert [document.text for document in parsed.documents] == [text]


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**40, -(10**400), 123456789012345678901234567890])
def test_integers_beyond_64_bits_in_other_fields_are_kept_exactly(number: int) -> None:
    for record in ({"text": "a", "n": number}, {"text": "a", "deep": [{"n": [number]}]}):
        line = json.dumps(record).encode()
        document = parse_block(block_of(line), RecordOptions()).documents[0]
        assert document.record == record
        assert json.loads(encode_record(document.record)) == record


def test_a_large_float_stays_a_float() -> None:
    document = parse_block(block_of(b'{"text": "a", "x": 1e300, "y": [2.5e19]}'), RecordOptions()).documents[0]
    assert document.record == {"text": "a", "x": 1e300, "y": [2.5e19]}
    assert type(document.record["y"][0]) is float


def test_blank_lines_are_counted_and_keep_the_line_numbers() -> None:
    parsed = parse_block(block_of(b'\n  \t\r\n{"text": "a"}\n\r\n\n{"text": "b"}\n'), RecordOptions())
    assert [(document.line, document.text) for document in parsed.documents] == [(9, "a"), (12, "b")]
    assert (parsed.blank, parsed.rejects) == (4, [])


def test_a_record_of_several_keys_needs_each_of_them() -> None:
    data = b'{"title": "t", "text": "a"}\n{"text": "b"}\n{"title": 1, "text": "c"}'
    parsed = parse_block(block_of(data), RecordOptions(keys=("title", "text")))
    assert [[(part.json_path, part.role, part.text) for part in document.parts] for document in parsed.documents] == [
        [("title", "text", "t"), ("text", "text", "a")]
    ]
    assert parsed.documents[0].text == "t\na"
    assert [(reject.line, reject.cause) for reject in parsed.rejects] == [(8, "missing-key"), (9, "not-a-string")]


def test_the_id_is_the_records_own_when_it_is_a_string_or_an_integer() -> None:
    data = b'{"id": "x", "text": ""}\n{"id": 17, "text": ""}\n{"id": true, "text": ""}\n{"id": 1.5, "text": ""}'
    assert [document.id for document in parse_block(block_of(data), RecordOptions()).documents] == [
        "x",
        "17",
        None,
        None,
    ]


def test_a_record_with_many_or_telling_keys_shows_few_and_masks_them() -> None:
    record = {"zhang.san@example.com": 1, "k" * 60: 2} | {f"key{number}": number for number in range(20)}
    reason = parse_block(block_of(json.dumps(record).encode()), RecordOptions()).rejects[0].reason
    assert reason.startswith('no "text"; the record has "<email>", "')
    assert reason.endswith('"key9" and 10 more')
    assert "k" * 41 not in reason


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b'{"mail": "zhang.san+x@example.com.cn"', '{"mail": "<email>"'),
        (b'{"id": "11010519491231002X"', '{"id": "<digits>"'),
        ("{手机: 138-1234-5678，卡号 6222 0212 3456 7890 123".encode(), "{手机: <digits>，卡号 <digits>"),
        (b"https://user:secret@host/x", "https://<credentials>@host/x"),
        (b"key=sk-abcdefghijklmnopqrstuvwxyz0123", "key=<token>"),
        (b"a\tb\x00c", "a\\u0009b\\u0000c"),
        (b"caf\xe9", "caf\\xe9"),
        ("价格 12345 元".encode(), "价格 12345 元"),
    ],
)
def test_excerpts_are_masked(raw: bytes, shown: str) -> None:
    assert excerpt_of(raw) == shown


def test_excerpts_are_short_and_never_show_half_of_what_is_masked() -> None:
    for shift in range(75, 90):
        excerpt = excerpt_of(b"x " * (shift // 2) + b"13912345678 zhang.san@example.com " + b"y " * 2000)
        assert len(excerpt) == 80 and excerpt.endswith("…")
        assert "139" not in excerpt and "zhang" not in excerpt


def test_chinese_in_gb18030_read_as_utf_8_gives_the_hint() -> None:
    line = '{"text": "患者主诉头痛三天，伴有发热。"}'.encode("gb18030")
    parsed = parse_block(block_of(line + b"\n" + line + b'\n{"text": "a"}'), RecordOptions())
    assert parsed.rejects[0].reason == "not UTF-8, byte 0xBB at byte 10 of the line; the line is valid GB18030"
    assert encoding_hint(parsed.records, parsed.gb18030) == (
        "2 of 3 records are not UTF-8 but valid GB18030: try --encoding gb18030"
    )


def test_latin_1_and_a_stray_byte_give_no_hint_of_gb18030() -> None:
    lines = [
        '{"text": "Les élèves étaient déjà très gênés"}'.encode("latin-1"),
        '{"text": "头痛\xff"}'.encode("latin-1", "ignore"),
    ]
    parsed = parse_block(block_of(b"\n".join([*lines, b'{"text": "a\xff"}'])), RecordOptions())
    assert parsed.gb18030 == 0
    assert encoding_hint(parsed.records, parsed.gb18030) is None


def test_a_callers_parser_decides_about_other_formats() -> None:
    def parse(record: dict[str, Any], path: str, input_number: int, line: int) -> Document | str:
        return {"a": "no-turns: the conversation is empty", "b": "something odd: here"}[record["x"]]

    parsed = parse_block(block_of(b'{"x": "a"}\n{"x": "b"}\nbad'), RecordOptions(format="messages"), parse)
    assert [(reject.cause, reject.reason) for reject in parsed.rejects] == [
        ("no-turns", "the conversation is empty"),
        ("bad-record", "something odd: here"),
        ("bad-json", "unexpected character at column 1"),
    ]


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="need a parser for chat records"):
        parse_block(block_of(b"{}"), RecordOptions(format="alpaca"))
    with pytest.raises(UsageError, match="One of: auto, text, messages, sharegpt, alpaca"):
        RecordOptions(format="csv")  # type: ignore[arg-type]
    for keys in ((), ("text", "text")):
        with pytest.raises(UsageError, match="each once"):
            RecordOptions(keys=keys)


def test_rejected_and_accepted_do_not_depend_on_where_a_record_stands() -> None:
    lines = [line for line, *_ in REJECTED.values()] + [line for line, _ in ACCEPTED.values()]
    whole = parse_block(block_of(b"\n".join(lines)), RecordOptions())
    alone = [parse_block(block_of(line, 7 + number), RecordOptions()) for number, line in enumerate(lines)]
    assert whole.rejects == [reject for parsed in alone for reject in parsed.rejects]
    assert whole.documents == [document for parsed in alone for document in parsed.documents]
