"""What templates in use do with messages, tools and calls, rendered as transformers renders it, twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chat_cases import SHAPES, TOOLS, answer, user

from mmdata.chat.render import ChatOptions, ChatRenderer
from mmdata.tokenizer import LoadedTokenizer

LOOP = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
IDIOMS = {
    "arguments as tags": (
        "{% for m in messages %}<|im_start|>{{ m.role }}"
        "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
        "{% for k, v in c.function.arguments.items() %}<a {{ k }}>"
        "{{ v if v is string else v | tojson }}</a>{% endfor %}"
        "</tool_call>{% endfor %}{{ m.content }}<|im_end|>{% endfor %}"
    ),
    "arguments by the items filter": (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | items %}"
        "{{ k ~ '=' ~ v ~ ';' }}{% endfor %}{% endfor %}{{ m.content }}<|im_end|>{% endfor %}"
    ),
    "type tests": (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}"
        "{% elif m.content is iterable %}list{% endif %}"
        "{% if m.tool_calls is defined and m.tool_calls is not none and m.tool_calls | length > 0 %}"
        "{{ m.tool_calls[0].function.arguments is mapping }}{% endif %}<|im_end|>{% endfor %}"
    ),
    "strict alternation": (
        "{% set ns = namespace(i=0) %}{% for m in messages %}"
        "{% if m.role in ['user', 'assistant'] and not m.tool_calls %}"
        "{% if (m['role'] == 'user') != (ns.i % 2 == 0) and not tools %}{{ raise_exception('order') }}{% endif %}"
        "{% set ns.i = ns.i + 1 %}{% endif %}{{ m['content'] | trim }}<|im_end|>{% endfor %}"
    ),
    "last user message": (
        "{% set last = messages | selectattr('role', 'equalto', 'user') | list | last %}" + LOOP + "{{ last.content }}"
    ),
    "indented tools": "{% for t in tools or [] %}{{ t | tojson(indent=4) }}\n\n{% endfor %}" + LOOP,
    "tool properties": (
        "{% for t in tools or [] %}{{ t.function.name }}({% for p in t.function.parameters.properties %}{{ p }},"
        "{% endfor %}){{ t.function.description or 'none' }}{% endfor %}" + LOOP
    ),
    "json edited": "{% for t in tools or [] %}{{ t | tojson | replace('\\\"', \"'\") }}{% endfor %}" + LOOP,
    "length and slices": (
        "{% for m in messages %}{% if m.content | length > 3 %}{{ m.content[:3] }}..."
        "{% else %}{{ m.content }}{% endif %}"
        "<|im_end|>{% endfor %}{{ messages | length }}"
    ),
    "neighbours": (
        "{% for m in messages %}{% if loop.previtem is not defined or loop.previtem.role != m.role %}<|im_start|>"
        "{{ m.role }}{% endif %}{{ m.content }}{% if loop.last %}</s>{% endif %}{% endfor %}"
    ),
    "macro with defaults": (
        "{% macro line(role, text='', end='<|im_end|>') %}{{ '<|im_start|>' ~ role ~ '\n' ~ text ~ end }}{% endmacro %}"
        "{% for m in messages %}{{ line(m.role, m.content) }}{% endfor %}"
    ),
    "reasoning split": (
        "{% for m in messages %}{% set c = m.content %}{% if '</think>' in c %}{% set c = (c.split('</think>') | last)."
        "strip() %}{% endif %}<|im_start|>{{ c }}<|im_end|>{% endfor %}"
    ),
    "roles renamed": (
        "{% set names = {'user': 'Human', 'assistant': 'Bot', 'system': 'Sys', 'tool': 'Tool'} %}"
        "{% for m in messages %}{{ names[m.role] }}: {{ m.content }}\n{% endfor %}"
    ),
    "tools text": "{% if tools is not none and tools %}{{ tools | tojson }}{% endif %}" + LOOP,
    "message keys": (
        "{% for m in messages %}{{ m.keys() | list | first }}{{ 'name' in m }}{{ m.get('x', '-') }}"
        "{{ m.content }}{% endfor %}"
    ),
}
TALKS = [
    (SHAPES["three questions"], None),
    (SHAPES["system message"], None),
    (SHAPES["tool calls"], TOOLS),
    ([user("a b"), answer("<think>\nt\n</think>\n\nlong answer")], None),
    ([user("?"), answer("")], None),
    (
        SHAPES["tool calls"],
        [
            {
                "type": "function",
                "function": {"name": "z", "description": 'd "q"', "parameters": {"properties": {"p": 1, "q": {}}}},
            }
        ],
    ),
]


@pytest.mark.peer
@pytest.mark.parametrize("idiom", IDIOMS)
def test_idioms_render_as_in_transformers(idiom: str, tokenizer: LoadedTokenizer, hf: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text(IDIOMS[idiom], encoding="utf-8")
    renderer = ChatRenderer(tokenizer, ChatOptions(template=str(path), train_on="all"))
    for _ in range(2):  # the second time from what was learnt
        for messages, tools in TALKS:
            theirs = hf.apply_chat_template(messages, tools=tools, chat_template=IDIOMS[idiom], return_dict=False)
            assert renderer.render(messages, tools)[0].tolist() == theirs
