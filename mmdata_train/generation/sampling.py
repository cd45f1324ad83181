"""The next token from logits: the most likely one, or one drawn after temperature, top-k and top-p in this order.

The order and the edges are those of transformers' logits processors. Every row draws from a stream of its own that
depends on (seed, number of the prompt) alone, so a text does not depend on its batch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmdata_train.errors import ConfigError, GenerationError

REMOVED = float("-inf")
LEAST_TEMPERATURE = 1e-6
"""Logits of some thousands divided by less leave float32; what is drawn is the most likely token long before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationOptions:
    """How texts are continued.

    max_new_tokens: per prompt. temperature: 0 takes the most likely token (greedy). top_k: tokens kept, 0 for all.
    top_p: the smallest set of tokens whose chances reach it. seed: of the draws. stop_ids: tokens that end a text,
    beside the model's own. stop_strings: texts that end it; they are cut off. batch_rows: prompts at once. padding: on
    which side shorter prompts of a batch are filled up; the texts are the same.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1234
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    batch_rows: int = 16
    padding: Literal["left", "right"] = "left"

    def __post_init__(self) -> None:
        for name, value, low in (
            ("max_new_tokens", self.max_new_tokens, 1),
            ("batch_rows", self.batch_rows, 1),
            ("top_k", self.top_k, 0),
            ("temperature", self.temperature, 0),
        ):
            if value < low:
                raise ConfigError(f"{name} is {value}; it must be at least {low}")
        if self.temperature and not LEAST_TEMPERATURE <= self.temperature < math.inf:
            raise ConfigError(
                f"temperature is {self.temperature}; give 0 for the likeliest token, or a finite number from"
                f" {LEAST_TEMPERATURE}"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.temperature == 0 and (self.top_k or self.top_p < 1.0):
            raise ConfigError("top_k and top_p choose among draws, and temperature 0 draws none; set temperature: 1.0")
        if "" in self.stop_strings:
            raise ConfigError("an empty stop string would end every text at once; remove it")


def warp(logits: Tensor, options: GenerationOptions) -> Tensor:
    """Logits [rows, vocabulary], float32, after temperature, top-k and top-p; removed tokens are -inf."""
    logits = logits.float() / options.temperature
    if 0 < options.top_k < logits.shape[-1]:
        least = logits.topk(options.top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, REMOVED)
    if options.top_p < 1.0:
        ordered, places = logits.sort(dim=-1, descending=False)
        # From the unlikely end: what lies within the last 1 - top_p is removed; the likeliest token always stays.
        removed = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1.0 - options.top_p
        removed[:, -1] = False
        logits = logits.masked_fill(removed.scatter(1, places, removed), REMOVED)
    return logits


class Chooser:
    """Chooses tokens for prompts known by number."""

    def __init__(self, options: GenerationOptions) -> None:
        self.options = options
        self._streams: dict[int, random.Random] = {}

    def choose(self, logits: Tensor, numbers: Sequence[int]) -> list[int]:
        """One token for each row of [rows, vocabulary]; numbers: the prompt of each row.

        Raises GenerationError for logits that are not numbers.
        """
        broken = logits.isnan().any(dim=-1).tolist()
        if any(broken):
            raise GenerationError(
                f"prompt {numbers[broken.index(True)]}: the model's logits are not numbers; its weights are damaged,"
                " or too large for this precision: try --precision fp32"
            )
        if self.options.temperature == 0:
            return [int(token) for token in logits.float().argmax(dim=-1)]
        chances = warp(logits, self.options).double().softmax(dim=-1).cumsum(dim=-1)
        draws = torch.tensor([self._stream(number).random() for number in numbers], dtype=torch.float64)
        # Never beyond the last token that can be drawn, whatever rounding did to the sum.
        targets = draws.to(chances.device)[:, None] * chances[:, -1:]
        found = torch.searchsorted(chances, targets, right=True).squeeze(1)
        last = torch.searchsorted(chances, chances[:, -1:].contiguous()).squeeze(1)
        return [int(token) for token in torch.minimum(found, last)]

    def _stream(self, number: int) -> random.Random:
        # Seeded by text: the same numbers in every version of Python.
        return self._streams.setdefault(number, random.Random(f"{self.options.seed}:{number}"))
