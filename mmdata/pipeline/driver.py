"""Drives one run: blocks to workers, results to outputs in order, a checkpoint every few seconds, publication.

The parent process reads, writes and counts; workers parse, clean and encode. Memory is flat: a few blocks are in
flight. After a kill the same command goes on from the last checkpoint to the same bytes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmdata.document import Reject
from mmdata.errors import InputError, InputRejectedError, TooManyRejectsError
from mmdata.jsonl import InputFile, Position, ReadOptions, describe_place, read_blocks
from mmdata.pipeline.digests import InputDigests
from mmdata.pipeline.logs import RecordLogs
from mmdata.pipeline.options import reject_limit
from mmdata.pipeline.outputs import OutputPlan, Outputs
from mmdata.pipeline.work import BlockResult, Stages, build_encoder, describe_block
from mmdata.report.tally import Tally
from mmdata.run.executor import Executor
from mmdata.run.ledger import Ledger
from mmdata.run.progress import Progress


class CommitClock:
    """Commits to the ledger when enough time has passed since the last commit, or since the run began."""

    def __init__(self, ledger: Ledger, seconds: float) -> None:
        """seconds: how much work a kill may cost, at most."""
        self._ledger, self._seconds = ledger, seconds
        self._next = time.monotonic() + seconds

    def commit_if_due(self, state: Callable[[], dict[str, Any]]) -> None:
        """Commit what `state()` gives; taking it makes everything durable, so it is only taken when due."""
        if time.monotonic() >= self._next:
            self._ledger.commit(state())
            self._next = time.monotonic() + self._seconds


@dataclass(slots=True, frozen=True)
class RunTools:
    """What a run works with. digests: of the inputs, begun by each phase where a core is best spared for them."""

    executor: Executor
    ledger: Ledger
    progress: Progress
    clock: CommitClock
    digests: InputDigests

    @classmethod
    def of(
        cls, executor: Executor, ledger: Ledger, progress: Progress, digests: InputDigests, commit_seconds: float
    ) -> RunTools:
        """commit_seconds: how much work a kill may cost, at most."""
        return cls(executor, ledger, progress, CommitClock(ledger, commit_seconds), digests)


@dataclass(slots=True, frozen=True)
class RejectPolicy:
    """fail: the first rejected record ends the run. limit: `--max-rejects`, or None."""

    fail: bool = False
    limit: str | None = None

    def check(self, first: Reject | None, tally: Tally, inputs: list[InputFile], *, last: bool) -> None:
        """Raise InputRejectedError or TooManyRejectsError when the policy is broken; first: the first reject."""
        if self.fail and first is not None:
            raise InputRejectedError(f"{describe_reject(first, inputs)}; --on-error skip would leave it out")
        if self.fail and tally.rejected:  # by the run that this one goes on from
            raise InputRejectedError(
                f"{sum(tally.rejected.values()):,} records were rejected before this run was interrupted; start again "
                "with --overwrite to see the first, or with --on-error skip to leave them out"
            )
        share = self.limit is not None and self.limit.endswith("%")
        if self.limit is None or (share and not last):
            return  # a share is judged when all records are known
        allowed, rejected = reject_limit(self.limit, tally.records), sum(tally.rejected.values())
        if rejected > allowed:
            causes = ", ".join(f"{cause} {count:,}" for cause, count in sorted(tally.rejected.items()))
            raise TooManyRejectsError(
                f"{rejected:,} of {tally.records:,} records rejected ({causes}); --max-rejects {self.limit} "
                f"allows {allowed:,}{_example(first, inputs)}. Mend the records or raise the limit"
            )


@dataclass(slots=True)
class Consumed:
    """What the parent has written so far: everything a checkpoint speaks of.

    position: where reading goes on. frame: the next spool frame to encode, after deduplication. dedup: statistics of
    the deduplication as JSON values, once it is decided.
    """

    outputs: Outputs
    logs: RecordLogs
    tally: Tally
    position: Position
    gb18030: int = 0
    frame: int = 0
    dedup: dict[str, Any] | None = None

    @classmethod
    def start(cls, plan: OutputPlan, prefix: str, state: dict[str, Any] | None) -> Consumed:
        """A fresh start, or what `state` (from `checkpoint`) says. prefix: of the run, for the logs' names."""
        if state is None:
            return cls(Outputs(plan), RecordLogs(prefix, plan.work_dir), Tally(), Position())
        publishing = state["phase"] == "publish"
        logs = RecordLogs(prefix, plan.work_dir, state["logs"], publishing=publishing)
        try:
            outputs = Outputs(plan, state["outputs"], publishing=publishing)
        except BaseException:
            logs.suspend()
            raise
        tally, position = Tally.from_json(state["tally"]), Position.from_json(state["position"])
        return cls(outputs, logs, tally, position, state["gb18030"], state["frame"], state["dedup"])

    def checkpoint(self, phase: str) -> dict[str, Any]:
        """Make everything written durable; the JSON state to go on from."""
        return {
            "phase": phase, "position": self.position.to_json(), "outputs": self.outputs.checkpoint(),
            "logs": self.logs.checkpoint(), "tally": self.tally.to_json(), "gb18030": self.gb18030,
            "frame": self.frame, "dedup": self.dedup,
        }  # fmt: skip

    def suspend(self) -> None:
        """Close all files; what the last checkpoint saw stays."""
        self.outputs.suspend()
        self.logs.suspend()

    def take(self, result: BlockResult) -> None:
        """Write one block's result."""
        self.outputs.add(result.rows)
        self.logs.add(result.rejects, result.drops)
        self.tally.add(result.tally)
        self.position = result.end
        self.gb18030 += result.gb18030


