"""Where a chat template comes from: the tokenizer's own, a built-in by name, or a file.

Built-ins are Jinja files beside this module and take `bos_token` and `eos_token` from the tokenizer. The variables a
template sees are those Hugging Face gives it: the named special tokens of tokenizer_config.json. Reads two or three
small files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from mmdata.errors import ChatTemplateError
from mmdata.tokenizers.base import Tokenizer

BUILT_IN = {
    "chatml": "chatml",
    "qwen": "chatml",
    "llama2": "llama2",
    "llama3": "llama3",
    "mistral": "mistral",
    "deepseek": "deepseek",
    "gemma": "gemma",
    "alpaca": "alpaca",
    "plain": "plain",
}
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_USUAL_BOS = ("<s>", "<|begin_of_text|>", "<bos>", "<｜begin▁of▁sentence｜>")


@dataclass(frozen=True)
class ChatTemplate:
    """Jinja source and the variables it is rendered with.

    name: what the user is told (a built-in's name, or a file). tool_source: used instead for records with tools, where
    a tokenizer has two templates.
    """

    name: str
    source: str
    tool_source: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def reads_reasoning(self) -> bool:
        """Whether the template writes `reasoning_content` (or `thinking`) itself."""
        return re.search(r"\breasoning_content\b|\bmessage\.thinking\b|\[['\"]thinking['\"]\]", self.source) is not None

    @property
    def splits_thinking(self) -> bool:
        """Whether the template takes `<think>` blocks out of the content itself."""
        return "</think>" in self.source


def load_template(spec: str, tokenizer: Tokenizer) -> ChatTemplate:
    """The template named by `spec`: `auto` (the tokenizer's own), a built-in's name, or a file.

    Raises ChatTemplateError when there is none, naming what was looked for.
    """
    variables = template_variables(tokenizer)
    if spec == "auto":
        return _own(tokenizer, variables)
    if spec in BUILT_IN:
        source = files("mmdata.chat").joinpath("templates", f"{BUILT_IN[spec]}.jinja").read_text(encoding="utf-8")
        return ChatTemplate(spec, source, None, variables)
    path = Path(spec)
    if not path.is_file():
        near = get_close_matches(spec, BUILT_IN, n=1)
        hint = f"; did you mean {near[0]!r}" if near else ""
        raise ChatTemplateError(f"--chat-template {spec}: no such file and no built-in{hint}; {_choices()}")
    text = _read(path)
    if path.suffix == ".json":
        return _from_value(_json_template(path, text), str(path), variables)
    return ChatTemplate(str(path), text, None, variables)


def template_variables(tokenizer: Tokenizer) -> dict[str, str]:
    """Named special tokens as Hugging Face gives them to templates; without a tokenizer_config.json, the usual ones."""
    variables = {}
    for name in _NAMED:
        value = tokenizer.config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            variables[name] = value
    if not tokenizer.config:
        known = {token.content for token in tokenizer.special_tokens}
        bos = next((token for token in _USUAL_BOS if token in known), None)
        if bos is not None:
            variables["bos_token"] = bos
        if tokenizer.eod is not None:
            variables["eos_token"] = tokenizer.eod.token
    return variables


def _own(tokenizer: Tokenizer, variables: Mapping[str, str]) -> ChatTemplate:
    folder = tokenizer.source.parent
    jinja, other = folder / "chat_template.jinja", folder / "chat_template.json"
    if jinja.is_file():
        return ChatTemplate(jinja.name, _read(jinja), None, variables)
    if tokenizer.config.get("chat_template"):
        return _from_value(tokenizer.config["chat_template"], "tokenizer_config.json", variables)
    if other.is_file():
        return _from_value(_json_template(other, _read(other)), other.name, variables)
    raise ChatTemplateError(
        f"{folder}: the tokenizer brings no chat template (looked for chat_template.jinja, `chat_template` in "
        f"tokenizer_config.json, chat_template.json); give --chat-template NAME or FILE; {_choices()}"
    )


def _from_value(value: Any, name: str, variables: Mapping[str, str]) -> ChatTemplate:
    """A template string, or several by name (`default`, `tool_use`)."""
    if isinstance(value, str):
        return ChatTemplate(name, value, None, variables)
    named = value
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
    if not isinstance(named, dict) or not isinstance(named.get("default"), str):
        raise ChatTemplateError(f"{name}: `chat_template` is neither a text nor a set of texts with a `default`")
    tool = named.get("tool_use")
    return ChatTemplate(name, named["default"], tool if isinstance(tool, str) else None, variables)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ChatTemplateError(f"{path}: byte {error.start} is not UTF-8; a chat template is a UTF-8 text") from None
    except OSError as error:
        raise ChatTemplateError(f"{path}: {error.strerror}") from None


def _json_template(path: Path, text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ChatTemplateError(f"{path}: not JSON: {error}") from None
    return value.get("chat_template") if isinstance(value, dict) else value


def _choices() -> str:
    return f"built-ins: {', '.join(BUILT_IN)}"
