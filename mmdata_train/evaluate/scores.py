"""BLEU, ROUGE, exact match and token F1 of answers against references, each with the program that computed it.

BLEU is sacrebleu's corpus BLEU, ROUGE rouge-score's mean F; several references are allowed, also a different number
for each item. Values are percentages. Needs no torch and no model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any

from mmdata.errors import MissingPackageError
from mmdata_train.errors import EvaluationError
from mmdata_train.evaluate.intervals import wilson
from mmdata_train.evaluate.words import Language, UnitTokenizer, answer_units, language_of

METRICS = ("bleu", "rouge", "exact", "f1")
ROUGE_TYPES = ("rouge1", "rouge2", "rougeL")
BLEU_TOKENIZERS: dict[Language, str] = {"zh": "zh", "en": "13a"}


@dataclass(frozen=True, slots=True)
class Score:
    """One number and what it means. value: percent, or as `unit` says. low, high: 95 % interval where there is one."""

    name: str
    value: float
    items: int
    library: str
    version: str
    tokenization: str
    unit: str = "%"
    low: float | None = None
    high: float | None = None
    lower_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """One answer and the references it may match."""

    answer: str
    references: tuple[str, ...]


def score_answers(
    pairs: Sequence[Pair], metrics: Sequence[str] = METRICS, language: Language | None = None
) -> list[Score]:
    """The scores of all pairs. language: how texts are cut; None looks at the references.

    Raises EvaluationError without pairs, without references, or for an unknown metric; MissingPackageError.
    """
    unknown = sorted(set(metrics) - set(METRICS))
    if unknown:
        raise EvaluationError(f"metric {unknown[0]!r} is unknown; there are {', '.join(METRICS)}")
    if not pairs:
        raise EvaluationError("there are no answers to score")
    if any(not pair.references for pair in pairs):
        raise EvaluationError("an answer has no reference to be compared with")
    spoken = language or language_of(reference for pair in pairs for reference in pair.references)
    makers: dict[str, Callable[[Sequence[Pair], Language], list[Score]]] = {
        "bleu": _bleu, "rouge": _rouge, "exact": _exact, "f1": _f1,
    }  # fmt: skip
    return [score for name in metrics for score in makers[name](pairs, spoken)]


def item_scores(pair: Pair, language: Language) -> dict[str, float]:
    """Exact match and token F1 of one answer, in percent."""
    return {"exact": 100.0 * exact_match(pair, language), "f1": 100.0 * token_f1(pair, language)}


def _load(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingPackageError(f"{package} computes this score: pip install {package}") from None


def _bleu(pairs: Sequence[Pair], language: Language) -> list[Score]:
    sacrebleu = _load("sacrebleu", "sacrebleu")
    most = max(len(pair.references) for pair in pairs)
    # sacrebleu takes one list a reference number; None where an item has fewer.
    streams = [[pair.references[i] if i < len(pair.references) else None for pair in pairs] for i in range(most)]
    metric = sacrebleu.BLEU(tokenize=BLEU_TOKENIZERS[language])
    value = metric.corpus_score([pair.answer for pair in pairs], streams).score
    return [Score("BLEU", value, len(pairs), "sacrebleu", sacrebleu.__version__, f"signature {metric.get_signature()}")]


def _rouge(pairs: Sequence[Pair], language: Language) -> list[Score]:
    scorer_module = _load("rouge_score.rouge_scorer", "rouge-score")
    tokenizer = UnitTokenizer() if language == "zh" else None
    scorer = scorer_module.RougeScorer(list(ROUGE_TYPES), use_stemmer=False, tokenizer=tokenizer)
    totals = dict.fromkeys(ROUGE_TYPES, 0.0)
    for pair in pairs:
        best = scorer.score_multi(list(pair.references), pair.answer)
        for name in ROUGE_TYPES:
            totals[name] += best[name].fmeasure
    how = "Han characters, words elsewhere" if language == "zh" else "rouge-score's default (a-z, 0-9), no stemming"
    found = version("rouge-score")
    return [
        Score(name.replace("rouge", "ROUGE-"), 100.0 * total / len(pairs), len(pairs), "rouge-score", found, how)
        for name, total in totals.items()
    ]


def _how(language: Language) -> str:
    return "Han characters, words elsewhere" if language == "zh" else "words, lower case, without articles"


def exact_match(pair: Pair, language: Language) -> bool:
    """Whether the answer has the units of a reference, in order (SQuAD's exact match)."""
    found = answer_units(pair.answer, language)
    return any(found == answer_units(reference, language) for reference in pair.references)


def token_f1(pair: Pair, language: Language) -> float:
    """The best F1 of the answer's units against a reference's, as bags (SQuAD's), 0 to 1."""
    return max(_bag_f1(pair.answer, reference, language) for reference in pair.references)


def _bag_f1(answer: str, reference: str, language: Language) -> float:
    ours, theirs = Counter(answer_units(answer, language)), Counter(answer_units(reference, language))
    if not ours or not theirs:
        return float(ours == theirs)
    shared = (ours & theirs).total()
    return 2 * shared / (ours.total() + theirs.total())


def _own(name: str, value: float, pairs: Sequence[Pair], language: Language) -> Score:
    return Score(name, value, len(pairs), "mmdata", version("mmdata"), _how(language))


def _exact(pairs: Sequence[Pair], language: Language) -> list[Score]:
    hits = sum(exact_match(pair, language) for pair in pairs)
    share, low, high = wilson(hits, len(pairs))
    return [
        Score("exact match", 100 * share, len(pairs), "mmdata", version("mmdata"), _how(language), "%", 100 * low,
              100 * high)
    ]  # fmt: skip


def _f1(pairs: Sequence[Pair], language: Language) -> list[Score]:
    return [_own("token F1", 100.0 * sum(token_f1(pair, language) for pair in pairs) / len(pairs), pairs, language)]
