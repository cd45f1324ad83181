"""Wrong templates, formats and shapes: each is refused early, with the place and what would be right."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from chat_cases import answer, user

import mmdata
from mmdata.chat.formats import chat_parser
from mmdata.chat.render import ChatOptions, ChatRenderer, render_chat
from mmdata.errors import ChatTemplateError, UsageError
from mmdata.inspection_text import describe
from mmdata.records import RecordOptions
from mmdata.tokenizer import LoadedTokenizer

LOOP = "{% for m in messages %}\n"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (LOOP + "{{ m.content }\n{% endfor %}", "line 2: not a Jinja template: unexpected '}'"),
        (LOOP + "{{ m.content | nosuch }}{% endfor %}", "line 2: not a Jinja template: No filter named 'nosuch'"),
        (LOOP + "\n{{ nosuch(m) }}{% endfor %}", "line 3: 'nosuch' is undefined"),
        (LOOP + "{{ m.foo.bar }}{% endfor %}", "line 2: 'dict object' has no attribute 'foo'"),
        (LOOP + "{{ m.content + 5 }}{% endfor %}", "line 2: TypeError: can only concatenate str"),
        (LOOP + "{{ 1 / 0 }}{% endfor %}", "line 2: ZeroDivisionError"),
        (LOOP + "{{ raise_exception('not so') }}{% endfor %}", "line 2: not so"),
        ("{% for i in range(10**9) %}{{ i }}{% endfor %}", "line 1: OverflowError: Range too big"),
        (LOOP + "{{ m.__class__.__mro__ }}{% endfor %}", "line 2: access to attribute '__class__'"),
        ("hello", "leaves out the answer of a plain question and answer (it writes 'hello')"),
        ("", "leaves out the answer"),
    ],
)
def test_a_wrong_template_is_refused_with_its_line(
    source: str, words: str, tokenizer: LoadedTokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.jinja"
    path.write_text(source, encoding="utf-8")
    with pytest.raises(ChatTemplateError) as caught:
        ChatRenderer(tokenizer, ChatOptions(template=str(path)))
    assert words in str(caught.value) and "wrong.jinja" in str(caught.value)


def test_a_template_that_is_no_utf8_or_no_file_is_refused(tokenizer: LoadedTokenizer, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_bytes(b"ab\xff")
    with pytest.raises(ChatTemplateError, match="byte 2 is not UTF-8"):
        ChatRenderer(tokenizer, ChatOptions(template=str(tmp_path / "t.jinja")))
    with pytest.raises(ChatTemplateError, match="did you mean 'chatml'"):
        ChatRenderer(tokenizer, ChatOptions(template="chatmll"))


def test_convert_refuses_a_wrong_template_before_it_reads_a_record(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("this is no JSON\n", encoding="utf-8")
    (tmp_path / "wrong.jinja").write_text(LOOP + "{{ m.content }", encoding="utf-8")
    with pytest.raises(ChatTemplateError, match="line 2") as caught:
        mmdata.convert(
            tmp_path / "in.jsonl", tmp_path / "out", folder, on_error="fail", recipe="none", dedup="none", workers=1,
            chat_template=str(tmp_path / "wrong.jinja"),
        )  # fmt: skip
    assert "while working on" not in str(caught.value)


def test_a_template_for_another_tokenizer_is_announced(
    folder: Path, tokenizer: LoadedTokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Through `notice`, which `--quiet` silences and the report keeps; the log, which nothing silences, stays empty."""
    told: list[str] = []
    template = tmp_path / "other.jinja"
    template.write_text(LOOP + "<|turn|>{{ m.role }}<|im_start|>{{ m.content }}</s>{% endfor %}", encoding="utf-8")
    (notice,) = ChatRenderer(tokenizer, ChatOptions(template=str(template))).notices
    assert "writes <|turn|>, which" in notice
    assert ChatRenderer(tokenizer, ChatOptions(template="chatml")).notices == []
    (tmp_path / "in.jsonl").write_text('{"question": "q", "answer": "a"}\n', encoding="utf-8")
    with caplog.at_level(logging.WARNING, "mmdata"):
        report = mmdata.convert(
            tmp_path / "in.jsonl", tmp_path / "out", folder, recipe="none", dedup="none", workers=1,
            chat_template=str(template), notice=told.append,
        )  # fmt: skip
    assert notice in told and notice in report.data["run"]["notices"]
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": "text"}, "bad-turns: messages holds str, not a list of messages"),
        ({"messages": None}, "bad-turns: messages holds null, not a list of messages"),
        ({"conversations": {"a": 1}}, "bad-turns: conversations holds dict, not a list of messages"),
        ({"messages": []}, "bad-turns: messages holds an empty list, not a list of messages"),
    ],
)
@pytest.mark.parametrize("kind", ["auto", "messages"])
def test_messages_that_are_no_list_are_rejected_saying_so(kind: str, record: dict[str, Any], reason: str) -> None:
    made = chat_parser(kind)(record, "in.jsonl", 0, 1)
    assert isinstance(made, str) and made.startswith(reason)


