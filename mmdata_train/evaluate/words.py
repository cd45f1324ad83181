"""Texts as the units scores count: Han characters one by one, everything else by words. Needs no model.

rouge-score's own tokenizer deletes whatever is not a-z or 0-9, so a Chinese text scores 0 against itself there; and
splitting Chinese at spaces makes a sentence one word. Both are the usual mistakes this module exists for.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Literal

Language = Literal["zh", "en"]

# Han: the unified ideographs with extensions A to H, compatibility forms, and the iteration and zero marks.
HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_UNIT = re.compile(rf"[{HAN}]|[^\W{HAN}_]+")
_HAN = re.compile(rf"[{HAN}]")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_HAN_SHARE = 0.2


def units(text: str) -> list[str]:
    """Han characters and lower-case words of letters and digits, in order; punctuation and spaces are left out.

    After NFKC, so that full-width letters and digits equal plain ones.
    """
    return _UNIT.findall(unicodedata.normalize("NFKC", text).lower())


def language_of(texts: Iterable[str]) -> Language:
    """`zh` where at least a fifth of the units of all texts are Han characters, else `en`."""
    found = [unit for text in texts for unit in units(text)]
    han = sum(_HAN.fullmatch(unit) is not None for unit in found)
    return "zh" if found and han >= _HAN_SHARE * len(found) else "en"


def answer_units(text: str, language: Language) -> list[str]:
    """`units`, for English without the articles: SQuAD's normalisation (Rajpurkar et al., 2016)."""
    found = units(text)
    return [unit for unit in found if _ARTICLES.fullmatch(unit) is None] if language == "en" else found


class UnitTokenizer:
    """rouge-score's tokenizer interface over `units`."""

    def tokenize(self, text: str) -> list[str]:
        """The units of a text."""
        return units(text)
