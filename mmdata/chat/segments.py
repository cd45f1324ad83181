"""The pieces of a rendered conversation: written by the template, taken from the record, or a mark between two."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Literal:
    """Characters the template wrote."""

    text: str


@dataclass(frozen=True, slots=True)
class Data:
    """Characters of the record: the value of `slot`."""

    slot: int
    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a `{% generation %}` block opens (+1) or closes (-1); no characters."""

    step: int
    text: str = ""


Segment = Literal | Data | Mark
