"""How each kind of step runs on a batch: which documents it looks at, and what it does to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdata.clean import characters, language, lines, markup, mojibake, pdf, published, rules, text_rules
from mmdata.clean import columns as c
from mmdata.clean import tables as t
from mmdata.clean.chinese import convert_chinese
from mmdata.clean.measure import EXACT, measure_utf8, utf8
from mmdata.clean.pii import ACTIONS, DEFAULT_ACTIONS, NAMES, PiiOptions
from mmdata.clean.ready import load_function
from mmdata.clean.recipe import Step, nearest
from mmdata.clean.structured import mask_text, may_hide, repair_text
from mmdata.document import Document
from mmdata.errors import StepParameterError

Matrix = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Repair = Callable[..., str]
Trigger = Callable[[Matrix, dict[str, Any]], Mask]
REPAIRED_ROLES = frozenset(("text", "user", "assistant"))


@dataclass(slots=True)
class Batch:
    """Documents on their way through the steps.

    rows: measured columns, fresh except for documents in `stale`. encoded: each document's text in UTF-8, None where
    nobody needed it yet.
    """

    documents: list[Document]
    encoded: list[bytes | None]
    rows: Matrix
    starts: npt.NDArray[np.uint8]
    bounds: tuple[float, float]
    chat: Mask
    languages: npt.NDArray[np.int8] | None = None
    stale: set[int] = field(default_factory=set)
    changed_by: dict[int, list[str]] = field(default_factory=dict)
    pii: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(
        cls, documents: list[Document], starts: npt.NDArray[np.uint8], bounds: tuple[float, float] = EXACT
    ) -> Batch:
        """Documents that are measured when a step first asks for their rows."""
        chat = np.array([d.parts[0].role != "text" if len(d.parts) == 1 else _is_chat(d) for d in documents], np.bool_)
        rows = np.zeros((len(documents), c.COLUMNS), np.int64)
        nothing: list[bytes | None] = [None] * len(documents)
        return cls(list(documents), nothing, rows, starts, bounds, chat, stale=set(range(len(documents))))

    def utf8(self, i: int) -> bytes:
        """Document i's text in UTF-8."""
        held = self.encoded[i]
        if held is None:
            held = self.encoded[i] = utf8(self.documents[i].text)
        return held

    def refresh(self) -> None:
        """Measure again what changed since it was measured."""
        if self.stale:
            numbers = sorted(self.stale)
            self.rows[numbers] = measure_utf8([self.utf8(i) for i in numbers], self.starts, self.bounds)
            self.stale.clear()

    def detect(self) -> npt.NDArray[np.int8]:
        """Language numbers of all documents, found once, after the repairs."""
        if self.languages is None:
            self.refresh()
            self.languages = language.detect(self.rows)
        return self.languages

    def replace(self, i: int, texts: list[str], step: str, changed: Counter[str], removed: Counter[str]) -> None:
        """Give document i new texts and count it where they differ."""
        old = self.documents[i]
        if texts == [part.text for part in old.parts]:
            return
        before = len(self.utf8(i))
        self.documents[i], self.encoded[i] = old.with_texts(texts), None
        removed[step] += before - len(self.utf8(i))
        self.stale.add(i)
        self.changed_by.setdefault(i, []).append(step)
        changed[step] += 1


def _is_chat(document: Document) -> bool:
    return any(part.role != "text" for part in document.parts)


class Verdicts:
    """Drops (reason, value, limit) and marks by document number."""

    def __init__(self, count: int) -> None:
        self.alive: Mask = np.ones(count, np.bool_)
        self.dropped: dict[int, tuple[str, float | int, float | int]] = {}
        self.marks: dict[str, dict[int, list[str]]] = {"review": {}, "flags": {}}

    def give(self, i: int, action: str, reason: str, value: float, limit: float) -> None:
        """Drop document i, or mark it for review, or flag it."""
        if action == "drop":
            self.alive[i] = False
            self.dropped[i] = (reason, _plain(value), _plain(limit))
        else:
            self.marks["review" if action == "review" else "flags"].setdefault(i, []).append(reason)


def _plain(value: float) -> float | int:
    return int(value) if float(value).is_integer() else round(float(value), 6)


def _any(*columns: int) -> Trigger:
    return lambda rows, parameters: np.asarray((rows[:, list(columns)] > 0).any(axis=1))


def _gbk(rows: Matrix, parameters: dict[str, Any]) -> Mask:
    return np.asarray((rows[:, c.GBK_TRACES] >= 3) & (rows[:, c.GBK_TRACES] * 8 >= rows[:, t.HAN]))


def _at_edges(rows: Matrix, parameters: dict[str, Any]) -> Mask:
    first, last = rows[:, c.BOILERPLATE_FIRST], rows[:, c.BOILERPLATE_LAST]
    edge = parameters["edge"]
    return np.asarray((first > 0) & ((first <= edge) | (last > rows[:, c.LINES] - edge)))


