"""Between the command line and the library: option values as the library wants them, progress on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from mmdata.convert import convert, plan
from mmdata.errors import InputError, UsageError
from mmdata.jsonl import find_inputs, total_bytes
from mmdata.run.progress import make_progress
from mmdata.run.sizes import parse_memory

_LISTS = {"json_keys", "map"}


def convert_at_terminal(
    inputs: Sequence[str], options: dict[str, Any], quiet: bool, notice: Callable[[str], None]
) -> tuple[dict[str, Any], str]:
    """Run or plan a conversion: the report's JSON and its lines. Raises what `mmdata.convert` raises."""
    chosen = {name: _value(name, value) for name, value in options.items()}
    prefix, tokenizer, dry_run = (chosen.pop(name) for name in ("output_prefix", "tokenizer", "dry_run"))
    if chosen.pop("ray_address") is not None and chosen["executor"] != "ray":
        raise UsageError("--ray-address needs --executor ray")
    if dry_run:
        data = plan(inputs, prefix, tokenizer, notice=notice, **chosen)
        return data, "\n".join(data["lines"])
    progress = make_progress(_size(inputs), sys.stderr, quiet=quiet)
    report = convert(inputs, prefix, tokenizer, progress=progress, notice=notice, **chosen)
    return report.data, report.summary()


def _value(name: str, value: Any) -> Any:
    if name in _LISTS and isinstance(value, str):
        return tuple(item.strip() for item in value.split(","))
    return parse_memory(value) if name == "memory" else value


def _size(inputs: Sequence[str]) -> int | None:
    try:
        return total_bytes(find_inputs(inputs, lambda left_out: None))
    except InputError:
        return None  # the conversion itself will say what is wrong
