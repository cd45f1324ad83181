"""Ragged document lengths for index tests."""

from __future__ import annotations

import numpy as np


def ragged(count: int, seed: int, longest: int = 40) -> np.ndarray:
    """int32 lengths, a tenth of them 0."""
    rng = np.random.RandomState(seed)
    lengths = rng.randint(1, longest, size=count).astype(np.int32)
    lengths[rng.random_sample(count) < 0.1] = 0
    return lengths
