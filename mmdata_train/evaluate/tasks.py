"""One set on one open model: perplexity, answers or choices, with the records of its items."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch.distributed as dist

from mmdata.indexed.reader import IndexedDataset
from mmdata.samples.entries import resolve
from mmdata_train.data.open import ModelFacts, check_shards
from mmdata_train.data.prepare import raw_inputs
from mmdata_train.errors import EvaluationError
from mmdata_train.evaluate.choose import Asker, Chosen, choose_all
from mmdata_train.evaluate.given import EXAMPLES, answer_records, read_set, score_set
from mmdata_train.evaluate.intervals import wilson
from mmdata_train.evaluate.opened import OpenedModel, rank_and_ranks
from mmdata_train.evaluate.perplexity import EncodedTexts, Likelihood, ShardTexts, Texts, measure
from mmdata_train.evaluate.questions import form_of, read_questions, shots_for
from mmdata_train.evaluate.results import SetResult
from mmdata_train.evaluate.scores import Score
from mmdata_train.evaluate.suite import ModelEntry, SetEntry
from mmdata_train.generation.generate import generate, refuse_unknown_ids
from mmdata_train.generation.items import Item, Keys, read_items, read_records, source_of
from mmdata_train.generation.prompts import ChatPrompter, Prompt, named_by, text_prompt
from mmdata_train.generation.sampling import GenerationOptions


@dataclass(frozen=True, slots=True)
class Outcome:
    """A set's result and one record an item."""

    result: SetResult
    records: list[dict[str, Any]]


