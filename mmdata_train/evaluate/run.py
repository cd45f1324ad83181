"""One evaluation from its suite to its folder: contamination first, then each model on each set, then the page.

Called alike on every rank; rank 0 writes. Needs torch only where a model is opened.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

import mmdata
from mmdata.errors import MMDataError
from mmdata.indexed.reader import IndexedDataset
from mmdata.samples.entries import resolve
from mmdata_train.config import load_config
from mmdata_train.data.prepare import raw_inputs
from mmdata_train.errors import ConfigError, EvaluationError
from mmdata_train.evaluate.contamination import EvaluatedText, OverlapReport, decoded, find_overlap, refuse
from mmdata_train.evaluate.given import answer_records, given_answers, read_set, score_set, write_items
from mmdata_train.evaluate.page import render_page
from mmdata_train.evaluate.questions import read_questions
from mmdata_train.evaluate.ranks import on_first_rank
from mmdata_train.evaluate.results import EVALUATION, Evaluation, items_file, write_results
from mmdata_train.evaluate.suite import ModelEntry, SetEntry, Suite
from mmdata_train.generation.items import read_records, source_of
from mmdata_train.run_folder import RUN_CHECKPOINTS
from mmdata_train.whole_folder import check_output, whole_folder

logger = logging.getLogger("mmdata_train")

SPARE_BYTES = 16 << 20
"""Room asked for before results are made; items of large sets may take more."""
_LIBRARIES = ("mmdata", "torch", "sacrebleu", "rouge-score")


def evaluate(suite: Suite) -> Evaluation:
    """Run a suite and write its results to `suite.output`. A collective over the suite's ranks.

    Raises ContaminationError, EvaluationError, ConfigError, OutputExistsError, and what opening models raises.
    """
    found = Evaluation(
        models={name: _model_facts(entry) for name, entry in suite.models.items()},
        sets={name: {"kind": e.kind, "path": e.path, "group": e.group} for name, e in suite.sets.items()},
        run={"libraries": ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES), "seed": suite.seed},
    )
    if not suite.needs_models:
        _check_output(suite)
        _check_contamination(suite, found)
        with whole_folder(suite.output, SPARE_BYTES) as folder:
            _score_given(suite, found, folder)
            _publish(suite, found, folder)
        return found
    import torch.distributed as dist

    from mmdata_train.evaluate.opened import join_ranks

    started = join_ranks(suite.parallel)
    try:
        _evaluate_models(suite, found)
    finally:
        if started:
            dist.destroy_process_group()
    return found


def check_before_ranks(suite: Suite) -> None:
    """Refuse what every rank would refuse, so that the user reads one message instead of one from each.

    Called by the process that starts the ranks, and by rank 0, which may have been started by another program. Raises
    UsageError, OutputExistsError, and what check_inputs raises.
    """
    from mmdata_train.evaluate.inputs import check_inputs

    _check_output(suite)
    check_inputs(suite)


def _evaluate_models(suite: Suite, found: Evaluation) -> None:
    """Every model on every set. One rank looks and writes, so that none meets the files of another."""
    from mmdata_train.mesh import groups_ended

    on_first_rank(partial(check_before_ranks, suite))
    on_first_rank(partial(_check_contamination, suite, found))
    with ExitStack() as stack:
        places: list[Path] = []
        on_first_rank(lambda: places.append(stack.enter_context(whole_folder(suite.output, SPARE_BYTES))))
        on_first_rank(lambda: _score_given(suite, found, places[0]))
        for name, entry in suite.models.items():
            if entry.model is not None:
                # A model in parts has groups of its own, which hold device memory for as long as they are open.
                with groups_ended() if suite.parallel.world > 1 else nullcontext():
                    _run_model(suite, name, entry, found, places)
        on_first_rank(lambda: _publish(suite, found, places[0]))
        # Leaving renames the folder, which may fail too.
        on_first_rank(stack.close)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _model_facts(entry: ModelEntry) -> dict[str, Any]:
    return {key: value for key, value in asdict(entry).items() if value}


def _check_output(suite: Suite) -> None:
    """Refuse an output that would lose something, before anything is computed."""
    models = suite.models.values()
    read = [
        path for entry in models for path in (entry.model, entry.adapter, entry.shots_from, *entry.answers.values())
    ]
    read += [path for entry in suite.sets.values() for path in (entry.path, entry.shots_from)]
    inputs = [Path(path) for path in (*read, *suite.training) if path is not None]
    check_output(suite.output, EVALUATION, inputs, overwrite=suite.overwrite)


def _score_given(suite: Suite, found: Evaluation, folder: Path) -> None:
    """Answers made elsewhere."""
    for model, entry in suite.models.items():
        for name, path in entry.answers.items():
            chosen = suite.sets[name]
            items, answers = given_answers(path, chosen)
            found.results.setdefault(name, {})[model] = score_set(items, answers, chosen)
            write_items(folder / items_file(name, model), answer_records(items, answers, chosen))


def _run_model(suite: Suite, name: str, entry: ModelEntry, found: Evaluation, places: Sequence[Path]) -> None:
    """One model on all sets. places: the folder to write into, on rank 0."""
    from mmdata_train.evaluate import tasks
    from mmdata_train.evaluate.opened import open_entry
    from mmdata_train.generation.model import facts_line

    longest = max(chosen.seq_length for chosen in suite.sets.values())
    opened = open_entry(entry, suite.parallel, longest, suite.batch_rows)
    found.models[name].update(facts_line(opened.model), tokenizer=opened.tokenizer.fingerprint)
    for set_name, chosen in suite.sets.items():
        if chosen.kind == "perplexity":
            outcome = tasks.run_perplexity(opened, chosen)
        elif chosen.kind == "choices":
            outcome = tasks.run_choices(opened, entry, chosen)
        else:
            outcome = tasks.run_answers(opened, entry, chosen, suite.seed, suite.batch_rows)
        found.results.setdefault(set_name, {})[name] = outcome.result
        file = items_file(set_name, name)
        on_first_rank(partial(_write_outcome, places, file, outcome.records))
        logger.info("%s: %s %s %.4f", name, set_name, outcome.result.main.name, outcome.result.main.value)
    del opened
    gc.collect()


def _write_outcome(places: Sequence[Path], file: str, records: Sequence[dict[str, Any]]) -> None:
    write_items(places[0] / file, records)


def _publish(suite: Suite, found: Evaluation, folder: Path) -> None:
    # In the suite's order, whichever way results came.
    order = {name: found.results[name] for name in suite.sets if name in found.results}
    found.results = {name: {m: by[m] for m in suite.models if m in by} for name, by in order.items()}
    write_results(found, folder, render_page(found))


def _check_contamination(suite: Suite, found: Evaluation) -> None:
    """Fill in the overlap with known training data; refuse where it is too large and not allowed."""
    sources = list(_training_sources(suite, found))
    if not sources:
        found.notes.append("contamination was not checked: no training data is known; name it under `training`")
        return
    for source in sources:
        if not raw_inputs(source) and IndexedDataset(source).manifest is None:
            found.notes.append(f"{source} does not name its tokenizer: its text was read with that of the first model")
    tokenizers: dict[str, Any] = {}
    texts = [text for entry in suite.sets.values() for text in _evaluated(entry, suite, tokenizers)]
    report: OverlapReport = find_overlap(texts, _texts_of(sources, suite, tokenizers), suite.overlap)
    found.contamination = asdict(report)
    if not suite.allow_contamination:
        refuse(report)
    elif report.contaminated:
        found.notes.append(f"{len(report.contaminated)} contaminated items were allowed (--allow-contamination)")


def _evaluated(entry: SetEntry, suite: Suite, tokenizers: dict[str, Any]) -> Iterator[EvaluatedText]:
    """The texts of a set's items; of shards, its documents, whose number from 0 stands in the line's place."""
    if entry.kind == "choices":
        for question in read_questions(entry.path)[: entry.limit]:
            yield EvaluatedText(question.path, question.line, (question.question, *question.options))
    elif entry.kind == "answers":
        for item in read_set(entry, asked=False):
            asked = [str(message["content"]) for message in item.messages if message["role"] != "system"]
            yield EvaluatedText(item.path, item.line, (*asked, *item.references))
    elif raw := raw_inputs(entry.path):
        for file in raw:
            of_source: Counter[str] = Counter()
            for line, record in read_records(file):
                source = source_of(record, file)
                of_source[source] += 1
                if isinstance(record.get("text"), str) and of_source[source] <= (entry.limit or of_source[source]):
                    yield EvaluatedText(file, line, (record["text"],))
    else:
        for prefix in resolve(entry.path).shards:
            shard = IndexedDataset(prefix)
            texts = decoded(shard, _tokenizer_for(shard, suite, tokenizers))
            for number, text in enumerate(islice(texts, entry.limit)):
                yield EvaluatedText(prefix, number, (text,))


def _training_sources(suite: Suite, found: Evaluation) -> Iterator[str]:
    """Shard prefixes and raw files: as named, and those of runs of this engine."""
    named = list(suite.training)
    for name, entry in suite.models.items():
        for path in () if entry.model is None else _data_of_run(Path(entry.model)):
            if raw_inputs(path) or _shards(path):
                named.append(path)
            else:
                found.notes.append(f"{name} was trained on {path}, which is not here; it was not checked for overlap")
    for path in dict.fromkeys(named):
        yield from raw_inputs(path) or resolve(path).shards


def _shards(path: str) -> tuple[str, ...]:
    try:
        return resolve(path).shards
    except MMDataError:
        return ()


def _data_of_run(path: Path) -> list[str]:
    """The training entries of the run that a path is (the run, its checkpoints, one of them); empty for no run."""
    for folder in (path, *path.absolute().parents[:2]):
        if (folder / "config.yaml").is_file() and (folder / RUN_CHECKPOINTS).is_dir():
            return [name for name, _ in load_config(folder / "config.yaml").data.entries]
    return []


def _texts_of(sources: Iterable[str], suite: Suite, tokenizers: dict[str, Any]) -> Iterator[tuple[str, Iterable[str]]]:
    for source in sources:
        if raw_inputs(source):
            yield source, (" \n".join(_strings(record)) for _, record in read_records(source))
            continue
        shard = IndexedDataset(source)
        yield source, decoded(shard, _tokenizer_for(shard, suite, tokenizers))


def _strings(value: Any) -> Iterator[str]:
    """Every text of a record."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def _tokenizer_for(shard: IndexedDataset, suite: Suite, loaded: dict[str, Any]) -> Any:
    """The tokenizer of any model that made the shard. Raises EvaluationError when none did."""
    manifest = shard.manifest
    wanted = None if manifest is None else manifest.tokenizer_fingerprint
    for place in _tokenizer_places(suite):
        if place not in loaded:
            loaded[place] = mmdata.load_tokenizer(place, engine="none")
        if wanted is None or loaded[place].fingerprint == wanted:
            return loaded[place]
    raise EvaluationError(
        f"{shard.prefix} was made with another tokenizer than any of the models', so its text cannot be looked at; give"
        " `tokenizer` in a model entry, or --allow-contamination with no `training`"
    )


def _tokenizer_places(suite: Suite) -> Iterator[str]:
    for entry in suite.models.values():
        if entry.tokenizer is not None:
            yield entry.tokenizer
        elif entry.model is not None:
            from mmdata_train.generation.sources import find_source

            source = find_source(entry.model, entry.adapter)
            if not source.tokenizer:
                raise ConfigError(f"{entry.model} brings no tokenizer; give `tokenizer` in its entry")
            yield source.tokenizer
