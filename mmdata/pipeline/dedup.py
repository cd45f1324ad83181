"""A run with deduplication: sign everything, decide at the barrier, encode what was kept.

Three phases, each resumable: `sign` reads, cleans and spools; `decide` writes the decisions to a file, frame by frame
of the spool, with as many threads as there are workers, which wait meanwhile; `kept` encodes the kept documents of each
frame. The spool and the decisions are the only state between them, so a killed run repeats at most the decision and a
few seconds of the other two.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmdata.collector import collector_paused
from mmdata.dedup.barrier import Barrier, SignedBlock, sign_documents
from mmdata.dedup.index import DedupIndex, Identity
from mmdata.dedup.keeper import KeeperPolicy
from mmdata.dedup.params import DedupParams
from mmdata.dedup.signer import Signer
from mmdata.dedup.spool import SpoolReader
from mmdata.document import Drop, Reject
from mmdata.errors import DedupStateError
from mmdata.jsonl import Block, Position, read_blocks
from mmdata.pipeline.driver import Consumed, DiskBytes, RunTools, Source
from mmdata.pipeline.frames import DedupSetup, FrameEncoder, decided_tasks, describe_frame, write_decisions
from mmdata.pipeline.work import BlockResult, Preparation, Preparer, Stages, Timer, describe_block
from mmdata.reading.excerpt import mask
from mmdata.report.tally import Tally

MOST_THREADS = 8
"""For deciding, while the workers wait: more have little to do, since reading the spool takes as long."""


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


def _masked(own: str | None) -> str | None:
    """A record's id as the index may keep it: records are told apart by path and line, so nothing depends on it."""
    return None if own is None else mask(own)


def sign_and_encode(source: Source, stages: Stages, setup: DedupSetup, consumed: Consumed, tools: RunTools) -> None:
    """Phases `sign`, `decide` and `kept`; afterwards `consumed.dedup` holds the statistics."""
    state = tools.ledger.last()
    phase = "sign" if state is None else state["phase"]
    barrier = _open_barrier(setup, state, min(tools.executor.workers, MOST_THREADS))
    try:
        if phase == "sign":
            _sign(source, stages, setup, barrier, consumed, tools)
            source.policy.check(consumed.logs.first_reject, consumed.tally, source.inputs, last=True)
            tools.clock.commit_if_due(lambda: consumed.checkpoint("decide") | {"barrier": barrier.checkpoint()})
        tools.progress.stage("deciding")
        tools.digests.begin()  # the workers wait now
        with Timer(consumed.tally, "decide"):
            write_decisions(setup, barrier)
        _take_statistics(setup, barrier, consumed)
        tools.clock.commit_if_due(lambda: _kept_state(setup, consumed))
    finally:
        barrier.suspend()
    encode_kept(stages, setup, consumed, tools)


def _take_statistics(setup: DedupSetup, barrier: Barrier, consumed: Consumed) -> None:
    consumed.dedup = barrier.statistics.to_json(list(setup.names))
    if barrier.options.index is not None:
        consumed.dedup["index_generation"] = barrier.options.index.generation


def _kept_state(setup: DedupSetup, consumed: Consumed) -> dict[str, Any]:
    """The checkpoint of phase `kept`; what it goes on from is durable too."""
    _make_durable(setup)
    return consumed.checkpoint("kept")


def _make_durable(setup: DedupSetup) -> None:
    """Spool and decisions: not needed before the first commit behind them, and waiting for the disk costs time."""
    for path in (setup.spool, setup.decisions):
        with path.open("rb+") as file:
            os.fsync(file.fileno())


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
    disk = DiskBytes(source.inputs)
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
            tools.clock.commit_if_due(lambda: consumed.checkpoint("sign") | {"barrier": barrier.checkpoint()})


def encode_kept(stages: Stages, setup: DedupSetup, consumed: Consumed, tools: RunTools) -> None:
    """Phase `kept`: encode what was kept from `consumed.frame` on."""
    tools.digests.begin()  # of a run that goes on here
    tools.progress.stage("encoding")
    tasks = decided_tasks(setup, consumed.frame)
    results = tools.executor.map(partial(FrameEncoder, stages, setup), tasks, describe=describe_frame)
    with contextlib.closing(results) as ordered:
        for result in ordered:
            _take_frame(result, setup, consumed, tools)
    if setup.index is not None:
        _make_durable(setup)  # what was kept is read once more, after publication


def _take_frame(result: BlockResult, setup: DedupSetup, consumed: Consumed, tools: RunTools) -> None:
    end = consumed.position
    consumed.take(result)
    consumed.position = end
    consumed.frame += 1
    tools.progress.advance(tokens=result.tally.tokens)
    tools.clock.commit_if_due(lambda: _kept_state(setup, consumed))


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
        for task in decided_tasks(setup, 0):
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
