"""Arguments of calls, `tools` and blank reasoning reach the template as transformers hands them over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_cases import TOOLS, answer, user

from mmdata.chat.conversation import conversation_of
from mmdata.chat.formats import chat_parser
from mmdata.chat.render import ChatOptions, ChatRenderer
from mmdata.document import Document
from mmdata.tokenizer import LoadedTokenizer

BIG = 12345678901234567890123
WIRE = [
    '{"a":1e5}', '{"a": 1.0E+2,  "b":\t-0.0}', '{"u": "\\u4f60\\u597d \\/ \\ud83d\\ude00"}', '{"a": 1, "a": 2}',
    "{}", " { } ", "[1, 2]", "no json", "", '"text"', "null", f'{{"id": {BIG}, "f": 0.1000000000000000055511151}}',
    '{"t": "<|im_end|>"}', '{"deep": "{\\"x\\": 1e5}"}',
]  # fmt: skip
READ_BY = {
    "items": "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }};{% endfor %}",
    "items filter": "{% for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }};{% endfor %}",
    "tojson": "{{ c.function.arguments | tojson }}",
    "is mapping": "{{ c.function.arguments | tojson if c.function.arguments is mapping else raise_exception('no') }}",
}
WRITTEN_BY = {
    "is string": "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}",
    "joined": "{{ '```json\n' + c.function.arguments + '\n```' }}",
    "is mapping": "{{ c.function.arguments | tojson if c.function.arguments is mapping else c.function.arguments }}",
}


def talk(arguments: Any) -> list[dict[str, Any]]:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return [user("q"), answer("", tool_calls=[call]), {"role": "tool", "content": "r"}, answer("a")]


def document(record: dict[str, Any]) -> Document:
    made = chat_parser("auto")(record, "in.jsonl", 0, 1)
    assert isinstance(made, Document), made
    return made


def template_of(how: str, folder: Path) -> str:
    path = folder / "calls.jinja"
    path.write_text(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}{% for c in m.tool_calls or [] %}"
        + how
        + "{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
        + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        encoding="utf-8",
    )
    return str(path)


def written(renderer: ChatRenderer, tokenizer: LoadedTokenizer, record: dict[str, Any]) -> str:
    batch = renderer.render_documents([document(record)])
    assert not batch.drops, batch.drops
    return tokenizer.decode(batch.tokens)


@pytest.mark.peer
@pytest.mark.parametrize("template", ["chatml", "auto", "llama3"])
def test_arguments_on_the_wire_are_written_as_they_are(template: str, qwen3: LoadedTokenizer, hf_qwen3: Any) -> None:
    renderer = ChatRenderer(qwen3, ChatOptions(template=template))
    for arguments in WIRE * 2:  # the second time through replays
        messages = talk(arguments)
        expected = hf_qwen3.apply_chat_template(
            messages, tools=TOOLS, chat_template=renderer.template.source, tokenize=False
        )
        assert written(renderer, qwen3, {"messages": messages, "tools": TOOLS}) == expected
        if "<|" not in arguments:
            ids, _ = renderer.render(*conversation_of(document({"messages": messages, "tools": TOOLS})))
            assert ids.tolist() == hf_qwen3(expected, add_special_tokens=False)["input_ids"]


@pytest.mark.peer
@pytest.mark.parametrize("how", WRITTEN_BY)
def test_templates_that_take_a_text_get_it(how: str, tokenizer: LoadedTokenizer, hf: Any, tmp_path: Path) -> None:
    renderer = ChatRenderer(tokenizer, ChatOptions(template=template_of(WRITTEN_BY[how], tmp_path)))
    for arguments in WIRE * 2:
        messages = talk(arguments)
        expected = hf.apply_chat_template(messages, chat_template=renderer.template.source, tokenize=False)
        assert written(renderer, tokenizer, {"messages": messages}) == expected


@pytest.mark.peer
@pytest.mark.parametrize("how", READ_BY)
def test_templates_that_go_through_the_arguments_get_the_object(
    how: str, tokenizer: LoadedTokenizer, hf: Any, tmp_path: Path
) -> None:
    renderer = ChatRenderer(tokenizer, ChatOptions(template=template_of(READ_BY[how], tmp_path)))
    for arguments in [text for text in WIRE if text.strip().startswith("{")] * 2:
        expected = hf.apply_chat_template(
            talk(json.loads(arguments)), chat_template=renderer.template.source, tokenize=False
        )
        assert written(renderer, tokenizer, {"messages": talk(arguments)}) == expected


def test_which_form_a_template_gets_does_not_depend_on_the_records_before(
    tokenizer: LoadedTokenizer, tmp_path: Path
) -> None:
    options = ChatOptions(template=template_of(READ_BY["tojson"], tmp_path))
    mixed = [document({"messages": talk(text)}) for text in ("no json", '{"a": 1e5}', "[1]", '{"b": 2}')]
    together = ChatRenderer(tokenizer, options).render_documents(mixed)
    alone = [ChatRenderer(tokenizer, options).render_documents([one]) for one in mixed]
    assert together.tokens.tolist() == [token for batch in alone for token in batch.tokens.tolist()]


@pytest.mark.parametrize("template", ["chatml", "mistral"])
@pytest.mark.parametrize(
    "record",
    [
        {"messages": talk(f'{{"id": {BIG}, "neg": -{BIG}}}')},
        {"messages": talk({"id": BIG, "neg": -BIG})},
        {
            "conversations": [
                {"from": "human", "value": "q"},
                {"from": "function_call", "value": f'{{"name": "f", "arguments": {{"id": {BIG}, "neg": -{BIG}}}}}'},
                {"from": "observation", "value": "r"},
                {"from": "gpt", "value": "a"},
            ],
        },
    ],
    ids=["json text", "object", "function_call"],
)
def test_integers_of_any_size_stay_exact(record: dict[str, Any], template: str, tokenizer: LoadedTokenizer) -> None:
    tools = json.dumps([{"name": "f", "parameters": {"default": BIG}}])
    text = written(ChatRenderer(tokenizer, ChatOptions(template=template)), tokenizer, {**record, "tools": tools})
    assert f'{{"id": {BIG}, "neg": -{BIG}}}' in text
    assert f'"default": {BIG}' in text and "e+" not in text


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("1E400", "1E400 is beyond what a double holds"),
        ("-1e999", "-1e999 is beyond what a double holds"),
        ("NaN", "NaN is no number of JSON"),
        ("-Infinity", "-Infinity is no number of JSON"),
        ("9" * 5000, "more than 4300 digits"),
        ('"\\ud83d"', "half a character"),
        ("[" * 600 + "]" * 600, "nests more than 512 levels"),
        ("[" * 200_000 + "]" * 200_000, "nests more than 512 levels"),
    ],
)
def test_what_no_record_may_hold_is_refused_inside_texts_too(value: str, why: str) -> None:
    parse = chat_parser("auto")
    inner = f'{{"a": {value}}}'
    call = {"from": "function_call", "value": f'{{"name": "f", "arguments": {inner}}}'}
    turns = [{"from": "human", "value": "q"}, call, {"from": "observation", "value": "r"}]
    plain = [user("q"), answer("a")]
    for record in (
        {"messages": talk(inner)},
        {"conversations": [*turns, {"from": "gpt", "value": "a"}]},
        {"messages": plain, "tools": f'[{{"name": "f", "parameters": {inner}}}]'},
    ):
        fault = parse(record, "in.jsonl", 0, 1)
        assert isinstance(fault, str) and fault.startswith("bad-tool-call: ") and why in fault


REASONS = ["", " ", "\n\n", "\x85", "\u2028", "some"]
ANSWERS = [
    "x </think> y",
    "plain",
    "a\n\n</think>\n\nb </think> c",
    "<think>\n\n</think>\n\nb",
    "<think>\nr\n</think>\n\nb",
]


@pytest.mark.peer
@pytest.mark.parametrize("template", ["auto", "chatml"])
@pytest.mark.parametrize("reasoning", REASONS)
def test_reasoning_reaches_the_template_also_when_it_is_blank(
    reasoning: str, template: str, qwen3: LoadedTokenizer, hf_qwen3: Any
) -> None:
    renderer = ChatRenderer(qwen3, ChatOptions(template=template))
    for text in ANSWERS:
        messages = [user("p"), answer("no"), user("q"), answer(text, reasoning_content=reasoning)]
        if template == "chatml" and reasoning == "some":
            continue  # a block is added there
        for _ in range(4):
            expected = hf_qwen3.apply_chat_template(messages, chat_template=renderer.template.source, tokenize=False)
            assert written(renderer, qwen3, {"messages": messages}) == expected
        if not (reasoning == "some" and text.startswith("<think>")) and text[:1] not in "xa":
            ids, _ = renderer.render(messages)
            assert ids.tolist() == hf_qwen3(expected, add_special_tokens=False)["input_ids"]


def test_stripped_reasoning_leaves_an_answer_that_speaks_of_the_tag_whole(qwen3: LoadedTokenizer) -> None:
    messages = [user("q"), answer("x </think> y", reasoning_content="why")]
    text = written(ChatRenderer(qwen3, ChatOptions(thinking="strip")), qwen3, {"messages": messages})
    assert "assistant\nx </think> y<|im_end|>" in text and "why" not in text


def test_a_tool_without_a_type_is_wrapped(tokenizer: LoadedTokenizer) -> None:
    record = {"messages": [user("q"), answer("a")], "tools": [{"name": "f", "parameters": {}}, *TOOLS]}
    _, tools = conversation_of(document(record))
    assert tools == [{"type": "function", "function": {"name": "f", "parameters": {}}}, *TOOLS]
