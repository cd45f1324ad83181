"""Which part of a shard is for training, validation and test, by Megatron's rule for `--split 969,30,1`.

The numbers are shares; each part is a contiguous range whose ends are `round(cumulative share * count)` in float64
(Python's rounding of halves to even), so the ranges are Megatron's to the item. O(1).
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from mmdata.errors import SampleOptionError

Subset = Literal["train", "valid", "test"]
SUBSETS: tuple[Subset, ...] = get_args(Subset)


def parse_split(text: str) -> tuple[float, float, float]:
    """Shares of train, valid and test that add up to 1, from `969,30,1` (missing ones are 0).

    Raises SampleOptionError on anything but one to three numbers of at least 0 with a positive sum. Megatron takes
    whatever looks like a number out of the text, a minus sign included as nothing.
    """
    try:
        shares = [float(piece) for piece in text.split(",")]
    except ValueError:
        shares = []
    if not 1 <= len(shares) <= 3 or not all(0 <= share < float("inf") for share in shares) or sum(shares) <= 0:
        raise SampleOptionError(
            f"split {text!r} is not one to three shares such as '969,30,1' (train, valid, test), none negative"
        )
    padded = np.array([*shares, 0.0, 0.0][:3], dtype=np.float64)
    train, valid, test = (padded / np.sum(padded)).tolist()
    return train, valid, test


def split_range(split: str | None, subset: Subset, count: int) -> range:
    """The items of `subset` among `count`; all of them when `split` is None. May be empty.

    Raises SampleOptionError when the split is malformed or gives the subset no share.
    """
    if subset not in SUBSETS:
        raise SampleOptionError(f"subset {subset!r} is unknown; use one of {', '.join(SUBSETS)}")
    if split is None:
        return range(count)
    ends = [0.0]
    for share in parse_split(split):
        ends.append(ends[-1] + share)
    number = SUBSETS.index(subset)
    low, high = ends[number], ends[number + 1]
    if high <= low:
        raise SampleOptionError(f"split {split!r} gives {subset} no share; give it one, or do not ask for it")
    return range(round(low * float(count)), round(high * float(count)))
