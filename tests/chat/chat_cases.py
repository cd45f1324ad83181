"""Conversations, templates with `{% generation %}` added by hand, and what the loss is to count for each."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

SPECIALS = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "[INST]",
    "[/INST]",
)
ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
TEMPLATES = ("chatml", "llama2", "llama3", "mistral", "deepseek", "gemma", "alpaca", "plain")

CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "北京", "days": 2}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


SHAPES: dict[str, list[dict[str, Any]]] = {
    "one question": [user("Hello?"), answer("Hi there.")],
    "three questions": [user("A?"), answer("a"), user("B\n?"), answer("b"), user("C"), answer("c c")],
    "system message": [
        {"role": "system", "content": "Be short. 简短。"},
        user("你好"),
        answer("你好！"),
        user("再见"),
        answer("再见。"),
    ],
    "question left open": [user("One?"), answer("two"), user("And now?")],
    "same text everywhere": [user("yes"), answer("yes"), user("yes"), answer("yes")],
    "markup and combining marks": [
        user("e\u0301\n\n\n```py\nx<|y\n```"),
        answer("### Response:\n[x] e\u0301 \u2028 ok"),
        user("  spaced  "),
        answer("Ａ é\n\nfin"),
    ],
    "tool calls": [
        user("Weather?"),
        answer("", tool_calls=[CALL]),
        {"role": "tool", "content": '{"t": 3}'},
        answer("3 degrees."),
    ],
}
TOOL_TEMPLATES = ("chatml", "llama3", "mistral")

# What ends an answer and counts with it.
ENDS = {
    "chatml": "<|im_end|>",
    "llama2": " </s>",
    "llama3": "<|eot_id|>",
    "mistral": "</s>",
    "deepseek": "</s>",
    "gemma": "<end_of_turn>",
    "alpaca": "</s>",
    "plain": "</s>",
}
STARTS = {"llama2": " ", "mistral": " "}
CALLS = {
    "chatml": '<tool_call>\n{"name": "weather", "arguments": {"city": "北京", "days": 2}}\n</tool_call><|im_end|>',
    "llama3": '{"name": "weather", "parameters": {"city": "北京", "days": 2}}<|eot_id|>',
    "mistral": '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "北京", "days": 2}}]</s>',
}


def counted(template: str, shape: str) -> list[str]:
    """The texts of the counted ranges, written out by hand above and joined here."""
    texts = []
    for message in SHAPES[shape]:
        if message["role"] != "assistant":
            continue
        if message.get("tool_calls"):
            texts.append(CALLS[template])
        else:
            texts.append(STARTS.get(template, "") + message["content"] + ENDS[template])
    return texts


def source(template: str) -> str:
    return files("mmdata.chat").joinpath("templates", f"{template}.jinja").read_text(encoding="utf-8")


_OPEN, _CLOSE = "{%- generation %}", "{%- endgeneration %}"
# (old, new) edits that add {% generation %} to each built-in without changing what it renders.
MARKED: dict[str, list[tuple[str, str]]] = {
    "chatml": [
        (
            "        {{- '<|im_start|>' + message.role + '\\n' + message.content }}\n"
            "        {%- if message.tool_calls %}{{ calls(message) }}{% endif %}\n"
            "        {{- '<|im_end|>\\n' }}\n",
            "        {{- '<|im_start|>' + message.role + '\\n' }}\n"
            "        {%- if message.role == 'assistant' %}{% generation %}{{ message.content }}"
            "{% if message.tool_calls %}{{ calls(message) }}{% endif %}{{ '<|im_end|>' }}{% endgeneration %}"
            "{% else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}\n",
        )
    ],
    "llama2": [
        (
            "{{- ' ' + message.content.strip() + ' ' + eos_token }}",
            _OPEN + "{{- ' ' + message.content.strip() + ' ' + eos_token }}" + _CLOSE,
        )
    ],
    "llama3": [
        (
            "        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' + message.content }}\n",
            "        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}" + _OPEN + "{{ message.content }}\n",
        ),
        ("        {{- '}<|eot_id|>' }}\n", "        {{- '}<|eot_id|>' }}" + _CLOSE + "\n"),
        (
            "        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim"
            " + '<|eot_id|>' }}\n",
            "        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}\n"
            "        {%- if message.role == 'assistant' %}{% generation %}{{ message.content | trim + '<|eot_id|>' }}"
            "{% endgeneration %}{% else %}{{ message.content | trim + '<|eot_id|>' }}{% endif %}\n",
        ),
    ],
    "mistral": [
        (
            "        {%- if message.content %}{{ ' ' + message.content | trim }}{% endif %}\n",
            "        {%- generation %}{% if message.content %}{{ ' ' + message.content | trim }}{% endif %}\n",
        ),
        ("        {{- ']' + eos_token }}\n", "        {{- ']' + eos_token }}" + _CLOSE + "\n"),
        (
            "        {{- ' ' + message.content | trim + eos_token }}",
            _OPEN + "{{- ' ' + message.content | trim + eos_token }}" + _CLOSE,
        ),
    ],
    "deepseek": [
        (
            "{{- '<｜Assistant｜>' + content + eos_token }}",
            "{{- '<｜Assistant｜>' }}" + _OPEN + "{{ content + eos_token }}" + _CLOSE,
        )
    ],
    "gemma": [
        (
            "    {{- message.content | trim + '<end_of_turn>\\n' }}",
            "    {%- if message.role == 'assistant' %}{% generation %}{{ message.content | trim + '<end_of_turn>' }}"
            "{% endgeneration %}{% else %}{{ message.content | trim + '<end_of_turn>' }}{% endif %}{{ '\\n' }}",
        )
    ],
    "alpaca": [
        (
            "        {{- message.content + eos_token + '\\n\\n' }}",
            _OPEN + "{{- message.content + eos_token }}" + _CLOSE + "{{ '\\n\\n' }}",
        )
    ],
    "plain": [
        (
            "    {{- message.content + (eos_token if message.role == 'assistant' else '') + '\\n' }}",
            "    {%- if message.role == 'assistant' %}{% generation %}{{ message.content + eos_token }}"
            "{% endgeneration %}{% else %}{{ message.content }}{% endif %}{{ '\\n' }}",
        )
    ],
}


def marked_source(template: str) -> str:
    """The built-in with `{% generation %}` around what an answer is."""
    text = source(template)
    for old, new in MARKED[template]:
        assert old in text, (template, old)
        text = text.replace(old, new)
    return text
