"""One deduplication of files, in four phases that each go on after a kill: sign, decide, write, publish.

`sign` spools and signs; `decide` notes the fate of each document in a file of one byte each and writes the drop file;
`write` reads the inputs again and writes the records that stay; `publish` adds to the index and gives the outputs their
names. A killed run repeats a few seconds of signing or writing, or the decision alone.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup.barrier import Barrier, BarrierOptions, FrameDecision
from mmdata.dedup.files import Counts, FilePass, SignedInput, masked, reject_record
from mmdata.dedup.index import DedupIndex, Identity
from mmdata.dedup.origins import Origins
from mmdata.dedup.scratch import scratch_faults
from mmdata.dedup.session import PUBLISH, Session
from mmdata.dedup.signer import Signer
from mmdata.dedup.spool import SpoolReader
from mmdata.errors import DedupStateError
from mmdata.jsonl import Position, refuse_nothing

U8 = NDArray[np.uint8]

SIGN, DECIDE, WRITE = "sign", "decide", "write"
DROPPED, KEPT, SAMPLED = 0, 1, 2
"""Fates of documents, one byte each; those above DROPPED have a writer of their own."""
ROLES = {KEPT: "kept", SAMPLED: "sampled"}


class Course(Protocol):
    """What sets one command apart from another. reason: of drops, None for the barrier's own."""

    reason: str | None

    def open(self, folder: Path, state: dict[str, Any] | None) -> None:
        """Begin, or go on from what `checkpoint` gave."""
        ...

    def take(self, result: SignedInput) -> None:
        """Look at the next signed block."""
        ...

    def checkpoint(self) -> dict[str, Any]:
        """Make everything taken durable; JSON."""
        ...

    def prepare(self, barrier: Barrier) -> None:
        """Shape the decision, once everything is signed."""
        ...

    def fates(self, decision: FrameDecision) -> U8:
        """DROPPED, KEPT or SAMPLED for each document of a frame."""
        ...

    def close(self) -> None:
        """Close files; nothing is taken after this."""
        ...

    def summary(self) -> dict[str, Any]:
        """What the command's report says besides, once all is decided; JSON."""
        ...


