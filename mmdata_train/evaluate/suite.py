"""What is to be evaluated: models, sets of items, and what the models were trained on. YAML and flags alike.

Needs no torch: answers made elsewhere are scored without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mmdata_train.errors import ConfigError
from mmdata_train.evaluate.scores import METRICS
from mmdata_train.evaluate.words import Language

Kind = Literal["perplexity", "answers", "choices"]
_NAME = re.compile(r"[^\s/\\]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelEntry:
    """One column of the results.

    model: a Hugging Face folder, a run or checkpoint, or a PEFT folder; adapter: a PEFT folder on top. system: a system
    message; shots: so many examples before each question, from shots_from (JSON lines, or CSV for choices): what
    prompting alone gives. answers: JSON lines of answers made elsewhere instead of a model, by name of the set.
    """

    model: str | None = None
    adapter: str | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    precision: Literal["fp32", "bf16", "fp16"] | None = None
    system: str | None = None
    shots: int = 0
    shots_from: str | None = None
    answers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.model is None) == (not self.answers):
            raise ConfigError("a model entry has either `model` or `answers` (files of answers made elsewhere)")
        if bool(self.shots) != bool(self.shots_from):
            raise ConfigError("shots and shots_from go together: how many examples, and the file they come from")


@dataclass(frozen=True, kw_only=True, slots=True)
class SetEntry:
    """One row of the results.

    kind: `perplexity` of a shard, a folder of shards, or JSON lines of texts; `answers` to JSON lines of questions;
    `choices` among the options of a CSV or JSON lines file or a folder of them. group: `domain` or `general`, for gain
    and loss. chat: ask in the chat template (null: where the model has one, answers only). begin: a begin token before
    texts (null: as the tokenizer does for texts, never for shards). seq_length: longest context of perplexity and
    choices; stride: by how much windows of longer texts advance (null: half of it). score: of an option, its letter or
    its text, the latter also per byte. shots, shots_from: examples before each question. subjects: names by file name.
    """

    kind: Kind
    path: str
    group: Literal["domain", "general"] | None = None
    chat: bool | None = None
    begin: Literal["auto", "always", "never"] | None = None
    seq_length: int = 2048
    stride: int | None = None
    metrics: tuple[str, ...] = METRICS
    language: Language | None = None
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    prompt_key: str | None = None
    reference_key: str | None = None
    answer_key: str | None = None
    score: Literal["letter", "text", "text-per-byte"] = "letter"
    shots: int = 0
    shots_from: str | None = None
    subjects: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("seq_length", self.seq_length), ("stride", self.stride), ("limit", self.limit)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        if self.stride is not None and self.stride > self.seq_length:
            raise ConfigError(f"stride {self.stride} is above seq_length {self.seq_length}, which would skip tokens")
        unknown = sorted(set(self.metrics) - set(METRICS))
        if unknown:
            raise ConfigError(f"metric {unknown[0]!r} is unknown; there are {', '.join(METRICS)}")
        if not self.metrics or len(set(self.metrics)) != len(self.metrics):
            raise ConfigError(
                f"metrics is {', '.join(self.metrics) or 'empty'}; name each wanted one once, of {', '.join(METRICS)}"
            )
        if self.shots and self.shots_from is None:
            raise ConfigError("shots needs shots_from: the file or folder the examples come from")
        if self.kind == "perplexity" and (self.shots or self.chat):
            raise ConfigError("a perplexity set is read as it is: shots and chat belong to answers and choices")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """How ranks share the work; perplexity and choices run in any layout, answers with tensor and pipeline 1."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    def __post_init__(self) -> None:
        if min(self.tensor, self.pipeline, self.data) < 1:
            raise ConfigError("parallel: tensor, pipeline and data are each at least 1")

    @property
    def world(self) -> int:
        """Ranks in all."""
        return self.tensor * self.pipeline * self.data

    @property
    def splits_model(self) -> bool:
        """Whether each rank holds only a part of the model."""
        return self.tensor * self.pipeline > 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """One evaluation. The first model is what the others are compared with.

    training: shards or raw files the models were trained on, beside those that runs of this engine name themselves.
    overlap: an item with this share of its 13-grams in them is contaminated (see docs/evaluate.md). output: folder of
    results.json, page.html and the items of each set. batch_rows: rows of one forward pass.
    """

    models: Mapping[str, ModelEntry]
    sets: Mapping[str, SetEntry]
    output: Path = Path("out/evaluation")
    training: tuple[str, ...] = ()
    allow_contamination: bool = False
    overlap: float = 0.2
    parallel: Ranks = Ranks()
    batch_rows: int = 8
    seed: int = 1234
    overwrite: bool = False

    def __post_init__(self) -> None:
        for what, named in (("models", self.models), ("sets", self.sets)):
            if not named:
                raise ConfigError(f"{what} is empty; name at least one")
            for name in named:
                if _NAME.fullmatch(name) is None:
                    raise ConfigError(f"{what}.{name}: a name is part of file names: no spaces or slashes")
        if not 0 < self.overlap <= 1:
            raise ConfigError(f"overlap is {self.overlap}; it is a share above 0 and at most 1")
        if self.batch_rows < 1:
            raise ConfigError(f"batch_rows is {self.batch_rows}; it must be at least 1")
        for name, entry in self.models.items():
            strange = sorted(set(entry.answers) - set(self.sets))
            if strange:
                raise ConfigError(f"models.{name}.answers names the set {strange[0]!r}; sets: {', '.join(self.sets)}")
            for chosen in entry.answers:
                if self.sets[chosen].kind != "answers":
                    raise ConfigError(f"models.{name}.answers: {chosen} is a set of {self.sets[chosen].kind}")
        opened = any(entry.model is not None for entry in self.models.values())
        asked = any(entry.kind == "answers" for entry in self.sets.values())
        if self.parallel.splits_model and asked and opened:
            raise ConfigError(
                "answers are generated on whole models: set parallel.tensor and parallel.pipeline to 1 (data may be"
                " more); or, where the model is too large for one device, `mmdata-train export RUN --to merged` (or hf)"
                " it, have a server answer from that folder, and score the answers with --answers; perplexity and"
                " choices run in any layout"
            )

    @property
    def needs_models(self) -> bool:
        """Whether any model is opened: without, nothing imports torch."""
        return any(entry.model is not None for entry in self.models.values())
