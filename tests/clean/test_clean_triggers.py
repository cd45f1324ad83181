"""What the measuring pass says may be there is never less than what the expressions find."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.clean import columns as c
from mmdata.clean.lines import collapse_space_runs, line_starts, remove_boilerplate, strip_line_ends
from mmdata.clean.measure import measure
from mmdata.clean.pii import KINDS, NAMES, PiiOptions, _matches, mask_pii
from mmdata.clean.steps import REPAIRS

ALL = PiiOptions(dict.fromkeys(NAMES, "replace"))
PIECES = [
    "13800138000", "+86", "0086", "138 1234 5678", "1381-234-5678", "010-87654321", "(0755) 87654321",
    "（021）87654321", "110105194912310021", "11010519491231002X", "130503670401001", "6222 0212 3456 7890 123",
    "4111111111111111",
    "192.168.10.1", "1.2.3.4", "fe80:0:0:0:abcd:1:2:3", "2001:db8::12:34", "dead:beef:cafe:5417:affe:8FA3:deaf:feed",
    "E12345678", "D1234567", "PE1234567", "京A12345", "粤B·1234学", "沪AD12345", "苏E F1234D", "住院号：ZY-2021001",
    "病历编号 A1234", "门诊ID12345", "MRN: 12345", "Medical record No. 9912", "medical Record number #A123-4",
    "a.b@c.com", "zhang@pku.edu.cn", "http://u:p@h/", "https://me:s3cret@[::1]", "91110105MA0123456X", "é", "号", "·",
    " ", "-", ".", ":", "@", "/", "\n", "x", "A", "7", "00", "案", "第", "€", "\t", "ID", "86",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text("0123456789ABx@.:- \n京号", max_size=6)), max_size=8)


@settings(max_examples=600, deadline=None, derandomize=True)
@given(TEXTS.map("".join))
def test_the_pass_names_every_kind_of_personal_data_that_an_expression_finds(text: str) -> None:
    bits = int(measure([text])[0, c.PII])
    full, quick = Counter[str](), Counter[str]()
    assert mask_pii(text, ALL, full) == mask_pii(text, ALL, quick, bits)
    assert full == quick


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(TEXTS.map("".join), max_size=12).map("\n，文字 and words ".join))
def test_looking_around_cheap_marks_finds_what_a_search_of_the_whole_text_finds(text: str) -> None:
    for kind in KINDS:
        assert [m.span() for m in _matches(kind, text)] == [m.span() for m in kind.pattern.finditer(text)], kind.name


@pytest.mark.parametrize("name", NAMES)
def test_the_candidate_bits_stand_in_the_order_of_the_kinds(name: str) -> None:
    example = {
        "url_credentials": "https://me:pw@a.com/", "email": "ab@c.com", "identity_number": "11010519491231002X",
        "social_credit_code": "91110105MA01234567", "bank_card": "4111111111111111", "mobile": "13800138000",
        "landline": "010-87654321", "ipv6": "2001:db8::12:34", "ipv4": "192.168.0.1", "passport": "E12345678",
        "licence_plate": "京A12345", "medical_record": "住院号123456",
    }[name]  # fmt: skip
    assert int(measure([f"见{example}。"])[0, c.PII]) >> NAMES.index(name) & 1


WORDS = ["word   word", "a  b", "    ", "text", "，   文", "| x   y |", "中文字", "x = 1   y", "   ", "7   8", "\n",
         "\t", "a long line of plain words", "é   è", "foo--bar   baz", "Home", "首页 | 关于"]  # fmt: skip


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(WORDS), max_size=14).map("".join))
def test_no_run_of_spaces_that_would_be_cut_is_overlooked(text: str) -> None:
    if collapse_space_runs(text) != text:
        assert measure([text])[0, c.SPACE_RUNS] > 0


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(["word", "，", " ", "\t", "\n", "  ", "\xa0"]), max_size=14).map("".join))
def test_no_white_space_at_a_line_end_that_would_go_is_overlooked(text: str) -> None:
    if strip_line_ends(text) != text:
        assert measure([text])[0, c.TAILS] > 0


def test_bounds_of_entropy_and_top_word_never_change_a_verdict() -> None:
    rng = random.Random(3)
    words = [f"w{i}" for i in range(400)]
    texts = [" ".join(rng.choices(words[: rng.choice([2, 6, 12, 400])], k=rng.randint(1, 300))) for _ in range(400)]
    texts += ["的" * n + "".join(chr(0x4E00 + rng.randint(0, 300)) for _ in range(60)) for n in range(200)]
    exact, quick = measure(texts), measure(texts, bounds=(2.5, 0.6))
    low, share = exact[:, c.ENTROPY] < 2.5e6, exact[:, c.TOP_WORD_CHARS] > 0.6 * exact[:, c.WORD_CHARS]
    assert low.any() and share.any()
    assert ((quick[:, c.ENTROPY] < 2.5e6) == low).all()
    assert ((quick[:, c.TOP_WORD_CHARS] > 0.6 * exact[:, c.WORD_CHARS]) == share).all()
    failed = low | share
    assert (quick[failed] == exact[failed]).all()


def test_no_boilerplate_line_that_would_go_is_overlooked() -> None:
    rng, trigger = random.Random(5), REPAIRS["boilerplate"][1]
    parameters = {"edge": 3, "lists": ["zh", "en"]}
    hits = 0
    for _ in range(300):
        lines = [
            rng.choice(["正文一行。", "", "Back to top", "返回顶部", "text", "home"]) for _ in range(rng.randint(1, 12))
        ]
        text = "\n".join(lines)
        if remove_boilerplate(text, edge=3) != text:
            hits += 1
            assert trigger(measure([text], line_starts(("zh", "en"))), parameters)[0], text
    assert hits > 50
