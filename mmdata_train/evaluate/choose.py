"""Which option a model finds most likely, by the log-likelihood of its letter or its text.

Prompt and option are encoded together and compared from the first token at which any option differs from the prompt
alone, so tokens that reach over the boundary are counted for every option alike. Four forward rows a question, or one
where each option is one token and the model is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmdata_train.errors import EvaluationError
from mmdata_train.evaluate.questions import PromptForm, Question, prompt_parts
from mmdata_train.evaluate.rows import RowScorer, WholeScorer, one_text, score_all
from mmdata_train.evaluate.suite import SetEntry


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as it was asked. prompt: its text. rows: ids of prompt and option, for each option. cut: the first
    token that counts. shots: examples that fitted.
    """

    question: Question
    prompt: str
    rows: tuple[tuple[int, ...], ...]
    cut: int
    shots: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """scores: log-likelihood of each option, nats (per byte where so asked). choice: the best one's index."""

    asked: Asked
    scores: tuple[float, ...]

    @property
    def choice(self) -> int:
        """Index of the likeliest option; of equal ones the first."""
        return max(range(len(self.scores)), key=lambda index: self.scores[index])

    @property
    def right(self) -> bool:
        """Whether the likeliest option is the right one."""
        return self.choice == self.asked.question.answer


@dataclass(frozen=True, slots=True)
class Asker:
    """Turns questions into rows for one tokenizer. begin: ids before a prompt. wrap: ids of a prompt as a message."""

    tokenizer: Any
    longest: int
    entry: SetEntry
    form: PromptForm
    begin: tuple[int, ...] = ()
    system: str | None = None
    wrap: Any = None
    names: dict[str, str] = field(default_factory=dict)

    def ask(self, question: Question, shots: Sequence[Question]) -> Asked:
        """The rows of a question; examples are left out from the last on until they fit. Raises EvaluationError."""
        header, examples, text = prompt_parts(question, shots, self.form, self.names)
        for count in range(len(examples), -1, -1):
            prompt = header + "".join(examples[:count]) + text
            rows, cut = self._rows(prompt, question)
            if max(len(row) for row in rows) - 1 <= self.longest:
                return Asked(question, prompt, rows, cut, count)
        raise EvaluationError(
            f"{question.path}:{question.line}: the question alone has {max(len(row) for row in rows) - 1:,} tokens, the"
            f" model takes {self.longest:,}; leave it out"
        )

    def _rows(self, prompt: str, question: Question) -> tuple[tuple[tuple[int, ...], ...], int]:
        endings = question.letters if self.entry.score == "letter" else question.options
        if self.wrap is not None:
            head = self.wrap(prompt, self.system)
            rows = tuple((*head, *self._encode(ending)) for ending in endings)
            return rows, len(head)
        texts = [prompt, *(f"{prompt}{self.form.joint}{ending}" for ending in endings)]
        alone, *rest = (tuple(part.tolist()) for part in self.tokenizer.encode_batch(texts).split())
        cut = min(_shared(alone, row) for row in rest)
        return tuple((*self.begin, *row) for row in rest), cut + len(self.begin)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode_batch([text]).tokens.tolist())


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common beginning, less than all of `second`."""
    pairs = zip(first, second, strict=False)
    same = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
    return min(same, len(second) - 1)


def choose_all(scorer: RowScorer, asked: Sequence[Asked], entry: SetEntry) -> list[Chosen]:
    """The options' scores of every question; a collective over the scorer's ranks."""
    single = all(len(row) == one.cut + 1 > 1 for one in asked for row in one.rows)
    if single and isinstance(scorer, WholeScorer):
        sums = _by_next_token(scorer, asked)
    else:
        makers = [partial(one_text, row, max(1, one.cut)) for one in asked for row in one.rows]
        flat = iter(score_all(scorer, makers))
        sums = [[-next(flat) for _ in one.rows] for one in asked]
    chosen = []
    for one, values in zip(asked, sums, strict=True):
        if entry.score == "text-per-byte":
            values = [v / max(1, len(o.encode())) for v, o in zip(values, one.question.options, strict=True)]
        chosen.append(Chosen(one, tuple(values)))
    return chosen


@torch.inference_mode()
def _by_next_token(scorer: WholeScorer, asked: Sequence[Asked]) -> list[list[float]]:
    """One row a question: the chances of its options' tokens behind the prompt."""
    import torch.distributed as dist

    ranks = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    most = max(len(one.rows) for one in asked)
    scores = torch.zeros(len(asked), most, dtype=torch.float64)
    # Similar lengths together: a batch is as wide as its longest prompt.
    order = sorted(range(len(asked)), key=lambda index: asked[index].cut)[rank::ranks]
    size = max(1, scorer.rows // ranks)
    for start in range(0, len(order), size):
        places = order[start : start + size]
        logits = _last_logits(scorer, [asked[place].rows[0][: asked[place].cut] for place in places])
        chances = logits.float().log_softmax(dim=-1).double().cpu()
        for row, place in enumerate(places):
            ends = [ids[asked[place].cut] for ids in asked[place].rows]
            scores[place, : len(ends)] = chances[row, ends]
    if ranks > 1:
        moved = scores.to(scorer.device)
        dist.all_reduce(moved)
        scores = moved.cpu()
    return [scores[place, : len(one.rows)].tolist() for place, one in enumerate(asked)]


def _last_logits(scorer: WholeScorer, prompts: Sequence[Sequence[int]]) -> Tensor:
    width = max(len(prompt) for prompt in prompts)
    tokens = torch.zeros(len(prompts), width, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(list(prompt))
    last = torch.tensor([[len(prompt) - 1] for prompt in prompts])
    # Padding stands behind the prompts, where a causal model cannot see it.
    positions = torch.arange(width).expand_as(tokens).contiguous()
    device = scorer.device
    logits = scorer.decoder(tokens.to(device), positions.to(device), wanted=last.to(device))
    assert isinstance(logits, Tensor)
    return logits[:, 0]
