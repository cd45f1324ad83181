"""Measures survival of clean text and repair of damaged text; writes the table of docs/cleaning.md and the list of
changed documents, docs/cleaning-changes.md.

    python benchmarks/clean_quality.py ../shared/data            # prints; --write updates both pages

Needs the sample corpora. Takes about ten seconds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from ftfy.fixes import uncurl_quotes

from mmdata.clean.catalog import CATALOG
from mmdata.clean.language import LANGUAGES, detect, script
from mmdata.clean.measure import measure
from mmdata.clean.pipeline import Cleaner
from mmdata.document import Document, Part

DOCS = Path(__file__).parent.parent / "docs"
CLEAN = {
    "en_prose_0.jsonl": "text", "en_prose_1.jsonl.gz": "text", "zh_prose_0.jsonl": "text",
    "zh_prose_1.jsonl.gz": "text",
    "zh_medical.jsonl": "text", "zh_legal.jsonl.gz": "text", "instruct_en_alpaca.jsonl": "output",
    "instruct_en_gsm8k_original.jsonl": "answer", "instruct_zh_legal_qa.jsonl": "output",
    "instruct_zh_medical_alpaca.jsonl": "output", "instruct_en_zh_identity_alpaca.jsonl": "output",
}  # fmt: skip
EXCERPT = 24
LONG = {"en": re.compile("[A-Za-z]"), "zh": re.compile("[\u4e00-\u9fff]")}


def records(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def documents(texts: list[str], name: str) -> list[Document]:
    return [Document(name, 0, i, None, {}, (Part("text", "text", t),)) for i, t in enumerate(texts, start=1)]


def difference(before: str, after: str) -> str:
    """The first difference, a few characters on both sides, unprintable ones escaped."""
    shorter = min(len(before), len(after))
    start = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), shorter)
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    old, new = before[start : len(before) - end][:EXCERPT], after[start : len(after) - end][:EXCERPT]
    context = before[max(0, start - 8) : start]
    return f"`{_shown(context)}` : `{_shown(old)}` -> `{_shown(new)}`"


def _shown(text: str) -> str:
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text.replace("`", "'").replace("|", "¦")


def survival(folder: Path) -> tuple[list[str], list[str]]:
    """Rows of the survival table, and the lines of cleaning-changes.md."""
    rows, changes = [], []
    for name, key in CLEAN.items():
        cleaner = Cleaner("auto")
        before = documents([record[key] for record in records(folder / name)], name)
        result = cleaner.clean_documents(before)
        texts = {document.line: document.text for document in before}
        steps: dict[str, list[str]] = {}
        for step in cleaner.recipe.steps:
            alone = Cleaner(type(cleaner.recipe)("one", (step,))) if step.kind in ("repair", "pii") else None
            changed = [d for d in before if result.changed[step.name]] if alone else []
            for document in alone.clean_documents(changed).kept if alone else []:
                if document.text != texts[document.line]:
                    shown = difference(texts[document.line], document.text)
                    steps.setdefault(step.name, []).append(f"- line {document.line}: {shown}")
        done = ", ".join(f"{s} {n}" for s, n in result.changed.items() if n) or "none"
        share = 100 * len(result.kept) / len(before)
        rows.append(f"| `{name}` | {len(before)} | {share:.2f} % | {result.changed_documents} | {done} |")
        if steps or result.drops:
            changes.append(f"\n## `{name}`: {result.changed_documents} of {len(before)} changed\n")
        for step, entries in steps.items():
            changes += [f"\n### {step} ({len(entries)})\n", *entries]
        for drop in result.drops:
            changes.append(f"- line {drop.line}: dropped, {drop.reason} {drop.value} (limit {drop.limit})")
    return rows, changes


def same(kind: str, got: str, want: str) -> bool:
    """As the issue of each kind says: see docs/cleaning.md."""
    if kind == "repeated_line":
        return [x for x in got.split("\n") if x.strip()] == [x for x in want.split("\n") if x.strip()]
    if kind == "fullwidth":
        return list(filter(str.isalnum, got)) == list(filter(str.isalnum, want))
    if kind in ("mojibake", "none_expected"):
        got, want = uncurl_quotes(got).replace("\xa0", " "), uncurl_quotes(want).replace("\xa0", " ")
    return got.rstrip() == want.rstrip()


def repair(folder: Path) -> list[str]:
    """Rows of the repair table: kind, records, equal to the clean form, dropped."""
    recipe = Cleaner("auto").recipe
    only = Cleaner(type(recipe)("repairs", tuple(step for step in recipe.steps if step.kind == "repair")))
    dirty = records(folder / "dirty.jsonl")
    repaired = only.clean_documents(documents([record["text"] for record in dirty], "dirty")).kept
    dropped = {drop.line for drop in Cleaner(recipe).clean_documents(documents([r["text"] for r in dirty], "d")).drops}
    total, equal, gone = Counter[str](), Counter[str](), Counter[str]()
    for number, (record, document) in enumerate(zip(dirty, repaired, strict=True), start=1):
        kind = record["defect"]
        total[kind] += 1
        gone[kind] += number in dropped
        equal[kind] += record["clean"] is not None and same(kind, document.text, record["clean"])
    return [f"| {kind} | {total[kind]} | {equal[kind]} | {gone[kind]} |" for kind in total]


def languages(folder: Path) -> list[str]:
    """Rows of the language table: files, language or script, share of documents and of long lines found to be in it."""
    rows = []
    for name in list(CLEAN)[:6]:
        texts = [record["text"] for record in records(folder / name)]
        enough = LONG[name[:2]]
        lines = [line for text in texts for line in text.split("\n") if len(enough.findall(line)) >= 20]
        shares = []
        for units in (texts, lines):
            found = [LANGUAGES[number] for number in detect(measure(units))]
            shares.append(f"{100 * found.count(name[:2]) / len(units):.2f} % of {len(units)}")
        rows.append(f"| `{name}` | {name[:2]} | {shares[0]} | {shares[1]} |")
    try:
        import opencc
    except ImportError:
        return rows
    texts = [r["text"] for name in list(CLEAN)[2:6] for r in records(folder / name) if len(r["text"]) >= 30]
    for conversion, wanted in (("s2t", "traditional"), ("t2s", "simplified")):
        convert = opencc.OpenCC(conversion).convert
        found = [script(row) for row in measure([convert(text[:2000]) for text in texts])]
        share = f"{100 * found.count(wanted) / len(found):.2f} % of {len(found)}"
        rows.append(f"| the Chinese files, converted by OpenCC {conversion} | {wanted} | {share} | |")
    return rows


def step_rows() -> list[str]:
    """The table of steps in docs/cleaning.md; a test holds it equal to the catalogue."""
    rows = []
    for step in CATALOG.values():
        shown = ", ".join(f"{name}={json.dumps(p.default, ensure_ascii=False)}" for name, p in step.parameters.items())
        rows.append(f"| `{step.name}` | {step.kind} | {step.summary} | {shown} | {step.source} |")
    return rows


def put(page: str, mark: str, rows: list[str]) -> str:
    """The page with what stands between `<!-- mark -->` and `<!-- /mark -->` replaced."""
    head, _, rest = page.partition(f"<!-- {mark} -->\n")
    _, _, tail = rest.partition(f"<!-- /{mark} -->")
    return f"{head}<!-- {mark} -->\n" + "\n".join(rows) + f"\n<!-- /{mark} -->{tail}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="update docs/cleaning.md and docs/cleaning-changes.md")
    options = parser.parse_args()
    rows, changes = survival(options.folder)
    survived = ["| file | documents | kept | changed | by step |", "|---|---|---|---|---|", *rows]
    repaired = ["| kind | records | equal to the clean form | dropped |", "|---|---|---|---|", *repair(options.folder)]
    spoken = ["| text | wanted | documents | lines of 20 Han or 20 Latin letters |", "|---|---|---|---|"]
    spoken += languages(options.folder)
    print("\n".join([*survived, "", *repaired, "", *spoken]))
    if options.write:
        page = (DOCS / "cleaning.md").read_text(encoding="utf-8")
        steps = ["| step | kind | what it does | parameters | source |", "|---|---|---|---|---|", *step_rows()]
        for mark, rows in (("steps", steps), ("survival", survived), ("repair", repaired), ("languages", spoken)):
            page = put(page, mark, rows)
        (DOCS / "cleaning.md").write_text(page, encoding="utf-8")
        title = "# Clean documents that the default recipe changes\n\nMade by `benchmarks/clean_quality.py`; "
        title += "each step alone, first difference only, at most 24 characters.\n"
        (DOCS / "cleaning-changes.md").write_text(title + "\n".join(changes) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
