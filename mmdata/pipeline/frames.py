"""The frames of the deduplication spool after signing: the decisions on them, and encoding what is kept of each.

A decision takes some tens of bytes for each dropped document.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from mmdata.collector import collector_paused
from mmdata.dedup.barrier import Barrier, BarrierOptions, FrameDecision, drop_of
from mmdata.dedup.index import Batch, DedupIndex
from mmdata.dedup.keeper import KeeperPolicy
from mmdata.dedup.params import DedupParams
from mmdata.dedup.spool import SpoolReader
from mmdata.document import Document
from mmdata.jsonl import Position
from mmdata.pipeline.work import BlockResult, DocumentEncoder, Stages, Timer, in_input_order, with_text
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
    """One spool frame for a worker: its number and the decisions on it."""

    number: int
    dropped: list[tuple[int, str | None, float]]


class FrameEncoder:
    """Encodes the kept documents of spool frames; holds the spool open until `close`."""

    def __init__(self, stages: Stages, setup: DedupSetup) -> None:
        self._encode, self._params = DocumentEncoder(stages), setup.params
        self._reader = SpoolReader(setup.spool)

    def __call__(self, task: FrameTask) -> BlockResult:
        """What became of the documents of the frame."""
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
        kept = [document for document, keep in zip(documents, decision.kept.tolist(), strict=True) if keep]
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


def write_decisions(setup: DedupSetup, barrier: Barrier) -> None:
    """Decide, and write the decisions file; it has its name when it is whole."""
    partial_path = setup.decisions.with_suffix(".partial")
    with partial_path.open("wb") as file:
        for decision in barrier.decide(list(setup.names)):
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
