"""Where the two sides' answers come from: a file of answers, or a model that is asked. torch only for models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmdata_train.evaluate.given import match_answers
from mmdata_train.evaluate.suite import SetEntry
from mmdata_train.generation.items import Item, Keys

_FILES = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asking:
    """How models are asked. chat: in their template (None: where they have one). options: of generation."""

    chat: bool | None = None
    system: str | None = None
    chat_template: str | None = None
    precision: Any = None
    options: dict[str, Any]


def is_file_of_answers(side: str) -> bool:
    """Whether a side is JSON lines and no model."""
    return side.endswith(_FILES)


def answers_of(side: str, items: Sequence[Item], limit: int | None, asking: Asking) -> list[str]:
    """The answers of one side to the first `limit` items. Raises EvaluationError, and what opening a model raises.

    side: JSON lines with `id` and `prediction`, or a model, as PATH or PATH+ADAPTER.
    """
    if is_file_of_answers(side):
        return match_answers(items, side, Keys(), limit)
    return _ask(side, items[:limit], asking)


def _ask(side: str, items: Sequence[Item], asking: Asking) -> list[str]:
    from mmdata_train.evaluate.opened import open_entry
    from mmdata_train.evaluate.suite import ModelEntry, Ranks
    from mmdata_train.evaluate.tasks import prompts_of
    from mmdata_train.generation.sampling import GenerationOptions
    from mmdata_train.generation.terminal import complete

    path, _, adapter = side.partition("+")
    if not adapter or Path(side).exists():
        path, adapter = side, ""
    model = ModelEntry(
        model=path, adapter=adapter or None, system=asking.system, chat_template=asking.chat_template,
        precision=asking.precision,
    )  # fmt: skip
    opened = open_entry(model, Ranks(), 2048, 8)
    chat = opened.has_template if asking.chat is None else asking.chat
    entry = SetEntry(kind="answers", path="", chat=chat, max_new_tokens=asking.options["max_new_tokens"])
    prompts = [one.prompt for one in prompts_of(opened, model, entry, items, chat)]
    options, names = GenerationOptions(**asking.options), [item.place for item in items]
    return [one.text for one in complete(opened.model, prompts, options, names=names)]
