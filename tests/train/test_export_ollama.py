"""The Go template of a Modelfile writes what the Jinja template of training writes, or is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from mmdata.chat.sandbox import ChatEnvironment
from mmdata_train.errors import ExportError
from mmdata_train.export.ollama import find_turn_texts, go_template, modelfile, stop_strings

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
CONVERSATIONS = [
    "user: What is a tort?",
    "system: You are terse.|user: What is a tort?",
    'user: 什么是侵权？|assistant: A wrong.|user: "Quote" {{ braces }} and\nlines',
    "system: 你是律师。|user: one|assistant: two|user: three|assistant: four|user: five",
]


def messages(text: str) -> list[dict[str, str]]:
    return [dict(zip(("role", "content"), turn.split(": ", 1), strict=True)) for turn in text.split("|")]


def built_in(name: str) -> str:
    return files("mmdata.chat").joinpath("templates", f"{name}.jinja").read_text(encoding="utf-8")


def jinja(source: str, turns: list[dict[str, str]]) -> str:
    return str(ChatEnvironment().from_string(source).render(messages=turns, add_generation_prompt=True, **VARIABLES))


def go(source: str, turns: list[dict[str, str]]) -> str:
    """Runs the part of Go's text/template that a Modelfile of ours uses (https://pkg.go.dev/text/template)."""
    pieces = re.split(r"(\{\{.*?\}\})", re.sub(r"\s*\{\{- ", "{{ ", re.sub(r" -\}\}\s*", " }}", source)))
    tree, rest = parse([piece for piece in pieces if piece])
    assert not rest
    system = "\n".join(turn["content"] for turn in turns if turn["role"] == "system")
    return "".join(run(tree, {"System": system, "Messages": turns}))


Tree = list[Any]


def parse(pieces: list[str]) -> tuple[Tree, list[str]]:
    """A list of texts, actions, and (kind, branches) for `if` and `range`; stops at `else` and `end`."""
    tree: Tree = []
    while pieces:
        action = pieces[0][2:-2].strip() if pieces[0].startswith("{{") else None
        if action is not None and (action == "end" or action.startswith("else")):
            return tree, pieces
        pieces = pieces[1:]
        if action is None or not action.startswith(("if ", "range ")):
            assert action is not None, "texts are quoted, so nothing stands between actions"
            tree.append(("do", action))
            continue
        branches = []
        while True:
            body, pieces = parse(pieces)
            branches.append((action, body))
            action, pieces = pieces[0][2:-2].strip(), pieces[1:]
            if action == "end":
                break
            action = action.removeprefix("else").strip() or "if true"
        tree.append(("branch", branches))
    return tree, pieces


def run(tree: Tree, scope: dict[str, Any]) -> Iterator[str]:
    for kind, value in tree:
        if kind == "do":
            yield from act(value, scope)
            continue
        for action, body in value:
            word, _, condition = action.partition(" ")
            if word == "range":
                assert condition == "$i, $_ := .Messages"
                for index, message in enumerate(scope["Messages"]):
                    inner = {**scope, "i": index, "Role": message["role"], "Content": message["content"]}
                    yield from run(body, inner)
            elif holds(condition, scope):
                yield from run(body, scope)
                break


def act(action: str, scope: dict[str, Any]) -> Iterator[str]:
    if action.startswith('"'):
        yield json.loads(action)
    elif action.startswith("$last := "):
        assert action == "$last := eq (len (slice $.Messages $i)) 1"
        scope["last"] = len(scope["Messages"]) - scope["i"] == 1
    else:
        assert action.startswith("."), action
        yield scope[action[1:]]


def holds(condition: str, scope: dict[str, Any]) -> bool:
    if condition in ("true", ".System"):
        return condition == "true" or bool(scope["System"])
    if condition in ("$last", "not $last"):
        return bool(scope["last"]) == (condition == "$last")
    match = re.fullmatch(r'eq \.Role "(\w+)"', condition)
    assert match is not None, condition
    return bool(scope["Role"] == match[1])


@pytest.mark.parametrize("name", ["chatml", "llama2", "llama3", "deepseek"])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_go_template_writes_the_prompt_of_training(name: str, conversation: str) -> None:
    source = built_in(name)
    found = go_template(find_turn_texts(source, VARIABLES).without("<s>"))
    assert go(found, messages(conversation)) == jinja(source, messages(conversation)).removeprefix("<s>")


def test_qwen3_s_own_template_is_written(shared: Path) -> None:
    source = json.loads((shared / "tokenizers/qwen3/tokenizer_config.json").read_text(encoding="utf-8"))
    texts = find_turn_texts(source["chat_template"], {})
    for conversation in CONVERSATIONS:
        turns = messages(conversation)
        assert go(go_template(texts), turns) == jinja(source["chat_template"], turns)


def test_template_with_a_default_system_message_keeps_it() -> None:
    source = (
        "{% if messages[0].role != 'system' %}{{ '[Be kind.]' }}{% endif %}{% for m in messages %}"
        "{{ '[' + m.role + ':' + m.content + ']' }}{% endfor %}{{ '[assistant:' }}"
    )
    found = go_template(find_turn_texts(source, {}))
    for conversation in CONVERSATIONS[:2]:
        assert go(found, messages(conversation)) == jinja(source, messages(conversation))


def test_template_without_system_messages_is_written_without() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.role + '>' + m.content + '\n' }}{% endfor %}{{ 'assistant>' }}"
    )
    found = go_template(find_turn_texts(source, {}))
    assert ".System" not in found
    assert go(found, messages(CONVERSATIONS[2])) == jinja(source, messages(CONVERSATIONS[2]))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "moves the system message"),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "does not write messages one after another"),
        ("{% for m in messages %}", "does not compile"),
        ("{% for m in messages %}{{ loop.index ~ m.content }}{% endfor %}", "depends on more than their roles"),
    ],
)
def test_template_that_is_not_turn_by_turn_is_refused(source: str | None, message: str) -> None:
    # Mistral's writes the system message before the last question.
    with pytest.raises(ExportError, match=message):
        find_turn_texts(built_in("mistral") if source is None else source, VARIABLES)


def test_modelfile_quotes_what_ollama_reads() -> None:
    texts = find_turn_texts(built_in("chatml"), {})
    text = modelfile("FROM .", texts, ["<|im_end|>", 'say "stop" now', "\n###"])
    assert text.startswith('FROM .\nTEMPLATE """{{- if .System -}}\n')
    assert text.count('"""') == 6
    assert 'PARAMETER stop "<|im_end|>"\nPARAMETER stop """say "stop" now"""\n' in text
    assert 'PARAMETER stop """\n###"""\n' in text


def test_template_without_end_token_stops_before_the_next_turn() -> None:
    source = (
        "{% for m in messages %}{{ '### ' + m.role + ':\n' + m.content + '\n' }}{% endfor %}{{ '### assistant:\n' }}"
    )
    assert stop_strings([], find_turn_texts(source, {})) == ["### user:"]
    assert stop_strings(["<|im_end|>", "<|im_end|>"], find_turn_texts(source, {})) == ["<|im_end|>"]
