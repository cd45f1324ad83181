"""Conversations to token ids and counted ranges, in batches.

Ids equal what transformers' `apply_chat_template` gives, except that control tokens spelled out inside a message stay
plain text. All texts of a batch are encoded in one call and put between the fixed ids with numpy; per record Python
only replays a program (about 1 microsecond a message). Not covered: images, audio, and a template that reads the clock
(give `date`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal

import jinja2
import numpy as np

from mmdata.chat.assemble import Jobs, Sequences, assemble
from mmdata.chat.conversation import conversation_of
from mmdata.chat.fit import TOO_LONG, TooLong, exchanges, truncate
from mmdata.chat.jobs import JobMaker, drop_of
from mmdata.chat.program import plain_program
from mmdata.chat.stretches import Indices, StretchEncoder, Tokens
from mmdata.chat.templates import ChatTemplate, load_template
from mmdata.chat.thinking import THINKING, Thinking, prepare
from mmdata.chat.tracing import Programs, TraceOptions
from mmdata.collector import collector_paused
from mmdata.document import Document, Drop
from mmdata.errors import ChatRecordError, ChatTemplateError, UsageError
from mmdata.tokenizers.base import Tokenizer

TrainOn = Literal["assistant", "last", "all"]
TRAIN_ON = ("assistant", "last", "all")

# Texts that are control tokens wherever they are used; [INST] and <<SYS>> are ordinary text by design in Llama 2.
_CONTROL_LIKE = re.compile(r"<\|[^|<>\s]{1,40}\|>|<｜[^｜<>\s]{1,40}｜>|<(?:start|end)_of_turn>|</?s>|<(?:bos|eos)>")


@dataclass(frozen=True)
class ChatOptions:
    """How conversations are rendered; every field changes the bytes.

    template: `auto`, a built-in's name or a file. train_on: which tokens count: those of all answers, of the last one,
    or all. max_length: tokens a sequence may have; too_long: what happens beyond. thinking: see
    `mmdata.chat.thinking`; count_empty_thinking: an empty thinking block counts. date: what `strftime_now` says.
    eod_id: appended to plain text documents, where it counts, and with force_eod to conversations, where it does not.
    """

    template: str = "auto"
    train_on: TrainOn = "assistant"
    max_length: int | None = None
    too_long: TooLong = "error"
    thinking: Thinking = "keep"
    count_empty_thinking: bool = False
    date: str | None = None
    eod_id: int | None = None
    force_eod: bool = False

    def __post_init__(self) -> None:
        for name, value, known in (
            ("--train-on", self.train_on, TRAIN_ON),
            ("--too-long", self.too_long, TOO_LONG),
            ("--thinking", self.thinking, THINKING),
        ):
            if value not in known:
                raise UsageError(f"{name} {value!r}: one of {', '.join(known)}")
        if self.max_length is not None and self.max_length < 2:
            raise UsageError(f"--max-length {self.max_length}: at least 2, since the first token never counts")
        if self.force_eod and self.eod_id is None:
            raise UsageError("an end-of-document token is to be appended but none is given; see --eod-token")


@dataclass(frozen=True)
class RenderedBatch:
    """What became of a list of documents.

    tokens: int32, flat. lengths: int64, tokens of each sequence. spans: int32, flat half-open `[start, end, ...]` of
    the tokens that count as targets, per sequence; token 0 never does. span_lengths: int64, how many numbers of `spans`
    each sequence has (two for each range). kept: int64, for each sequence the position of its document in the list
    (a split document gives several). drops: the others, in input order. counters: see docs/chat.md.
    """

    tokens: Tokens
    lengths: Indices
    spans: Tokens
    span_lengths: Indices
    kept: Indices
    drops: list[Drop]
    counters: dict[str, int] = field(default_factory=dict)


class ChatRenderer:
    """Renders with one tokenizer and one set of options. Not for two threads at once; cheap to build in each worker."""

    def __init__(self, tokenizer: Tokenizer, options: ChatOptions, *, conversations: bool = True) -> None:
        """conversations: False for plain text alone, which needs no template and is rendered as in a mixed batch.

        Raises ChatTemplateError for a template that is missing, broken, or cannot be followed.
        """
        self.options = options
        self.template = load_template(options.template, tokenizer) if conversations else ChatTemplate("none", "")
        self._encoder = StretchEncoder(tokenizer)
        today = None if options.date is None else _day(options.date)
        eod = () if options.eod_id is None else (options.eod_id,)
        tail = eod if options.force_eod else ()
        traced = TraceOptions(options.train_on, options.thinking, options.count_empty_thinking, today, tail)
        self._programs = Programs(self.template, self._encoder, traced)
        self._maker = JobMaker(self._programs, self.template, options.thinking, plain_program(eod))
        self._foreign: dict[str, None] = {}
        if conversations:
            self._probe()

    def render_documents(self, documents: Sequence[Document]) -> RenderedBatch:
        """Render documents made by `mmdata.chat.formats` (plain text documents pass through).

        Reasons of drops: empty-message (cleaning left nothing of one; value: which), template-refused,
        template-unclear, tool-call-broken, no-counted-token, too-long, empty (plain text of no token).
        Raises ChatRecordError for a conversation above max_length where too_long is `error`.
        """
        with collector_paused():  # nothing made here is a cycle
            return self._render_documents(documents)

    def _render_documents(self, documents: Sequence[Document]) -> RenderedBatch:
        counters: dict[str, int] = {}
        drops: dict[int, Drop] = {}
        kinds = {"with": 0, "empty": 0, "without": 0, "plain": 0}
        jobs = self._maker.jobs(documents, drops, kinds)
        plain = kinds.pop("plain")
        counters.update({"conversations": len(documents) - plain, "plain_documents": plain})
        counters.update({f"thinking_{kind}": count for kind, count in kinds.items()})
        sequences = self._assemble(jobs)
        if self.options.max_length is not None:
            sequences = self._fit(sequences, documents, drops, counters)
        sequences = self._judge(sequences, documents, drops, counters)
        counters["sequences"] = len(sequences.lengths)
        counters["tokens"] = int(sequences.lengths.sum())
        counters["counted_tokens"] = int((sequences.spans[1::2] - sequences.spans[0::2]).sum())
        return RenderedBatch(
            sequences.tokens,
            sequences.lengths,
            sequences.spans,
            sequences.span_lengths,
            sequences.owner,
            [drops[number] for number in sorted(drops)],
            counters,
        )

    def render(self, messages: Sequence[dict[str, Any]], tools: list[Any] | None = None) -> tuple[Tokens, Tokens]:
        """Ids of one conversation and its counted ranges, int32 (n,) and int32 (ranges, 2); max_length plays no part.

        Raises ChatRecordError where the template refuses the conversation.
        """
        prepared, _ = prepare(list(messages), self.options.thinking, self.template)
        try:
            program, values = self._programs.find(prepared, tools)
        except jinja2.TemplateError as error:
            raise ChatRecordError(f"{self.template.name}: the template refuses the conversation: {error}") from None
        made = self._assemble(Jobs.of(0, program, values))
        return made.tokens, made.spans.reshape(-1, 2)

    def _assemble(self, jobs: Jobs) -> Sequences:
        made = assemble(self._encoder, jobs)
        if self.options.train_on == "all":
            made = made.count_all(1 if self.options.force_eod else 0)
        return made.without_first()

    def _fit(
        self, made: Sequences, documents: Sequence[Document], drops: dict[int, Drop], counters: dict[str, int]
    ) -> Sequences:
        """Deal with sequences above max_length."""
        limit, policy = self.options.max_length, self.options.too_long
        assert limit is not None
        long = np.flatnonzero(made.lengths > limit)
        if not len(long):
            return made
        if policy == "error":
            first = documents[int(made.owner[long[0]])]
            raise ChatRecordError(
                f"{first.path}:{first.line}: {int(made.lengths[long[0]])} tokens, --max-length is {limit} "
                f"({len(long)} of this batch of {len(made.lengths)} are longer); raise it or choose --too-long "
                f"{', '.join(name for name in TOO_LONG if name != 'error')}"
            )
        _count(counters, "too_long", len(long))
        if policy in ("truncate-left", "truncate-right"):
            _count(counters, policy.replace("-", "_"), len(long))
            return truncate(made, limit, left=policy == "truncate-left")
        replaced: dict[int, Sequences] = {}
        for index in long.tolist():
            number = int(made.owner[index])
            document = documents[number]
            if policy == "split-turns" and "chat" in document.meta:
                pieces = self._split(document, number, limit, counters)
                if len(pieces.lengths):
                    replaced[index] = pieces
                    continue
            drops[number] = drop_of(document, "too-long", int(made.lengths[index]), limit)
        return made.replace(long, replaced)

    def _split(self, document: Document, number: int, limit: int, counters: dict[str, int]) -> Sequences:
        """Conversations of whole exchanges, each with the system message, each within `limit`."""
        messages, tools = conversation_of(document)
        head, turns = exchanges(messages)
        pieces: list[Sequences] = []
        current: list[dict[str, Any]] = []
        best: Sequences | None = None
        for turn in turns:
            longer = self._one(head + current + turn, tools, number)
            if longer is not None and int(longer.lengths[0]) <= limit:
                current, best = current + turn, longer
                continue
            if best is not None:
                pieces.append(best)
            alone = self._one(head + turn, tools, number) if current else longer
            fits = alone is not None and int(alone.lengths[0]) <= limit
            current, best = (turn, alone) if fits else ([], None)
            if not fits:
                _count(counters, "exchanges_too_long")
        if best is not None:
            pieces.append(best)
        counted = [piece for piece in pieces if len(piece.spans)]
        if len(counted) > 1:
            _count(counters, "made_by_splitting", len(counted) - 1)
        return Sequences.concatenate(counted)

    def _one(self, messages: list[dict[str, Any]], tools: list[Any] | None, number: int) -> Sequences | None:
        prepared, _ = prepare(messages, self.options.thinking, self.template)
        try:
            program, values = self._programs.find(prepared, tools)
        except (jinja2.TemplateError, ChatTemplateError):
            return None
        return self._assemble(Jobs.of(number, program, values))

    def _judge(
        self, made: Sequences, documents: Sequence[Document], drops: dict[int, Drop], counters: dict[str, int]
    ) -> Sequences:
        """Drop conversations without a counted token and plain texts without a token."""
        out = []
        for index in np.flatnonzero(made.span_lengths == 0).tolist():
            number, length = int(made.owner[index]), int(made.lengths[index])
            if "chat" in documents[number].meta:
                drops[number] = drop_of(documents[number], "no-counted-token", length)
                out.append(index)
        for index in np.flatnonzero(made.lengths <= (self.options.eod_id is not None)).tolist():
            number = int(made.owner[index])
            if "chat" not in documents[number].meta:
                drops[number] = drop_of(documents[number], "empty", 0)
                out.append(index)
        return made.replace(np.array(sorted(out), np.int64), {}) if out else made

    def _probe(self) -> None:
        """Refuse a template that cannot be followed, or writes no answers, before any data is read."""
        question, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
        for messages in ([question, answer], [question, answer, dict(question), dict(answer)]):
            try:
                program, values = self._programs.find(messages, None)
            except jinja2.TemplateError:
                why = self._programs.explain(messages)
                raise ChatTemplateError(
                    f"{self.template.name}: {why} (the template fails on a plain question and answer)"
                ) from None
            if not (program.edges if self.options.train_on != "all" else program.stretches):
                raise ChatTemplateError(
                    f"{self.template.name}: the template leaves out the answer of a plain question and answer (it "
                    f"writes {program.text(values)[:80]!r}), so there is nothing to train on"
                )
            written = "\n".join(part for part in program.text_parts if isinstance(part, str))
            self._foreign.update(
                dict.fromkeys(name for name in _CONTROL_LIKE.findall(written) if name not in self._encoder.specials)
            )

    @property
    def notices(self) -> list[str]:
        """What the user should know about the template with this tokenizer."""
        if not self._foreign:
            return []
        return [
            f"the chat template {self.template.name} writes {', '.join(self._foreign)}, which this tokenizer has not "
            "as tokens: each becomes several ordinary tokens that no model was trained to end a turn with; use a "
            "template made for this tokenizer, or a tokenizer that has them"
        ]


def render_chat(
    messages: Sequence[dict[str, Any]], tokenizer: Tokenizer, template: str = "auto", **options: Any
) -> tuple[Tokens, Tokens]:
    """Ids of one conversation, int32 (n,), and its counted ranges, int32 (ranges, 2) half-open.

    messages: OpenAI's form (role, content, tool_calls, reasoning_content). template: `auto` (the tokenizer's own), a
    built-in's name or a file. options: fields of ChatOptions, and `tools`. Raises ChatTemplateError, ChatRecordError.
    For many conversations build one ChatRenderer.
    """
    from mmdata.chat.formats import normalised

    tools = options.pop("tools", None)
    clean, tools = normalised(messages, tools)
    return ChatRenderer(tokenizer, ChatOptions(template=template, **options)).render(clean, tools)


def thinking_note(counters: dict[str, int]) -> str | None:
    """What to tell the user about a mix of records with and without reasoning, else None."""
    reasoned = counters.get("thinking_with", 0)
    empty, without = counters.get("thinking_empty", 0), counters.get("thinking_without", 0)
    if not reasoned or not (empty or without):
        return None
    return (
        f"{reasoned} conversations reason, {empty} have an empty thinking block and {without} none: a model trained on "
        "the mix decides by itself when to reason; --thinking strip or empty makes them alike"
    )


def _count(counters: dict[str, int], name: str, by: int = 1) -> None:
    counters[name] = counters.get(name, 0) + by


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"the date {text!r} is not of the form 2026-01-31") from None
