"""A Modelfile for Ollama: the same template and the same stop strings as training.

Ollama's templates are Go's (https://pkg.go.dev/text/template) over `.System` and `.Messages`. The Jinja template is
probed, not translated: where the text between two messages depends on their roles alone, which holds for ChatML, Llama
2 and 3, Qwen, DeepSeek and their likes, those texts make the Go template, and further conversations of up to seven
messages are rendered both ways and compared. Any other template is refused. Not covered: tools, thinking blocks kept
in history, images.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from mmdata.chat.sandbox import ChatEnvironment
from mmdata.chat.templates import template_variables
from mmdata.errors import ChatError
from mmdata_train.errors import ExportError

Messages = Sequence[Mapping[str, str]]
MODELFILE = "Modelfile"
_ROLES = {"s": "system", "u": "user", "a": "assistant"}
_PROBES = ("u", "su", "uau", "suau", "uauau", "suauau", "uauauau", "suauauau")


@dataclass(frozen=True, slots=True)
class TurnTexts:
    """What a template writes around messages. first: before the first user message without a system message.

    before_system, after_system: around that one. user_assistant, assistant_user: between two messages. answer: after
    the last user message, where the model goes on.
    """

    first: str
    before_system: str | None
    after_system: str | None
    user_assistant: str
    assistant_user: str
    answer: str

    def prompt(self, messages: Messages) -> str:
        """The prompt by these texts alone: what the Go template gives."""
        pieces, rest = [self.first], list(messages)
        if rest[0]["role"] == "system":
            assert self.before_system is not None and self.after_system is not None
            pieces = [self.before_system, rest.pop(0)["content"], self.after_system]
        for index, message in enumerate(rest):
            last = index == len(rest) - 1
            after = {"user": self.answer if last else self.user_assistant, "assistant": self.assistant_user}
            pieces += [message["content"], after[message["role"]]]
        return "".join(pieces)

    def without(self, bos: str) -> TurnTexts:
        """The same without the beginning-of-text token, which Ollama adds itself."""
        system = self.before_system
        return TurnTexts(
            self.first.removeprefix(bos), None if system is None else system.removeprefix(bos), self.after_system,
            self.user_assistant, self.assistant_user, self.answer,
        )  # fmt: skip


def variables_of(tokenizer: Any) -> dict[str, str]:
    """Named special tokens as templates see them; none without a tokenizer."""
    return {} if tokenizer is None else template_variables(tokenizer)


def probe_messages(shape: str) -> list[dict[str, str]]:
    """A conversation such as `suau` with contents that stand nowhere else."""
    return [{"role": _ROLES[role], "content": f"Probe{index}{role}text"} for index, role in enumerate(shape)]


def _render(template: Any, messages: Messages, variables: Mapping[str, str]) -> str | None:
    """The prompt by Jinja, None where the template refuses such a conversation."""
    try:
        return str(template.render(messages=list(messages), add_generation_prompt=True, **variables))
    except (TemplateError, ChatError, TypeError, AttributeError, IndexError):
        return None


def find_turn_texts(source: str, variables: Mapping[str, str]) -> TurnTexts:
    """What the Jinja template writes around messages. Raises ExportError where that depends on more than roles."""
    try:
        template = ChatEnvironment().from_string(source)
    except TemplateError as error:
        raise ExportError(f"--serve ollama: the chat template does not compile: {error}") from None
    rendered = {shape: _render(template, probe_messages(shape), variables) for shape in _PROBES}
    one, three, system = (_cut(rendered[shape], shape) for shape in ("u", "uau", "suau"))
    moved = None not in (one, three) and system is None and rendered["suau"] is not None
    if one is None or three is None or moved:
        what = "moves the system message" if moved else "does not write messages one after another as they are"
        raise ExportError(f"--serve ollama: the chat template {what}; write the Modelfile by hand")
    texts = TurnTexts(
        first=three[0],
        before_system=None if system is None else system[0],
        after_system=None if system is None else system[1],
        user_assistant=three[1],
        assistant_user=three[2],
        answer=three[3],
    )
    for shape, found in rendered.items():
        if shape.startswith("s") and system is None:
            continue
        if found != texts.prompt(probe_messages(shape)):
            raise ExportError(
                f"--serve ollama: what the chat template writes between two messages depends on more than their roles"
                f" (a conversation of {', '.join(_ROLES[role] for role in shape)} differs); write the Modelfile by hand"
            )
    return texts


def _cut(prompt: str | None, shape: str) -> list[str] | None:
    """The texts around the contents, in order; None where a content is missing or moved."""
    if prompt is None:
        return None
    pieces, rest = [], prompt
    for message in probe_messages(shape):
        before, found, rest = rest.partition(message["content"])
        if not found:
            return None
        pieces.append(before)
    return [*pieces, rest]


def go_template(texts: TurnTexts) -> str:
    """The Go template; texts are quoted, so its own line breaks and indentation write nothing."""
    lines = []
    if texts.before_system is None or texts.after_system is None:
        lines.append(_write(texts.first))
    else:
        after = f"{{{{- .System -}}}}{_write(texts.after_system)}"
        lines += ["{{- if .System -}}", f"{_write(texts.before_system)}{after}"]
        lines += ["{{- else -}}", _write(texts.first)] if texts.first else []
        lines.append("{{- end -}}")
    lines += [
        "{{- range $i, $_ := .Messages -}}",
        "{{- $last := eq (len (slice $.Messages $i)) 1 -}}",
        '{{- if eq .Role "user" -}}',
        "{{- .Content -}}",
        f"{{{{- if $last -}}}}{_write(texts.answer)}{{{{- else -}}}}{_write(texts.user_assistant)}{{{{- end -}}}}",
        '{{- else if eq .Role "assistant" -}}',
        "{{- .Content -}}",
        f"{{{{- if not $last -}}}}{_write(texts.assistant_user)}{{{{- end -}}}}",
        "{{- end -}}",
        "{{- end -}}",
    ]
    return "\n".join(line for line in lines if line)


def _write(text: str) -> str:
    """An action that writes the text. JSON's escapes are among Go's, save the slash, which is not escaped here."""
    return f"{{{{- {json.dumps(text, ensure_ascii=False)} -}}}}" if text else ""


def modelfile(start: str, texts: TurnTexts, stops: Sequence[str]) -> str:
    """The Modelfile. start: its FROM (and ADAPTER) lines. stops: strings that end an answer."""
    lines = [start, f'TEMPLATE """{go_template(texts)}"""']
    lines += [f"PARAMETER stop {_quote(stop)}" for stop in stops]
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    """A Modelfile's string, which knows no escapes: three quotes where one would end it."""
    return f'"""{text}"""' if '"' in text or "\n" in text else f'"{text}"'


def stop_strings(end_of_turn: Sequence[str], texts: TurnTexts) -> list[str]:
    """Strings that end an answer: the end-of-turn tokens, or where there is none what stands before the next turn."""
    if end_of_turn:
        return list(dict.fromkeys(end_of_turn))
    text = texts.assistant_user.strip()
    return [text] if text else []
