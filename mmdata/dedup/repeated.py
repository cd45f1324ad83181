"""Exact duplicates below the document: lines or paragraphs that occurred earlier in the corpus are removed (opt-in).

The first occurrence in reading order stays. Units of fewer than `shortest` characters (after stripping) always stay, so
that short answers and headings survive. Equal means equal in 88 bits of a 128-bit hash after normalisation: among 10^9
distinct units one wrong removal is expected in 10^8 corpora. Reads the inputs twice in this process; scratch: 16 bytes
a unit. Texts must stand at top-level keys of their records.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup import exact
from mmdata.dedup.decide import remove_scratch
from mmdata.dedup.external import PairStore
from mmdata.dedup.files import FileOptions, check_outputs, reject_record, sibling, split_options
from mmdata.dedup.rewrite import write_json
from mmdata.document import Document
from mmdata.errors import DedupParameterError, InputChangedError, UsageError
from mmdata.jsonl import InputFile, JsonlWriter, find_inputs, read_blocks, stat_inputs
from mmdata.records import ParsedBlock, parse_block

U64 = NDArray[np.uint64]

LEVELS = {"line": re.compile(r"(\n)"), "paragraph": re.compile(r"(\n[ \t]*\n\s*)")}
POSITION_BITS = 40
POSITIONS = np.uint64((1 << POSITION_BITS) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitOptions:
    """level: line or paragraph (blank lines between). shortest: characters a unit needs to be compared."""

    level: str = "line"
    shortest: int = 20
    normalize: tuple[str, ...] = ("space",)

    def __post_init__(self) -> None:
        """Raises DedupParameterError."""
        if self.level not in LEVELS:
            raise DedupParameterError(f"level {self.level!r}: must be one of {', '.join(LEVELS)}")
        if self.shortest < 1:
            raise DedupParameterError(f"shortest {self.shortest}: must be at least 1")


@dataclass(slots=True)
class UnitReport:
    """records = kept + emptied + rejected; emptied ones had no other text. changed: kept with something removed."""

    output: str
    records: int = 0
    kept: int = 0
    changed: int = 0
    emptied: int = 0
    rejected: int = 0
    blank: int = 0
    units: int = 0
    removed: int = 0

    def lines(self) -> str:
        """The account in words."""
        return (
            f"{self.records:,} records read: {self.kept:,} kept ({self.changed:,} changed), {self.emptied:,} emptied, "
            f"{self.rejected:,} rejected ({self.blank:,} blank lines)\n"
            f"{self.removed:,} of {self.units:,} compared units removed\nkept records: {self.output}"
        )


def remove_repeated(inputs: Any, output: str | os.PathLike[str], **options: Any) -> UnitReport:
    """Write the records of `inputs` to `output` without units that occurred before.

    options: the fields of UnitOptions and FileOptions (keep, index, workers and parser have no meaning here).
    OUT_dropped.jsonl.gz names emptied records. Raises the errors of `dedup`.
    """
    rule, run = split_options(options, UnitOptions, FileOptions)
    if run.format != "text":
        raise UsageError(f"level {rule.level} works on text records, not on {run.format} ones")
    files = find_inputs([inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs))
    if any(source.path == "-" for source in files):
        raise UsageError(f"level {rule.level} reads its inputs twice: standard input cannot be")
    output = os.fspath(output)
    paths = [output, *(sibling(output, end) for end in ("_dropped.jsonl.gz", "_rejects.jsonl", "_report.json"))]
    check_outputs(files, paths, run.overwrite)
    folder = Path(output + ".work")
    remove_scratch(folder)
    folder.mkdir()
    try:
        report = UnitReport(output)
        facts = stat_inputs(files)
        repeated = _find(files, rule, run, PairStore(folder, "units", 56))
        with (
            JsonlWriter(output, overwrite=run.overwrite) as kept,
            JsonlWriter(paths[1], overwrite=run.overwrite) as dropped,
            JsonlWriter(paths[2], overwrite=run.overwrite) as rejects,
        ):
            _rewrite(files, (rule, run), _Removals(repeated, run.memory), (kept, dropped, rejects), report)
            if stat_inputs(files) != facts:
                raise InputChangedError("an input changed while it was deduplicated: run the command again")
        write_json(paths[3], asdict(report))
        return report
    finally:
        remove_scratch(folder)


def _parsed(files: list[InputFile], run: FileOptions) -> Iterator[ParsedBlock]:
    return (parse_block(block, run.records) for block in read_blocks(files, run.read))


def compared_units(text: str, rule: UnitOptions) -> Iterator[tuple[int, str]]:
    """(place among the pieces of LEVELS' split, normalised unit) of every unit long enough to be compared."""
    for place, piece in enumerate(LEVELS[rule.level].split(text)[::2]):
        if len(piece.strip()) >= rule.shortest:
            yield 2 * place, exact.normalize(piece, rule.normalize)


def _find(files: list[InputFile], rule: UnitOptions, run: FileOptions, store: PairStore) -> PairStore:
    """The positions (numbers of compared units in reading order) of units that occurred before, as keys."""
    position = 0
    for parsed in _parsed(files, run):
        units = [unit for d in parsed.documents for part in d.parts for _, unit in compared_units(part.text, rule)]
        hashes = exact.text_hashes(units)
        positions = np.arange(position, position + len(units), dtype=np.uint64)
        store.append(hashes[:, 0], (hashes[:, 1] << np.uint64(POSITION_BITS)) | positions)
        position += len(units)
    repeated = PairStore(store.folder, "repeated", max(position.bit_length() - 8, 0))
    last: tuple[np.uint64, np.uint64] | None = None
    for keys, payloads in store.read_sorted(run.memory, consume=True):
        order = np.lexsort((payloads, keys))
        keys, payloads = keys[order], payloads[order]
        tags = payloads >> np.uint64(POSITION_BITS)
        again = np.zeros(len(keys), dtype=np.bool_)
        again[1:] = (keys[1:] == keys[:-1]) & (tags[1:] == tags[:-1])
        again[0] = last == (keys[0], tags[0])
        repeated.append(payloads[again] & POSITIONS, payloads[again])
        last = (keys[-1], tags[-1])
    return repeated


class _Removals:
    """Says of positions in ascending order whether they are to be removed."""

    def __init__(self, repeated: PairStore, memory: int) -> None:
        self._positions = (int(p) for keys, _ in repeated.read_sorted(memory, consume=True) for p in keys.tolist())
        self._next = next(self._positions, -1)
        self.position = 0

    def take(self) -> bool:
        """Whether the next position is to be removed."""
        found = self.position == self._next
        if found:
            self._next = next(self._positions, -1)
        self.position += 1
        return found


def _rewrite(
    files: list[InputFile],
    options: tuple[UnitOptions, FileOptions],
    removals: _Removals,
    writers: tuple[JsonlWriter, JsonlWriter, JsonlWriter],
    report: UnitReport,
) -> None:
    rule, run = options
    kept, dropped, rejects = writers
    for parsed in _parsed(files, run):
        report.records += parsed.records
        report.blank += parsed.blank
        report.rejected += len(parsed.rejects)
        for reject in parsed.rejects:
            rejects.write(reject_record(reject))
        for document in parsed.documents:
            texts = [_without(part.text, rule, removals, report) for part in document.parts]
            changed = any(text != part.text for text, part in zip(texts, document.parts, strict=True))
            if changed and not any(text.strip() for text in texts):
                dropped.write(_emptied(document, rule))
                report.emptied += 1
                continue
            paths = [part.json_path for part in document.parts]
            kept.write({**document.record, **dict(zip(paths, texts, strict=True))} if changed else document.record)
            report.kept += 1
            report.changed += changed
    report.units = removals.position


def _without(text: str, rule: UnitOptions, removals: _Removals, report: UnitReport) -> str:
    """The text without its repeated units, each gone with the separator behind it."""
    gone = {place for place, _ in compared_units(text, rule) if removals.take()}
    if not gone:
        return text
    report.removed += len(gone)
    pieces = LEVELS[rule.level].split(text)
    return "".join(piece for place, piece in enumerate(pieces) if place - place % 2 not in gone)


def _emptied(document: Document, rule: UnitOptions) -> dict[str, Any]:
    return {
        "path": document.path, "line": document.line, "id": document.id, "stage": "dedup",
        "reason": f"repeated_{rule.level}s", "value": None, "limit": None, "kept": None, "similarity": None,
    }  # fmt: skip
