"""Answers made elsewhere, scored with no model: the file's own references, or those of the set by id. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmdata.reading.writer import JsonlWriter
from mmdata_train.errors import EvaluationError
from mmdata_train.evaluate.results import SetResult
from mmdata_train.evaluate.scores import Pair, Score, item_scores, score_answers
from mmdata_train.evaluate.suite import SetEntry
from mmdata_train.evaluate.words import language_of
from mmdata_train.generation.items import Item, Keys, read_items

EXAMPLES = 20


def keys_of(entry: SetEntry) -> Keys:
    """The set's names of fields."""
    return Keys(entry.prompt_key, entry.reference_key, entry.answer_key)


def read_set(entry: SetEntry, *, asked: bool = True) -> list[Item]:
    """The set's questions with references, the first `limit` of them. asked: each needs its question.

    Raises EvaluationError.
    """
    return _whole_set(entry, asked=asked)[: entry.limit]


def _whole_set(entry: SetEntry, *, asked: bool) -> list[Item]:
    need = ("prompt", "reference") if asked else ("reference",)
    return read_items(entry.path, keys_of(entry), need=need)


def given_answers(path: str, entry: SetEntry) -> tuple[list[Item], list[str]]:
    """The set's items, and for each its answer in a file of answers. Raises EvaluationError: see match_answers."""
    every = _whole_set(entry, asked=False)
    return every[: entry.limit], match_answers(every, path, keys_of(entry), entry.limit)


def match_answers(items: Sequence[Item], path: str, keys: Keys, limit: int | None = None) -> list[str]:
    """The answers of a file to the first `limit` items, found by id; items: all there are.

    Raises EvaluationError for an item without an answer, and for answers whose id no item has: they would be left out
    of the scores unseen.
    """
    found: Mapping[str, Item] = {item.id: item for item in read_items(path, keys, need=("answer",))}
    known = {item.id for item in items}
    strange = [answer for answer in found.values() if answer.id not in known]
    if strange:
        raise EvaluationError(
            f"{path}:{strange[0].line}: {len(strange)} of {len(found)} answers belong to no item of {items[0].path},"
            f" the first has the id {strange[0].id!r} (its line number where it has none); correct the ids, or take the"
            " answers out"
        )
    items = items[:limit]
    missing = [item.id for item in items if item.id not in found]
    if missing:
        raise EvaluationError(
            f"{path}: {len(missing)} of {len(items)} items have no answer here, the first has the id {missing[0]!r};"
            " give each answer the `id` of its question (its line number where it has none)"
        )
    return [str(found[item.id].answer) for item in items]


def score_set(items: Sequence[Item], answers: Sequence[str], entry: SetEntry) -> SetResult:
    """All scores of a set, and the last one by source."""
    language = entry.language or language_of(reference for item in items for reference in item.references)
    pairs = [Pair(answer, item.references) for item, answer in zip(items, answers, strict=True)]
    scores = score_answers(pairs, entry.metrics, language)
    parts: dict[str, list[Pair]] = {}
    for item, pair in zip(items, pairs, strict=True):
        if item.source is not None:
            parts.setdefault(item.source, []).append(pair)
    by_part: dict[str, Score] = {}
    if len(parts) > 1:
        by_part = {name: score_answers(part, entry.metrics[-1:], language)[-1] for name, part in parts.items()}
    empty = sum(not answer.strip() for answer in answers)
    notes = [f"{empty:,} of {len(answers):,} answers are empty"] if empty else []
    examples = [
        {"prompt": item.prompt, "wanted": item.references[0], "answer": pair.answer,
         "verdict": f"F1 {item_scores(pair, language)['f1']:.0f}"}
        for item, pair in list(zip(items, pairs, strict=True))[:EXAMPLES]
    ]  # fmt: skip
    return SetResult(scores, by_part, notes, examples)


def write_items(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """What each item was asked and answered, as JSON lines; that the path may be written was settled before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with JsonlWriter(str(path), overwrite=True) as writer:
        for record in records:
            writer.write(dict(record))


def answer_records(items: Sequence[Item], answers: Sequence[str], entry: SetEntry) -> list[dict[str, Any]]:
    """One record an item: question, references, answer, exact match and F1."""
    language = entry.language or language_of(reference for item in items for reference in item.references)
    return [
        {
            "id": item.id, "path": item.path, "line": item.line, "messages": [dict(m) for m in item.messages],
            "references": list(item.references), "prediction": answer,
            **item_scores(Pair(answer, item.references), language),
        }
        for item, answer in zip(items, answers, strict=True)
    ]  # fmt: skip
