"""What counts as a duplicate: every parameter of a deduplication, checked on construction, with a fingerprint.

A band of r rows catches a pair of Jaccard similarity s with probability s^r, b bands with 1 - (1 - s^r)^b (Leskovec,
Rajaraman, Ullman, Mining of Massive Datasets, 3.4). Bands only propose: exact similarity decides, so they favour
recall. The defaults propose .998 of the pairs at .80 and .67 of those at .60.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mmdata.errors import DedupParameterError

SCHEMES = ("affine32", "affine64", "legacy")
NORMALIZATIONS = ("case", "space", "punctuation")
MAX_BANDS = 24
"""16 bytes a band and document, twice for a moment at most one 256th, plus 64 for the rest: below 512."""
CATCH_GOAL = 0.99
WORD_TABLE_VERSION = 1
"""Raise when the word table or a hash changes: indexes made before must be refused."""


@dataclass(frozen=True, slots=True)
class DedupParams:
    """How documents are compared; two runs agree exactly when their fingerprints do.

    method: `minhash` (near-duplicates) or `exact` (equal after normalisation). threshold: exact Jaccard similarity of
    the shingle sets at or above which the later document is dropped. num_perm, bands, rows: the signature and its
    cut; bands and rows 0 are chosen from the threshold (`choose_bands`). ngram, unit: shingles of n consecutive
    `word`s (one Han or kana character, or one run of other letters and digits) or `char`s (code points, white space
    collapsed). scheme, seed: datasketch's permutations. item_hash: `rolling` (64 bits over word hashes) or `sha1`
    (as datasketch hashes the shingle's words joined by spaces; slower, for interchange). normalize: any of `case`
    (lower case), `space`, `punctuation`; default none, so case counts; numbers always stay. cluster: the classic
    behaviour instead: whatever shares a band key is united, transitively and unverified, and one of each union kept;
    its bands are chosen as datasketch does (`balanced_bands`), since nothing removes false candidates.
    """

    method: str = "minhash"
    threshold: float = 0.8
    num_perm: int = 128
    bands: int = 0
    rows: int = 0
    ngram: int = 5
    unit: str = "word"
    scheme: str = "affine32"
    seed: int = 1
    item_hash: str = "rolling"
    normalize: tuple[str, ...] = ()
    cluster: bool = False

    def __post_init__(self) -> None:
        """Raises DedupParameterError naming the value and what would work."""
        self._check_names()
        if not 0.0 < self.threshold <= 1.0:
            raise DedupParameterError(f"threshold {self.threshold}: must be above 0 and at most 1, such as 0.8")
        if self.ngram < 1 or self.ngram > 64:
            raise DedupParameterError(f"ngram {self.ngram}: must be between 1 and 64, such as 5")
        if not 1 <= self.num_perm <= 4096:
            raise DedupParameterError(f"num_perm {self.num_perm}: must be between 1 and 4096, such as 128")
        if (self.bands == 0) != (self.rows == 0):
            raise DedupParameterError("bands and rows go together: give both, or neither to have them chosen")
        if self.bands == 0:
            choose = balanced_bands if self.cluster else choose_bands
            bands, rows = choose(self.threshold, self.num_perm)
            object.__setattr__(self, "bands", bands)
            object.__setattr__(self, "rows", rows)
        if self.bands < 0 or self.rows < 0 or self.bands * self.rows > self.num_perm:
            raise DedupParameterError(
                f"{self.bands} bands x {self.rows} rows need {self.bands * self.rows} permutations, num_perm is "
                f"{self.num_perm}: lower them or raise num_perm"
            )
        if self.bands > MAX_BANDS:
            raise DedupParameterError(
                f"{self.bands} bands need more than 512 bytes of scratch a document: at most {MAX_BANDS}; "
                "fewer rows catch more pairs without more bands"
            )

    def _check_names(self) -> None:
        choices: tuple[tuple[str, str, tuple[str, ...]], ...] = (
            ("method", self.method, ("minhash", "exact")),
            ("unit", self.unit, ("word", "char")),
            ("scheme", self.scheme, SCHEMES),
            ("item_hash", self.item_hash, ("rolling", "sha1")),
        )
        for name, value, allowed in choices:
            if value not in allowed:
                raise DedupParameterError(f"{name} {value!r}: must be one of {', '.join(allowed)}")
        for value in self.normalize:
            if value not in NORMALIZATIONS:
                raise DedupParameterError(f"normalize {value!r}: must be among {', '.join(NORMALIZATIONS)}")

    @property
    def keys_per_document(self) -> int:
        """How many 64-bit keys one document gives: the bands, or one for exact deduplication."""
        return 1 if self.method == "exact" else self.bands

    def relevant(self) -> dict[str, Any]:
        """The parameters that can change a decision, JSON-able, in a fixed order."""
        values = asdict(self) | {"normalize": sorted(set(self.normalize)), "words": WORD_TABLE_VERSION}
        if self.method == "exact":
            values = {name: values[name] for name in ("method", "normalize")}
        if not self.cluster or self.method == "exact":
            # Equal texts are one cluster anyway, and fingerprints of indexes stay what they were.
            values.pop("cluster", None)
        return dict(sorted(values.items()))

    def fingerprint(self) -> str:
        """16 hexadecimal digits; stored with an index, which refuses another set of parameters."""
        text = json.dumps(self.relevant(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]

    def with_bands(self, bands: int, rows: int) -> DedupParams:
        """The same parameters cut into other bands."""
        return replace(self, bands=bands, rows=rows)


def catch_probability(similarity: float, bands: int, rows: int) -> float:
    """The share of pairs of this Jaccard similarity that agree in at least one band: 1 - (1 - s^rows)^bands."""
    return float(1.0 - (1.0 - similarity**rows) ** bands)


def catch_curve(bands: int, rows: int, steps: int = 20) -> list[tuple[float, float]]:
    """`(similarity, catch probability)` at 1/steps, 2/steps, ... 1, for plans and reports."""
    return [(i / steps, catch_probability(i / steps, bands, rows)) for i in range(1, steps + 1)]


def choose_bands(threshold: float, num_perm: int) -> tuple[int, int]:
    """The most selective cut (most rows, at most 20 bands) that still catches 0.99 of the pairs at the threshold.

    0.8 with 128 permutations gives 20 x 6 (0.998). Where none reaches 0.99, one row a band.
    """
    for rows in range(num_perm, 0, -1):
        bands = min(20, num_perm // rows)
        if catch_probability(threshold, bands, rows) >= CATCH_GOAL:
            return bands, rows
    return min(20, num_perm), 1


def balanced_bands(threshold: float, num_perm: int) -> tuple[int, int]:
    """The cut with the least area of false positives below the threshold and misses above it, weighted equally.

    What datasketch's MinHashLSH chooses, within MAX_BANDS: 0.8 with 128 permutations gives 9 x 13.
    """
    step = 0.001
    similarities = np.arange(step / 2, 1.0, step)
    below = similarities < threshold
    best, least = (1, 1), float("inf")
    for bands in range(1, min(num_perm, MAX_BANDS) + 1):
        for rows in range(1, num_perm // bands + 1):
            caught = 1.0 - (1.0 - similarities**rows) ** bands
            area = float(np.where(below, caught, 1.0 - caught).sum()) * step
            if area < least:
                best, least = (bands, rows), area
    return best
