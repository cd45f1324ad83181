"""Counting the votes of a blind test: win rates with intervals, ties in the open, several raters. No torch.

Three counts are given, since papers use all of them: the share of A, B and ties among all votes; A's win rate with a
tie as half a win for each; and A's share of the decided votes, with an exact sign test. Intervals are Wilson's, 95 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mmdata_train.compare.blind import read_json_object
from mmdata_train.errors import EvaluationError
from mmdata_train.evaluate.intervals import Interval, sign_test, wilson

RATINGS_SCHEMA = "mmdata.ratings/1"
CHOICES = ("left", "right", "tie", "bad")


@dataclass(frozen=True, slots=True)
class Count:
    """Votes and what they say. tie: neither is better; bad: both are useless, which decides nothing either."""

    a: int
    b: int
    tie: int
    bad: int

    @property
    def votes(self) -> int:
        """All votes, those that decide nothing among them."""
        return self.a + self.b + self.tie + self.bad

    def shares(self) -> dict[str, Interval]:
        """Shares of all votes: a, b, tie (bad ones included); and a's win rate with ties as halves."""
        ties = self.tie + self.bad
        shares = {name: wilson(n, self.votes) for name, n in (("a", self.a), ("b", self.b), ("tie", ties))}
        return shares | {"win rate of a, ties as halves": wilson(self.a + ties / 2, self.votes)}

    def decided(self) -> Interval | None:
        """A's share of the decided votes; None where none is."""
        return wilson(self.a, self.a + self.b) if self.a + self.b else None

    def to_json(self) -> dict[str, Any]:
        """All figures as JSON values."""
        decided = self.decided()
        return {
            **asdict(self),
            "votes": self.votes,
            "shares": {name: value._asdict() for name, value in self.shares().items()},
            "a_of_decided": None if decided is None else decided._asdict(),
            "p_value": sign_test(self.a, self.b),
        }


@dataclass(frozen=True, slots=True)
class Ratings:
    """One rater's votes: number of the item -> choice. test: names the page that was rated."""

    path: str
    rater: str
    test: str
    votes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Tally:
    """names: of A and B. total: all votes; by_rater, by_source: parts of them. missing: items without a vote, by rater.

    same: pairs that were the same text, not among the votes. left: share of decided votes for the left side, which is
    near one half for raters who read. agreement: share of items on which two raters agree, None with one rater.
    """

    names: tuple[str, str]
    items: int
    same: int
    total: Count
    by_rater: Mapping[str, Count]
    by_source: Mapping[str, Count]
    missing: Mapping[str, int]
    left: Interval | None
    agreement: float | None

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "a": self.names[0], "b": self.names[1], "items": self.items, "same": self.same,
            "total": self.total.to_json(),
            "by_rater": {name: count.to_json() for name, count in self.by_rater.items()},
            "by_source": {name: count.to_json() for name, count in self.by_source.items()},
            "missing": dict(self.missing),
            "left_of_decided": None if self.left is None else self.left._asdict(),
            "agreement": self.agreement,
        }  # fmt: skip

    def lines(self) -> Iterator[str]:
        """The result in words."""
        a, b = self.names
        yield f"A = {a}, B = {b}: {self.total.votes:,} votes on {self.items:,} items by {len(self.by_rater)} raters"
        shares = self.total.shares()
        yield f"A better {_percent(shares['a'])}, B better {_percent(shares['b'])}, ties {_percent(shares['tie'])}"
        yield f"win rate of A with ties as halves: {_percent(shares['win rate of a, ties as halves'])}"
        decided = self.total.decided()
        if decided is not None:
            p = sign_test(self.total.a, self.total.b)
            yield f"A among decided votes: {_percent(decided)}, sign test p = {p:.3g}"
        for name, count in self.by_source.items():
            yield f"  {name}: A {count.a}, B {count.b}, ties {count.tie + count.bad}"
        if self.left is not None:
            yield f"left side among decided votes: {_percent(self.left)}"
        if self.agreement is not None:
            yield f"raters agree on {self.agreement:.1%} of the items they share"
        for rater, left_out in self.missing.items():
            if left_out:
                yield f"notice: {rater} left {left_out:,} of {self.items:,} items without a vote"
        if self.same:
            yield f"{self.same:,} pairs were the same text and were not shown; they are not among the votes"


