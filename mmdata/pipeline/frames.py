"""The frames of the deduplication spool after signing: the decisions on them, and encoding what is kept of each.

A decision takes some tens of bytes for each dropped document. A frame may be encoded in two halves, one before it is
decided (see `mmdata.pipeline.ahead`); `joined` makes them what the whole frame would have been.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from mmdata.dedup.barrier import Barrier, BarrierOptions, FrameDecision, drop_of
from mmdata.dedup.decide import Watch
from mmdata.dedup.index import Batch, DedupIndex
from mmdata.dedup.keeper import KeeperPolicy
from mmdata.dedup.params import DedupParams
from mmdata.dedup.spool import SpoolReader
from mmdata.document import Document
from mmdata.encode import KeyTokens
from mmdata.jsonl import Position
from mmdata.pipeline.work import BlockResult, DocumentEncoder, Int64, Rows, Stages, Timer, in_input_order, with_text
from mmdata.records import collector_paused
from mmdata.report.tally import Tally


@dataclass(slots=True, frozen=True)
class DedupSetup:
    """How duplicates are judged and where scratch files go. names: the inputs' paths by number.

    batch: what this run adds to the index; what an earlier run of the same output added does not count.
    """

    folder: Path
    params: DedupParams
    memory: int
    names: tuple[str, ...]
    index: Path | None = None
    batch: Batch | None = None

    def options(self, threads: int) -> BarrierOptions:
        """The barrier's options; opens the index. Raises DedupIndexError and its kin."""
        index = None if self.index is None else DedupIndex(self.index, self.params, self.batch)
        return BarrierOptions(KeeperPolicy(), self.memory, index, threads)

    @property
    def decisions(self) -> Path:
        """JSON lines, one for each spool frame: `[[place, kept name, similarity], ...]` of its dropped documents."""
        return self.folder / "decisions.jsonl"

    @property
    def spool(self) -> Path:
        """The cleaned documents."""
        return self.folder / "spool"


@dataclass(slots=True, frozen=True)
class FrameTask:
    """One spool frame for a worker: its number, the decisions on it, and which documents are asked for (None: all)."""

    number: int
    dropped: list[tuple[int, str | None, float]]
    only: npt.NDArray[np.bool_] | None = None


class FrameEncoder:
    """Encodes the kept documents of spool frames; holds the spool open until `close`."""

    def __init__(self, stages: Stages, setup: DedupSetup) -> None:
        self._encode, self._params = DocumentEncoder(stages), setup.params
        self._reader = SpoolReader(setup.spool)

    def __call__(self, task: FrameTask) -> BlockResult:
        """What became of the documents that the task asks for."""
        with collector_paused():
            return self._encoded(task)

    def _encoded(self, task: FrameTask) -> BlockResult:
        tally = Tally()
        with Timer(tally, "spool"):
            documents = self._reader.documents(task.number)
        decision = _decision(task, self._reader.first_document(task.number), len(documents))
        drops = [drop_of(_identity(documents[place]), decision, place, self._params) for place, _, _ in task.dropped]
        drops = with_text(drops, documents)
        tally.count_drops(drops)
        chosen = decision.kept if task.only is None else decision.kept & task.only
        kept = [document for document, keep in zip(documents, chosen.tolist(), strict=True) if keep]
        rows, more = self._encode(kept, tally)
        return BlockResult(rows, [], in_input_order(drops, more), tally, Position())

    def close(self) -> None:
        """Close the spool."""
        self._reader.close()


def _identity(document: Document) -> tuple[str, int, int, str | None]:
    return document.path, document.input_number, document.line, document.id


def _decision(task: FrameTask, first: int, count: int) -> FrameDecision:
    kept_of, similarity = np.full(count, -1, np.int64), np.zeros(count)
    names: list[str | None] = [None] * count
    for place, name, value in task.dropped:
        kept_of[place], similarity[place], names[place] = 0, value, name
    return FrameDecision(task.number, first, kept_of, similarity, names)


def write_decisions(setup: DedupSetup, barrier: Barrier, watch: Watch | None = None) -> None:
    """Decide, and write the decisions file; it has its name when it is whole."""
    partial_path = setup.decisions.with_suffix(".partial")
    with partial_path.open("wb") as file:
        for decision in barrier.decide(list(setup.names), watch):
            places = np.flatnonzero(~decision.kept).tolist()
            row = [[place, decision.kept_names[place], float(decision.similarity[place])] for place in places]
            file.write(orjson.dumps(row) + b"\n")
    os.replace(partial_path, setup.decisions)


def decided_tasks(setup: DedupSetup, first: int) -> Iterator[FrameTask]:
    """The tasks of all frames from `first` on, once they are decided."""
    with setup.decisions.open("rb") as file:
        for number, line in enumerate(file):
            if number >= first:
                yield FrameTask(number, [(place, name, value) for place, name, value in orjson.loads(line)])


def describe_frame(task: FrameTask) -> str:
    """Names a frame in messages."""
    return f"frame {task.number} of the deduplication spool"


def joined(one: BlockResult, other: BlockResult) -> BlockResult:
    """Both halves of one frame, as if it had been encoded at once."""
    tally = Tally()
    tally.add(one.tally)
    tally.add(other.tally)
    return BlockResult(_joined_rows(one.rows, other.rows), [], in_input_order(one.drops, other.drops), tally, one.end)


def _joined_rows(one: Rows, other: Rows) -> Rows:
    """The rows of both in input order."""

    def both(name: str) -> Int64:
        return np.concatenate([getattr(one, name), getattr(other, name)])

    numbers, lines, parts = both("input_numbers"), both("lines"), both("parts")
    order = np.lexsort((parts, lines, numbers))
    keys = {}
    for key, mine in one.keys.items():
        theirs = other.keys[key]
        keys[key] = KeyTokens(*_in_order((mine.tokens, mine.lengths), (theirs.tokens, theirs.lengths), order))
    spans = None
    if one.spans is not None and other.spans is not None:
        spans = _in_order(one.spans, other.spans, order)
    return Rows(keys, numbers[order], lines[order], parts[order], spans)


def _in_order(
    one: tuple[npt.NDArray[Any], Int64], other: tuple[npt.NDArray[Any], Int64], order: Int64
) -> tuple[npt.NDArray[Any], Int64]:
    """Flat values and lengths of both, rearranged."""
    values, lengths = (np.concatenate(pair) for pair in zip(one, other, strict=True))
    ends = np.cumsum(lengths)
    spans = zip((ends - lengths)[order].tolist(), ends[order].tolist(), strict=True)
    pieces = [values[low:high] for low, high in spans]
    return np.concatenate([values[:0], *pieces]), lengths[order]
