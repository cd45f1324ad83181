"""The useful part of what torch, gloo and NCCL say when they fail: one line, without their source files and jokes."""

from __future__ import annotations

import re

_PLACE = re.compile(r"^(?:\[[^\]]*\.(?:cc|cpp|h|cu):\d+\] )+")
_NCCL_PLACE = re.compile(r"^NCCL error in: \S+:\d+, ")
_TAIL = re.compile(r"\s*(?:This is typically caused by|Check the logs of the remote|GLHF).*$", re.DOTALL)

TOO_LONG = re.compile(r"timed out|timeout", re.IGNORECASE)
"""What torch says of a wait beyond its limit."""


def useful_part(error: BaseException | str) -> str:
    """The first line of an error that holds words, cut before what helps nobody; its type where it says nothing.

    Of the system's errors the cause and the file.
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    lines = (line.strip() for line in str(error).split("\n"))
    first = next((line for line in lines if line), "")
    shown = _TAIL.sub("", _NCCL_PLACE.sub("NCCL: ", _PLACE.sub("", first))).strip()
    return shown or (error if isinstance(error, str) else type(error).__name__)
