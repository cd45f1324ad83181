"""A run with deduplication: sign everything, decide at the barrier, encode what was kept.

Three phases, each resumable: `sign` reads, cleans and spools; `decide` writes the decisions to a file, frame by frame
of the spool; `kept` encodes the kept documents of each frame. The spool and the decisions are the only state between
them, so a killed run repeats at most the decision and a few seconds of the other two.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from mmdata.dedup.barrier import Barrier, BarrierOptions, FrameDecision, SignedBlock, drop_of, sign_documents
from mmdata.dedup.index import Batch, DedupIndex, Identity
from mmdata.dedup.keeper import KeeperPolicy
from mmdata.dedup.params import DedupParams
from mmdata.dedup.signer import Signer
from mmdata.dedup.spool import SpoolReader
from mmdata.document import Document, Drop, Reject
from mmdata.errors import DedupStateError
from mmdata.jsonl import Block, Position, read_blocks
from mmdata.pipeline.driver import CommitClock, Consumed, DiskBytes, RunTools, Source
from mmdata.pipeline.work import (
    BlockResult,
    DocumentEncoder,
    Preparation,
    Preparer,
    Stages,
    Timer,
    describe_block,
    in_input_order,
    with_text,
)
from mmdata.reading.excerpt import mask
from mmdata.records import collector_paused
from mmdata.report.tally import Tally

MOST_THREADS = 8
"""For deciding, while the workers wait: more have little to do, since reading the spool takes as long."""


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


@dataclass(slots=True)
class SignResult:
    """What signing made of one block."""

    signed: SignedBlock
    rejects: list[Reject]
    drops: list[Drop]
    tally: Tally
    end: Position
    consumed: int
    gb18030: int


@dataclass(slots=True, frozen=True)
class FrameTask:
    """One spool frame for a worker: its number and the decisions on it."""

    number: int
    dropped: list[tuple[int, str | None, float]]


def build_signer(plan: Preparation, params: DedupParams) -> Callable[[Block], SignResult]:
    """The function that cleans and signs blocks; called once in each worker."""
    prepare, signer, policy = Preparer(plan), Signer(params), KeeperPolicy()

    def work(block: Block) -> SignResult:
        # The documents are gone when this ends; looking for cycles among them before would cost time for nothing.
        with collector_paused():
            return signed(block)

    def signed(block: Block) -> SignResult:
        tally = Tally()
        made = prepare(block, tally)
        with Timer(tally, "sign"):
            # encoding asks for texts and marks alone
            result = sign_documents(made.documents, signer, policy, with_records=False, encoded=made.encoded)
        parsed = made.parsed
        return SignResult(result, parsed.rejects, made.drops, tally, block.end, block.consumed, parsed.gb18030)

    return work


class FrameEncoder:
    """Encodes the kept documents of spool frames; holds the spool open until `close`."""

    def __init__(self, stages: Stages, setup: DedupSetup) -> None:
        self._encode, self._params = DocumentEncoder(stages), setup.params
        self._reader = SpoolReader(setup.spool)

    def __call__(self, task: FrameTask) -> BlockResult:
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


def _masked(own: str | None) -> str | None:
    """A record's id as the index may keep it: records are told apart by path and line, so nothing depends on it."""
    return None if own is None else mask(own)


def _decision(task: FrameTask, first: int, count: int) -> FrameDecision:
    kept_of, similarity = np.full(count, -1, np.int64), np.zeros(count)
    names: list[str | None] = [None] * count
    for place, name, value in task.dropped:
        kept_of[place], similarity[place], names[place] = 0, value, name
    return FrameDecision(task.number, first, kept_of, similarity, names)


def sign_and_decide(source: Source, stages: Stages, setup: DedupSetup, consumed: Consumed, tools: RunTools) -> None:
    """Phases `sign` and `decide`; afterwards the ledger says `kept` and `consumed.dedup` holds the statistics."""
    state = tools.ledger.last()
    phase = "sign" if state is None else state["phase"]
    barrier = _open_barrier(setup, state, min(tools.executor.workers, MOST_THREADS))
    try:
        if phase == "sign":
            _sign(source, stages, setup, barrier, consumed, tools)
            source.policy.check(consumed.logs.first_reject, consumed.tally, source.inputs, last=True)
            tools.ledger.commit(consumed.checkpoint("decide") | {"barrier": barrier.checkpoint()})
        tools.progress.stage("deciding")
        with Timer(consumed.tally, "decide"):
            _decide(setup, barrier)
        consumed.dedup = barrier.statistics.to_json(list(setup.names))
        if barrier.options.index is not None:
            consumed.dedup["index_generation"] = barrier.options.index.generation
        tools.ledger.commit(consumed.checkpoint("kept"))
    finally:
        barrier.suspend()


