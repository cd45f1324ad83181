"""GSM8K's problems as training texts, held-out texts and questions, for the fine-tuning example in docs/evaluate.md.

    python examples/gsm8k/prepare.py TRAIN.jsonl TEST.jsonl out/gsm8k

TRAIN holds `instruction`, `input`, `output` (Alpaca) or `question`, `answer`; TEST the same, of the test split. Writes
train.jsonl, shots.jsonl, test_texts.jsonl and test_questions.jsonl, whose answers are the final numbers.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

MARKS = re.compile(r"<<[^>]*>>")


def problems(path: str) -> Iterator[tuple[str, str]]:
    """(question, answer) of each record; the calculator's marks are taken out."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            question = record.get("question") or record["instruction"] + record.get("input", "")
            yield question.strip(), MARKS.sub("", record.get("answer") or record["output"]).strip()


def write(path: Path, records: list[dict[str, str]]) -> None:
    """JSON lines."""
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    print(f"{len(records)} records in {path}")


def main() -> None:
    """Read both splits, write four files."""
    train, test, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "train.jsonl", [{"text": f"{question}\n{answer}"} for question, answer in problems(train)])
    held_out = list(problems(test))[:200]
    write(folder / "test_texts.jsonl", [{"text": f"{question}\n{answer}"} for question, answer in held_out])
    write(folder / "shots.jsonl", [{"question": q, "answer": a} for q, a in list(problems(train))[:1]])
    questions = [{"question": q, "answer": a.rpartition("####")[2].strip()} for q, a in held_out[:50]]
    write(folder / "test_questions.jsonl", questions)


if __name__ == "__main__":
    main()
