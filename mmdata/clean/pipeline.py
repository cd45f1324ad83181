"""The cleaning stage: a recipe applied to batches of documents.

    cleaner = Cleaner(load_recipe("auto"))
    result = cleaner.clean_documents(documents)

One measuring pass over a batch (mmdata.clean.measure) decides which documents each repair looks at; documents that
change are measured again before the next rule. Results depend on each document alone, never on the batch. A Cleaner
is picklable and holds no open files, so a worker can be sent one. Parts with role text, user and assistant are
repaired one by one; personal data is treated in every part; a drop takes the whole record.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mmdata import kernels
from mmdata.clean import characters, language, mojibake
from mmdata.clean import columns as c
from mmdata.clean import tables as t
from mmdata.clean.lines import line_starts
from mmdata.clean.measure import EXACT, NO_STARTS, measure
from mmdata.clean.pii import KINDS, PiiOptions
from mmdata.clean.ready import check_ready
from mmdata.clean.recipe import Recipe, Step, load_recipe
from mmdata.clean.steps import Batch, Verdicts, pii_options, run_step
from mmdata.document import Document, Drop
from mmdata.errors import UsageError

REPAIRED_ROLES = frozenset(("text", "user", "assistant"))
Matrix = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sample:
    """One document before and after for `--show`: the reason, where it stands, both texts (after None: dropped)."""

    reason: str
    path: str
    line: int
    before: str
    after: str | None


@dataclass(slots=True, kw_only=True)
class Counts:
    """What steps did; every counter is a number of documents except bytes_removed (UTF-8 bytes, negative where a step
    adds), seconds (process CPU time) and pii (hits)."""

    changed_documents: int = 0
    changed: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    review: Counter[str] = field(default_factory=Counter)
    flagged: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    pii: Counter[str] = field(default_factory=Counter)
    bytes_removed: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)

    def add_counts(self, other: Counts) -> None:
        """Add another batch's counters and times; samples are the caller's to choose from."""
        self.changed_documents += other.changed_documents
        for name in ("changed", "dropped", "review", "flagged", "languages", "pii", "bytes_removed"):
            getattr(self, name).update(getattr(other, name))
        for step, seconds in other.seconds.items():
            self.seconds[step] = self.seconds.get(step, 0.0) + seconds


@dataclass(slots=True)
class CleanResult(Counts):
    """What became of a batch: kept and drops are in input order. encoded: the texts of those kept in UTF-8, with
    surrogates passed through; cleaning had to make it, and others need it too."""

    kept: list[Document]
    drops: list[Drop]
    encoded: list[bytes] = field(default_factory=list)


class Cleaner:
    """A recipe ready to run. recipe: a Recipe, a built-in name or a path; pii: overrides the recipe's own action.

    show: keep up to that many before/after samples of each reason in every batch. Raises RecipeError.
    """

    def __init__(self, recipe: Recipe | str = "auto", pii: str | None = None, show: int = 0) -> None:
        self.recipe = load_recipe(recipe) if isinstance(recipe, str) else recipe
        if pii is not None:
            self.recipe = with_pii(self.recipe, pii)
        check_ready(self.recipe)
        self.show = show

    @property
    def fingerprint(self) -> str:
        """Of the resolved recipe, personal-data action included; the key of a keyed hash changes it too."""
        return self.recipe.fingerprint

    def prepare(self, notice: Callable[[str], None] | None = None) -> None:
        """Compile the kernels, or load them, before workers start; `notice` is told where that takes long."""
        if self.recipe.steps:
            kernels.prepare(lambda: measure(["a 1@b"]), "cleaning", notice)
            self.load_tables()

    def load_tables(self) -> None:
        """Make the tables that some repairs need, so that no batch waits for them: 0.1 s, once a process."""
        names = {step.name for step in self.recipe.steps}
        if "mojibake" in names:
            mojibake.suspect()
        if names & {"mojibake", "nfc"}:
            characters.combining_marks()

    def clean_documents(self, documents: list[Document]) -> CleanResult:
        """Apply the recipe; kept documents carry the cleaned texts, their language, and meta marks.

        meta: `review` and `flags` are lists of rule names, `script` is simplified or traditional.
        """
        edges = [step.parameters["lists"] for step in self.recipe.steps if step.name == "boilerplate"]
        lists = [name for names in edges for name in names]
        starts = line_starts(tuple(lists)) if lists else NO_STARTS
        batch = Batch.of(documents, starts, _bounds(self.recipe))
        result = CleanResult([], [], pii=batch.pii)
        verdicts = Verdicts(len(documents))
        for step in self.recipe.steps:
            start = time.process_time()
            run_step(step, batch, verdicts, result.changed, result.bytes_removed)
            result.seconds[step.name] = result.seconds.get(step.name, 0.0) + time.process_time() - start
        self._collect(documents, batch, verdicts, result)
        return result

    def _collect(self, documents: list[Document], batch: Batch, verdicts: Verdicts, result: CleanResult) -> None:
        numbers = batch.languages
        spoken = None if numbers is None else [language.LANGUAGES[number] for number in numbers.tolist()]
        variants = self._variants(batch, spoken)
        kinds = (("review", result.review), ("flags", result.flagged))
        marks = [(name, counter, verdicts.marks[name]) for name, counter in kinds if verdicts.marks[name]]
        for i, document in enumerate(documents):
            changed = i in batch.changed_by
            drop = verdicts.dropped.get(i)
            if self.show:
                self._sample(documents[i], batch, i, drop[0] if drop else None, result)
            if drop is not None:
                result.dropped[drop[0]] += 1
                result.drops.append(
                    Drop(document.path, document.input_number, document.line, document.id, "clean", *drop)
                )
                continue
            result.changed_documents += changed
            kept = batch.documents[i] if changed else document
            for name, counter, marked in marks:
                if i in marked:
                    counter.update(marked[i])
                    kept.meta[name] = marked[i]
            if spoken is not None:
                kept.language = spoken[i] if kept.language is None else kept.language
                result.languages[kept.language] += 1
                variant = variants[i]
                if variant is not None and kept.language == "zh":
                    kept.meta["script"] = variant
            result.kept.append(kept)
            result.encoded.append(batch.utf8(i))

    @staticmethod
    def _variants(batch: Batch, spoken: list[str] | None) -> list[str | None]:
        """The script of each document, sure only for Chinese ones: nobody asks about others."""
        if spoken is not None:
            for i in batch.stale:
                if (batch.documents[i].language or spoken[i]) == "zh":
                    batch.rows[i, [c.TRADITIONAL, c.SIMPLIFIED]] = language.script_counts(batch.documents[i].text)
        return language.scripts(batch.rows)

    def _sample(self, before: Document, batch: Batch, i: int, reason: str | None, result: CleanResult) -> None:
        for name in [reason] if reason else batch.changed_by.get(i, ()):
            if sum(sample.reason == name for sample in result.samples) < self.show:
                after = None if reason else batch.documents[i].text
                result.samples.append(Sample(name, before.path, before.line, before.text, after))


def _bounds(recipe: Recipe) -> tuple[float, float]:
    """What the recipe asks about entropy and the top word, so that `measure` need not count where both keep it."""
    least, most = 0.0, 1.0
    for step in recipe.steps:
        low: float | None = step.parameters.get("min")
        high: float | None = step.parameters.get("max")
        if step.name == "unique_word_share" or (step.name == "entropy" and high is not None):
            return EXACT
        if step.name == "top_word_chars" and low is not None:
            return EXACT
        if step.name == "entropy" and low is not None:
            least = max(least, low)
        if step.name == "top_word_chars" and high is not None:
            most = min(most, high)
    return least, most


def with_pii(recipe: Recipe, action: str) -> Recipe:
    """The recipe with one personal-data action for all kinds (off, count, replace, hash) or the default."""
    steps = tuple(step for step in recipe.steps if step.name != "pii")
    if action != "off":
        given = next((step.parameters for step in recipe.steps if step.name == "pii"), None)
        base = given or {"kinds": None, "key": ""}
        steps = (*steps, Step("pii", {**base, "action": action}))
    return Recipe(recipe.name, steps)


def with_key(recipe: Recipe, key: str | None) -> Recipe:
    """The recipe with the key of hashed personal data; None leaves the recipe's own.

    Raises UsageError for a key that nothing would use, StepParameterError for a hash without any.
    """
    hashes = [step for step in recipe.steps if step.name == "pii" and step.parameters.get("action") == "hash"]
    if key is not None:
        if not hashes:
            raise UsageError("--pii-key is for hashed personal data and would do nothing here; add --pii hash")
        recipe = recipe.replace_parameter("pii", key=key)
    for step in recipe.steps:
        if step.name == "pii":
            pii_options(step.parameters)
    return recipe


__all__ = ["KINDS", "CleanResult", "Cleaner", "PiiOptions", "Sample", "c", "measure", "t", "with_key", "with_pii"]
