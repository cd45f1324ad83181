"""Multiple-choice questions from local files, and the few-shot prompts they are asked with. Needs no torch.

CSV as C-Eval gives it (id, question, A to D, answer, explanation) and as CMMLU does (Question, A to D, Answer), or
JSON lines with `question`, `options` (a list, or an object by letter) and `answer` (a letter, or an index from 0). The
subject is the record's, else the file's name. Prompts are C-Eval's for Chinese and MMLU's for English questions.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmdata_train.errors import EvaluationError
from mmdata_train.evaluate.words import Language, language_of
from mmdata_train.generation.items import not_utf8, read_records

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SPLIT_SUFFIX = re.compile(r"[_-](val|dev|test|train)$")


@dataclass(frozen=True, slots=True)
class Question:
    """One question. options: texts in order; their letters are A, B, ... answer: index of the right one."""

    path: str
    line: int
    id: str
    subject: str
    question: str
    options: tuple[str, ...]
    answer: int

    @property
    def letters(self) -> str:
        """The letters of its options: `ABCD` of four."""
        return LETTERS[: len(self.options)]

    def text(self, label: str) -> str:
        """The question with its options, up to where the answer stands."""
        lines = [self.question, *(f"{letter}. {text}" for letter, text in zip(self.letters, self.options, strict=True))]
        return "\n".join([*lines, label])


@dataclass(frozen=True, slots=True)
class PromptForm:
    """The words around questions: `{subject}` stands for the subject's name."""

    header: str
    label: str
    joint: str

    def shot(self, question: Question) -> str:
        """A question with its answer."""
        return f"{question.text(self.label)}{self.joint}{question.letters[question.answer]}\n\n"


FORMS: dict[Language, PromptForm] = {
    "zh": PromptForm("以下是中国关于{subject}考试的单项选择题，请选出其中的正确答案。\n\n", "答案：", ""),
    "en": PromptForm("The following are multiple choice questions (with answers) about {subject}.\n\n", "Answer:", " "),
}


def form_of(questions: Sequence[Question]) -> PromptForm:
    """The form in the questions' language."""
    return FORMS[language_of(question.question for question in questions)]


def prompt_parts(
    question: Question, shots: Sequence[Question], form: PromptForm, names: Mapping[str, str]
) -> tuple[str, list[str], str]:
    """(header, one text a shot, the question): joined they are the prompt, and shots may be left out from the end."""
    name = names.get(question.subject, question.subject.replace("_", " "))
    return form.header.replace("{subject}", name), [form.shot(shot) for shot in shots], question.text(form.label)


def question_files(path: str | Path) -> list[Path]:
    """The CSV and JSON lines files of a path, ordered by name. Raises EvaluationError when there is none."""
    place = Path(path)
    if place.is_file():
        return [place]
    files = sorted(f for f in place.glob("*") if f.suffix in (".csv", ".jsonl") or f.name.endswith(".jsonl.gz"))
    if not files:
        raise EvaluationError(f"{path}: no such file, or a folder without .csv or .jsonl files")
    return files


def read_questions(path: str | Path) -> list[Question]:
    """Every question of a file or of the files of a folder. Raises EvaluationError with file and line."""
    return [question for file in question_files(path) for question in _questions(file)]


def _questions(file: Path) -> Iterator[Question]:
    records = _rows(file) if file.suffix == ".csv" else read_records(file)
    stem = _SPLIT_SUFFIX.sub("", file.name.split(".")[0])
    seen: dict[tuple[str, str], int] = {}
    for line, record in records:
        made = _question(str(file), line, {str(key).strip().lower(): value for key, value in record.items()}, stem)
        first = seen.setdefault((made.subject, made.id), line)
        if first != line:
            raise EvaluationError(
                f"{file}:{line}: the id {made.id!r} stands in line {first} already; give each question its own id, or"
                " take the repeated one out"
            )
        yield made
    if not seen:
        raise EvaluationError(f"{file}: holds no question")


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    start = 1
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            # Asked for the header apart from the rows, so that the line where a broken row starts is known.
            if reader.fieldnames is not None:
                start = reader.line_num + 1
            for record in reader:
                if None in record or None in record.values():
                    raise EvaluationError(f"{file}:{reader.line_num}: the row does not have the header's columns")
                yield reader.line_num, record
                start = reader.line_num + 1
    except UnicodeDecodeError:
        raise not_utf8(file, file.read_bytes()) from None
    except csv.Error as error:
        raise _broken_row(file, start, str(error)) from None
    except OSError as error:
        raise EvaluationError(f"{file}: cannot be read: {error.strerror or error}") from None


