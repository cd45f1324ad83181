"""Repairs of whole lines: blank runs, runs of spaces in prose, repeated lines, boilerplate at the edges.

Lines end at \\n only. Indentation, fenced and indented code, tables and the U+3000 paragraph indent stay. Linear.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mmdata.clean.signs_kernel import start_key
from mmdata.errors import BoilerplateListError

Beginnings = dict[str, list[tuple[str, re.Pattern[str]]]]
_RUN = re.compile(r"(?<=[^\W\d_]) {2,}(?=[^\W\d_])|(?<=[，。；：、！？,;]) {2,}(?=[\u3400-\u9fff])")
_LETTERS = re.compile(r"[^\W\d_]")
_TAIL = re.compile(r"(?<=\S)(?: {3,}[ \t]*| *\t[ \t]*)(?=\n|\Z)")
_CODE_LINE = re.compile(r"^\s*(?:>|#|\.\.\. )|[|\t{}=#`<>]|--|->")


def collapse_blank_lines(text: str, max_blank: int = 3) -> str:
    """At most max_blank blank lines in a row; lines of white space only count as blank."""
    pattern = r"\n(?:[ \t\u3000]*\n){" + str(max_blank + 1) + ",}"
    return re.sub(pattern, "\n" * (max_blank + 1), text)


def collapse_space_runs(text: str, min_run: int = 3) -> str:
    """Runs of min_run or more spaces between words of a prose line become one space.

    Two spaces stay: typists put them after a full stop. A run counts between letters, 20 characters into a line that
    is mostly letters; a line with several runs, or next to a line whose text is aligned at the same column, is a table
    and stays, as do lines with signs of code, fenced blocks and indented lines.
    """
    lines = text.split("\n")
    spans = {
        i: found
        for i, line in enumerate(lines)
        if "   " in line and (found := [m for m in _RUN.finditer(line) if len(m.group()) >= min_run])
    }
    fenced = _fenced(lines) if "```" in text or "~~~" in text else frozenset()
    for i in spans:
        line = lines[i]
        if i in fenced or len(spans[i]) != 1 or line.startswith(" ") or _CODE_LINE.search(line):
            continue
        column = spans[i][0].end()
        near = [m.end() for j in (i - 1, i + 1) for m in spans.get(j, ())]
        prose = spans[i][0].start() >= 20 and len(_LETTERS.findall(line)) > 0.7 * len(line.replace(" ", ""))
        if column not in near and prose:
            lines[i] = line[: spans[i][0].start()] + " " + line[column:]
    return "\n".join(lines)


def _fenced(lines: list[str]) -> frozenset[int]:
    """Numbers of the lines in fenced blocks, the opening fences with them."""
    inside, found = False, []
    for i, line in enumerate(lines):
        if line.lstrip().startswith(("```", "~~~")):
            inside = not inside
        if inside:
            found.append(i)
    return frozenset(found)


def strip_line_ends(text: str) -> str:
    """Without white space at line ends where it holds a tab or is three spaces or longer.

    One space stays, as harmless; two spaces stay, as Markdown's line break.
    """
    return _TAIL.sub("", text)


def remove_repeated_lines(text: str, min_repeats: int = 3) -> str:
    """A line that stands min_repeats times or more in a row (blank lines aside) is kept once, at its first occurrence.

    Where the line stood earlier in the text, the whole run goes. Lines with fewer than two letters (rules, dots,
    closing braces) and lines indented by a tab or four spaces (code) are left alone.
    """
    lines = text.split("\n")
    visible = [(i, line.rstrip()) for i, line in enumerate(lines) if line.strip()]
    seen: set[str] = set()
    dropped: set[int] = set()
    start = 0
    for k in range(1, len(visible) + 1):
        if k < len(visible) and visible[k][1] == visible[start][1]:
            continue
        line = visible[start][1]
        if k - start >= min_repeats and len(_LETTERS.findall(line)) >= 2 and line[:1] != "\t" and line[:4] != "    ":
            first = start if line in seen else start + 1
            dropped.update(i for i, _ in visible[first:k])
        seen.add(line)
        start = k
    return "\n".join(line for i, line in enumerate(lines) if i not in dropped) if dropped else text


@lru_cache(maxsize=16)
def boilerplate_patterns(lists: tuple[str, ...]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """(literal beginning in lower case, whole-line expression) of every line of the named lists.

    lists: `zh`, `en`, or paths of UTF-8 files. A list line is `BEGINNING` or `BEGINNING<tab>EXPRESSION`: a line of
    text goes when it begins with BEGINNING (case aside) and the rest matches EXPRESSION whole; without one, the rest
    must be empty. Raises BoilerplateListError for a file that cannot be read, a bad expression or a beginning of fewer
    than three bytes.
    """
    found = []
    for name in lists:
        builtin = name in ("zh", "en")
        source = files("mmdata.clean").joinpath(f"data/boilerplate_{name}.txt") if builtin else None
        try:
            text = (source or Path(name)).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BoilerplateListError(f"boilerplate: cannot read {name!r} ({error}); built in are zh, en") from error
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            beginning, _, rest = line.partition("\t")
            try:
                pattern = re.compile(re.escape(beginning) + (rest or r"\s*"), re.IGNORECASE)
            except re.error as error:
                raise BoilerplateListError(f"{name}:{number}: {rest!r} is not a regular expression: {error}") from error
            if len(beginning.encode()) < 3:
                raise BoilerplateListError(f"{name}:{number}: begin with at least 3 bytes, not {beginning!r}")
            found.append((beginning.lower(), pattern))
    return tuple(found)


@lru_cache(maxsize=16)
def line_starts(lists: tuple[str, ...]) -> npt.NDArray[np.uint8]:
    """For the measuring pass: 65,536 bit masks, set where the first bytes of a beginning hash to."""
    table = np.zeros(65536, np.uint8)
    for beginning, _ in boilerplate_patterns(tuple(lists)):
        slot, bit = start_key(beginning.encode())
        table[slot] |= bit
    return table


def remove_boilerplate(text: str, lists: Sequence[str] = ("zh", "en"), edge: int = 12) -> str:
    """Without navigation, sharing and copyright lines among the first and last `edge` visible lines.

    One short line (30 characters) between two such lines, as the wrapped title of a neighbouring article, goes too.
    """
    patterns = _by_two_characters(tuple(lists))
    if not _boilerplate_at_edges(text, patterns, edge):
        return text
    lines = text.split("\n")
    visible = [i for i, line in enumerate(lines) if line.strip()]
    hits = {
        k
        for k in {*range(min(edge, len(visible))), *range(max(0, len(visible) - edge), len(visible))}
        if _is_boilerplate(lines[visible[k]].strip(), patterns)
    }
    hits |= {k + 1 for k in hits if k + 2 in hits and len(lines[visible[k + 1]].strip()) <= 30}
    if not hits or len(hits) == len(visible):
        return text
    dropped = {visible[k] for k in hits}
    return "\n".join(line for i, line in enumerate(lines) if i not in dropped).strip("\n")


def _boilerplate_at_edges(text: str, table: Beginnings, edge: int) -> bool:
    """Is there a boilerplate line among the first or last `edge` visible lines? Looks at no other line."""
    start, count = 0, 0
    while start <= len(text) and count < edge:
        stop = text.find("\n", start)
        stop = len(text) if stop < 0 else stop
        line = text[start:stop].strip()
        count += bool(line)
        if line and _is_boilerplate(line, table):
            return True
        start = stop + 1
    stop, count = len(text), 0
    while stop >= 0 and count < edge:
        start = text.rfind("\n", 0, stop) + 1
        line = text[start:stop].strip()
        count += bool(line)
        if line and _is_boilerplate(line, table):
            return True
        stop = start - 1
    return False


@lru_cache(maxsize=16)
def _by_two_characters(lists: tuple[str, ...]) -> Beginnings:
    table: Beginnings = {}
    for beginning, pattern in boilerplate_patterns(lists):
        table.setdefault(beginning[:2], []).append((beginning, pattern))
    return table


def _is_boilerplate(line: str, table: Beginnings) -> bool:
    known = table.get(line[:2].lower())
    if known is None:
        return False
    lower = line[:80].lower()
    return any(lower.startswith(head) and pattern.fullmatch(line) for head, pattern in known)