class KeepOrDrop:
    """The course of plain deduplication."""

    reason: str | None = None

    def open(self, folder: Path, state: dict[str, Any] | None) -> None:
        """Nothing."""

    def take(self, result: SignedInput) -> None:
        """Nothing."""

    def checkpoint(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def prepare(self, barrier: Barrier) -> None:
        """Nothing."""

    def fates(self, decision: FrameDecision) -> U8:
        """See Course."""
        return decision.kept.astype(np.uint8)

    def close(self) -> None:
        """Nothing."""

    def summary(self) -> dict[str, Any]:
        """Nothing."""
        return {}


class FileRun:
    """Runs one command in a session, from where the session's state says."""

    def __init__(self, files: FilePass, session: Session, course: Course, index: DedupIndex | None = None) -> None:
        self._files, self._session, self._course, self._index = files, session, course, index
        self._folder = session.scratch
        self.sampled = 0

    def execute(self) -> dict[str, Any]:
        """Everything before the outputs get their names; the last state, with the barrier's `statistics`
        and the course's `summary`.

        An unfinished run whose files are damaged starts over where outputs may be overwritten, else raises
        DedupStateError. Raises InputError where no record could be read.
        """
        try:
            return self._phases()
        except DedupStateError as fault:
            if self._session.state is None or not self._session.place.overwrite:
                fault.add_note("--overwrite starts from the beginning")
                raise
            self._session.start_over()
            return self._phases()

    def _phases(self) -> dict[str, Any]:
        state = self._session.state
        if state is not None and state["phase"] in (WRITE, PUBLISH) and self._index_moved(state):
            self._files.options.notice("another run added to the index meanwhile: deciding again")
            self._session.go_back(state["before"])
            state = state["before"]
        self._restore(state)
        if state is None or state["phase"] in (SIGN, DECIDE):
            state = self._sign_and_decide(state)
        if state["phase"] == WRITE:
            self._write(state)
        if self._index is not None and not self._index.holds_batch:
            self._add_to_index(self._index)
        # As it reads back, so that a run that was killed tells the same.
        told = self._session.state
        assert told is not None, "every phase ends with a commit"
        return told

    def _index_moved(self, state: dict[str, Any]) -> bool:
        index = self._index
        return index is not None and not index.holds_batch and index.generation != state["generation"]

    def _restore(self, state: dict[str, Any] | None) -> None:
        self._files.counts = Counts() if state is None else Counts(**state["counts"])
        self.sampled = 0 if state is None else state["sampled"]
        if state is None or state["phase"] in (SIGN, DECIDE):
            self._course.open(self._folder, None if state is None else state["course"])

    def _counted(self) -> dict[str, Any]:
        return {"counts": asdict(self._files.counts), "sampled": self.sampled}

    def _sign_and_decide(self, state: dict[str, Any] | None) -> dict[str, Any]:
        files = self._files
        options = BarrierOptions(files.policy, files.options.memory, self._index)
        barrier = Barrier(self._folder / "barrier", files.params, options, None if state is None else state["barrier"])
        try:
            if state is None or state["phase"] == SIGN:
                start = Position() if state is None else Position.from_json(state["position"])
                self._sign(barrier, start)
            counts = files.counts
            refuse_nothing(counts.records, counts.rejected, counts.blank)
            return self._decide(barrier)
        finally:
            barrier.suspend()
            self._course.close()

    def _sign(self, barrier: Barrier, position: Position) -> None:
        def state(phase: str) -> dict[str, Any]:
            held = {"barrier": barrier.checkpoint(), "course": self._course.checkpoint()}
            return {"phase": phase, "position": position.to_json(), **held, **self._counted()}

        rejects = self._session.writers["rejects"]
        with closing(self._files.signed(position)) as results, scratch_faults(self._folder):
            for result in results:
                barrier.take(result.block)
                self._course.take(result)
                for reject in result.rejects:
                    rejects.write(reject_record(reject))
                position = result.end
                self._session.commit_if_due(lambda: state(SIGN))
        self._session.commit(state(DECIDE))

    def _decide(self, barrier: Barrier) -> dict[str, Any]:
        before = self._session.state
        assert before is not None, "signing ends with a commit"
        self._course.prepare(barrier)
        path, dropped = self._folder / "fates", self._session.writers["dropped"]
        with scratch_faults(self._folder), barrier.reader() as reader, path.open("wb") as fates:
            for decision in barrier.decide(self._files.names):
                fates.write(self._course.fates(decision).tobytes())
                self._files.write_dropped(dropped, reader, decision, self._course.reason)
            fates.flush()
            os.fsync(fates.fileno())
        state = {
            "phase": WRITE, "before": before, "barrier": before["barrier"], "position": Position().to_json(),
            "document": 0, "statistics": barrier.statistics.to_json(self._files.names), **self._counted(),
            "summary": self._course.summary(),
            "generation": None if self._index is None else self._index.generation,
        }  # fmt: skip
        self._session.commit(state)
        return state

    def _write(self, state: dict[str, Any]) -> None:
        position, document = Position.from_json(state["position"]), int(state["document"])
        writers = {fate: self._session.writers[role] for fate, role in ROLES.items() if role in self._session.writers}
        origins = Origins(self._folder / "barrier" / "origins", state["barrier"]["origins"])
        with (
            closing(origins), SpoolReader(self._folder / "barrier" / "spool") as reader,
            (self._folder / "fates").open("rb") as fates,
        ):  # fmt: skip
            fates.seek(document)
            for end, lines in self._files.lines(origins, reader, (position, document)):
                of_lines = fates.read(len(lines))
                for line, fate in zip(lines, of_lines, strict=True):
                    if fate:
                        writers[fate].write_line(line)
                self._files.counts.kept += of_lines.count(KEPT)
                self.sampled += of_lines.count(SAMPLED)
                document += len(lines)
                reached = {"position": end.to_json(), "document": document, **self._counted()}
                self._session.commit_if_due(partial(dict, state, **reached))
        self._session.commit({**state, "phase": PUBLISH, **self._counted()})

    def _add_to_index(self, index: DedupIndex) -> None:
        """Put every kept document into the index; it is then as if this batch had been there always."""
        signer = Signer(self._files.params)
        with (
            scratch_faults(index.folder, "the index"), SpoolReader(self._folder / "barrier" / "spool") as reader,
            (self._folder / "fates").open("rb") as fates, index.begin() as batch,
        ):  # fmt: skip
            for frame in range(len(reader)):
                documents = reader.documents(frame)
                flags = fates.read(len(documents))
                kept = [document for document, fate in zip(documents, flags, strict=True) if fate]
                texts = [document.text for document in kept]
                if texts:
                    identities = [Identity(document.path, document.line, masked(document.id)) for document in kept]
                    batch.add(identities, signer.sign(texts), signer.sets(texts))
            batch.commit()
