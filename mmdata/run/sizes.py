"""Sizes as people write them on the command line, and how much memory is enough to sort in."""

from __future__ import annotations

import re

from mmdata.errors import UsageError

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]?)i?B?", re.IGNORECASE)
LEAST_MEMORY = 1 << 20
"""Bytes below which sorting would go through its files thousands of times, a few records at a time."""
MOST_MEMORY = 1 << 50
"""Bytes no machine has: such a number is a slip of the unit."""


def parse_size(text: str, option: str = "--memory") -> int:
    """`512M`, `512Mi`, `2GiB` or `1000000` in bytes; K, M, G and T are powers of 1024.

    Raises UsageError, which names the option.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{option} {text!r}: give bytes, or a number with K, M, G or T, such as 512M")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def parse_memory(text: str, option: str = "--memory") -> int:
    """A size that sorting can work in. Raises UsageError, which names the option and both limits."""
    size = parse_size(text, option)
    if not LEAST_MEMORY <= size <= MOST_MEMORY:
        raise UsageError(f"{option} {text!r}: sorting takes at least 1M and at most 1024T; 256M is a good choice")
    return size


def check_memory(size: int) -> None:
    """Raise UsageError unless `size`, given by a program, is a positive number of bytes."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise UsageError(f"memory={size!r}: bytes for sorting, at least 1, such as 256 << 20")