# What each repair does, and on which documents it may have something to do; None: on all.
REPAIRS: dict[str, tuple[Repair, Trigger]] = {
    "line_ends": (characters.normalize_line_ends, _any(c.RETURNS)),
    "controls": (characters.remove_controls, _any(t.CONTROL, c.C0, t.PRIVATE)),
    "office_debris": (markup.remove_office_debris, _any(c.OFFICE)),
    "html_references": (markup.unescape_references, _any(c.REFERENCES)),
    "html": (markup.strip_markup, _any(c.TAGS)),
    "gbk_mojibake": (mojibake.repair_utf8_read_as_gbk, _gbk),
    "mojibake": (mojibake.fix_mojibake, _any(c.FTFY, c.LIGATURES, c.ESCAPES, t.PRIVATE)),
    "c1": (characters.settle_c1, _any(t.CONTROL)),
    "invisible": (characters.remove_invisible, _any(t.INVISIBLE, t.PRIVATE, t.JOINER)),
    "fullwidth": (characters.fold_fullwidth, _any(t.WIDE_ALNUM, c.WIDE_LINES)),
    "nfc": (characters.normalize_nfc, _any(c.NOT_NFC)),
    "odd_spaces": (characters.normalize_spaces, _any(c.ODD_SPACES)),
    "space_runs": (lines.collapse_space_runs, _any(c.SPACE_RUNS)),
    "line_tails": (lines.strip_line_ends, _any(c.TAILS)),
    "repeated_lines": (lines.remove_repeated_lines, lambda rows, p: rows[:, c.REPEATED_RUN] >= p["min_repeats"]),
    "boilerplate": (lines.remove_boilerplate, _at_edges),
    "blank_lines": (lines.collapse_blank_lines, lambda rows, p: rows[:, c.BLANK_RUN] > p["max_blank"]),
    "convert_chinese": (convert_chinese, _any(t.HAN)),
    "unwrap_lines": (pdf.unwrap_lines, lambda rows, p: rows[:, c.LINES] >= 2),
    "page_furniture": (pdf.remove_page_furniture, lambda rows, p: rows[:, c.LINES] >= 3),
}


def run_step(step: Step, batch: Batch, verdicts: Verdicts, changed: Counter[str], removed: Counter[str]) -> None:
    """Apply one step to the documents still alive."""
    kind = step.kind
    if kind == "repair":
        _repair(step, batch, verdicts, changed, removed)
    elif kind == "rule":
        _rule(step, batch, verdicts)
    elif kind == "text_rule":
        _text_rule(step, batch, verdicts)
    elif kind == "parity":
        _parity(step, batch, verdicts, changed, removed)
    elif kind == "language":
        _language(step, batch, verdicts)
    elif kind == "pii":
        _pii(step, batch, verdicts, changed, removed)
    else:
        _function(step, batch, verdicts, changed, removed)


def _repair(step: Step, batch: Batch, verdicts: Verdicts, changed: Counter[str], removed: Counter[str]) -> None:
    function, trigger = REPAIRS[step.name]
    parameters = {k: tuple(v) if isinstance(v, list) else v for k, v in step.parameters.items()}
    if step.name == "line_ends" and len(batch.stale) == len(batch.documents):  # cheaper to look than to measure twice
        numbers = [i for i, document in enumerate(batch.documents) if _has_line_ends(document)]
    else:
        batch.refresh()
        numbers = np.flatnonzero(verdicts.alive & trigger(batch.rows, step.parameters)).tolist()
    repair = partial(function, **parameters) if parameters else function
    for i in numbers:
        parts = batch.documents[i].parts
        texts = [repair_text(p.text, repair) if p.role in REPAIRED_ROLES else p.text for p in parts]
        batch.replace(i, texts, step.name, changed, removed)


def _has_line_ends(document: Document) -> bool:
    text = document.text
    return "\r" in text or "\u2028" in text or "\u2029" in text


def _where(step: Step, batch: Batch, verdicts: Verdicts) -> Mask:
    """The documents a rule is about: alive, of its languages, long enough, chat only where it says so."""
    batch.refresh()
    mask = verdicts.alive.copy()
    if step.parameters["languages"] is not None:
        mask &= np.isin(batch.detect(), [language.LANGUAGES.index(name) for name in step.parameters["languages"]])
    if step.parameters["min_words"]:
        mask &= batch.rows[:, c.WORDS] >= step.parameters["min_words"]
    if not step.parameters["chat"]:
        mask &= ~batch.chat
    return mask


def _rule(step: Step, batch: Batch, verdicts: Verdicts) -> None:
    mask = _where(step, batch, verdicts)
    verdict = rules.judge(rules.BY_NAME[step.name], batch.rows, step.parameters["min"], step.parameters["max"], mask)
    for i in np.flatnonzero(verdict.failed).tolist():
        verdicts.give(i, step.parameters["action"], step.name, float(verdict.values[i]), float(verdict.limits[i]))


