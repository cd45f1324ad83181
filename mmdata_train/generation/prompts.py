"""Prompts as token ids: plain text with the tokenizer's own beginning, or a conversation in its chat template.

A conversation is rendered by the very code that rendered the training data, with a stand-in for the answer, and cut
where the answer begins: the model sees what it saw in training. Control tokens spelled out in a message stay text.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mmdata.chat.render import ChatOptions, ChatRenderer
from mmdata.errors import ChatRecordError, TokenizerTextError
from mmdata_train.errors import GenerationError
from mmdata_train.generation.items import Item
from mmdata_train.generation.model import LoadedModel
from mmdata_train.generation.sources import declared_ids

Begin = Literal["auto", "always", "never"]
_STAND_IN = "x"


@dataclass(frozen=True, slots=True)
class Prompt:
    """ids to continue, and the ids that end the answer beside the model's own."""

    ids: tuple[int, ...]
    stop_ids: tuple[int, ...] = ()


@contextmanager
def named_by(item: Item) -> Iterator[None]:
    """What goes wrong with an item's conversation or text, as a GenerationError that names its file and line."""
    try:
        yield
    except (GenerationError, ChatRecordError, TokenizerTextError) as error:
        raise GenerationError(f"{item.place}: {error}") from None


def text_prompt(model: LoadedModel, text: str, begin: Begin = "auto") -> Prompt:
    """A text to go on with. begin: `auto` puts before it what Hugging Face's tokenizer would; `always` the model's
    begin token; an empty text has one save with `never`. Raises GenerationError where `always` finds none, and for an
    empty text with `never`.
    """
    ids = tuple(model.tokenizer.encode_batch([text]).tokens.tolist()) if text else ()
    if begin == "never":
        if not ids:
            raise GenerationError(
                "an empty prompt without a begin token leaves no token to start from; give a prompt, or leave out"
                " --bos never"
            )
        return Prompt(ids)
    if not ids:
        return Prompt(model.alone())
    if begin == "always" and not model.begin:
        declared = declared_ids(model.source, "bos_token_id")
        if not declared:
            raise GenerationError(f"{model.source.path} declares no bos_token_id, so nothing can begin the prompt")
        return Prompt((declared[0], *ids))
    return Prompt((*model.begin, *ids))


def _renderer(model: LoadedModel, options: ChatOptions) -> ChatRenderer:
    trained = model.source.templates
    if model.chat_template is not None or not trained:
        return ChatRenderer(model.tokenizer, replace(options, template=model.chat_template or "auto"))
    if len(trained) > 1:
        raise GenerationError(
            f"{model.source.path} was trained with {len(trained)} chat templates; name the one to use with"
            " --chat-template"
        )
    # Templates are read from files; this one is known by its text.
    with tempfile.TemporaryDirectory(prefix="template-") as folder:
        file = Path(folder) / "template-of-training.jinja"
        file.write_text(trained[0], encoding="utf-8")
        return ChatRenderer(model.tokenizer, replace(options, template=str(file)))


class ChatPrompter:
    """Renders conversations of one model. thinking: False gives reasoning models an empty thinking block.

    Raises ChatTemplateError where there is no template.
    """

    def __init__(self, model: LoadedModel, *, thinking: bool = True) -> None:
        self._model = model
        # A thinking block that counts belongs to the answer, so the prompt ends before it.
        self._renderer = _renderer(model, ChatOptions(train_on="last", count_empty_thinking=thinking))

    def prompt(self, messages: Sequence[dict[str, Any]], tools: list[Any] | None = None) -> Prompt:
        """What stands before the assistant's next message. Raises GenerationError, ChatRecordError."""
        if not messages or messages[-1]["role"] == "assistant":
            raise GenerationError("a conversation to be answered ends with a message of the user or of a tool")
        whole = [*messages, {"role": "assistant", "content": _STAND_IN}]
        tokens, spans = self._renderer.render(whole, tools)
        if not len(spans):
            raise GenerationError(
                f"the template {self._renderer.template.name} writes no answer behind this conversation"
            )
        start, stop = (int(value) for value in spans[-1])
        last = int(tokens[stop - 1])
        ends = (last,) if last in self._model.hidden_ids and stop - start > 1 else ()
        return Prompt(tuple(tokens[:start].tolist()), ends)
