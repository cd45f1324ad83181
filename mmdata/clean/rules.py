"""Quality rules: a measured value of the document against a lower and an upper limit.

Each rule is a formula over the columns of the measuring pass, evaluated for a whole batch at once; what it measures
and where its form or limit was published stands beside it and in docs/cleaning.md (a test holds the two equal).
Limits belong to recipes. Values are floats; a share is in [0, 1]; a document without a denominator has the value 0
and `applies` is False there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmdata.clean import columns as c
from mmdata.clean import tables as t

Matrix = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Formula = Callable[[Matrix], tuple[Floats, Matrix]]

GOPHER = "Gopher, arXiv 2112.11446, A.1"
C4 = "C4, arXiv 1910.10683, 2.2"
FINEWEB = "FineWeb, arXiv 2406.17557"
JUICER = "Data-Juicer, arXiv 2309.02033"
NEO = "MAP-NEO, arXiv 2405.19327"
CURATOR = "NeMo Curator heuristic filters"
CHINESE_WEB = "ChineseWebText, arXiv 2311.01149"


@dataclass(frozen=True, slots=True)
class Rule:
    """formula(rows) -> (numerator, denominator); summary and source for the documentation."""

    name: str
    formula: Formula
    summary: str
    source: str


def _share(top: int, bottom: int) -> Formula:
    return lambda rows: (rows[:, top].astype(np.float64), rows[:, bottom])


def _count(column: int) -> Formula:
    return lambda rows: (rows[:, column].astype(np.float64), np.ones(len(rows), np.int64))


def visible(rows: Matrix) -> Matrix:
    """Characters that are not white space."""
    return np.asarray(rows[:, c.CHARS] - rows[:, t.SPACE] - rows[:, t.WIDE_SPACE])


def letters(rows: Matrix) -> Matrix:
    """Letters of any script, combining marks with them."""
    kinds = [t.LATIN, t.LETTER, t.HANGUL, t.MARK, t.HAN, t.KANA]
    return np.asarray(rows[:, kinds].sum(axis=1))


def _of_visible(*kinds: int) -> Formula:
    return lambda rows: (rows[:, list(kinds)].sum(axis=1).astype(np.float64), visible(rows))


def _stop_share(rows: Matrix) -> tuple[Floats, Matrix]:
    words = rows[:, c.LATIN_WORDS] - rows[:, c.DIGIT_WORDS] + rows[:, t.HAN]
    return (rows[:, c.EN_STOPS] + rows[:, c.ZH_STOPS]).astype(np.float64), words


RULES = (
    Rule("characters", _count(c.CHARS), "characters", JUICER),
    Rule("words", _count(c.WORDS), "words: Han characters and runs of other letters or digits", GOPHER),
    Rule("letters", lambda rows: (letters(rows).astype(np.float64), np.ones(len(rows), np.int64)),
         "letters of any script", JUICER),
    Rule("letter_share", lambda rows: (letters(rows).astype(np.float64), visible(rows)),
         "letters per visible character", JUICER + " (alphanumeric_filter)"),
    Rule("symbol_share", _of_visible(t.SYMBOL, t.PRIVATE, t.CONTROL, t.REPLACEMENT),
         "symbols per visible character; Chinese punctuation is no symbol", JUICER + " (special_characters_filter)"),
    Rule("punctuation_share", _of_visible(t.ASCII_PUNCT, t.PUNCT, t.WIDE_PUNCT),
         "punctuation per visible character", CURATOR + " (NonAlphaNumericFilter)"),
    Rule("digit_share", _of_visible(t.DIGIT, t.WIDE_ALNUM, t.NUMBER), "digits per visible character",
         CURATOR + " (NumbersFilter)"),
    Rule("mean_word_length", _share(c.LATIN_WORD_CHARS, c.LATIN_WORDS),
         "mean length of words other than Han and kana characters", GOPHER),
    Rule("longest_word", _count(c.LONGEST_WORD), "length of the longest word above 20 characters", C4),
    Rule("mean_line_length", _share(c.LINE_CHARS, c.LINES), "mean length of visible lines",
         CHINESE_WEB + "; " + JUICER + " (average_line_length_filter)"),
    Rule("hash_share", _share(c.HASHES, c.WORDS), "number signs per word", GOPHER),
    Rule("ellipsis_share", _share(c.ELLIPSES, c.WORDS), "ellipses per word", GOPHER),
    Rule("bullet_lines", _share(c.BULLET_LINES, c.LINES), "lines that begin with a bullet", GOPHER),
    Rule("ellipsis_lines", _share(c.ELLIPSIS_LINES, c.LINES), "lines that end in an ellipsis", GOPHER),
    Rule("short_lines", _share(c.SHORT_LINES, c.LINES), "lines of at most 12 Han or 30 other characters", FINEWEB),
    Rule("terminal_lines", _share(c.TERMINAL_LINES, c.LINES), "lines that end in a terminal mark", FINEWEB + "; " + C4),
    Rule("duplicate_lines", _share(c.DUPLICATE_LINES, c.LINES), "lines seen before in the document", GOPHER),
    Rule("duplicate_line_chars", _share(c.DUPLICATE_LINE_CHARS, c.LINE_CHARS),
         "characters in lines seen before", GOPHER),
    Rule("duplicate_paragraphs", _share(c.DUPLICATE_PARAGRAPHS, c.PARAGRAPHS), "paragraphs seen before", GOPHER),
    Rule("duplicate_paragraph_chars", _share(c.DUPLICATE_PARAGRAPH_CHARS, c.LINE_CHARS),
         "characters in paragraphs seen before", GOPHER),
    Rule("duplicate_ngram_chars", _share(c.DUPLICATE_GRAM_CHARS, c.WORD_CHARS),
         "word characters covered by sequences of 10 words seen before", GOPHER + "; limits for Chinese: " + NEO),
    Rule("top_word_chars", _share(c.TOP_WORD_CHARS, c.WORD_CHARS), "word characters taken by the commonest word",
         GOPHER + " (top n-gram, n = 1)"),
    Rule("unique_word_share", _share(c.UNIQUE_WORDS, c.WORDS), "distinct words per word", NEO),
    Rule("entropy", lambda rows: (rows[:, c.ENTROPY] / 1e6, np.ones(len(rows), np.int64)),
         "unigram entropy in bits", NEO),
    Rule("character_run", _count(c.LONGEST_RUN), "longest run of one visible character", JUICER + " (repetition)"),
    Rule("character_run_share", _share(c.LONGEST_RUN, c.CHARS), "that run per character", JUICER + " (repetition)"),
    Rule("consonant_word_share", _share(c.CONSONANT_WORDS, c.ASCII_WORDS),
         "ASCII words of 4 letters or more without a vowel: random letters have about 0.3", "ours"),
    Rule("long_word_chars", _share(c.LONG_WORD_CHARS, c.CHARS),
         "characters in words longer than 40: base64, hashes, encoded data", CURATOR + " (LongWordFilter)"),
    Rule("replacement_share", _share(t.REPLACEMENT, c.CHARS), "U+FFFD per character", "ours"),
    Rule("stop_word_share", _stop_share, "English stop words and Chinese function characters per word",
         GOPHER + "; " + FINEWEB),
    Rule("curly_brackets", _count(c.CURLY), "opening curly brackets", C4),
)  # fmt: skip
BY_NAME = {rule.name: rule for rule in RULES}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where a rule applies and fails in a batch: documents, their values, and the limit each one broke."""

    failed: npt.NDArray[np.bool_]
    values: Floats
    limits: Floats


def judge(rule: Rule, rows: Matrix, low: float | None, high: float | None, where: npt.NDArray[np.bool_]) -> Verdict:
    """Compare the rule's value with its limits (both inclusive) on the documents marked in `where`."""
    top, bottom = rule.formula(rows)
    values = np.divide(top, bottom, out=np.zeros(len(rows)), where=bottom > 0)
    applies = where & (bottom > 0)
    under = applies & (values < low) if low is not None else np.zeros(len(rows), np.bool_)
    over = applies & (values > high) if high is not None else np.zeros(len(rows), np.bool_)
    limits = np.where(under, low if low is not None else 0.0, high if high is not None else 0.0)
    return Verdict(under | over, values, limits)
