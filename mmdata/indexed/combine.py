"""One manifest from many: inputs numbered anew, counts added up, options kept side by side where they differ.

Pure; costs nothing beside the tokens it speaks of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.indexed.manifest import InputFacts, Manifest, canonical_json


class InputNumbers:
    """The joint list of inputs, and for each part what its input numbers become.

    Two parts share an input only when path, size and hash agree; without a hash they are taken for different files.
    """

    def __init__(self) -> None:
        self.inputs: list[InputFacts] = []
        self._known: dict[InputFacts, int] = {}

    def of_part(self, inputs: Iterable[InputFacts]) -> NDArray[np.int32]:
        """The new number of each of the part's inputs."""
        numbers = []
        for facts in inputs:
            number = self._known.get(facts) if facts.xxh3_128 is not None else None
            if number is None:
                number = len(self.inputs)
                self.inputs.append(facts)
                self._known[facts] = number
            numbers.append(number)
        return np.array(numbers, np.int32)


def combine_manifests(manifests: Sequence[Manifest], inputs: tuple[InputFacts, ...]) -> Manifest:
    """The manifest of a merged shard, all but its files and sizes.

    What the parts agree on stays. Otherwise: `eod_appended` and `key` become unknown, chat templates are joined by
    ` + `, and `recipe` is `merged` with the distinct recipes and options under `options.merged`.
    """
    first = manifests[0]
    makings = distinct({"recipe": m.recipe, "options": m.options} for m in manifests)
    templates = distinct(m.chat_template for m in manifests if m.chat_template is not None)
    same = len(makings) == 1
    return replace(
        first,
        key=_agreed([m.key for m in manifests]),
        eod_appended=_agreed([m.eod_appended for m in manifests]),
        tokenizer_kind=_agreed([m.tokenizer_kind for m in manifests]),
        chat_template=" + ".join(templates) if templates else None,
        recipe=first.recipe if same else "merged",
        options=first.options if same else {"merged": makings},
        inputs=inputs,
        counts=sum_counts([m.counts for m in manifests]),
        files={},
    )


def distinct(values: Iterable[Any]) -> list[Any]:
    """The values without repetition, in order of first appearance; equal means equal JSON."""
    return list({canonical_json(value): value for value in reversed(list(values))}.values())[::-1]


def _agreed(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else None


def sum_counts(counts: Sequence[Any]) -> Any:
    """Objects key by key, numbers added, lists of other values without repetition (one alone stays as it is)."""
    if all(isinstance(value, dict) for value in counts):
        keys = sorted({key for value in counts for key in value})
        return {key: sum_counts([value[key] for value in counts if key in value]) for key in keys}
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in counts):
        return sum(counts)
    values = distinct(counts)
    return values[0] if len(values) == 1 else values