def _open_barrier(setup: DedupSetup, state: dict[str, Any] | None, threads: int) -> Barrier:
    """A new barrier, or one that goes on from the checkpoint; killed while deciding, it signs the spool again."""
    if state is None:
        shutil.rmtree(setup.folder, ignore_errors=True)
        return Barrier(setup.folder, setup.params, setup.options(threads))
    return Barrier(setup.folder, setup.params, setup.options(threads), state=state["barrier"])


def _sign(
    source: Source, stages: Stages, setup: DedupSetup, barrier: Barrier, consumed: Consumed, tools: RunTools
) -> None:
    tools.progress.stage("cleaning and signing")
    source.policy.check(consumed.logs.first_reject, consumed.tally, source.inputs, last=False)
    disk, clock = DiskBytes(source.inputs), CommitClock(tools)
    blocks = read_blocks(source.inputs, source.read, consumed.position)
    build = partial(build_signer, stages.preparation, setup.params)
    results = tools.executor.map(build, blocks, describe=describe_block)
    with contextlib.closing(results) as ordered:
        for result in ordered:
            barrier.take(result.signed)
            consumed.logs.add(result.rejects, result.drops)
            consumed.tally.add(result.tally)
            consumed.position = result.end
            consumed.gb18030 += result.gb18030
            source.policy.check(consumed.logs.first_reject, consumed.tally, source.inputs, last=False)
            tools.progress.advance(
                text_bytes=result.tally.text_bytes, documents=len(result.signed.lines),
                disk_bytes=disk.total(result.end, result.consumed),
            )  # fmt: skip
            clock.commit_if_due(lambda: consumed.checkpoint("sign") | {"barrier": barrier.checkpoint()})


def _decide(setup: DedupSetup, barrier: Barrier) -> None:
    """Write the decisions file, durable when it has its name."""
    partial_path = setup.decisions.with_suffix(".partial")
    with partial_path.open("wb") as file:
        for decision in barrier.decide(list(setup.names)):
            places = np.flatnonzero(~decision.kept).tolist()
            row = [[place, decision.kept_names[place], float(decision.similarity[place])] for place in places]
            file.write(orjson.dumps(row) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial_path, setup.decisions)


def encode_kept(stages: Stages, setup: DedupSetup, consumed: Consumed, tools: RunTools) -> None:
    """Phase `kept`: encode what was kept from `consumed.frame` on."""
    tools.progress.stage("encoding")
    clock = CommitClock(tools)
    tasks = _tasks(setup, consumed.frame)
    results = tools.executor.map(partial(FrameEncoder, stages, setup), tasks, describe=_describe_frame)
    with contextlib.closing(results) as ordered:
        for result in ordered:
            end = consumed.position
            consumed.take(result)
            consumed.position = end
            consumed.frame += 1
            tools.progress.advance(tokens=result.tally.tokens)
            clock.commit_if_due(lambda: consumed.checkpoint("kept"))


def _tasks(setup: DedupSetup, first: int) -> Iterator[FrameTask]:
    with setup.decisions.open("rb") as file:
        for number, line in enumerate(file):
            if number >= first:
                yield FrameTask(number, [(place, name, value) for place, name, value in orjson.loads(line)])


def _describe_frame(task: FrameTask) -> str:
    return f"frame {task.number} of the deduplication spool"


def add_to_index(setup: DedupSetup) -> None:
    """Put every kept document into the index, once: a batch that it holds is not added again.

    Raises DedupIndexError and its kin; the index is then as it was.
    """
    assert setup.index is not None, "no index was asked for"
    index = DedupIndex(setup.index, setup.params, setup.batch)
    if index.holds_batch:
        return
    signer = Signer(setup.params)
    with SpoolReader(setup.spool) as reader, index.begin() as batch:
        for task in _tasks(setup, 0):
            gone = {place for place, _, _ in task.dropped}
            kept = [d for place, d in enumerate(reader.documents(task.number)) if place not in gone]
            texts = [document.text for document in kept]
            if texts:
                identities = [Identity(document.path, document.line, _masked(document.id)) for document in kept]
                batch.add(identities, signer.sign(texts), signer.sets(texts))
        batch.commit()


def check_generation(setup: DedupSetup, consumed: Consumed) -> None:
    """Raise DedupStateError when the index changed since a killed run decided against it."""
    if setup.index is None or consumed.dedup is None:
        return
    index = DedupIndex(setup.index, setup.params, setup.batch)
    if index.generation != consumed.dedup["index_generation"] and not index.holds_batch:
        raise DedupStateError(
            f"{setup.index}: another run added to it since this run was interrupted; start again with --overwrite"
        )
