"""Records of every format become the right messages, faults are named, cleaned texts find their way back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mmdata.chat.conversation import conversation_of
from mmdata.chat.formats import ParseOptions, chat_parser, detect_format, parse_chat_record
from mmdata.document import Document
from mmdata.errors import ChatRecordError, UsageError


def parsed(record: dict[str, Any], **options: Any) -> Document:
    made = chat_parser(**options)(record, "in.jsonl", 3, 7)
    assert isinstance(made, Document), made
    return made


def fault(record: dict[str, Any], **options: Any) -> str:
    made = chat_parser(**options)(record, "in.jsonl", 0, 1)
    assert isinstance(made, str)
    return made


def turns(record: dict[str, Any], **options: Any) -> list[tuple[str, str]]:
    messages, _ = conversation_of(parsed(record, **options))
    return [(message["role"], message["content"]) for message in messages]


QA = [("user", "q"), ("assistant", "a")]


@pytest.mark.parametrize(
    ("record", "expected", "kind"),
    [
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, QA, "messages"),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, QA, "sharegpt"),
        ({"conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, QA, "messages"),
        ({"instruction": "q", "input": "", "output": "a"}, QA, "alpaca"),
        ({"instruction": "q", "output": "a"}, QA, "alpaca"),
        ({"instruction": "q", "input": "i", "output": "a"}, [("user", "q\ni"), ("assistant", "a")], "alpaca"),
        (
            {"instruction": "q", "output": "a", "system": "s", "history": [["h1", "r1"]]},
            [("system", "s"), ("user", "h1"), ("assistant", "r1"), *QA],
            "alpaca",
        ),
        ({"prompt": "q", "completion": "a"}, QA, "prompt-completion"),
        ({"prompt": "q", "response": "a"}, QA, "prompt-completion"),
        ({"question": "q", "answer": "a"}, QA, "question-answer"),
        ({"input": "q", "output": "a", "id": 5}, QA, "input-output"),
        (
            {"system": "s", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
            [("system", "s"), *QA],
            "sharegpt",
        ),
        (
            {
                "messages": [
                    {"role": "developer", "content": "s"},
                    {"role": "user", "content": "q"},
                    {"role": "assistant", "content": "a"},
                ]
            },
            [("system", "s"), *QA],
            "messages",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "q"}]},
                    {"role": "assistant", "content": "a"},
                ]
            },
            QA,
            "messages",
        ),
    ],
)
def test_each_format_gives_its_messages(record: dict[str, Any], expected: list[Any], kind: str) -> None:
    assert detect_format(record) == kind
    assert turns(record) == expected


def test_a_plain_text_record_stays_plain() -> None:
    document = parsed({"text": "hello", "id": 9})
    assert document.text == "hello" and document.id == "9" and "chat" not in document.meta


def test_place_and_identity_come_along() -> None:
    document = parsed({"id": "x/1", "question": "q", "answer": "a"})
    assert (document.path, document.input_number, document.line, document.id) == ("in.jsonl", 3, 7, "x/1")
    assert [(part.json_path, part.role) for part in document.parts] == [("question", "user"), ("answer", "assistant")]


def test_fields_and_role_words_can_be_mapped() -> None:
    assert turns({"ask": "q", "reply": "a"}, mapping=[("ask", "user"), ("reply", "assistant")]) == QA
    record = {"talk": [{"who": "patient", "says": "q"}, {"who": "doctor", "says": "a"}]}
    mapping = [("talk", "messages"), ("who", "role"), ("says", "content"), ("patient", "user"), ("doctor", "assistant")]
    assert turns(record, mapping=mapping) == QA


def test_a_mapping_to_an_unknown_role_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="nonsense"):
        chat_parser(mapping=[("a", "nonsense")])
    with pytest.raises(UsageError, match="--format"):
        chat_parser("xml")


SHAREGPT_TOOLS = {
    "conversations": [
        {"from": "human", "value": "weather?"},
        {"from": "function_call", "value": '{"name": "w", "arguments": {"city": "北京"}}'},
        {"from": "observation", "value": '{"t": 3}'},
        {"from": "gpt", "value": "3"},
    ],
    "tools": '[{"name": "w", "parameters": {}}]',
}


def test_sharegpt_calls_become_openai_calls() -> None:
    messages, tools = conversation_of(parsed(SHAREGPT_TOOLS))
    assert messages == [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "w", "arguments": {"city": "北京"}}}],
        },
        {"role": "tool", "content": '{"t": 3}'},
        {"role": "assistant", "content": "3"},
    ]
    assert tools == [{"type": "function", "function": {"name": "w", "parameters": {}}}]


def test_openai_arguments_as_json_text_stay_as_they_are() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"a": 1}'}}
    record = {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "3", "tool_call_id": "c1"},
            {"role": "assistant", "content": "done", "reasoning": "because"},
        ]
    }
    messages, _ = conversation_of(parsed(record))
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert messages[2]["tool_call_id"] == "c1" and messages[3]["reasoning_content"] == "because"


@pytest.mark.parametrize(
    ("record", "cause", "named"),
    [
        ({"foo": 1, "bar": 2}, "unknown-format", "'foo', 'bar'"),
        ({"instruction": "q", "output": 3}, "not-a-string", "output"),
        ({"instruction": 5, "output": "a"}, "not-a-string", "instruction"),
        ({"question": "q", "answer": "  "}, "empty-answer", "message 1"),
        ({"question": "", "answer": "a"}, "empty-message", "message 0"),
        ({"messages": []}, "bad-turns", "an empty list"),
        ({"messages": [{"role": "user", "content": "q"}]}, "no-answer", ""),
        ({"messages": [{"role": "boss", "content": "q"}]}, "unknown-role", "'boss'"),
        ({"messages": ["q"]}, "bad-turns", "messages[0]"),
        ({"messages": [{"role": "user"}]}, "missing-key", "messages[0]"),
        ({"conversations": [{"from": "gpt", "value": "a"}, {"from": "human", "value": "q"}]}, "bad-turns", "first"),
        (
            {
                "conversations": [
                    {"from": "human", "value": "q"},
                    {"from": "human", "value": "r"},
                    {"from": "gpt", "value": "a"},
                ]
            },
            "bad-turns",
            "in a row",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "q"},
                    {"role": "tool", "content": "r"},
                    {"role": "assistant", "content": "a"},
                ]
            },
            "bad-turns",
            "without a call",
        ),
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "not json"}]},
            "bad-tool-call",
            "conversations[1].value",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
                    {"role": "assistant", "content": "a"},
                ]
            },
            "not-text",
            "image_url",
        ),
        ({"instruction": "q", "output": "a", "history": ["x"]}, "bad-turns", "history[0]"),
    ],
)
def test_faults_are_named(record: dict[str, Any], cause: str, named: str) -> None:
    found = fault(record)
    assert found.split(":")[0] == cause and named in found


def test_a_fixed_format_does_not_guess() -> None:
    assert fault({"question": "q", "answer": "a"}, format="alpaca").startswith("missing-key")


def test_repair_joins_and_removes_and_says_so() -> None:
    record = {
        "conversations": [
            {"from": "gpt", "value": "Welcome"},
            {"from": "human", "value": "q1"},
            {"from": "human", "value": "q2"},
            {"from": "gpt", "value": "a"},
            {"from": "human", "value": " "},
        ]
    }
    document = parsed(record, on_turns="repair")
    messages, _ = conversation_of(document)
    assert [(m["role"], m["content"]) for m in messages] == [("user", "q1\nq2"), ("assistant", "a")]
    assert len(document.meta["chat_repairs"]) == 3
    assert [part.json_path for part in document.parts] == [f"conversations[{i}].value" for i in (1, 2, 3)]


def test_what_repair_cannot_mend_is_rejected() -> None:
    assert fault({"messages": [{"role": "assistant", "content": "a"}]}, on_turns="repair").startswith("no-answer")


def test_cleaned_texts_go_back_to_their_messages() -> None:
    document = parsed({"instruction": "q ", "input": " i", "output": "a", "history": [["h", "r"]]})
    cleaned = document.with_texts([part.text.strip().upper() for part in document.parts])
    messages, _ = conversation_of(cleaned)
    assert [m["content"] for m in messages] == ["H", "R", "Q\nI", "A"]
    assert [m["content"] for m in conversation_of(document)[0]] == ["h", "r", "q \n i", "a"]


def test_cleaned_tool_calls_stay_calls_or_are_refused() -> None:
    document = parsed(SHAREGPT_TOOLS)
    cleaned = document.with_texts([part.text.replace("北京", "上海") for part in document.parts])
    assert conversation_of(cleaned)[0][1]["tool_calls"][0]["function"]["arguments"] == {"city": "上海"}
    broken = document.with_texts([part.text.replace("}", "") for part in document.parts])
    with pytest.raises(ChatRecordError, match=r"in\.jsonl:7.*no longer JSON"):
        conversation_of(broken)


def test_the_arguments_of_a_call_are_one_part_of_json_text_and_go_back() -> None:
    call = {"function": {"name": "w", "arguments": {"to": ["a@b.c", {"deep": "x"}], "n": 1}}}
    record = {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    }
    document = parsed(record)
    assert [(p.json_path, p.text) for p in document.parts][2:] == [
        ("messages[1].tool_calls[0].function.arguments", '{"to": ["a@b.c", {"deep": "x"}], "n": 1}')
    ]
    cleaned = document.with_texts([p.text.replace("a@b.c", "<email>") for p in document.parts])
    arguments = conversation_of(cleaned)[0][1]["tool_calls"][0]["function"]["arguments"]
    assert arguments == {"to": ["<email>", {"deep": "x"}], "n": 1}
    assert record["messages"][1]["tool_calls"][0]["function"]["arguments"]["to"][0] == "a@b.c"
    assert conversation_of(document)[0] is document.meta["chat"]["messages"]


@pytest.mark.parametrize("arguments", [None, {}, [1, "x"], 3, "no json", ""])
def test_odd_arguments_stay_what_they_were_and_become_parts_where_there_is_something(arguments: Any) -> None:
    call = {"function": {"name": "w", "arguments": arguments}}
    document = parsed(
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]}
    )
    texts = [part.text for part in document.parts[2:]]
    assert texts == {str: [arguments], list: ['[1, "x"]'], int: ["3"]}.get(type(arguments), [])
    cleaned = document.with_texts([f"{part.text} " for part in document.parts])
    held = conversation_of(cleaned)[0][1]["tool_calls"][0]["function"]["arguments"]
    assert held == (f"{arguments} " if isinstance(arguments, str) else arguments)


def test_the_structure_survives_json() -> None:
    document = parsed(SHAREGPT_TOOLS)
    stored = json.loads(json.dumps(document.meta, ensure_ascii=False))
    again = Document(document.path, 0, 1, None, {}, document.parts, meta=stored)
    assert conversation_of(again) == conversation_of(document)


@pytest.mark.parametrize(
    "record",
    [
        {"instruction": "q", "input": "", "output": "a", "id": "1"},
        {"instruction": "q", "response": "a"},
        {"question": "q", "answer": "a"},
        {"prompt": "q", "response": "a"},
        {"input": "q", "output": "a"},
        {"instruction": "q", "input": "i", "output": "a"},
        {"instruction": "q", "output": "a", "history": []},
    ],
)
def test_the_short_way_gives_what_the_general_way_gives(record: dict[str, Any]) -> None:
    short = parsed(record)
    # A mapping that names no field of the record takes the general way.
    general = parsed(record, mapping=[("unused", "tools")])
    assert (short.parts, short.id) == (general.parts, general.id)
    assert conversation_of(short) == conversation_of(general)
    assert json.loads(json.dumps(short.meta)) == json.loads(json.dumps(general.meta))


@pytest.mark.parametrize("key", ["messages", "conversations"])
def test_turns_read_the_short_way_are_those_of_the_general_way(key: str) -> None:
    turns_of = [{"role": "system", "content": "s"}, *({"role": r, "content": r} for r in ["user", "assistant"] * 3)]
    record = {key: turns_of, "id": 4}
    short, general = parsed(record), parsed(record, mapping=[("unused", "tools")])
    assert (short.parts, short.id, short.meta) == (general.parts, general.id, general.meta)
    assert conversation_of(short) == conversation_of(general)


_QUESTION, _ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
_USUAL = [
    {"instruction": "i", "input": "", "output": "o", "id": 7},
    {"instruction": "i", "output": "", "response": "r"},
    {"instruction": "i", "output": " "},
    {"instruction": "i", "output": "o", "history": [["a", "b"]]},
    {"input": "q", "output": "a", "system": "s"},
    {"prompt": "q", "response": "a", "id": "x"},
    {"question": "q", "answer": 5},
    {"messages": [_QUESTION, _ANSWER, _QUESTION]},
    {"messages": [{"role": "system", "content": "s"}, _QUESTION]},
    {"messages": [_QUESTION, _QUESTION, _ANSWER]},
    {"messages": [_QUESTION, {"role": "assistant", "content": "\u3000"}]},
    {"messages": [_QUESTION, {"role": "assistant", "content": None}]},
    {"messages": [_QUESTION, {"role": ["assistant"], "content": "a"}]},
    {"messages": [_QUESTION, "a"]},
    {"messages": [_QUESTION, {**_ANSWER, "weight": 0}]},
    {"messages": [], "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
    {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"},
    {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "tools": ""},
    {"messages": "text", "text": "t"},
    {"text": "t", "id": 7},
    {"text": "", "source": "s", "prompt": "q"},
    {"text": 5},
    {"text": "t", "prompt": "q", "response": "a"},
    {"body": "t"},
]


@pytest.mark.parametrize("format", ["auto", "text", "messages", "sharegpt", "alpaca", "input-output"])
def test_remembered_keys_and_role_orders_decide_as_the_general_way_does(format: str) -> None:
    parse = chat_parser(format)
    for _ in range(2):  # the second time what the keys mean is remembered
        for number, record in enumerate(_USUAL):
            general = parse_chat_record(record, "in", 0, number, ParseOptions(format))
            assert parse(record, "in", 0, number) == general, record


def test_a_question_that_stands_in_input_alone_has_no_empty_line_before_it() -> None:
    document = chat_parser()({"instruction": "", "input": "q", "output": "a"}, "in", 0, 1)
    assert isinstance(document, Document)
    assert [(part.json_path, part.text) for part in document.parts] == [("input", "q"), ("output", "a")]
