"""Decisions of the published recipes beside datatrove's on every document of the English sample corpora.

    python benchmarks/clean_parity.py ../shared/data            # prints; --write updates the table of docs/cleaning.md

Also cuts every run of characters between white space into words as datatrove's tokenizer (spaCy) does. Needs datatrove,
nltk and spacy. Takes about two minutes.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clean_quality import DOCS, put, records
from datatrove.data import Document
from datatrove.pipeline import filters
from datatrove.utils.word_tokenizers import load_word_tokenizer

from mmdata.clean import english, published
from mmdata.clean.catalog import CATALOG

FILES = ("en_prose_0.jsonl", "en_prose_1.jsonl.gz")
PEERS: dict[str, Callable[[], Any]] = {
    "gopher_quality": filters.GopherQualityFilter, "gopher_repetition": filters.GopherRepetitionFilter,
    "c4_quality": filters.C4QualityFilter, "fineweb_quality": filters.FineWebQualityFilter,
}  # fmt: skip


def ours(step: str, text: str) -> tuple[bool, str]:
    """Is the document kept, and with which text."""
    parameters = {name: parameter.default for name, parameter in CATALOG[step].parameters.items()}
    if step == "c4_quality":
        text, finding = published.c4_quality(text, parameters)
    else:
        finding = getattr(published, step)(text, parameters)
    return finding is None, text


def compare(step: str, texts: list[str]) -> str:
    """One row of the table: step, documents, kept by both, decisions and texts that differ, speed ratio."""
    peer = PEERS[step]()
    peer.filter(Document(text=texts[0], id="warm"))
    ours(step, texts[0])
    seconds: Counter[str] = Counter()
    kept = different = 0
    for text in texts:
        document = Document(text=text, id="x")
        start = time.process_time()
        theirs = peer.filter(document) is True
        middle = time.process_time()
        mine, after = ours(step, text)
        seconds["theirs"] += middle - start
        seconds["ours"] += time.process_time() - middle
        kept += theirs and mine
        different += theirs != mine or (mine and after != document.text)
    ratio = seconds["theirs"] / seconds["ours"]
    return f"| `{step}` | {len(texts)} | {kept} | {different} | {ratio:.1f} x |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="update docs/cleaning.md")
    options = parser.parse_args()
    texts = [record["text"] for name in FILES for record in records(options.folder / name)]
    tokenizer = load_word_tokenizer("eng")
    chunks = {chunk for text in texts for chunk in text.split()}
    wrong = sum(list(tokenizer.word_tokenize(chunk)) != english.words(chunk) for chunk in chunks)
    rows = ["| recipe step | documents | kept by both | different | speed |", "|---|---|---|---|---|"]
    rows += [compare(step, texts) for step in PEERS]
    rows += ["", f"Of {len(chunks)} distinct runs of characters, {wrong} are cut into other words than by spaCy."]
    print("\n".join(rows))
    if options.write:
        page = DOCS / "cleaning.md"
        page.write_text(put(page.read_text(encoding="utf-8"), "parity", rows), encoding="utf-8")


if __name__ == "__main__":
    main()