def _text_rule(step: Step, batch: Batch, verdicts: Verdicts) -> None:
    mask, p = _where(step, batch, verdicts), step.parameters
    decodable = _gbk(batch.rows, p)
    if step.name == "ruined":
        mask &= decodable | (batch.rows[:, c.GBK_TRACES] >= 3) | (batch.rows[:, t.REPLACEMENT] > 0)
    for i in np.flatnonzero(mask).tolist():
        text = batch.documents[i].text
        if step.name == "ruined":
            value = text_rules.ruined_value(text, bool(decodable[i]))
        elif step.name == "compression_ratio":
            value = text_rules.compression_ratio(text)
        else:
            value = text_rules.bad_word_share(text, p["path"])
        low, high = p.get("min"), p.get("max")
        if low is not None and value < low:
            verdicts.give(i, p["action"], step.name, value, low)
        elif high is not None and value > high:
            verdicts.give(i, p["action"], step.name, value, high)


_PARITY = {
    "gopher_quality": published.gopher_quality,
    "gopher_repetition": published.gopher_repetition,
    "fineweb_quality": published.fineweb_quality,
}


def _parity(step: Step, batch: Batch, verdicts: Verdicts, changed: Counter[str], removed: Counter[str]) -> None:
    for i in np.flatnonzero(verdicts.alive).tolist():
        document = batch.documents[i]
        if step.name == "c4_quality":
            text, finding = published.c4_quality(document.text, step.parameters)
            if finding is None and len(document.parts) == 1:
                batch.replace(i, [text], step.name, changed, removed)
        else:
            finding = _PARITY[step.name](document.text, step.parameters)
        if finding is not None:
            reason, value, limit = finding
            verdicts.give(i, "drop", f"{step.name}:{reason}", value, limit)


def _language(step: Step, batch: Batch, verdicts: Verdicts) -> None:
    p = step.parameters
    if p["model"]:
        model = _model(p["model"])
        for i in np.flatnonzero(verdicts.alive).tolist():
            name, score = model.predict(batch.documents[i].text)
            batch.documents[i].language = name
            if (p["keep"] is not None and name not in p["keep"]) or score < p["min_score"]:
                verdicts.give(i, "drop", f"language:{name}", score, p["min_score"])
        return
    found = batch.detect()
    if p["keep"] is not None:
        for i in np.flatnonzero(verdicts.alive).tolist():
            if language.LANGUAGES[found[i]] not in p["keep"]:
                verdicts.give(i, "drop", f"language:{language.LANGUAGES[found[i]]}", 0, 1)


@lru_cache(maxsize=2)
def _model(path: str) -> language.FastTextModel:
    return language.FastTextModel(path)


def pii_options(parameters: dict[str, Any]) -> PiiOptions:
    """The step's parameters as PiiOptions. Raises StepParameterError for a hash without a key, or an unknown kind."""
    action, kinds = parameters["action"], parameters["kinds"]
    for name in kinds or ():
        if name not in NAMES:
            raise StepParameterError(f"pii.kinds: no kind {name!r}{nearest(name, NAMES)} Kinds: {', '.join(NAMES)}")
    if action == "hash" and not parameters["key"]:
        raise StepParameterError("pii.action hash needs pii.key, a secret; without one anybody could try all numbers")
    assert action in (*ACTIONS, "default")
    actions = DEFAULT_ACTIONS if action == "default" else dict.fromkeys(NAMES, action)
    chosen = {name: act for name, act in actions.items() if kinds is None or name in kinds}
    return PiiOptions(chosen, key=parameters["key"].encode())


def _pii(step: Step, batch: Batch, verdicts: Verdicts, changed: Counter[str], removed: Counter[str]) -> None:
    options = pii_options(step.parameters)
    batch.refresh()
    hidden = np.array([any(may_hide(part.text) for part in document.parts) for document in batch.documents], np.bool_)
    for i in np.flatnonzero(verdicts.alive & (hidden | (batch.rows[:, c.PII] > 0))).tolist():
        kinds = int(batch.rows[i, c.PII])
        texts = [mask_text(part.text, options, batch.pii, kinds) for part in batch.documents[i].parts]
        batch.replace(i, texts, step.name, changed, removed)


def _function(step: Step, batch: Batch, verdicts: Verdicts, changed: Counter[str], removed: Counter[str]) -> None:
    """A user's function of one text: a str replaces it, None drops the record."""
    function = load_function(step.name)
    for i in np.flatnonzero(verdicts.alive).tolist():
        document = batch.documents[i]
        texts: list[str] = []
        for part in document.parts:
            try:
                new = function(part.text, **step.parameters) if part.role in REPAIRED_ROLES else part.text
            except Exception as error:  # the user's code may raise anything
                where, why = f"{document.path}:{document.line}", f"{type(error).__name__}: {error}"
                raise StepParameterError(f"step {step.name} failed at {where}: {why}") from error
            if new is None:
                verdicts.give(i, "drop", step.name, 1, 0)
                break
            if not isinstance(new, str):
                where = f"{document.path}:{document.line}"
                kind = type(new).__name__
                raise StepParameterError(f"step {step.name} returned {kind} at {where}: return str or None")
            texts.append(new)
        else:
            batch.replace(i, texts, step.name, changed, removed)
