"""Sizes as people write them on the command line."""

from __future__ import annotations

import re

from mmdata.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)


def parse_size(text: str, option: str = "--memory") -> int:
    """`512M`, `512Mi`, `2GiB` or `1000000` in bytes; K, M, G and T are powers of 1024.

    Raises UsageError, which names the option.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{option} {text!r}: give bytes, or a number with K, M, G or T, such as 512M")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
