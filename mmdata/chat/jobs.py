"""From documents to what is to be encoded: the program of each conversation and the texts it asks for.

Conversations of nothing but texts are grouped by their roles and replayed a column at a time, about a microsecond for
a question and its answer; all others take the general way one by one, about ten. Results depend on each document alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import jinja2

from mmdata.chat.assemble import Jobs
from mmdata.chat.conversation import SIMPLE, collapsed, contents, conversation_of
from mmdata.chat.program import Program
from mmdata.chat.templates import ChatTemplate
from mmdata.chat.thinking import Thinking, prepare
from mmdata.chat.tracing import Programs
from mmdata.document import Document, Drop
from mmdata.errors import ChatRecordError, ChatTemplateError

_Job = tuple[Program, Sequence[Any], Sequence[str]]
_role, _text = attrgetter("role"), attrgetter("text")
_LEARNT = 3  # conversations after which `Programs` has made and checked a program


class JobMaker:
    """Finds programs for the documents of a batch. plain: the program of documents that are no conversations."""

    def __init__(self, programs: Programs, template: ChatTemplate, thinking: Thinking, plain: Program) -> None:
        self._programs, self._template, self._thinking, self._plain = programs, template, thinking, plain

    def jobs(self, documents: Sequence[Document], drops: dict[int, Drop], kinds: dict[str, int]) -> Jobs:
        """What is to be encoded, in the documents' order.

        Adds to `drops` the documents that cannot be rendered, and to `kinds` how many are plain or reason with text,
        with an empty block or not at all (with, empty, without).
        """
        made: list[_Job | None] = [None] * len(documents)
        groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
        others: list[int] = []
        for number, document in enumerate(documents):
            chat = document.meta.get("chat")
            if chat is None:
                kinds["plain"] += 1
                texts = [document.text]
                made[number] = self._plain, texts, texts
            elif chat is SIMPLE or chat == SIMPLE:
                groups[tuple(map(_role, document.parts))].append(number)
            else:
                others.append(number)

        def one_by_one(numbers: list[int]) -> None:
            for number in numbers:
                job = self._job(documents[number])
                if isinstance(job, Drop):
                    drops[number] = job
                else:
                    made[number] = job[0], job[1], job[0].texts(job[1])
                    kinds[job[2]] += 1

        for roles, numbers in groups.items():
            if not self._programs.knows(tuple(collapsed(roles))):
                one_by_one(numbers[:_LEARNT])
                numbers = numbers[_LEARNT:]
            others += self._together(documents, roles, numbers, made, kinds)
        one_by_one(sorted(others))
        owners = [number for number, job in enumerate(made) if job is not None]
        return (
            Jobs(owners, *map(list, zip(*[job for job in made if job is not None], strict=True))) if owners else Jobs()
        )

    def _together(
        self,
        documents: Sequence[Document],
        roles: tuple[str, ...],
        numbers: list[int],
        made: list[_Job | None],
        kinds: dict[str, int],
    ) -> list[int]:
        """Fill in `made` for documents of one group, whose parts have `roles`; the numbers of those left over."""
        left = set(numbers)
        rows = [list(map(_text, documents[number].parts)) for number in numbers]
        speakers = tuple(collapsed(roles))
        if speakers != roles:
            rows = [contents(roles, texts) for texts in rows]
        for program, places, columns in self._programs.find_simple(speakers, rows):
            mine = [numbers[place] for place in places]
            rest = zip(zip(*columns, strict=True), program.text_rows(columns), strict=True)
            for number, (values, texts) in zip(mine, rest, strict=True):
                made[number] = program, values, texts
            kinds["empty" if program.empty_blocks else "without"] += len(mine)
            left.difference_update(mine)
        return list(left)

    def _job(self, document: Document) -> tuple[Program, list[Any], str] | Drop:
        """The general way: program, values and kind of reasoning of a conversation."""
        try:
            messages, tools = conversation_of(document)
            bare = [i for i, m in enumerate(messages) if not m["content"] and not m.get("tool_calls")]
            if bare and messages[bare[0]]["role"] != "tool":
                return drop_of(document, "empty-message", bare[0])
            messages, kind = prepare(messages, self._thinking, self._template)
            program, values = self._programs.find(messages, tools)
        except jinja2.TemplateError as error:
            return drop_of(document, "template-refused", str(error)[:200])
        except ChatTemplateError as error:
            return drop_of(document, "template-unclear", str(error)[:200])
        except ChatRecordError as error:
            return drop_of(document, "tool-call-broken", str(error)[:200])
        return program, values, "empty" if kind == "without" and program.empty_blocks else kind


def drop_of(document: Document, reason: str, value: int | str, limit: int | None = None) -> Drop:
    """A drop of the encoding stage. value, limit: what was met and what is allowed, where there is such a thing."""
    return Drop(document.path, document.input_number, document.line, document.id, "encode", reason, value, limit)