def test_wrong_names_of_formats_and_roles_get_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'alpaca'"):
        chat_parser("alpca")
    with pytest.raises(UsageError, match="did you mean q=user"):
        chat_parser("auto", [("q", "usr")])
    with pytest.raises(UsageError, match="did you mean 'sharegpt'"):
        RecordOptions(format="share-gpt")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "uncounted", "said"),
    [
        ("<think>\n\n</think>\n\nyes", "<think>\n\n</think>\n\n", "yes"),
        ("<think></think>yes", "<think></think>", "yes"),
        ("<think>\n \n</think>\n  yes ", "<think>\n \n</think>\n  ", "yes "),
    ],
)
def test_the_space_behind_an_empty_block_counts_no_more_than_the_block(
    content: str, uncounted: str, said: str, tokenizer: LoadedTokenizer
) -> None:
    ids, spans = render_chat([user("q"), answer(content)], tokenizer, "chatml")
    ((start, end),) = spans.tolist()
    assert tokenizer.decode(ids[start:end]) == said + "<|im_end|>"
    assert tokenizer.decode(ids[:start]).endswith("<|im_start|>assistant\n" + uncounted)


def test_inspect_decodes_what_came_from_a_line_and_marks_what_counts(folder: Path, tmp_path: Path) -> None:
    lines = ['{"question": "one", "answer": "1"}', '{"question": "two", "answer": "2"}']
    (tmp_path / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    mmdata.convert(
        tmp_path / "in.jsonl", tmp_path / "out", folder, recipe="none", dedup="none", workers=1, chat_template="chatml"
    )
    prefix = str(tmp_path / "out_text_document")
    data, text = describe(prefix, color=False, source="in.jsonl:2", decode=True)
    assert data["source"] == [1] and "user\ntwo" in data["documents"][0]["text"]
    assert "⟦2<|im_end|>⟧" in text and "one" not in text
    assert "\x1b[1;32m2<|im_end|>\x1b[0m" in describe(prefix, color=True, source="in.jsonl:2", decode=True)[1]


@pytest.mark.parametrize(
    "record",
    [
        {"13800138000": "x"},
        {"messages": [{"role": "bob@example.com", "content": "x"}]},
        {"messages": [{"role": "r " * 10_000, "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "13800138000"}]}]},
        {"messages": [{"role": ["bob@example.com"], "content": "x"}]},
    ],
)
def test_reasons_quote_a_records_own_words_masked_and_short(record: dict[str, Any]) -> None:
    reason = chat_parser("auto")(record, "in.jsonl", 0, 1)
    assert isinstance(reason, str) and len(reason) < 300
    assert "13800138000" not in reason and "bob@" not in reason
