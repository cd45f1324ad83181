"""Opt-in repairs for text that came out of PDFs: hard-wrapped lines and page furniture. Linear in the text."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

_HAN_END = re.compile(r"[\u3400-\u9fff\uf900-\ufaff，、；：（“‘]$")
_HAN_START = re.compile(r"^[\u3400-\u9fff\uf900-\ufaff，。、；：！？）”’」』]")
_HEADING = re.compile(
    r"^\s*(?:#|第[一二三四五六七八九十百千零〇0-9]+[章节節条條编編篇回卷部]|[一二三四五六七八九十]+、|[（(][一二三四五六七八九十0-9]+[)）]"
    r"|[0-9]+[.、．)）]|[-*•·]|[A-Z][.)] |附[件录錄])"
)
_PAGE = re.compile(
    r"^\s*(?:[-–—·.]?\s*[0-9]{1,4}\s*[-–—·.]?|第\s*[0-9一二三四五六七八九十百]+\s*[页頁](?:\s*[/，,]?\s*共\s*[0-9一二三四五六七八九十百]+\s*[页頁])?"
    r"|[Pp]age\s+[0-9]+(?:\s+of\s+[0-9]+)?|[0-9]{1,4}\s*/\s*[0-9]{1,4}|[ivxlcIVXLC]{1,7})\s*$"
)


def unwrap_lines(text: str, min_width: int = 15) -> str:
    """Join hard-wrapped Chinese lines and words hyphenated at a line end.

    A Chinese line is joined to the next when it ends in a Han character or an opening or pausing mark, is about as
    long as the text's usual line (so it was cut by the margin), and the next begins with Han and is no heading or list
    item. Verse stays, because its lines are shorter than min_width characters or end in a mark. An English line that
    ends in a letter and a hyphen is joined when the next begins with a lower-case letter.
    """
    lines = text.split("\n")
    widths = Counter(len(line.strip()) for line in lines if len(line.strip()) >= min_width)
    usual = max(widths, key=lambda width: (widths[width - 1] + widths[width] + widths[width + 1], width), default=0)
    out: list[str] = []
    last = 0  # width of the last physical line, which says whether the margin cut it
    for line in lines:
        joined = bool(out) and bool(line.strip()) and not _HEADING.match(line)
        if joined and usual and abs(last - usual) <= 2 and _HAN_END.search(out[-1]) and _HAN_START.match(line):
            out[-1] += line
        elif joined and re.search(r"[A-Za-z]-$", out[-1]) and re.match(r"[a-z]", line):
            out[-1] = out[-1][:-1] + line
        else:
            out.append(line)
        last = len(line.strip())
    return "\n".join(out)


def remove_page_furniture(text: str, min_repeats: int = 3) -> str:
    """Without page numbers that stand alone between blank lines or pages, and running headers.

    Page numbers go only where at least min_repeats of them rise through the text. A running header is a short line
    (60 characters) that directly follows or precedes a page number min_repeats times or more.
    """
    lines = text.split("\n")
    numbers = [i for i, line in enumerate(lines) if line.strip() and _PAGE.match(line)]
    values = [int(found.group()) for i in numbers if (found := re.search("[0-9]+", lines[i]))]
    rising = sum(a < b for a, b in pairwise(values))
    if len(numbers) < min_repeats or (values and rising < 0.7 * (len(values) - 1)):
        return text
    near: Counter[str] = Counter()
    places: dict[str, list[int]] = {}
    for i in numbers:
        for step in (-1, 1):
            j = i + step
            while 0 <= j < len(lines) and not lines[j].strip():
                j += step
            if 0 <= j < len(lines) and j not in numbers and len(lines[j].strip()) <= 60:
                near[lines[j].strip()] += 1
                places.setdefault(lines[j].strip(), []).append(j)
    headers = {j for line, count in near.items() if count >= min_repeats for j in places[line]}
    dropped = set(numbers) | headers
    return "\n".join(line for i, line in enumerate(lines) if i not in dropped)
