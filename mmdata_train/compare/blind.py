"""A blind test: answers of A and B side by side in an order drawn from the seed, with the key in a file of its own.

The page holds prompts and answers only; which side is whose stands in PAGE.key.json, which raters do not get. Sides and
order of items are drawn for each item by itself. About 1 KB of page beside the texts; no torch.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from mmdata.errors import OutputExistsError, UsageError
from mmdata.indexed.durable import write_durably
from mmdata_train.errors import EvaluationError
from mmdata_train.generation.items import Item
from mmdata_train.hf_folder import read_json
from mmdata_train.json_text import json_text

PAGE_SCHEMA = "mmdata.blind/1"
KEY_SCHEMA = "mmdata.blind-key/1"
_DATA = "__DATA__"
_TITLE = "__TITLE__"


@dataclass(frozen=True, slots=True)
class Shown:
    """One item of the page. number: its place there. left_is_a: part of the key alone."""

    number: int
    item: Item
    left: str
    right: str
    left_is_a: bool


@dataclass(frozen=True, slots=True)
class BlindTest:
    """test: names page, key and ratings that belong together. skipped: items whose two answers are the same text."""

    test: str
    names: tuple[str, str]
    seed: int
    shown: tuple[Shown, ...]
    skipped: tuple[str, ...]


def draw(
    items: Sequence[Item], answers: tuple[Sequence[str], Sequence[str]], names: tuple[str, str], seed: int
) -> BlindTest:
    """Shuffle items and sides. Raises EvaluationError where no item has two different answers.

    Equal answers are left out, since a rater can only call them a tie, and are counted apart from the votes.
    """
    chance = random.Random(f"blind:{seed}")
    order = list(range(len(items)))
    chance.shuffle(order)
    shown: list[Shown] = []
    skipped = []
    for place in order:
        left_is_a = chance.random() < 0.5
        a, b = answers[0][place].strip(), answers[1][place].strip()
        if a == b:
            skipped.append(items[place].id)
            continue
        left, right = (a, b) if left_is_a else (b, a)
        shown.append(Shown(len(shown) + 1, items[place], left, right, left_is_a))
    if not shown:
        raise EvaluationError(f"all {len(items)} pairs of answers are the same text: there is nothing to compare")
    # The name of the test covers the key too, so another draw of the same answers is another test.
    facts = [[one.item.id, one.left, one.right, one.left_is_a] for one in shown]
    name = hashlib.sha256(json.dumps([seed, names, facts], ensure_ascii=False).encode()).hexdigest()[:16]
    return BlindTest(name, names, seed, tuple(shown), tuple(sorted(skipped)))


def page_of(test: BlindTest, title: str) -> str:
    """The page: self-contained, without names of models or the key."""
    data = {
        "schema": PAGE_SCHEMA,
        "test": test.test,
        "items": [
            {
                "n": one.number,
                "messages": [{"role": str(m["role"]), "content": str(m["content"])} for m in one.item.messages],
                "left": one.left,
                "right": one.right,
            }
            for one in test.shown
        ],
    }
    template = files("mmdata_train.compare").joinpath("blind.html").read_text(encoding="utf-8")
    return template.replace(_TITLE, _for_html(title)).replace(_DATA, _for_script(data))


def _for_html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _for_script(value: Any) -> str:
    """JSON that cannot end its script element, whatever the texts hold."""
    text = json_text(value)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def key_of(test: BlindTest) -> dict[str, Any]:
    """What raters must not see."""
    return {
        "schema": KEY_SCHEMA,
        "test": test.test,
        "a": test.names[0],
        "b": test.names[1],
        "seed": test.seed,
        "same": list(test.skipped),
        "left": {str(one.number): "a" if one.left_is_a else "b" for one in test.shown},
        "ids": {str(one.number): one.item.id for one in test.shown},
        "sources": {str(one.number): one.item.source for one in test.shown if one.item.source is not None},
    }


def key_path(page: Path) -> Path:
    """Where the key of a page stands: `blind.html` -> `blind.key.json`."""
    return page.with_name(f"{page.name.removesuffix('.html')}.key.json")


def check_page(page: Path, *, overwrite: bool = False) -> None:
    """Refuse a page that cannot be written. Raises OutputExistsError, UsageError."""
    if page.name in ("", ".."):
        raise UsageError(f"-o {str(page)!r} names no file; give the page's name, such as blind.html")
    for path in (page, key_path(page)):
        if path.is_dir() or (path.exists() and not overwrite):
            raise OutputExistsError(f"{path} exists; choose another name or give --overwrite for a page")
    if next((folder for folder in page.parents if folder.exists()), Path()).is_file():
        raise UsageError(f"{page} lies below a file; choose another name")


def write_blind(test: BlindTest, page: Path, title: str, *, overwrite: bool = False) -> Path:
    """Write page and key; returns the key's path. Raises OutputExistsError, OutputError."""
    check_page(page, overwrite=overwrite)
    key = key_path(page)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_durably(str(key), json_text(key_of(test), indent=1).encode())
    write_durably(str(page), page_of(test, title).encode())
    return key


def read_key(path: Path) -> Mapping[str, Any]:
    """A key file. Raises EvaluationError, also for one that lacks what counting needs."""
    key = read_json_object(path, KEY_SCHEMA)
    left = key.get("left")
    whole = isinstance(left, dict) and left and set(left.values()) <= {"a", "b"}
    if not whole or not all(isinstance(key.get(name), str) for name in ("test", "a", "b")):
        raise EvaluationError(
            f"{path}: no whole key of a page; it has `test`, `a`, `b`, and `left` with a or b by item"
        )
    return key


def read_json_object(path: Path, schema: str) -> dict[str, Any]:
    """A JSON file of a schema, no key twice. Raises EvaluationError naming the file."""
    value = read_json(path, EvaluationError, "give the file that `compare` wrote or a rater exported", unique=True)
    if value.get("schema") != schema:
        raise EvaluationError(f"{path}: its schema is {value.get('schema')!r}; {schema!r} is needed here")
    return value
