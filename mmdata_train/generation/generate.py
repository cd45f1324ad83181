"""Continuing prompts: batches with a cache, one token a step, rows leaving as they finish.

`generate_ids` gives tokens, `generate` texts. Prompts are sorted by length, so a batch holds little padding; results
come in the order of the prompts and do not depend on the batches. Cost: one pass over the weights a step and batch,
and 2 x layers x kv heads x head_dim x (prompt + new tokens) elements of cache a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from mmdata_train.errors import GenerationError
from mmdata_train.generation.model import LoadedModel
from mmdata_train.generation.sampling import Chooser, GenerationOptions
from mmdata_train.generation.text import TextStream
from mmdata_train.model.cache import EMPTY, KVCache
from mmdata_train.model.decoder import Decoder

Reason = Literal["stop", "stop-string", "length", "context"]
Watch = Callable[[int, int], bool]
"""(number of the prompt, new token) -> whether the text ends here."""


@dataclass(frozen=True, slots=True)
class GeneratedIds:
    """ids: new tokens, the stop token left out. reason: a stop token, a stop string, max_new_tokens, or the model's
    longest sequence.
    """

    ids: tuple[int, ...]
    reason: Reason


@dataclass(frozen=True, slots=True)
class Completion:
    """One continuation. prompt_tokens: how many tokens the prompt had."""

    text: str
    ids: tuple[int, ...]
    reason: Reason
    prompt_tokens: int


@dataclass(slots=True)
class _Row:
    number: int
    prompt: Sequence[int]
    limit: int
    new: list[int]
    reason: Reason | None = None

    def take(self, token: int, stops: frozenset[int], watch: Watch | None, room: int) -> None:
        """Add a token and decide whether the text ends."""
        if token in stops:
            self.reason = "stop"
            return
        self.new.append(token)
        if watch is not None and watch(self.number, token):
            self.reason = "stop-string"
        elif len(self.new) >= self.limit:
            self.reason = "length" if self.limit < room else "context"


def refuse_unknown_ids(ids: Sequence[int], vocab_size: int, what: str) -> None:
    """Raises GenerationError for the first id the model has no row for; `what` names the text."""
    strange = next((token for token in ids if not 0 <= token < vocab_size), None)
    if strange is not None:
        raise GenerationError(
            f"{what} holds the token id {strange}, the model knows 0 to {vocab_size - 1}; the tokenizer is another"
            " model's"
        )


def generate_ids(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    options: GenerationOptions,
    *,
    numbers: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    watch: Watch | None = None,
) -> list[GeneratedIds]:
    """Continue each prompt (at least one id each).

    decoder: whole, on one device, in evaluation mode. Only options.stop_ids end a text. numbers: of the prompts, which
    their random draws depend on; default 0, 1, ... names: of the prompts in messages, such as FILE:LINE. watch: asked
    after every token.
    Raises GenerationError for an empty prompt, one that leaves no room in the model, an id the model does not have,
    and logits that are not numbers.
    """
    numbers = range(len(prompts)) if numbers is None else numbers
    names = [f"prompt {number}" for number in numbers] if names is None else names
    longest = decoder.config.max_positions
    rows = []
    for number, prompt, name in zip(numbers, prompts, names, strict=True):
        if not prompt:
            raise GenerationError(f"{name} has no token; begin it with the model's first token")
        if len(prompt) >= longest:
            raise GenerationError(f"{name} has {len(prompt):,} tokens, the model takes {longest:,} in all; shorten it")
        refuse_unknown_ids(prompt, decoder.config.vocab_size, name)
        rows.append(_Row(number, prompt, min(options.max_new_tokens, longest - len(prompt)), []))
    chooser = Chooser(options)
    stops = frozenset(options.stop_ids)
    ordered = sorted(rows, key=lambda row: -len(row.prompt))
    for start in range(0, len(ordered), options.batch_rows):
        _run_batch(decoder, ordered[start : start + options.batch_rows], chooser, stops, watch)
    return [GeneratedIds(tuple(row.new), row.reason or "length") for row in rows]


@torch.inference_mode()
def _run_batch(
    decoder: Decoder, rows: list[_Row], chooser: Chooser, stops: frozenset[int], watch: Watch | None
) -> None:
    room, device = decoder.config.max_positions, next(decoder.parameters()).device
    tokens, positions, last = _padded([row.prompt for row in rows], chooser.options.padding, device)
    cache = KVCache(tokens.shape[1] + max(row.limit for row in rows))
    while True:
        logits = decoder(tokens, positions, cache=cache, wanted=last[:, None])
        assert isinstance(logits, Tensor)
        chosen = chooser.choose(logits[:, 0], [row.number for row in rows])
        for row, token in zip(rows, chosen, strict=True):
            row.take(token, stops, watch, room - len(row.prompt))
        left = [index for index, row in enumerate(rows) if row.reason is None]
        if not left:
            return
        if len(left) < len(rows):
            cache.keep(torch.tensor(left, device=device))
            rows = [rows[index] for index in left]
        tokens = torch.tensor([[row.new[-1]] for row in rows], device=device)
        positions = torch.tensor([[len(row.prompt) + len(row.new) - 1] for row in rows], device=device)
        last = torch.zeros(len(rows), dtype=torch.int64, device=device)


def _padded(
    prompts: Sequence[Sequence[int]], side: Literal["left", "right"], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """tokens and positions, int64 [rows, longest], and where each prompt's last token stands, int64 [rows]."""
    width = max(len(prompt) for prompt in prompts)
    tokens = torch.zeros(len(prompts), width, dtype=torch.int64)
    positions = torch.full_like(tokens, EMPTY)
    last = torch.full((len(prompts),), width - 1)
    for index, prompt in enumerate(prompts):
        size = len(prompt)
        place = slice(0, size) if side == "right" else slice(width - size, width)
        tokens[index, place] = torch.tensor(list(prompt))
        positions[index, place] = torch.arange(size)
        last[index] = place.stop - 1
    return tokens.to(device), positions.to(device), last.to(device)


def generate(
    model: LoadedModel,
    prompts: Sequence[Sequence[int]],
    options: GenerationOptions,
    *,
    numbers: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    on_text: Callable[[int, str], None] | None = None,
) -> list[Completion]:
    """The texts that continue prompts given as ids. on_text: told (number, new text) as texts grow; the rest as in
    generate_ids.

    Raises what generate_ids raises.
    """
    numbers = list(range(len(prompts)) if numbers is None else numbers)
    streams = {
        number: TextStream(model.tokenizer, prompt, model.hidden_ids, options.stop_strings)
        for number, prompt in zip(numbers, prompts, strict=True)
    }

    def watch(number: int, token: int) -> bool:
        new = streams[number].push(token)
        if on_text is not None and new:
            on_text(number, new)
        return streams[number].stopped

    ends = model.stop_ids | frozenset(options.stop_ids)
    options = replace(options, stop_ids=tuple(sorted(ends)))
    found = generate_ids(model.decoder, prompts, options, numbers=numbers, names=names, watch=watch)
    results = []
    for number, prompt, made in zip(numbers, prompts, found, strict=True):
        rest = streams[number].finish()
        if on_text is not None and rest:
            on_text(number, rest)
        results.append(Completion(streams[number].text, made.ids, made.reason, len(prompt)))
    return results
