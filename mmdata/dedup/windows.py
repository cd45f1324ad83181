"""Cuts a long text into pieces whose shingles together are the text's own, so that scratch does not grow with it.

A piece begins at a unit (a word or a character) and runs past its own units by as many as a shingle has, so shingles
that lie across a cut are made once or twice and none is missing or new.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from mmdata.dedup.plain import class_of, word_pattern
from mmdata.dedup.word_table import RUN, WHITE_SPACE

WINDOW = 1 << 18
"""Characters from which on a text is cut: as large as the blocks short texts are gathered into."""


@lru_cache(maxsize=1)
def _no_run() -> re.Pattern[str]:
    return re.compile(f"[^{class_of(RUN)}]")


@lru_cache(maxsize=1)
def _shown() -> re.Pattern[str]:
    return re.compile(f"[^{WHITE_SPACE}]")


def windows(text: str, chars: bool, size: int, window: int = WINDOW) -> Iterator[str]:
    """Pieces of `text`, in order. chars: units are characters, else words. size: units of a shingle."""
    units = _shown() if chars else word_pattern()
    first = units.search(text)
    start = first.start() if first else len(text)
    while start < len(text):
        stop = _boundary(text, min(start + window, len(text)), chars)
        end = _behind(text, stop, units, size)
        yield text[start:end]
        following = units.search(text, stop)
        if end >= len(text) or following is None:
            return
        start = following.start()


def _boundary(text: str, at: int, chars: bool) -> int:
    """The first place from `at` on where no word goes on; for characters, none is in the midst of white space."""
    if at >= len(text):
        return at
    found = (_shown() if chars else _no_run()).search(text, at)
    return found.start() if found else len(text)


def _behind(text: str, at: int, units: re.Pattern[str], count: int) -> int:
    """Where the `count`-th unit from `at` on ends; the end of the text where there are fewer."""
    for number, found in enumerate(units.finditer(text, at), 1):
        if number == count:
            return found.end()
    return len(text)
