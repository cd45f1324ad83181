"""JSON that every reader takes: what is not a number in JSON (nan, infinities) is written as null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """The same value with null for each float that is not finite, in mappings, lists and tuples too."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return value


def json_text(value: Any, *, indent: int | None = None) -> str:
    """One JSON value; text stays readable (no escapes beyond ASCII)."""
    return json.dumps(finite(value), ensure_ascii=False, allow_nan=False, indent=indent)
