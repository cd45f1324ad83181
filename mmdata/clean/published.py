"""The published filter chains: Gopher quality and repetition, C4 quality, FineWeb quality.

Rules, order, denominators and limits follow the papers as datatrove 0.10 runs them, so a document is kept or dropped
for the same reason; each function returns None to keep or (reason, value, limit). Differences in detail: words come
from mmdata.clean.english. English defaults drop nearly all Chinese (docs/cleaning.md): for Chinese use `auto`, `zh` or
`fineweb2-zh`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mmdata.clean import english
from mmdata.clean.ngrams import duplicate_ngram_chars, number_words, top_ngram_chars

Finding = tuple[str, float, float] | None
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")

# Signs that alone make no word; of every script with sentence marks. Includes C0 and C1 controls.
_SIGNS = "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"
TERMINAL_MARKS = (
    "?.!。｡．！？؟۔։।॥።፧፨᙮᜵᜶᠃᠉᥄᥅᪨᪩᪪᪫᭚᭛᭞᭟᭽᭾᰻᰼᱾᱿‼‽⁇⁈⁉⸮⸼⹓⹔꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫﹒﹖﹗؝؞܀܁܂߹࠷࠹࠽࠾។៕៖៙៚၊။"
)
_SIGN_SET = frozenset(_SIGNS) | frozenset(TERMINAL_MARKS) | {
    chr(code) for low, high in ((0, 9), (11, 13), (13, 32), (127, 160)) for code in range(low, high)
}  # fmt: skip
_TERMINAL = tuple(TERMINAL_MARKS)
_UNITS: dict[str, Callable[[str], list[str]]] = {"english": english.words, "han": english.han_words}


def gopher_quality(text: str, p: dict[str, Any]) -> Finding:
    """Gopher's quality rules (arXiv 2112.11446, A.1.1) in datatrove's order; p: the step's parameters."""
    words = _UNITS[p["unit"]](text)
    real = [word for word in words if any(char not in _SIGN_SET for char in word)]
    total, count = max(len(words), 1), len(real)
    if count < p["min_words"]:
        return "short_document", count, p["min_words"]
    if count > p["max_words"]:
        return "long_document", count, p["max_words"]
    mean = sum(map(len, real)) / max(count, 1)
    if mean < p["min_mean_word_length"]:
        return "short_words", mean, p["min_mean_word_length"]
    if mean > p["max_mean_word_length"]:
        return "long_words", mean, p["max_mean_word_length"]
    hashes, ellipses = text.count("#") / total, (text.count("...") + text.count("…")) / total
    if hashes > p["max_symbol_ratio"]:
        return "hashes", hashes, p["max_symbol_ratio"]
    if ellipses > p["max_symbol_ratio"]:
        return "ellipses", ellipses, p["max_symbol_ratio"]
    lines = _python_lines(text)
    bullets = sum(line.lstrip().startswith(("•", "-")) for line in lines) / max(len(lines), 1)
    if bullets > p["max_bullet_lines"]:
        return "bullet_lines", bullets, p["max_bullet_lines"]
    endings = sum(line.rstrip().endswith(("...", "…")) for line in lines) / max(len(lines), 1)
    if endings > p["max_ellipsis_lines"]:
        return "ellipsis_lines", endings, p["max_ellipsis_lines"]
    alpha = sum(any(map(str.isalpha, word)) for word in words) / total
    if alpha < p["min_alpha_words"]:
        return "alpha_words", alpha, p["min_alpha_words"]
    stops = len(set(p["stop_words"] or STOP_WORDS).intersection(words))
    return ("stop_words", stops, p["min_stop_words"]) if stops < p["min_stop_words"] else None


_PYTHON_LINE = re.compile("\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


def _python_lines(text: str) -> list[str]:
    """Lines as the published chains cut them (at every Unicode line boundary), for parity only."""
    lines = _PYTHON_LINE.split(text)
    return lines[:-1] if lines[-1] == "" else lines


def _duplicates(items: list[str]) -> tuple[int, int]:
    """Number and characters of the items seen before."""
    seen: set[str] = set()
    count = chars = 0
    for item in items:
        if item in seen:
            count, chars = count + 1, chars + len(item)
        seen.add(item)
    return count, chars


def gopher_repetition(text: str, p: dict[str, Any]) -> Finding:
    """Gopher's repetition rules (arXiv 2112.11446, table A1); character shares are of len(text)."""
    if not text:
        return "empty", 0, 1
    for name, items in (
        ("paragraph", re.split(r"\n{2,}", text.strip())),
        ("line", re.split(r"\n+", text)),
    ):
        count, chars = _duplicates(items)
        if count / len(items) > p[f"duplicate_{name}s"]:
            return f"duplicate_{name}s", count / len(items), p[f"duplicate_{name}s"]
        if chars / len(text) > p[f"duplicate_{name}_chars"]:
            return f"duplicate_{name}_chars", chars / len(text), p[f"duplicate_{name}_chars"]
    numbers, lengths = number_words(_UNITS[p["unit"]](text))
    for n, limit in p["top_ngrams"]:
        share = top_ngram_chars(numbers, lengths, n) / len(text)
        if share > limit:
            return f"top_{n}_gram", share, limit
    for n, limit in p["duplicate_ngrams"]:
        share = duplicate_ngram_chars(numbers, lengths, n) / len(text)
        if share > limit:
            return f"duplicate_{n}_grams", share, limit
    return None


_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")


def c4_quality(text: str, p: dict[str, Any]) -> tuple[str, Finding]:
    """C4's line and page rules (arXiv 1910.10683, 2.2): the text of the kept lines, and the finding on the page."""
    kept: list[str] = []
    sentences = 0
    for line in _python_lines(text):
        line = line.strip()
        words = line.split()
        if any(len(word) > p["max_word_length"] for word in words):
            continue
        line = _CITATION.sub("", line)
        if not line.endswith((".", "?", "!", '"', "'")) or line.endswith("..."):
            continue
        if len(words) < p["min_words_per_line"]:
            continue
        lower = line.lower()
        if "lorem ipsum" in lower:
            return text, ("lorem_ipsum", 1, 0)
        if "javascript" in lower:
            continue
        if "{" in line:
            return text, ("curly_bracket", line.count("{"), 0)
        if any(policy in lower for policy in _POLICIES):
            continue
        sentences += english.count_sentences(line)
        kept.append(line)
    if sentences < p["min_sentences"]:
        return text, ("too_few_sentences", sentences, p["min_sentences"])
    return "\n".join(kept).strip(), None


def fineweb_quality(text: str, p: dict[str, Any]) -> Finding:
    """FineWeb's own rules (arXiv 2406.17557, 3.6)."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return "empty", 0, 1
    share = sum(line.endswith(_TERMINAL) for line in lines) / len(lines)
    if share < p["min_terminal_lines"]:
        return "terminal_lines", share, p["min_terminal_lines"]
    share = sum(len(line) <= p["short_line_length"] for line in lines) / len(lines)
    if share > p["max_short_lines"]:
        return "short_lines", share, p["max_short_lines"]
    share = _duplicates(lines)[1] / len(text.replace("\n", ""))
    if share > p["max_duplicate_line_chars"]:
        return "duplicate_line_chars", share, p["max_duplicate_line_chars"]
    share = text.count("\n") / max(len(_UNITS[p["unit"]](text)), 1)
    return ("newline_ratio", share, p["max_newline_ratio"]) if share > p["max_newline_ratio"] else None
