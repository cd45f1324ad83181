"""What a deduplication will need, printed and checked before it begins."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from mmdata.dedup.params import DedupParams, catch_curve, catch_probability
from mmdata.errors import DedupSpaceError

RAM_BYTES = 8
"""A document: 4 for its component, 4 for its place in keeper order (kept only under a policy other than `first`)."""
KEY_BYTES = 16
SIDE_BYTES = 12 + 8 + 16
"""A document: input number and line, its order key, and that key once more while it is ranked."""
DROPPED_BYTES = 32
SPOOL_SHARE = 1.05
"""The text as it is, and what else is known of each document, compressed."""
FIXED_RAM = 96 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes for `documents` documents of `text_bytes` in all. `scratch` counts everything but the spool."""

    documents: int
    text_bytes: int
    params: DedupParams
    memory: int

    @property
    def ram(self) -> int:
        """Resident memory beyond the interpreter: buffers, and eight bytes a document."""
        return self.memory + FIXED_RAM + RAM_BYTES * self.documents

    @property
    def scratch_per_document(self) -> int:
        """Scratch disk a document in the worst case; at most 512."""
        keys = KEY_BYTES * self.params.keys_per_document
        # A partition is deleted once its pairs moved on: keys twice at most for one of 256 partitions.
        return keys + -(-keys // 256) + SIDE_BYTES + DROPPED_BYTES

    @property
    def scratch(self) -> int:
        """Scratch disk in all, without the spool."""
        return self.scratch_per_document * self.documents

    @property
    def spool(self) -> int:
        """An upper estimate of the spooled text."""
        return int(SPOOL_SHARE * self.text_bytes)

    def check(self, folder: Path) -> None:
        """Raises DedupSpaceError when the folder's disk has less than scratch and spool need."""
        free = shutil.disk_usage(folder).free
        if self.scratch + self.spool > free:
            raise DedupSpaceError(
                f"{folder}: deduplication needs about {_size(self.scratch + self.spool)} of scratch, {_size(free)} "
                "are free; choose a work folder on another disk, or fewer bands"
            )

    def lines(self) -> list[str]:
        """The plan in words, one fact a line."""
        p = self.params
        buffers = _size(self.memory + FIXED_RAM)
        described = [
            f"documents: {self.documents:,} guessed from the input, {_size(self.text_bytes)} of text",
            f"memory: {_size(self.ram)} ({RAM_BYTES} bytes a document plus buffers of {buffers})",
            f"scratch: {_size(self.scratch)} ({self.scratch_per_document} bytes a document) plus a spool of at most "
            f"{_size(self.spool)}",
        ]
        if p.method == "exact":
            return [*described, "method: exact, 128-bit hash of the text"]
        return [
            *described,
            f"method: minhash, {p.ngram}-{p.unit} shingles, {p.num_perm} permutations ({p.scheme}), "
            f"{p.bands} bands x {p.rows} rows, "
            + ("one of each cluster stays, unverified" if p.cluster else f"exact Jaccard >= {p.threshold:g} decides"),
            f"caught: {catch_probability(p.threshold, p.bands, p.rows):.4f} of the pairs at {p.threshold:g}",
            *(f"  similarity {s:.2f}: {caught:6.4f}" for s, caught in catch_curve(p.bands, p.rows)),
        ]


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
