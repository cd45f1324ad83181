"""What a suite names is there and can be read, before the first model is opened: a typing mistake in the last set must
not cost the answers to the others.

Questions and choices are read whole; of shards and raw texts, which may be large, the index or the first record.
"""

from __future__ import annotations

from pathlib import Path

from mmdata.indexed.reader import IndexedDataset
from mmdata.samples.entries import resolve
from mmdata_train.data.prepare import raw_inputs
from mmdata_train.errors import EvaluationError
from mmdata_train.evaluate.given import keys_of, read_set
from mmdata_train.evaluate.questions import read_questions
from mmdata_train.evaluate.suite import SetEntry, Suite
from mmdata_train.generation.items import read_items, read_records
from mmdata_train.generation.sources import find_source


def check_inputs(suite: Suite) -> None:
    """Raises EvaluationError, ShardError, GenerationError or ModelError naming the first that is wrong."""
    for entry in suite.models.values():
        if entry.model is not None:
            find_source(entry.model, entry.adapter)
        if entry.shots_from is not None:
            _first_record(entry.shots_from)
    for chosen in suite.sets.values():
        _check_set(chosen)
    for source in suite.training:
        _check_corpus(source)


def _check_set(entry: SetEntry) -> None:
    if entry.kind == "answers":
        read_set(entry)
        if entry.shots_from is not None:
            read_items(entry.shots_from, keys_of(entry), need=("prompt", "reference"))
    elif entry.kind == "choices":
        read_questions(entry.path)
        if entry.shots_from is not None:
            read_questions(Path(entry.shots_from))
    else:
        _check_corpus(entry.path)


def _first_record(file: str) -> None:
    if next(read_records(file), None) is None:
        raise EvaluationError(f"{file}: holds no record")


def _check_corpus(path: str) -> None:
    """Texts by their first record, shards by their index."""
    raw = raw_inputs(path)
    for file in raw:
        _first_record(file)
    if not raw:
        for prefix in resolve(path).shards:
            IndexedDataset(prefix)