def _percent(value: Interval) -> str:
    return f"{value.share:.1%} [{value.low:.1%}, {value.high:.1%}]"


def read_ratings(path: str | Path) -> Ratings:
    """An exported file. Raises EvaluationError for a vote that is none."""
    value = read_json_object(Path(path), RATINGS_SCHEMA)
    votes = value.get("ratings")
    if not isinstance(votes, dict):
        raise EvaluationError(f"{path}: holds no `ratings`")
    for number, choice in votes.items():
        if choice not in CHOICES:
            raise EvaluationError(f"{path}: item {number} has the vote {choice!r}; votes are {', '.join(CHOICES)}")
    return Ratings(str(path), str(value.get("rater") or Path(path).stem), str(value.get("test")), votes)


def count_votes(key: Mapping[str, Any], files: Sequence[str | Path]) -> Tally:
    """Count ratings with their key. Raises EvaluationError for ratings of another test, unknown items, or no vote."""
    given = [read_ratings(path) for path in files]
    left: Mapping[str, str] = key["left"]
    for ratings in given:
        if ratings.test != key["test"]:
            raise EvaluationError(f"{ratings.path}: rates the test {ratings.test!r}, the key is of {key['test']!r}")
        strange = sorted(set(ratings.votes) - set(left))
        if strange:
            raise EvaluationError(
                f"{ratings.path}: rates {len(strange)} items that the test does not have, the first is {strange[0]!r}"
                f" (it has 1 to {len(left)}); the ratings are of another page"
            )
    names = [ratings.rater for ratings in given]
    if len(set(names)) < len(names):
        raise EvaluationError(f"two files are of the rater {max(names, key=names.count)!r}; give each rater one file")
    if not any(ratings.votes for ratings in given):
        raise EvaluationError("there is no vote in these files")
    every = [(number, choice) for ratings in given for number, choice in ratings.votes.items()]
    sides = Counter(choice for _, choice in every)
    decided = sides["left"] + sides["right"]
    sources = key.get("sources", {})
    kinds = sorted(set(sources.values()))
    return Tally(
        (str(key["a"]), str(key["b"])), len(left), len(key.get("same", ())), _count(left, every),
        {ratings.rater: _count(left, ratings.votes.items()) for ratings in given},
        {kind: _count(left, [v for v in every if sources.get(v[0]) == kind]) for kind in kinds},
        {ratings.rater: len(left) - len(ratings.votes) for ratings in given},
        wilson(sides["left"], decided) if decided else None,
        _agreement(given),
    )  # fmt: skip


def _count(left: Mapping[str, str], votes: Any) -> Count:
    """Votes by side as votes by model."""
    found: Counter[str] = Counter()
    for number, choice in votes:
        if choice in ("left", "right"):
            choice = left[number] if choice == "left" else {"a": "b", "b": "a"}[left[number]]
        found[choice] += 1
    return Count(found["a"], found["b"], found["tie"], found["bad"])


def _agreement(given: Sequence[Ratings]) -> float | None:
    """Share of equal votes over all pairs of raters and the items both rated; ties and bad ones are alike."""
    same = total = 0
    for index, one in enumerate(given):
        for other in given[index + 1 :]:
            for number in one.votes.keys() & other.votes.keys():
                pair = {_merged(one.votes[number]), _merged(other.votes[number])}
                same, total = same + (len(pair) == 1), total + 1
    return same / total if total else None


def _merged(choice: str) -> str:
    return "tie" if choice == "bad" else choice
