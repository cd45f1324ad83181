"""Sizes as transformers writes them: `5GB` is 5 x 10^9 bytes, `5GiB` 5 x 2^30."""

from __future__ import annotations

import re

from mmdata_train.errors import ConfigError

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_bytes(text: str) -> int:
    """Bytes of `500MB`, `2GiB` or `1000000`. Raises ConfigError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if match is None or (match[3] and not match[2]):
        raise ConfigError(f"--max-shard-size {text!r}: give bytes, or a number with KB, MB, GB or GiB, such as 5GB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].upper()])
