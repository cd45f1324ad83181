"""Confidence intervals of shares. Needs nothing but math."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

from mmdata_train.errors import EvaluationError


class Interval(NamedTuple):
    """A share and the bounds of its confidence interval, each from 0 to 1."""

    share: float
    low: float
    high: float


def wilson(successes: float, trials: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval (E. B. Wilson, JASA 22, 1927), right for few trials and shares near 0 or 1.

    successes may be halves (a tie counts one half). Raises EvaluationError without a trial.
    """
    if trials < 1:
        raise EvaluationError("a share of nothing has no interval; there must be at least one item")
    assert 0 <= successes <= trials and 0 < confidence < 1
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / trials
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    middle, scale = share + z * z / (2 * trials), 1 + z * z / trials
    return Interval(share, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact sign test: how likely a split at least so uneven is between equals. Ties are left out."""
    trials, fewer = wins + losses, min(wins, losses)
    if trials == 0:
        return 1.0
    # In logarithms: 2 ** trials is beyond a float from 1,024 trials on.
    logs = [math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) for k in range(fewer + 1)]
    tail = sum(math.exp(value - trials * math.log(2)) for value in logs)
    return min(1.0, 2 * tail)