def run_perplexity(opened: OpenedModel, entry: SetEntry) -> Outcome:
    """Perplexity of shards or of texts in JSON lines (field `text`). A collective."""
    seq_length = min(entry.seq_length, opened.scorer.seq_length)
    stride = min(entry.stride or max(1, seq_length // 2), seq_length)
    notes: list[str] = []
    parts: dict[str, tuple[Likelihood, int]] = {}
    for name, texts, size in _sources(opened, entry, notes):
        parts[name] = (measure(opened.scorer, texts, seq_length, stride), size)
    total = Likelihood(math.fsum(p.nll for p, _ in parts.values()), sum(p.tokens for p, _ in parts.values()))
    if not total.tokens:
        raise EvaluationError(f"{entry.path}: no token counts; every text has one token, or the loss spans are empty")
    tokenizer = opened.tokenizer
    how = f"{tokenizer.kind} tokenizer {tokenizer.fingerprint[:8]}, context {seq_length}, stride {stride}"
    scores = _likelihood_scores(total, sum(size for _, size in parts.values()), how)
    by_part = {name: _likelihood_scores(p, n, how)[-1] for name, (p, n) in parts.items() if p.tokens}
    records = [{"source": name, "nll": p.nll, "tokens": p.tokens} for name, (p, _) in parts.items()]
    return Outcome(SetResult(scores, by_part if len(by_part) > 1 else {}, notes), records)


def _likelihood_scores(found: Likelihood, size: int, how: str) -> list[Score]:
    """Nats per token, bits per byte where the texts' size is known, perplexity."""
    base = {"items": found.tokens, "library": "mmdata", "version": version("mmdata"), "tokenization": how}
    values = [("nats per token", found.loss, "nats")]
    if size:
        values.append(("bits per byte", found.nll / math.log(2) / size, "bits"))
    values.append(("perplexity", math.exp(found.loss) if found.loss < 700 else math.inf, ""))
    return [Score(name, value, unit=unit, lower_is_better=True, **base) for name, value, unit in values]  # type: ignore[arg-type]


def _sources(opened: OpenedModel, entry: SetEntry, notes: list[str]) -> list[tuple[str, Texts, int]]:
    """(name, texts, bytes or 0) of each source of a set."""
    raw = raw_inputs(entry.path)
    if raw:
        return [source for file in raw for source in _text_sources(opened, entry, file)]
    begin = _begin(opened, entry.begin or "never")
    facts = ModelFacts(opened.scorer.config.vocab_size, opened.tokenizer.fingerprint)
    found: list[tuple[str, Texts, int]] = []
    for prefix in resolve(entry.path).shards:
        shard = IndexedDataset(prefix)
        notes.extend(check_shards([shard], facts))
        found.append((prefix, ShardTexts(shard, begin, entry.limit), 0))
    return found


def _text_sources(opened: OpenedModel, entry: SetEntry, file: str) -> list[tuple[str, Texts, int]]:
    begin = _begin(opened, entry.begin or "auto")
    by_source: dict[str, list[tuple[int, str]]] = {}
    for line, record in read_records(file):
        if not isinstance(record.get("text"), str):
            raise EvaluationError(f"{file}:{line}: no `text`; convert other records to a shard first")
        by_source.setdefault(source_of(record, file), []).append((line, record["text"]))
    if not by_source:
        raise EvaluationError(f"{file}: holds no record")
    found: list[tuple[str, Texts, int]] = []
    for name, texts in by_source.items():
        lines, chosen = zip(*texts[: entry.limit], strict=True)
        ids = [(*begin, *part.tolist()) for part in opened.tokenizer.encode_batch(chosen).split()]
        for line, one in zip(lines, ids, strict=True):
            refuse_unknown_ids(one, opened.scorer.config.vocab_size, f"{file}:{line}: the text")
        found.append((name, EncodedTexts(ids, len(begin)), sum(len(text.encode()) for text in chosen)))
    return found


def _begin(opened: OpenedModel, wanted: str) -> tuple[int, ...]:
    if wanted == "never":
        return ()
    return opened.model.alone() if wanted == "always" else opened.model.begin


def run_answers(opened: OpenedModel, model: ModelEntry, entry: SetEntry, seed: int, rows: int) -> Outcome:
    """Generate answers and score them; ranks share the items. A collective."""
    items = read_set(entry)
    chat = opened.has_template if entry.chat is None else entry.chat
    asked = prompts_of(opened, model, entry, items, chat)
    prompts = [one.prompt for one in asked]
    rank, ranks = rank_and_ranks()
    stops = {stop for prompt in prompts for stop in prompt.stop_ids}
    options = GenerationOptions(
        max_new_tokens=entry.max_new_tokens, stop_strings=entry.stop, stop_ids=tuple(sorted(stops)), seed=seed,
        batch_rows=max(1, rows // ranks),
    )  # fmt: skip
    numbers = list(range(rank, len(items), ranks))
    names = [items[n].place for n in numbers]
    made = generate(opened.model, [prompts[n].ids for n in numbers], options, numbers=numbers, names=names)
    own = {n: (one.text.strip(), one.reason) for n, one in zip(numbers, made, strict=True)}
    found = _gather(own, ranks)
    answers = [found[n][0] for n in range(len(items))]
    result = score_set(items, answers, entry)
    wanted = model.shots or entry.shots
    fewer = sum(one.shots < wanted for one in asked)
    if fewer:
        result.notes.append(f"{fewer:,} of {len(items):,} prompts hold fewer than {wanted} examples, to fit the model")
    long = sum(reason in ("length", "context") for _, reason in found.values())
    if long:
        result.notes.append(f"{long:,} of {len(items):,} answers were cut off at max_new_tokens {entry.max_new_tokens}")
    result.notes.append("asked in the chat template" if chat else "asked as plain text, without a chat template")
    records = answer_records(items, answers, entry)
    decode = opened.tokenizer.decode
    for n, record in enumerate(records):
        record.update(prompt=decode(prompts[n].ids), ended=found[n][1])
    return Outcome(result, records)


def _gather(own: dict[int, Any], ranks: int) -> dict[int, Any]:
    if ranks == 1:
        return own
    parts: list[dict[int, Any]] = [{} for _ in range(ranks)]
    dist.all_gather_object(parts, own)
    return {number: value for part in parts for number, value in part.items()}


@dataclass(frozen=True, slots=True)
class AskedItem:
    """An item's prompt. shots: examples before it that fitted."""

    prompt: Prompt
    shots: int


def prompts_of(
    opened: OpenedModel, model: ModelEntry, entry: SetEntry, items: Sequence[Item], chat: bool
) -> list[AskedItem]:
    """The prompt of each item, in the chat template or as plain text; system message and examples before it.

    Examples are left out from the last on until prompt and answer fit the model. Raises EvaluationError for an item
    that does not fit alone.
    """
    shots, longest = _shot_items(model, entry), opened.model.config.max_positions
    make = _chat_prompts(opened, model) if chat else _text_prompts(opened, model, entry)
    asked = []
    for item in items:
        for count in range(len(shots), -1, -1):
            with named_by(item):
                prompt = make(item, shots[:count])
            if len(prompt.ids) + entry.max_new_tokens <= longest:
                break
        if len(prompt.ids) >= longest:
            raise EvaluationError(
                f"{item.place}: the question has {len(prompt.ids):,} tokens, the model takes {longest:,} in"
                " all; leave it out"
            )
        asked.append(AskedItem(prompt, count))
    return asked


MakePrompt = Callable[[Item, Sequence[Item]], Prompt]


def _text_prompts(opened: OpenedModel, model: ModelEntry, entry: SetEntry) -> MakePrompt:
    def make(item: Item, shots: Sequence[Item]) -> Prompt:
        head = f"{model.system}\n\n" if model.system else ""
        head += "".join(f"{shot.prompt}\n{shot.references[0]}\n\n" for shot in shots)
        return text_prompt(opened.model, f"{head}{item.prompt}\n", entry.begin or "auto")

    return make


def _chat_prompts(opened: OpenedModel, model: ModelEntry) -> MakePrompt:
    prompter = ChatPrompter(opened.model, thinking=False)

    def make(item: Item, shots: Sequence[Item]) -> Prompt:
        before: list[dict[str, Any]] = []
        for shot in shots:
            before += [dict(message) for message in shot.messages if message["role"] != "system"]
            before.append({"role": "assistant", "content": shot.references[0]})
        messages = [dict(message) for message in item.messages]
        own = [messages.pop(0)] if messages[0]["role"] == "system" else []
        system = [{"role": "system", "content": model.system}] if model.system else own
        return prompter.prompt([*system, *before, *messages])

    return make


def _shot_items(model: ModelEntry, entry: SetEntry) -> list[Item]:
    """The examples before each question: the model entry's, else the set's."""
    count, path = (model.shots, model.shots_from) if model.shots else (entry.shots, entry.shots_from)
    if not count or path is None:
        return []
    found = read_items(path, Keys(entry.prompt_key, entry.reference_key), need=("prompt", "reference"))
    if len(found) < count:
        raise EvaluationError(f"{path}: {count} shots are wanted, but it holds {len(found)}")
    return found[:count]


def run_choices(opened: OpenedModel, model: ModelEntry, entry: SetEntry) -> Outcome:
    """Choose among options and score by subject. A collective."""
    questions = read_questions(entry.path)[: entry.limit]
    pool = read_questions(Path(entry.shots_from)) if entry.shots_from else []
    asker = _asker(opened, model, entry, questions)
    asked = [asker.ask(question, shots_for(question, pool, entry.shots)) for question in questions]
    for question, posed in zip(questions, asked, strict=True):
        for row in posed.rows:
            refuse_unknown_ids(row, opened.scorer.config.vocab_size, f"{question.path}:{question.line}: the question")
    chosen = choose_all(opened.scorer, asked, entry)
    subjects: dict[str, list[Chosen]] = {}
    for one in chosen:
        subjects.setdefault(one.asked.question.subject, []).append(one)
    by_part = {subject: _accuracy("accuracy", part, entry) for subject, part in subjects.items()}
    mean = sum(score.value for score in by_part.values()) / len(by_part)
    every = _accuracy("accuracy", chosen, entry)
    scores = [replace(every, name="mean over subjects", value=mean, low=None, high=None), every]
    cut = sum(one.asked.shots < entry.shots for one in chosen)
    notes = (
        [f"{cut:,} of {len(chosen):,} prompts hold fewer than {entry.shots} examples, to fit the model"] if cut else []
    )
    examples = [
        {"prompt": one.asked.prompt, "wanted": _letter(one, one.asked.question.answer),
         "answer": _letter(one, one.choice), "verdict": "right" if one.right else "wrong"}
        for one in chosen[:EXAMPLES]
    ]  # fmt: skip
    return Outcome(SetResult(scores, by_part, notes, examples), [_choice_record(one) for one in chosen])


def _asker(opened: OpenedModel, model: ModelEntry, entry: SetEntry, questions: Sequence[Any]) -> Asker:
    wrap = None
    if entry.chat:
        prompter = ChatPrompter(opened.model, thinking=False)

        def wrap(prompt: str, system: str | None) -> tuple[int, ...]:
            head = [{"role": "system", "content": system}] if system else []
            return prompter.prompt([*head, {"role": "user", "content": prompt}]).ids

    form = form_of(questions)
    if model.system and not entry.chat:
        form = replace(form, header=f"{model.system}\n\n{form.header}")
    return Asker(
        opened.tokenizer, opened.scorer.seq_length, entry, form, _begin(opened, entry.begin or "auto"), model.system,
        wrap, dict(entry.subjects),
    )  # fmt: skip


def _letter(one: Chosen, index: int) -> str:
    return one.asked.question.letters[index]


def _accuracy(name: str, chosen: Sequence[Chosen], entry: SetEntry) -> Score:
    share, low, high = wilson(sum(one.right for one in chosen), len(chosen))
    how = f"likeliest {entry.score} of the options, {entry.shots} shots, Wilson interval of 95 %"
    return Score(name, 100 * share, len(chosen), "mmdata", version("mmdata"), how, "%", 100 * low, 100 * high)


def _choice_record(one: Chosen) -> dict[str, Any]:
    question = one.asked.question
    return {
        "id": question.id, "path": question.path, "line": question.line, "subject": question.subject,
        "prompt": one.asked.prompt, "shots": one.asked.shots, "options": list(question.options),
        "answer": _letter(one, question.answer), "choice": _letter(one, one.choice), "right": one.right,
        "log_likelihoods": list(one.scores),
    }  # fmt: skip