def _broken_row(file: Path, line: int, reason: str) -> EvaluationError:
    """The row that starts in `line` is no CSV. An open quote swallows lines until the next one, or all of them."""
    if "unexpected end" in reason or "field larger" in reason or "expected after" in reason:
        return EvaluationError(
            f"{file}:{line}: a quote (\") that opens in the row starting here is not closed before the row's end"
            f" ({reason}); close it, and write a quote inside a quoted field twice"
        )
    return EvaluationError(f"{file}:{line}: the row starting here is not CSV: {reason}")


def _wanted(path: str, line: int, record: Mapping[str, Any], missing: str, remedy: str = "") -> EvaluationError:
    """A field is missing: which are there and which are wanted."""
    there = ", ".join(name or "(a column without a name)" for name in record)
    return EvaluationError(
        f"{path}:{line}: no {missing} here; there are {there}; wanted are question, A, B, ... (or `options`) and"
        f" answer, in small or capital letters{remedy}"
    )


def _question(path: str, line: int, record: Mapping[str, Any], subject: str) -> Question:
    if "question" not in record:
        raise _wanted(path, line, record, "`question`")
    text = record["question"]
    if not isinstance(text, str) or not text.strip():
        raise EvaluationError(f"{path}:{line}: the question is {text!r}; it must be a text")
    options = _options(record, f"{path}:{line}")
    if not options and not {"a", "options", "choices"} & set(record):
        raise _wanted(path, line, record, "options")
    if len(options) < 2:
        raise EvaluationError(f"{path}:{line}: {len(options)} options that are not empty; a choice has two or more")
    same = next(((a, b) for b in range(len(options)) for a in range(b) if options[a] == options[b]), None)
    if same is not None:
        raise EvaluationError(
            f"{path}:{line}: the options {LETTERS[same[0]]} and {LETTERS[same[1]]} are the same ({options[same[0]]!r}),"
            " so no answer can be told right; correct one of them, or take the question out"
        )
    if "answer" not in record:
        raise _wanted(path, line, record, "`answer`", " (test splits without answers cannot be scored here)")
    name = record.get("id", record.get(""))
    return Question(
        path, line, str(line) if name in (None, "") else str(name), str(record.get("subject") or subject),
        text.strip(), options, _answer(path, line, record.get("answer"), len(options)),
    )  # fmt: skip


def _options(record: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """The texts of the options. Raises EvaluationError where one is empty and a later one is not: it would be lost."""
    given = record.get("options", record.get("choices"))
    if isinstance(given, list):
        return tuple(str(item).strip() for item in given)
    source = {str(key).lower(): value for key, value in given.items()} if isinstance(given, dict) else record
    texts = ["" if source.get(letter) is None else str(source[letter]).strip() for letter in LETTERS.lower()]
    count = texts.index("") if "" in texts else len(texts)
    later = next((letter for letter, text in zip(LETTERS[count:], texts[count:], strict=True) if text), None)
    if later is not None:
        raise EvaluationError(
            f"{where}: option {LETTERS[count]} is empty but {later} is not; give every option up to the last a text"
        )
    return tuple(texts[:count])


def _answer(path: str, line: int, value: Any, count: int) -> int:
    letters = LETTERS[:count]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count:
        return value
    if isinstance(value, str) and len(value.strip()) == 1 and value.strip().upper() in letters:
        return letters.index(value.strip().upper())
    raise EvaluationError(
        f"{path}:{line}: the answer is {value!r}; it must be one of {', '.join(letters)}, or an index from 0 to"
        f" {count - 1}"
    )


def shots_for(question: Question, pool: Sequence[Question], count: int) -> list[Question]:
    """The first `count` of the pool's questions on the same subject, the question itself left out."""
    same = [other for other in pool if other.subject == question.subject and other.question != question.question]
    if len(same) < count:
        raise EvaluationError(
            f"{question.path}:{question.line}: {count} shots are wanted, but there are {len(same)} questions on"
            f" {question.subject} to take them from; lower shots or name a file in shots_from"
        )
    return same[:count]
