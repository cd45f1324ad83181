"""Which tokens count: a golden table of templates and conversations, and transformers' own mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_cases import SHAPES, TEMPLATES, TOOL_TEMPLATES, TOOLS, answer, counted, marked_source, source, user

from mmdata.chat.render import ChatOptions, ChatRenderer, render_chat
from mmdata.errors import ChatRecordError, ChatTemplateError
from mmdata.tokenizer import LoadedTokenizer

CASES = [
    pytest.param(template, shape, id=f"{template}: {shape}")
    for template in TEMPLATES
    for shape in SHAPES
    if shape != "tool calls" or template in TOOL_TEMPLATES
]


def tools_of(shape: str) -> Any:
    return TOOLS if shape == "tool calls" else None


def mask_of(ids: Any, spans: Any) -> list[int]:
    mask = np.zeros(len(ids), int)
    for start, end in spans:
        mask[start:end] = 1
    return mask.tolist()


@pytest.mark.parametrize(("template", "shape"), CASES)
def test_the_counted_tokens_spell_the_answers_and_their_end(
    template: str, shape: str, tokenizer: LoadedTokenizer
) -> None:
    ids, spans = render_chat(SHAPES[shape], tokenizer, template, tools=tools_of(shape))
    texts = [tokenizer.decode(ids[start:end]) for start, end in spans]
    # The tokenizer composes (NFC), as Hugging Face does.
    expected = [text.replace("e\u0301", "é") for text in counted(template, shape)]
    if template in ("llama2", "llama3", "mistral", "gemma"):
        expected = [text.replace("  ", " ") for text in expected]
    assert texts == expected


@pytest.mark.peer
@pytest.mark.parametrize(("template", "shape"), CASES)
def test_ids_and_mask_are_those_of_transformers(template: str, shape: str, tokenizer: LoadedTokenizer, hf: Any) -> None:
    messages, tools = SHAPES[shape], tools_of(shape)
    ids, spans = render_chat(messages, tokenizer, template, tools=tools)
    assert ids.tolist() == hf.apply_chat_template(
        messages, tools=tools, chat_template=source(template), return_dict=False
    )
    theirs = hf.apply_chat_template(
        messages,
        tools=tools,
        chat_template=marked_source(template),
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    assert ids.tolist() == theirs["input_ids"]
    assert mask_of(ids, spans) == theirs["assistant_masks"]


@pytest.mark.parametrize(("template", "shape"), CASES)
def test_generation_marks_and_prompts_agree(
    template: str, shape: str, tokenizer: LoadedTokenizer, tmp_path: Path
) -> None:
    marked = tmp_path / "marked.jinja"
    marked.write_text(marked_source(template), encoding="utf-8")
    ids, spans = render_chat(SHAPES[shape], tokenizer, template, tools=tools_of(shape))
    ids_marked, spans_marked = render_chat(SHAPES[shape], tokenizer, str(marked), tools=tools_of(shape))
    assert ids.tolist() == ids_marked.tolist() and spans.tolist() == spans_marked.tolist()


def test_last_counts_only_the_last_answer_and_all_everything_but_the_first_token(tokenizer: LoadedTokenizer) -> None:
    messages = SHAPES["three questions"]
    ids, spans = render_chat(messages, tokenizer, "chatml", train_on="last")
    assert [tokenizer.decode(ids[a:b]) for a, b in spans] == ["c c<|im_end|>"]
    ids, spans = render_chat(messages, tokenizer, "chatml", train_on="all")
    assert spans.tolist() == [[1, len(ids)]]


def test_token_zero_never_counts(tokenizer: LoadedTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text(
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}<|im_start|>{{ m.content }}"
        "{% endgeneration %}{% endif %}{% endfor %}",
        encoding="utf-8",
    )
    ids, spans = render_chat([user("q"), answer("ab")], tokenizer, str(path))
    assert spans.tolist() == [[1, len(ids)]] and tokenizer.decode(ids[:1]) == "<|im_start|>"


def test_an_answer_marked_as_not_to_be_trained_on_does_not_count(tokenizer: LoadedTokenizer) -> None:
    messages = [user("a"), answer("wrong", weight=0), user("b"), answer("right", weight=1)]
    ids, spans = render_chat(messages, tokenizer, "chatml")
    assert [tokenizer.decode(ids[a:b]) for a, b in spans] == ["right<|im_end|>"]


def test_a_template_that_drops_old_reasoning_is_handled(tokenizer: LoadedTokenizer) -> None:
    messages = [user("a"), answer("<think>\nhm\n</think>\n\nold"), user("b"), answer("<think>\nso\n</think>\n\nnew")]
    ids, spans = render_chat(messages, tokenizer, "deepseek")
    assert [tokenizer.decode(ids[a:b]) for a, b in spans] == ["old</s>", "<think>\nso\n</think>\n\nnew</s>"]


def test_a_template_that_moves_the_tools_to_the_last_question_is_handled(tokenizer: LoadedTokenizer) -> None:
    messages = [user("a"), answer("one"), user("b"), answer("two")]
    ids, spans = render_chat(messages, tokenizer, "mistral", tools=TOOLS)
    assert [tokenizer.decode(ids[a:b]) for a, b in spans] == [" one</s>", " two</s>"]


def test_a_template_whose_answers_are_torn_apart_is_refused_with_the_reason(
    tokenizer: LoadedTokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "torn.jinja"
    path.write_text(
        "{% for m in messages %}{{ m.content }}|{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}",
        encoding="utf-8",
    )
    with pytest.raises(ChatTemplateError, match=r"in one piece.*generation"):
        ChatRenderer(tokenizer, ChatOptions(template=str(path)))


def test_a_template_that_refuses_a_conversation_says_why(tokenizer: LoadedTokenizer) -> None:
    with pytest.raises(ChatRecordError, match="no way to write tools"):
        render_chat(SHAPES["tool calls"], tokenizer, "gemma", tools=TOOLS)


@pytest.mark.peer
@pytest.mark.parametrize("shape", SHAPES)
def test_qwen3s_own_template_masks_as_transformers_does(shape: str, qwen3: LoadedTokenizer, hf_qwen3: Any) -> None:
    own = str(qwen3.config["chat_template"])
    head = "{{- '<|im_start|>' + message.role + '\\n' + content }}"
    thought = (
        "{{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + "
        "'\\n</think>\\n\\n' + content.lstrip('\\n') }}"
    )
    opened = own.replace(head, "{{- '<|im_start|>' + message.role + '\\n' }}{% set said = content %}")
    opened = opened.replace(
        thought,
        "{{- '<|im_start|>' + message.role + '\\n' }}{% set said = '<think>\\n' + reasoning_content.strip('\\n') + "
        "'\\n</think>\\n\\n' + content.lstrip('\\n') %}",
    )
    # Jinja scopes end with their block: the choice of text is made again where it is written.
    choice = (
        "{%- generation %}{%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and "
        "reasoning_content)) %}{{- '<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + "
        "content.lstrip('\\n') }}{%- else %}{{- content }}{%- endif %}{%- if message.tool_calls %}"
    )
    body, rest = opened.split("{%- if message.tool_calls %}", 1)
    calls, tail = rest.split("{{- '<|im_end|>\\n' }}", 1)
    marked = body + choice + calls + "{{- '<|im_end|>' }}{%- endgeneration %}{{- '\\n' }}" + tail
    messages, tools = SHAPES[shape], tools_of(shape)
    theirs = hf_qwen3.apply_chat_template(
        messages, tools=tools, chat_template=marked, return_dict=True, return_assistant_tokens_mask=True
    )
    renderer = ChatRenderer(qwen3, ChatOptions(count_empty_thinking=True))
    ids, spans = renderer.render(messages, tools)
    assert ids.tolist() == theirs["input_ids"]
    assert mask_of(ids, spans) == theirs["assistant_masks"]
