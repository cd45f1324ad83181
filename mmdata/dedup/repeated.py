"""Exact duplicates below the document: lines or paragraphs that occurred earlier in the corpus are removed (opt-in).

The first occurrence in reading order stays. Units of fewer than `shortest` characters (after stripping) always stay, so
that short answers and headings survive. Equal means equal in 88 bits of a 128-bit hash after normalisation: among 10^9
distinct units one wrong removal is expected in 10^8 corpora. Reads the inputs twice in this process; scratch: 16 bytes
a unit. Texts must stand at top-level keys of their records. The same command after a kill goes on where it stopped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup import exact
from mmdata.dedup.external import PairStore
from mmdata.dedup.files import FileOptions, drop_record, reject_record, sibling, split_options
from mmdata.dedup.key_log import KeyLog
from mmdata.dedup.rewrite import write_json
from mmdata.dedup.scratch import scratch_faults
from mmdata.dedup.session import PUBLISH, Place, Session
from mmdata.document import Document, Drop
from mmdata.errors import DedupParameterError, InputChangedError, UsageError
from mmdata.jsonl import (
    Block,
    InputFile,
    Position,
    check_outputs,
    find_inputs,
    read_blocks,
    refuse_nothing,
    stat_inputs,
)
from mmdata.records import ParsedBlock, parse_block

U64 = NDArray[np.uint64]

LEVELS = {"line": re.compile(r"(\n)"), "paragraph": re.compile(r"(\n[ \t]*\n\s*)")}
REMOVED = "removed.u64"
AHEAD = 1 << 16
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
    place = _place(os.fspath(output), run)
    check_outputs(files, (*place.outputs.values(), place.report))
    place.check()
    chosen = {"command": "repeated", **asdict(rule), **run.shaping()}
    with Session(place, {"options": chosen, "inputs": stat_inputs(files)}) as session:
        if session.state is not None:
            run.notice(f"going on with the unfinished run in {place.work}")
        report = _UnitRun(files, (rule, run), session).execute()
        refuse_nothing(report.records, report.rejected, report.blank)
        session.publish()
        write_json(place.report, asdict(report))
        session.finish()
    return report


def _place(output: str, run: FileOptions) -> Place:
    ends = {"dropped": "_dropped.jsonl.gz", "rejects": "_rejects.jsonl"}
    outputs = {"kept": output, **{role: sibling(output, end) for role, end in ends.items()}}
    report = sibling(output, "_report.json")
    return Place(Path(sibling(output, ".work")), outputs, report, run.overwrite, False, run.commit_seconds)


def compared_units(text: str, rule: UnitOptions) -> Iterator[tuple[int, str]]:
    """(place among the pieces of LEVELS' split, normalised unit) of every unit long enough to be compared."""
    for place, piece in enumerate(LEVELS[rule.level].split(text)[::2]):
        if len(piece.strip()) >= rule.shortest:
            yield 2 * place, exact.normalize(piece, rule.normalize)


class _UnitRun:
    """One run: hash the units (`find`), sort them, write the records without repeated ones (`write`)."""

    def __init__(self, files: list[InputFile], options: tuple[UnitOptions, FileOptions], session: Session) -> None:
        self._files, self._session = files, session
        self._rule, self._run = options
        self._folder = session.scratch
        self.report = UnitReport(session.place.outputs["kept"])

    def execute(self) -> UnitReport:
        """Everything before the outputs get their names. Raises InputChangedError and what reading raises."""
        state, facts = self._session.state, stat_inputs(self._files)
        with scratch_faults(self._folder):
            if state is None or state["phase"] == "find":
                state = self._find(state)
            self.report = UnitReport(**{**state["report"], "output": self.report.output})
            if state["phase"] == "write":
                self._write(state)
        if stat_inputs(self._files) != facts:
            raise InputChangedError("an input changed while it was deduplicated: run the command again")
        return self.report

    def _parsed(self, position: Position) -> Iterator[tuple[Block, ParsedBlock]]:
        for block in read_blocks(self._files, self._run.read, position):
            yield block, parse_block(block, self._run.records)

    def _find(self, state: dict[str, Any] | None) -> dict[str, Any]:
        """Note the positions (numbers of compared units in reading order) of units that occurred before."""
        log, position, start = KeyLog(self._folder, 1), 0, Position()
        if state is not None:
            log.resume(state["log"])
            position, start = int(state["units"]), Position.from_json(state["position"])
        for block, parsed in self._parsed(start):
            texts = [part.text for document in parsed.documents for part in document.parts]
            units = [unit for text in texts for _, unit in compared_units(text, self._rule)]
            hashes = exact.text_hashes(units)
            positions = np.arange(position, position + len(units), dtype=np.uint64)
            log.append((hashes[:, 1] << np.uint64(POSITION_BITS)) | positions, hashes[:, :1])
            position += len(units)
            reached = {"phase": "find", "units": position, "position": block.end.to_json()}
            self._session.commit_if_due(lambda reached=reached: {**reached, "log": log.checkpoint()})  # type: ignore[misc]
        done = {"phase": "find", "units": position, "position": Position(len(self._files)).to_json()}
        self._session.commit({**done, "log": log.checkpoint()})
        self._sort(log, position)
        begun = {"phase": "write", "position": Position().to_json(), "removed": 0, "report": asdict(self.report)}
        self._session.commit(begun)
        return begun

    def _sort(self, log: KeyLog, total: int) -> None:
        """Write the file of positions to be removed, ascending, uint64 each."""
        store = PairStore(self._folder, "units", 56)
        for payloads, keys in log.drain(consume=False):
            store.append(keys[:, 0].copy(), payloads.copy())
        repeated = PairStore(self._folder, "repeated", max(total.bit_length() - 8, 0))
        last: tuple[np.uint64, np.uint64] | None = None
        for keys, payloads in store.read_sorted(self._run.memory, consume=True):
            order = np.lexsort((payloads, keys))
            keys, payloads = keys[order], payloads[order]
            tags = payloads >> np.uint64(POSITION_BITS)
            again = np.zeros(len(keys), dtype=np.bool_)
            again[1:] = (keys[1:] == keys[:-1]) & (tags[1:] == tags[:-1])
            again[0] = last == (keys[0], tags[0])
            repeated.append(payloads[again] & POSITIONS, payloads[again])
            last = (keys[-1], tags[-1])
        with (self._folder / REMOVED).open("wb") as file:
            for positions, _ in repeated.read_sorted(self._run.memory, consume=True):
                file.write(positions.astype("<u8").tobytes())
            file.flush()
            os.fsync(file.fileno())

    def _write(self, state: dict[str, Any]) -> None:
        removals = _Removals(self._folder / REMOVED, self.report.units, int(state["removed"]))
        writers = self._session.writers
        for block, parsed in self._parsed(Position.from_json(state["position"])):
            self.report.records += parsed.records
            self.report.blank += parsed.blank
            self.report.rejected += len(parsed.rejects)
            for reject in parsed.rejects:
                writers["rejects"].write(reject_record(reject))
            for document in parsed.documents:
                self._write_document(document, removals)
            self.report.units = removals.position
            reached = {"position": block.end.to_json(), "removed": removals.taken, "report": asdict(self.report)}
            self._session.commit_if_due(partial(dict, state, **reached))
        self._session.commit({"phase": PUBLISH, "report": asdict(self.report)})

    def _write_document(self, document: Document, removals: _Removals) -> None:
        texts = [_without(part.text, self._rule, removals, self.report) for part in document.parts]
        changed = any(text != part.text for text, part in zip(texts, document.parts, strict=True))
        if changed and not any(text.strip() for text in texts):
            self._session.writers["dropped"].write(_emptied(document, self._rule))
            self.report.emptied += 1
            return
        paths = [part.json_path for part in document.parts]
        written = {**document.record, **dict(zip(paths, texts, strict=True))} if changed else document.record
        self._session.writers["kept"].write(written)
        self.report.kept += 1
        self.report.changed += changed


class _Removals:
    """Says of positions in ascending order whether they are to be removed. taken: how many were, of all there are."""

    def __init__(self, path: Path, position: int, taken: int) -> None:
        """position: of the next unit asked for. taken: how many before it are in the file."""
        self.position, self.taken = position, taken
        self._positions: NDArray[np.uint64] = np.zeros(0, dtype="<u8")
        if path.stat().st_size:
            self._positions = np.memmap(path, dtype="<u8", mode="r")
        self._ahead = self._some()
        self._next = next(self._ahead, -1)

    def _some(self) -> Iterator[int]:
        for low in range(self.taken, len(self._positions), AHEAD):
            yield from self._positions[low : low + AHEAD].tolist()

    def take(self) -> bool:
        """Whether the next unit is to be removed."""
        found = self.position == self._next
        if found:
            self._next = next(self._ahead, -1)
            self.taken += 1
        self.position += 1
        return found


def _without(text: str, rule: UnitOptions, removals: _Removals, report: UnitReport) -> str:
    """The text without its repeated units, each gone with the separator behind it."""
    gone = {place for place, _ in compared_units(text, rule) if removals.take()}
    if not gone:
        return text
    report.removed += len(gone)
    pieces = LEVELS[rule.level].split(text)
    return "".join(piece for place, piece in enumerate(pieces) if place - place % 2 not in gone)


def _emptied(document: Document, rule: UnitOptions) -> dict[str, Any]:
    place = document.path, document.input_number, document.line, document.id
    return drop_record(Drop(*place, stage="dedup", reason=f"repeated_{rule.level}s"))
