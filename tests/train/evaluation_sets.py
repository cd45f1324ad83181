"""Texts and sets that the tests of evaluation share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import mmdata

STORY = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
LAW = "The defendant shall pay the plaintiff the sum of 500 yuan within ten days of this judgment."


def write_sets(folder: Path) -> Path:
    """Texts, a shard of uneven documents, questions with options and without."""
    lines = [{"text": STORY, "source": "story"}, {"text": LAW, "source": "law"}]
    (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    rng = np.random.default_rng(0)
    documents = [rng.integers(3, 512, size=n) for n in (5, 200, 1, 64, 65, 66, 2, 31)]
    with mmdata.ShardWriter(str(folder / "plain"), vocab_size=512) as writer:
        for ids in documents:
            writer.add_document(ids.tolist())
    rows = [
        {"question": f"What did {name} see?", "options": ["a big dog", "a car", "the sun"], "answer": n % 3,
         "subject": "stories" if n < 4 else "dogs"}
        for n, name in enumerate(("Lily", "Tom", "Mum", "Ben", "Sue", "Tim"))
    ]  # fmt: skip
    (folder / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    asked = [{"question": f"{name} went to the park", "answer": "to play"} for name in ("Lily", "Tom", "Ben", "Sue")]
    asked += [{"question": text, "answer": "x"} for text in ("Once", "The dog", "One day, she saw a big")]
    (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked), encoding="utf-8")
    return folder


TRAINED = "原告与被告于二〇二三年三月签订买卖合同，约定被告应当在十日内支付全部货款，被告至今没有支付。"


def qa_file(folder: Path, question: str = "被告应当何时付款？") -> Path:
    file = folder / "qa.jsonl"
    records = [
        {"question": question, "answer": "十日内", "source": "law"},
        {"question": "<script>alert(1)</script>", "answer": "无", "source": "web"},
    ]
    file.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return file
