"""Repairs of whole lines: blank runs, runs of spaces in prose, repeated lines, boilerplate at the edges.

Lines end at \\n only. Indentation, fenced and indented code, tables and the U+3000 paragraph indent stay. Linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mmdata.clean.signs_kernel import start_key
from mmdata.errors import BoilerplateListError

Beginnings = dict[str, tuple[tuple[str, ...], list[tuple[str, re.Pattern[str]]]]]
"""First two characters -> the literal beginnings that start so, and each with its whole-line expression."""
_STOPS = "，。；：、！？,;"
# Every run of three spaces and more that `_parts_words`, and a few others; begins with what a search jumps to.
_PERHAPS_RUN = re.compile(rf"   (?<=[^\W\d_]   |[{_STOPS}]   ) *[^\W\d_]")
_LETTERS = re.compile(r"[^\W\d_]")
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
    spaces = re.compile(f" {{{max(min_run, 2)},}}")
    fenced: frozenset[int] | None = None
    pieces: list[str] = []
    done, found = 0, _PERHAPS_RUN.search(text)
    while found is not None:
        begin, end = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.end())
        end = len(text) if end < 0 else end
        run = _lone_run(text[begin:end], spaces) if text[begin] != " " else None
        if run is not None and not _is_aligned(text, (begin, end), run[1], spaces):
            if fenced is None:
                fenced = _fenced(text.split("\n")) if "```" in text or "~~~" in text else frozenset()
            if not fenced or text.count("\n", 0, begin) not in fenced:
                pieces += [text[done : begin + run[0]], " "]
                done = begin + run[1]
        found = _PERHAPS_RUN.search(text, end)
    return "".join([*pieces, text[done:]]) if pieces else text


def _lone_run(line: str, spaces: re.Pattern[str]) -> tuple[int, int] | None:
    """Where the only run of spaces stands in a line of prose, not before its 20th character."""
    runs = _runs(line, spaces)
    if len(runs) != 1 or runs[0][0] < 20 or _CODE_LINE.search(line):
        return None
    return runs[0] if len(_LETTERS.findall(line)) > 0.7 * len(line.replace(" ", "")) else None


def _is_aligned(text: str, line: tuple[int, int], column: int, spaces: re.Pattern[str]) -> bool:
    """Does text behind a run of spaces begin at this column in the line before or behind [begin, end) as well?"""
    begin, end = line
    before = text[text.rfind("\n", 0, begin - 1) + 1 : begin - 1] if begin else ""
    after = text.find("\n", end + 1)
    behind = text[end + 1 : after if after >= 0 else len(text)]
    return any(column == stop for near in (before, behind) if "   " in near for _, stop in _runs(near, spaces))


def _runs(line: str, spaces: re.Pattern[str]) -> list[tuple[int, int]]:
    """Where spaces stand between two letters, or between Chinese punctuation (, and ; too) and a Han character."""
    return [span for match in spaces.finditer(line) if _parts_words(line, *(span := match.span()))]


def _parts_words(line: str, start: int, stop: int) -> bool:
    if start == 0 or stop == len(line):
        return False
    before, after = line[start - 1], line[stop]
    if before.isalnum():  # \w without the underscore; a letter is no decimal digit either
        return not before.isdecimal() and after.isalnum() and not after.isdecimal()
    return before in _STOPS and "\u3400" <= after <= "\u9fff"


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
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if line[-1:] in (" ", "\t"):
            body = line.rstrip(" \t")
            tail = len(line) - len(body)
            if (tail > 2 or "\t" in line[-tail:]) and body and not body[-1].isspace():
                lines[i] = body
    return "\n".join(lines)


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
    first, last = partial(text.split, "\n"), partial(text.rsplit, "\n")
    return _boilerplate_at_end(first, table, edge, last=False) or _boilerplate_at_end(last, table, edge, last=True)


def _boilerplate_at_end(cut: Callable[[int], list[str]], table: Beginnings, edge: int, last: bool) -> bool:
    """cut: gives so many lines of one end and all others as one string, which comes first where `last`."""
    most, done, count = 3 * edge, 0, 0
    while True:
        pieces = cut(most)
        whole = len(pieces) <= most
        lines = pieces if whole else pieces[1:] if last else pieces[:-1]
        for line in (reversed(lines[: len(lines) - done]) if last else lines[done:]):
            line = line.strip()
            if line:
                if _is_boilerplate(line, table):
                    return True
                count += 1
                if count == edge:
                    return False
        if whole:
            return False
        done, most = len(lines), 8 * most  # an end of many blank lines


@lru_cache(maxsize=16)
def _by_two_characters(lists: tuple[str, ...]) -> Beginnings:
    found: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for beginning, pattern in boilerplate_patterns(lists):
        found.setdefault(beginning[:2], []).append((beginning, pattern))
    return {key: (tuple(beginning for beginning, _ in known), known) for key, known in found.items()}


def _is_boilerplate(line: str, table: Beginnings) -> bool:
    known = table.get(line[:2].lower())
    if known is None:
        return False
    lower = line[:80].lower()
    if not lower.startswith(known[0]):
        return False
    return any(lower.startswith(head) and pattern.fullmatch(line) for head, pattern in known[1])
