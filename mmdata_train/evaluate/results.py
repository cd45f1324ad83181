"""What an evaluation found, as plain values: written as results.json, drawn as a page, printed as a table.

Schema `mmdata.evaluation/1`. Each set holds, for each model, its scores (see scores.Score), the same by source or
subject, and what was noticed. Gains compare each model with the first one, on the main score of each set. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mmdata.indexed.durable import write_durably
from mmdata_train.errors import EvaluationError, ModelError
from mmdata_train.evaluate.scores import Score
from mmdata_train.hf_folder import read_json
from mmdata_train.json_text import json_text
from mmdata_train.whole_folder import Kind

SCHEMA = "mmdata.evaluation/1"
RESULTS, PAGE = "results.json", "page.html"
GROUPS = ("domain", "general")


@dataclass(slots=True)
class SetResult:
    """One model on one set. by_part: the main score of each source or subject. notes: what a reader must know."""

    scores: list[Score]
    by_part: dict[str, Score] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def main(self) -> Score:
        """The score that gains are told by: the last one."""
        return self.scores[-1]


@dataclass(slots=True)
class Evaluation:
    """All results. sets: facts of each set. results: set -> model -> SetResult. contamination: None if unchecked."""

    models: dict[str, dict[str, Any]]
    sets: dict[str, dict[str, Any]]
    results: dict[str, dict[str, SetResult]] = field(default_factory=dict)
    contamination: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    run: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The whole as JSON values; gains are included."""
        return {
            "schema": SCHEMA,
            "models": self.models,
            "sets": self.sets,
            "results": {
                name: {
                    model: {
                        "scores": [_score(score) for score in result.scores],
                        "by_part": {part: _score(score) for part, score in result.by_part.items()},
                        "notes": result.notes,
                    }
                    for model, result in by_model.items()
                }
                for name, by_model in self.results.items()
            },
            "gains": gains(self),
            "contamination": self.contamination,
            "notes": self.notes,
            "run": self.run,
        }


def _score(score: Score) -> dict[str, Any]:
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in asdict(score).items()}


def gains(evaluation: Evaluation) -> dict[str, dict[str, dict[str, float | int]]]:
    """group -> model -> mean change against the first model: `points` of percentages, `perplexity` as a ratio - 1.

    Positive points and negative perplexity are better. A model is compared on the sets it and the first one have.
    """
    first = next(iter(evaluation.models))
    found: dict[str, dict[str, dict[str, float | int]]] = {}
    for group in GROUPS:
        names = [name for name, facts in evaluation.sets.items() if facts.get("group") == group]
        for model in evaluation.models:
            both = [r for n in names if {first, model} <= set(r := evaluation.results.get(n, {}))]
            pairs = [(by_model[first].main, by_model[model].main) for by_model in both]
            points = [now.value - base.value for base, now in pairs if not now.lower_is_better]
            ratios = [math.log(now.value / base.value) for base, now in pairs if now.lower_is_better]
            entry: dict[str, float | int] = {"sets": len(pairs)}
            if points:
                entry["points"] = sum(points) / len(points)
            if ratios:
                entry["perplexity"] = math.exp(sum(ratios) / len(ratios)) - 1
            if pairs:
                found.setdefault(group, {})[model] = entry
    return found


def items_file(name: str, model: str) -> str:
    """Where the items of a set, as one model answered them, stand in the folder."""
    return f"{name}.{model}.jsonl"


def _written(folder: Path) -> frozenset[str] | None:
    """The files an evaluation wrote into its folder, None for any other folder."""
    try:
        value = read_json(folder / RESULTS)
    except ModelError:
        return None
    sets, models = value.get("sets"), value.get("models")
    if value.get("schema") != SCHEMA or not isinstance(sets, dict) or not isinstance(models, dict):
        return None
    return frozenset([RESULTS, PAGE, *(items_file(name, model) for name in sets for model in models)])


EVALUATION = Kind("evaluation", RESULTS, EvaluationError, _written, inside_inputs=True)


def write_results(evaluation: Evaluation, folder: Path, page: str) -> None:
    """results.json and page.html, each in one step."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json_text(evaluation.to_json(), indent=1)
    write_durably(str(folder / RESULTS), text.encode())
    write_durably(str(folder / PAGE), page.encode())


def lines(evaluation: Evaluation) -> list[str]:
    """The results as text, one line a score."""
    shown = []
    for name, by_model in evaluation.results.items():
        for model, result in by_model.items():
            parts = [f"{score.name} {number(score)}{interval(score)}" for score in result.scores]
            shown.append(f"{name} | {model}: " + ", ".join(parts))
    for group, models in gains(evaluation).items():
        for model, entry in list(models.items())[1:]:
            shown.append(f"{group} | {model}: {change_text(entry)} against {next(iter(models))}")
    return shown + [f"note: {note}" for note in evaluation.notes]


def change_text(entry: Mapping[str, float | int]) -> str:
    """A gain in words."""
    parts = []
    if "points" in entry:
        parts.append(f"{entry['points']:+.2f} points")
    if "perplexity" in entry:
        parts.append(f"perplexity {entry['perplexity']:+.2%}")
    return ", ".join(parts)


def number(score: Score) -> str:
    """A value as it is shown: percentages with two decimals, others with four."""
    return f"{score.value:.2f}" if score.unit == "%" else f"{score.value:,.4f}"


def interval(score: Score) -> str:
    """Its interval in brackets, if there is one."""
    return "" if score.low is None or score.high is None else f" [{score.low:.2f}, {score.high:.2f}]"


def library_line(scores: Sequence[Score]) -> list[str]:
    """Each program once, with version and tokenization."""
    return list(dict.fromkeys(f"{s.name}: {s.library} {s.version}, {s.tokenization}" for s in scores))
