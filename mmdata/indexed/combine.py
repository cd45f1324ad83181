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


def combine_manifests(manifests: Sequence[Manifest], numbers: InputNumbers) -> Manifest:
    """The manifest of a merged shard, all but its files and sizes.

    What the parts agree on stays. Otherwise: `eod_appended` and `key` become unknown, the chat template is that of the
    parts which have one (`merge_shards` refuses two), and `recipe` is `merged` with the distinct recipes and options
    under `options.merged`. Counts speak of runs: several parts of one run (same inputs, options and counts) count once,
    those of different runs are added up.
    numbers: fresh; its inputs become the manifest's.
    """
    first = manifests[0]
    makings = distinct({"recipe": m.recipe, "options": m.options} for m in manifests)
    templates = {m.chat_template for m in manifests} - {None}
    assert len(templates) < 2, "merge_shards refuses parts of different templates"
    same = len(makings) == 1
    counts: dict[bytes, Any] = {}
    for position, manifest in enumerate(manifests):
        renumbered = renumber_sources(manifest.counts, numbers.of_part(manifest.inputs))
        counts.setdefault(_run_key(manifest, position), renumbered)
    return replace(
        first,
        key=_agreed([m.key for m in manifests]),
        eod_appended=_agreed([m.eod_appended for m in manifests]),
        tokenizer_kind=_agreed([m.tokenizer_kind for m in manifests]),
        chat_template=templates.pop() if templates else None,
        recipe=first.recipe if same else "merged",
        options=first.options if same else {"merged": makings},
        inputs=tuple(numbers.inputs),
        counts=sum_counts(list(counts.values())),
        files={},
    )


def _run_key(manifest: Manifest, position: int) -> bytes:
    """Equal for parts of one run; inputs without a hash prove nothing, so such a part is a run of its own."""
    inputs = [[facts.path, facts.size, facts.xxh3_128] for facts in manifest.inputs]
    alone = position if any(facts.xxh3_128 is None for facts in manifest.inputs) else None
    return canonical_json([inputs, manifest.recipe, manifest.options, manifest.counts, alone])


def renumber_sources(counts: dict[str, Any], numbers: NDArray[np.int32]) -> dict[str, Any]:
    """`counts` with the keys of `counts.sources`, which are input numbers, as `numbers` has them."""
    sources = counts.get("sources")
    if not isinstance(sources, dict) or not all(k.isdecimal() and int(k) < numbers.size for k in sources):
        return counts
    return {**counts, "sources": {str(numbers[int(number)]): value for number, value in sources.items()}}


def distinct(values: Iterable[Any]) -> list[Any]:
    """The values without repetition, in order of first appearance; equal means equal JSON."""
    return list({canonical_json(value): value for value in reversed(list(values))}.values())[::-1]


def _agreed(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else None


def sum_counts(counts: Sequence[Any]) -> Any:
    """Numbers added, objects key by key, lists of numbers of one length (histograms) place by place.

    Other values stand as a list without repetition, one alone as it is.
    """
    if all(isinstance(value, dict) for value in counts):
        keys = sorted({key for value in counts for key in value})
        return {key: sum_counts([value[key] for value in counts if key in value]) for key in keys}
    if all(_is_number(value) for value in counts):
        return sum(counts)
    lists = all(isinstance(value, list) and all(map(_is_number, value)) for value in counts)
    if lists and len({len(value) for value in counts}) == 1:
        return [sum(column) for column in zip(*counts, strict=True)]
    values = distinct(counts)
    return values[0] if len(values) == 1 else values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
