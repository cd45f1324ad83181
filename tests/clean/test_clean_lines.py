"""Repairs that look at lines and characters one by one do what the plain expressions they stand for say."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.clean import columns as c
from mmdata.clean.characters import _PERHAPS_PRIVATE, _PRIVATE, normalize_spaces
from mmdata.clean.language import script_counts
from mmdata.clean.lines import collapse_space_runs, remove_boilerplate, strip_line_ends
from mmdata.clean.measure import measure
from mmdata.clean.pipeline import Cleaner
from mmdata.document import Document, Part

SPACES = st.text(" \t\u3000\xa0ab一，、1_|`\n", max_size=60)
CELLS = ["a long line of plain words", "   ", "  ", "    ", " ", "word", "字", "，", "é", "7", "| ", "\n", "```\n"]
TABLES = st.lists(st.sampled_from(CELLS), max_size=24).map("".join)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(SPACES)
def test_line_ends_lose_what_the_expression_of_tails_finds(text: str) -> None:
    assert strip_line_ends(text) == re.sub(r"(?<=\S)(?: {3,}[ \t]*| *\t[ \t]*)(?=\n|\Z)", "", text)


@settings(max_examples=800, deadline=None, derandomize=True)
@given(TABLES)
def test_space_runs_are_those_between_letters_in_prose_lines_beside_no_column(text: str) -> None:
    assert collapse_space_runs(text) == plain_space_runs(text)


def plain_space_runs(text: str) -> str:
    """The rule of collapse_space_runs, said with one expression over all lines."""
    run = re.compile(r"(?<=[^\W\d_]) {2,}(?=[^\W\d_])|(?<=[，。；：、！？,;]) {2,}(?=[\u3400-\u9fff])")
    lines = text.split("\n")
    spans = [[m.span() for m in run.finditer(line) if len(m.group()) >= 3] for line in lines]
    out, inside = [], False
    for i, line in enumerate(lines):
        inside ^= line.lstrip().startswith(("```", "~~~"))
        near = {stop for j in (i - 1, i + 1) if 0 <= j < len(lines) for _, stop in spans[j]}
        code = re.search(r"^\s*(?:>|#|\.\.\. )|[|\t{}=#`<>]|--|->", line)
        if len(spans[i]) == 1 and not inside and not line.startswith(" ") and not code:
            start, stop = spans[i][0]
            letters = len(re.findall(r"[^\W\d_]", line))
            if start >= 20 and stop not in near and letters > 0.7 * len(line.replace(" ", "")):
                line = line[:start] + " " + line[stop:]
        out.append(line)
    return "\n".join(out)


def test_every_odd_space_becomes_one_space_and_the_ideographic_one_stays() -> None:
    odd = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f"
    assert normalize_spaces("a".join(odd) + "\u3000") == "a".join(" " * len(odd)) + "\u3000"


def test_the_quick_look_for_private_characters_overlooks_none() -> None:
    for code in range(0x110000):
        if _PRIVATE.match(chr(code)):
            assert _PERHAPS_PRIVATE.match(chr(code)), hex(code)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(st.one_of(st.characters(), st.sampled_from("国國语語医醫的了𠮷a ，")), max_size=200))
def test_script_counts_are_the_columns_of_the_measuring_pass(text: str) -> None:
    assert script_counts(text) == tuple(measure([text])[0, [c.TRADITIONAL, c.SIMPLIFIED]].tolist())


def test_boilerplate_behind_hundreds_of_blank_lines_is_at_the_edge_all_the_same() -> None:
    prose = "\n".join(f"第{i}条 正文在此，与导航无关。" for i in range(40))
    for text in ("\n" * 700 + "版权所有\n" + prose, prose + "\n版权所有" + "\n \n" * 400):
        assert "版权所有" not in remove_boilerplate(text)
    middle = prose + "\n版权所有\n" + prose
    assert remove_boilerplate(middle) == middle


def test_kept_documents_come_with_their_cleaned_texts_in_utf8() -> None:
    texts = ["plain text", "a\xa0b \u200b c", "邮箱 a.b@c.com，在此。", "好\ud800好", "\ufb01ne   \t\nline", ""]
    documents = [Document("a", 0, i, None, {}, (Part("text", "text", text),)) for i, text in enumerate(texts, 1)]
    parts = (Part("m[0]", "user", "问\u200b题"), Part("m[1]", "assistant", "答案 13800138000"))
    documents.append(Document("a", 0, 9, None, {}, parts))
    result = Cleaner("auto").clean_documents(documents)
    assert len(result.kept) >= 5 and result.changed_documents >= 4
    assert result.encoded == [document.text.encode("utf-8", "surrogatepass") for document in result.kept]


def test_steps_that_change_nothing_are_not_counted_as_having_changed_something() -> None:
    document = Document("a", 0, 1, None, {}, (Part("text", "text", "if (a < b && c) & d; use Vec<T> and <o:x> here."),))
    result = Cleaner("auto").clean_documents([document])
    assert dict(result.changed) == {} and result.kept == [document]
    assert np.all(measure([document.text])[0, [c.TAGS, c.OFFICE]] > 0)
