"""The steps a recipe can name: their parameters, defaults, limits, and where each comes from.

One table; recipes are checked against it, `mmdata recipe show` prints it, and a test holds docs/cleaning.md equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmdata.clean.chinese import CONVERSIONS
from mmdata.clean.language import LANGUAGES
from mmdata.clean.pii import NAMES
from mmdata.clean.rules import C4, FINEWEB, GOPHER, RULES

OURS = "ours"


@dataclass(frozen=True, slots=True)
class Parameter:
    """default; kind: int, float, str, bool, list (of str) or pairs ([n, limit] lists); allowed range or choices."""

    default: Any
    kind: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepKind:
    """kind: repair, rule, text_rule, parity, language or pii."""

    name: str
    kind: str
    parameters: dict[str, Parameter]
    summary: str
    source: str


_LIMITS = {
    "min": Parameter(None, "float"),
    "max": Parameter(None, "float"),
    "languages": Parameter(None, "list", choices=LANGUAGES),
    "min_words": Parameter(0, "int", low=0),
    "chat": Parameter(True, "bool"),
    "action": Parameter("drop", "str", choices=("drop", "review", "flag")),
}


def _repair(name: str, summary: str, source: str, **parameters: Parameter) -> StepKind:
    return StepKind(name, "repair", parameters, summary, source)


def _text_rule(name: str, summary: str, source: str, **parameters: Parameter) -> StepKind:
    shared = {key: _LIMITS[key] for key in ("languages", "min_words", "chat", "action")}
    return StepKind(name, "text_rule", {**parameters, **shared}, summary, source)


REPAIRS = (
    _repair("line_ends", "\\r\\n, \\r, U+2028 and U+2029 become \\n", "Unicode 5.8, newline guidelines"),
    _repair("controls", "C0, DEL, terminal escapes and stray C1 characters go", "Unicode 23.1"),
    _repair("office_debris", "empty o:p tags of Microsoft Office go, with what is glued to them", OURS),
    _repair("html_references", "character references are decoded, also doubly escaped ones; code keeps them",
            "HTML standard, 13.5"),
    _repair("html", "pages are reduced to their text with selectolax", "selectolax; " + OURS),
    _repair("gbk_mojibake", "UTF-8 read as GBK is turned back where no byte was lost", OURS),
    _repair("mojibake", "ftfy with Chinese-safe settings, GBK read as Latin-1, and three of ftfy's known failures",
            "ftfy 6.3, ftfy.readthedocs.io"),
    _repair("c1", "remaining C1 characters are read as Windows-1252", "WHATWG encoding standard"),
    _repair("invisible", "zero-width, bidirectional, soft-hyphen, private-use characters and noncharacters go",
            "Unicode 23; table of characters"),
    _repair("fullwidth", "fullwidth letters and digits become ASCII; punctuation too in lines without Han", OURS),
    _repair("nfc", "Unicode normal form C", "Unicode annex 15"),
    _repair("odd_spaces", "no-break and typographic spaces become U+0020", "Unicode 6.2"),
    _repair("space_runs", "runs of spaces inside prose lines become one space", OURS,
            min_run=Parameter(3, "int", low=3)),
    _repair("line_tails", "long or tabbed white space at line ends goes", OURS),
    _repair("repeated_lines", "a line repeated in a row is kept once", OURS, min_repeats=Parameter(3, "int", low=2)),
    _repair("boilerplate", "navigation, sharing and copyright lines at both edges go",
            "RefinedWeb, arXiv 2306.01116, G.2",
            lists=Parameter(["zh", "en"], "list"), edge=Parameter(12, "int", low=1)),
    _repair("blank_lines", "runs of blank lines are cut to max_blank", "RefinedWeb, arXiv 2306.01116, G.2",
            max_blank=Parameter(3, "int", low=0)),
    _repair("convert_chinese", "between traditional and simplified Chinese, with OpenCC", "OpenCC",
            conversion=Parameter("t2s", "str", choices=CONVERSIONS)),
    _repair("unwrap_lines", "hard-wrapped Chinese and hyphenated English lines are joined", OURS,
            min_width=Parameter(15, "int", low=2)),
    _repair("page_furniture", "page numbers and running headers go", OURS, min_repeats=Parameter(3, "int", low=2)),
)  # fmt: skip

TEXT_RULES = (
    _text_rule("ruined", "share of characters lost to U+FFFD, 锟斤拷 and their like, or of UTF-8 read as GBK", OURS,
               max=Parameter(0.01, "float", low=0)),
    _text_rule("compression_ratio", "bytes over bytes after a fixed LZ77 parse (not a library's, so it never changes)",
               "dolma and datamap-rs gzip annotators", min=Parameter(None, "float"), max=Parameter(None, "float")),
    _text_rule("bad_words", "share of words (Latin) or occurrences per character (Han) in a list", C4,
               path=Parameter("", "str"), max=Parameter(0.0, "float", low=0)),
)  # fmt: skip

PARITY = (
    StepKind("gopher_quality", "parity", {
        "min_words": Parameter(50, "int"), "max_words": Parameter(100_000, "int"),
        "min_mean_word_length": Parameter(3.0, "float"), "max_mean_word_length": Parameter(10.0, "float"),
        "max_symbol_ratio": Parameter(0.1, "float"), "max_bullet_lines": Parameter(0.9, "float"),
        "max_ellipsis_lines": Parameter(0.3, "float"), "min_alpha_words": Parameter(0.8, "float"),
        "min_stop_words": Parameter(2, "int"), "stop_words": Parameter(None, "list"),
        "unit": Parameter("english", "str", choices=("english", "han")),
    }, "the eight quality rules, with English words or one Han character a word", GOPHER),
    StepKind("gopher_repetition", "parity", {
        "duplicate_lines": Parameter(0.3, "float"), "duplicate_paragraphs": Parameter(0.3, "float"),
        "duplicate_line_chars": Parameter(0.2, "float"), "duplicate_paragraph_chars": Parameter(0.2, "float"),
        "top_ngrams": Parameter([[2, 0.20], [3, 0.18], [4, 0.16]], "pairs"),
        "duplicate_ngrams": Parameter([[5, 0.15], [6, 0.14], [7, 0.13], [8, 0.12], [9, 0.11], [10, 0.10]], "pairs"),
        "unit": Parameter("english", "str", choices=("english", "han")),
    }, "repeated lines, paragraphs and n-grams", GOPHER + ", table A1"),
    StepKind("c4_quality", "parity", {
        "min_sentences": Parameter(5, "int"), "min_words_per_line": Parameter(3, "int"),
        "max_word_length": Parameter(1000, "int"),
    }, "keeps lines that end a sentence; drops pages with lorem ipsum, { or too few sentences", C4),
    StepKind("fineweb_quality", "parity", {
        "min_terminal_lines": Parameter(0.12, "float"), "max_short_lines": Parameter(0.67, "float"),
        "short_line_length": Parameter(30, "int"), "max_duplicate_line_chars": Parameter(0.01, "float"),
        "max_newline_ratio": Parameter(0.3, "float"),
        "unit": Parameter("english", "str", choices=("english", "han")),
    }, "terminal marks, short lines, duplicate lines, line feeds per word", FINEWEB),
)  # fmt: skip

OTHERS = (
    StepKind("language", "language", {
        "model": Parameter("", "str"), "keep": Parameter(None, "list"),
        "min_score": Parameter(0.0, "float", low=0, high=1),
    }, "sets the document's language; with keep, drops the others; model: a fastText file", "CCNet, arXiv 1911.00359"),
    StepKind("pii", "pii", {
        "action": Parameter("default", "str", choices=("default", "off", "count", "replace", "hash")),
        "kinds": Parameter(None, "list", choices=NAMES), "key": Parameter("", "str"),
    }, "personal data: default replaces identity, mobile and card numbers, e-mail and URL credentials, counts the rest",
        "GB 11643-1999, GB 32100-2015, ISO/IEC 7812-1"),
)  # fmt: skip

_RULE_KINDS = tuple(StepKind(rule.name, "rule", dict(_LIMITS), rule.summary, rule.source) for rule in RULES)
CATALOG: dict[str, StepKind] = {
    step.name: step for step in (*REPAIRS, *OTHERS, *_RULE_KINDS, *TEXT_RULES, *PARITY)
}  # fmt: skip
