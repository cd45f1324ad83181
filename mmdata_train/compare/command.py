"""What `mmdata-train compare` does with its options; returns JSON values and lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmdata.errors import UsageError
from mmdata_train.compare.answers import Asking, answers_of
from mmdata_train.compare.blind import check_page, draw, read_key, write_blind
from mmdata_train.compare.votes import count_votes
from mmdata_train.generation.items import read_items

_SAMPLING = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "stop_strings", "batch_rows")
_ASKING = ("chat", "system", "chat_template", "precision")


def build(sides: Sequence[str], **options: Any) -> tuple[dict[str, Any], list[str]]:
    """Make page and key. Raises UsageError, EvaluationError, and what opening models raises."""
    if len(sides) != 2:
        raise UsageError(f"compare takes two sides, A and B; {len(sides)} were given")
    if options["prompts"] is None or options["output"] is None:
        raise UsageError("compare needs --prompts FILE and -o PAGE.html")
    names = _names(sides, options["names"])
    # Before any model is asked: a name that is taken must not cost its answers.
    check_page(Path(options["output"]), overwrite=options["overwrite"])
    every, limit = read_items(options["prompts"]), options["limit"]
    sampling = {name: options[name] for name in _SAMPLING}
    asking = Asking(**{name: options[name] for name in _ASKING}, options=sampling)
    first, second = (answers_of(side, every, limit, asking) for side in sides)
    test = draw(every[:limit], (first, second), names, options["order_seed"])
    page = Path(options["output"])
    key = write_blind(test, page, options["title"], overwrite=options["overwrite"])
    result = {"page": str(page), "key": str(key), "test": test.test, "items": len(test.shown), "same": test.skipped}
    lines = [
        f"{len(test.shown):,} pairs in {page}; {len(test.skipped):,} pairs were the same text and are left out",
        f"the key is {key}: keep it from the raters",
    ]
    return result, lines


def _names(sides: Sequence[str], given: str | None) -> tuple[str, str]:
    names = tuple(name.strip() for name in given.split(",")) if given else tuple(sides)
    if len(names) != 2 or names[0] == names[1] or not all(names):
        called = f"--names {given!r}" if given else f"both sides are called {names[0]!r}"
        raise UsageError(f"{called}: give two different names, as --names base,tuned")
    return names[0], names[1]


def score(key: Path, ratings: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Count ratings. Raises EvaluationError."""
    tally = count_votes(read_key(key), ratings)
    return tally.to_json(), list(tally.lines())