@dataclass(slots=True, frozen=True)
class Source:
    """What is read and how rejected records are judged."""

    inputs: list[InputFile]
    read: ReadOptions
    policy: RejectPolicy


def encode_inputs(source: Source, stages: Stages, consumed: Consumed, tools: RunTools) -> None:
    """Read, encode and write everything from `consumed.position` on, checkpointing on the way.

    Raises InputError and its kin, RunError, OutputError.
    """
    tools.digests.begin()
    tools.progress.stage("encoding")
    source.policy.check(consumed.logs.first_reject, consumed.tally, source.inputs, last=False)
    disk = DiskBytes(source.inputs)
    blocks = read_blocks(source.inputs, source.read, consumed.position)
    results = tools.executor.map(partial(build_encoder, stages), blocks, describe=describe_block)
    with contextlib.closing(results) as ordered:
        for result in ordered:
            consumed.take(result)
            source.policy.check(consumed.logs.first_reject, consumed.tally, source.inputs, last=False)
            tools.progress.advance(
                text_bytes=result.tally.text_bytes, documents=result.tally.documents, tokens=result.tally.tokens,
                disk_bytes=disk.total(result.end, result.consumed),
            )  # fmt: skip
            tools.clock.commit_if_due(lambda: consumed.checkpoint("encode"))
    source.policy.check(consumed.logs.first_reject, consumed.tally, source.inputs, last=True)


class DiskBytes:
    """Bytes taken from all inputs so far, for progress: whole files before the current one, plus its own."""

    def __init__(self, inputs: list[InputFile]) -> None:
        sizes = [os.path.getsize(source.path) if os.path.isfile(source.path) else 0 for source in inputs]
        self._before = [sum(sizes[:number]) for number in range(len(sizes) + 1)]

    def total(self, end: Position, consumed: int) -> int:
        """Bytes up to `end`, of whose file `consumed` bytes were taken."""
        finished = end.input_number >= len(self._before) - 1 or (end.offset == 0 and end.line == 1)
        return self._before[end.input_number] + (0 if finished else consumed)


def describe_reject(reject: Reject, inputs: list[InputFile]) -> str:
    """Place, reason and masked excerpt of a rejected record."""
    return f"{describe_place(inputs[reject.input_number], reject.line)}: {reject.reason} ({reject.excerpt})"


def _example(first: Reject | None, inputs: list[InputFile]) -> str:
    return "" if first is None else f"; the first is {describe_reject(first, inputs)}"


def refuse_no_documents(
    tally: Tally, first: Reject | None, inputs: list[InputFile], hint: str | None, known: int
) -> None:
    """Raise InputError when a run would write no document at all; first: the first rejected record, to show.

    known: documents that the deduplication index holds already. A batch that brings nothing new is no mistake.
    """
    if tally.kept or known:
        return
    tables = (tally.rejected, tally.dropped)
    gone = [f"{count:,} {reason}" for table in tables for reason, count in sorted(table.items())]
    why = ", ".join(gone) if gone else f"{tally.blank:,} blank lines" if tally.blank else "the inputs are empty"
    advice = f". {hint}" if hint else ""
    raise InputError(f"no documents left: {tally.records:,} records read ({why}){_example(first, inputs)}{advice}")
