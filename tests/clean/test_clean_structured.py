"""Cleaning inside JSON texts: personal data and repairs leave JSON behind, byte for byte where nothing was found."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdata.clean.files import write_back
from mmdata.clean.pii import PiiOptions, mask_pii
from mmdata.clean.pipeline import Cleaner
from mmdata.clean.structured import clean_json, is_json, mask_text, repair_text
from mmdata.document import Document, Part

PHONE = "13812345678"
IDENTITY = "110101199003070070"


def masked(text: str) -> tuple[str, dict[str, int]]:
    found: Counter[str] = Counter()
    return mask_text(text, PiiOptions(), found), dict(found)


@pytest.mark.parametrize(
    ("text", "expected", "hits"),
    [
        (f'{{"phone": {PHONE}}}', '{"phone": "<手机号>"}', 1),
        (f'{{"phone":{PHONE},"n":1}}', '{"phone":"<手机号>","n":1}', 1),
        (f'{{"phone": -{PHONE}}}', '{"phone": "-<手机号>"}', 1),
        (f'[{PHONE}, 7, {PHONE}]', '["<手机号>", 7, "<手机号>"]', 2),
        (f'{{"{PHONE}": 1}}', '{"<手机号>": 1}', 1),
        (f'{{"a": {{"b": [{{"c": {PHONE}}}]}}}}', '{"a": {"b": [{"c": "<手机号>"}]}}', 1),
        (f'{{"text": "打\\n{PHONE}"}}', '{"text": "打\\n<手机号>"}', 1),
        (f'{{"text": "\\u6253{PHONE}"}}', '{"text": "\\u6253<\\u624b\\u673a\\u53f7>"}', 1),
        ('{"text": "\\tli@example.com"}', '{"text": "\\t<邮箱>"}', 1),
        (f'{{"x": "a\\"b", "y": "{PHONE}"}}', '{"x": "a\\"b", "y": "<手机号>"}', 1),
        (f'{{"at": 1{PHONE}0, "day": 20240131}}', f'{{"at": 1{PHONE}0, "day": 20240131}}', 0),
        (f' {{ "phone" :\n{PHONE} }}\n', ' { "phone" :\n"<手机号>" }\n', 1),
    ],
)  # fmt: skip
def test_a_number_becomes_a_string_and_all_else_stays_as_written(text: str, expected: str, hits: int) -> None:
    assert masked(text)[0] == expected
    assert sum(masked(text)[1].values()) == hits
    json.loads(expected)


def test_json_inside_a_string_of_json_stays_json() -> None:
    inner = json.dumps({"phone": int(PHONE), "to": "li@example.com"})
    text, found = masked(json.dumps({"name": "call", "arguments": inner}))
    assert json.loads(json.loads(text)["arguments"]) == {"phone": "<手机号>", "to": "<邮箱>"}
    assert found == {"mobile": 1, "email": 1}


@pytest.mark.parametrize(
    ("text", "expected", "hits"),
    [
        (f'{{"phone": {PHONE}.0}}', '{"phone": "<手机号>"}', 1),
        (f'[{PHONE}.000, 1.5, {PHONE}.5]', f'["<手机号>", 1.5, {PHONE}.5]', 1),
        ('{"phone": 1.3812345678E10}', '{"phone": "<手机号>"}', 1),
        ('{"phone": 1.3812345678e+10, "n": 1e5}', '{"phone": "<手机号>", "n": 1e5}', 1),
        ('{"a": 1.38123456785e10, "b": 1e99, "c": 2.0, "d": -0.0, "e": 1E-7}', None, 0),
        ('{"card": 4111111111111111.0}', '{"card": "<银行卡号>"}', 1),
        (f'{{"e": {"9" * 30}.0, "f": 1.{"31" * 20}e10}}', None, 0),
    ],
)  # fmt: skip
def test_numbers_of_people_written_as_floats_are_found(text: str, expected: str | None, hits: int) -> None:
    assert masked(text)[0] == (expected or text)
    assert sum(masked(text)[1].values()) == hits
    (kept,) = Cleaner("auto").clean_documents([_call(text)]).kept
    assert kept.parts[1].text == (expected or text)


def test_a_float_of_any_length_is_looked_at() -> None:
    for number in ("9" * 5000 + ".0", "1." + "1" * 5000 + "e10", "1e99", "-" + "1" * 40 + "." + "0" * 5000):
        assert masked(f"[{number}, {PHONE}.0]")[0] == f'[{number}, "<手机号>"]'


def test_counted_numbers_are_counted_once_and_hashes_of_a_number_do_not_depend_on_how_it_is_written() -> None:
    found: Counter[str] = Counter()
    text = f"[{PHONE}, {PHONE}.0, 1.3812345678E10]"
    assert mask_text(text, PiiOptions({"mobile": "count"}), found) == text
    assert found == {"mobile": 3}
    hashed = json.loads(mask_text(text, PiiOptions({"mobile": "hash"}, key=b"k"), Counter()))
    assert len(set(hashed)) == 1 and hashed[0].startswith("<手机号:")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{"13812345678": 1, "13912345678": 2, "<手机号>#2": 3}',
            '{"<手机号>": 1, "<手机号>#3": 2, "<手机号>#2": 3}',
        ),
        (
            '{"<手机号>#3": 0, "13812345678": 1, "13912345678": 2, "x": {"\\u003c手机号>#2": 3, "13712345678": 4}}',
            '{"<手机号>#3": 0, "<手机号>": 1, "<手机号>#4": 2, "x": {"\\u003c手机号>#2": 3, "<手机号>#5": 4}}',
        ),
        ('{"13812345678": 1, "<手机号>": 2}', '{"<手机号>": 1, "<手机号>#2": 2}'),
        (
            '{"13812345678#2": 1, "13812345678": 2, "13912345678": 3}',
            '{"<手机号>#2": 1, "<手机号>": 2, "<手机号>#3": 3}',
        ),
    ],
)
def test_a_numbered_key_is_none_that_stands_there_already(text: str, expected: str) -> None:
    assert masked(text)[0] == expected
    assert len(json.loads(text)) == len(json.loads(masked(text)[0]))


def test_keys_that_become_alike_stay_apart() -> None:
    text, _ = masked('{"13812345678": 1, "13912345678": 2, "x": {"13812345678": 3}}')
    assert text == '{"<手机号>": 1, "<手机号>#2": 2, "x": {"<手机号>": 3}}'


def test_thousands_of_keys_that_become_alike_are_numbered_in_their_order() -> None:
    phones = [f"138{number:08}" for number in range(20_000)]
    cleaned = json.loads(masked(json.dumps(dict.fromkeys(phones, 0)))[0])
    assert list(cleaned) == ["<手机号>", *(f"<手机号>#{number}" for number in range(2, 20_001))]


def test_the_key_counts_as_the_words_before_a_mistyped_identity_number() -> None:
    wrong = IDENTITY[:-1] + ("1" if IDENTITY[-1] != "1" else "2")
    assert masked(json.dumps({"号": wrong}, ensure_ascii=False))[0] == f'{{"号": "{wrong}"}}'
    assert masked(f'{{"身份证号": "{wrong}"}}') == ('{"身份证号": "<身份证号>"}', {"identity_number": 1})
    assert masked(f'{{"身份证号": {wrong}}}') == ('{"身份证号": "<身份证号>"}', {"identity_number": 1})


def test_a_bare_number_behind_a_key_inside_prose_is_quoted() -> None:
    text = f'看：<tool_call>{{"phone": {PHONE}, "n": 1}}</tool_call>，或打 {PHONE}，"注"：{PHONE}。'
    expected = '看：<tool_call>{"phone": "<手机号>", "n": 1}</tool_call>，或打 <手机号>，"注"：<手机号>。'
    assert mask_pii(text, PiiOptions(), Counter()) == expected


def test_a_placeholder_is_escaped_where_it_must_be() -> None:
    options = PiiOptions({"mobile": "replace"}, {"mobile": 'a "number"'})
    assert json.loads(mask_text(f'{{"a": "{PHONE}", "b": {PHONE}}}', options, Counter())) == {
        "a": 'a "number"', "b": 'a "number"'
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "{", "[1", "{}x", '"a"', "12", "{'a': 1}", "{a: 1}", '{"a": NaN}', "[" * 5000])
def test_what_is_no_object_or_array_is_treated_as_text(text: str) -> None:
    assert not is_json(text)
    assert repair_text(text, lambda value: f"<{value}>") == f"<{text}>"


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(_VALUES, st.booleans(), st.sampled_from([None, 2]))
def test_nothing_to_clean_changes_no_byte_and_cleaning_changes_strings_only(
    value: Any, ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps({"v": value}, ensure_ascii=ascii_only, indent=indent)
    assert clean_json(text, lambda s, _: s, lambda s, _: s) == text
    assert mask_text(text, PiiOptions({"mobile": "replace"}), Counter()) == text or "1" in text
    assert json.loads(clean_json(text, lambda s, _: s + '"\\\n')) == json.loads(
        json.dumps(_with_suffix({"v": value}, '"\\\n'))
    )


def _with_suffix(value: Any, suffix: str) -> Any:
    if isinstance(value, str):
        return value + suffix
    if isinstance(value, list):
        return [_with_suffix(item, suffix) for item in value]
    if isinstance(value, dict):
        return {key + suffix: _with_suffix(item, suffix) for key, item in value.items()}
    return value


def _call(arguments: Any) -> Document:
    record = {"messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]},
    ]}  # fmt: skip
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    parts = (Part("messages[0].content", "user", "q"),
             Part("messages[1].tool_calls[0].function.arguments", "assistant", text))  # fmt: skip
    return Document("in.jsonl", 0, 1, None, record, parts)


@pytest.mark.parametrize("as_text", [False, True])
def test_every_repair_of_the_default_recipe_leaves_a_call_json(as_text: bool) -> None:
    arguments = {
        "html": "<b>a</b> &quot;x&quot; &amp;", "open": "<div", "close": "y>", "wide": "ＡＢＣ１２３＂，：｛",
        "spaces": "a\u00a0\u3000   b", "lines": "一\r\n\r\n\r\n\r\n二  \n", "zero": "a\u200b\ufeffb", "e": "e\u0301",
        "phone": int(PHONE), "mail": "\tli@example.com", "quoted": "“x” ‘y’ â€œz", "tail": "\\", "n": 1.50,
    }  # fmt: skip
    given = _call(json.dumps(arguments) if as_text else arguments)
    result = Cleaner("auto").clean_documents([given])
    (kept,) = result.kept
    cleaned = json.loads(kept.parts[1].text)
    assert cleaned.keys() == arguments.keys()
    assert (cleaned["phone"], cleaned["mail"].strip(), cleaned["n"]) == ("<手机号>", "<邮箱>", 1.5)
    assert '"x"' in cleaned["html"] and cleaned["tail"] == "\\"
    assert result.pii == {"mobile": 1, "email": 1}
    written = write_back(kept, given)["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert (json.loads(written) if as_text else written) == cleaned
