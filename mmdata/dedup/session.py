"""An unfinished command over files: its ledger, its growing outputs, and how they get their names.

Everything a killed run needs lies in OUT.work and in the outputs' `.partial` files. A state is committed every few
seconds, after all that it speaks of is on disk; the same command then goes on from the last one. A fault of the inputs
or options leaves nothing behind; after a full or failing disk, a kill or Ctrl-C everything committed stays for the
next run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from mmdata.dedup.scratch import remove_scratch, scratch_faults
from mmdata.errors import (
    DedupIndexChangedError,
    DedupSpaceError,
    DedupStateError,
    InputReadError,
    LedgerDamagedError,
    LedgerMismatchError,
    MMDataError,
    OutputError,
    OutputExistsError,
    RunError,
)
from mmdata.jsonl import JsonlWriter
from mmdata.run.ledger import Ledger

PUBLISH = "publish"
"""The phase in which all outputs are complete and only get their names."""
_GOES_ON = (OutputError, InputReadError, RunError, DedupIndexChangedError, DedupStateError)
"""Faults after which the same command can go on."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command writes. outputs: final path by role. report: written last. from_stream: cannot be read again."""

    work: Path
    outputs: dict[str, str]
    report: str
    overwrite: bool
    from_stream: bool
    commit_seconds: float

    def check(self) -> None:
        """Raise OutputExistsError where an output exists, unless it may be an unfinished run's own. Touches nothing."""
        if not (self.work / "ledger.jsonl").exists():
            self.refuse_existing()

    def refuse_existing(self) -> None:
        """Raise OutputExistsError where an output exists and may not be replaced."""
        for path in (*self.outputs.values(), self.report):
            if os.path.exists(path) and not self.overwrite:
                raise OutputExistsError(f"{path} exists; choose another name or give --overwrite")


class Session:
    """A context manager around the work of one command; `state` is what an unfinished run committed last, or None.

    fingerprint: everything that can change a byte of the outputs. Raises WorkFolderBusyError while another run works
    here, LedgerMismatchError for an unfinished run of another command, OutputExistsError, OutputError.
    """

    def __init__(self, place: Place, fingerprint: Mapping[str, Any]) -> None:
        self.place = place
        self.scratch = place.work / "scratch"
        self.writers: dict[str, JsonlWriter] = {}
        place.check()
        for path in place.outputs.values():
            folder = os.path.dirname(path) or "."
            try:
                with scratch_faults(folder, "outputs"):
                    os.makedirs(folder, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as fault:
                raise OutputError(
                    f"{folder}: a file stands where {path} needs a folder; choose another name"
                ) from fault
        self._ledger = _open_ledger(place, fingerprint)
        try:
            self._begin()
        except BaseException as fault:
            self.__exit__(type(fault), fault, fault.__traceback__)
            raise
        self._due = time.monotonic() + place.commit_seconds

    @property
    def state(self) -> dict[str, Any] | None:
        """What was committed last."""
        return self._ledger.last()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if fault is None:
            return
        wrong = isinstance(fault, MMDataError) and not isinstance(fault, _GOES_ON)
        if self.state is None or (wrong and not isinstance(fault, DedupSpaceError)):
            for writer in self.writers.values():
                writer.abort()
            remove_scratch(self.scratch)
            self._ledger.finish()
        else:
            self._suspend()
            self._ledger.close()

    def commit(self, state: Mapping[str, Any]) -> None:
        """Make the outputs durable and `state` what the next run goes on from."""
        written = {role: writer.checkpoint() for role, writer in self.writers.items()}
        self._ledger.commit({**state, "outputs": written})
        self._due = time.monotonic() + self.place.commit_seconds

    def commit_if_due(self, state: Callable[[], Mapping[str, Any]]) -> None:
        """Commit what `state()` gives when enough time has passed since the last commit."""
        if time.monotonic() >= self._due:
            self.commit(state())

    def go_back(self, state: Mapping[str, Any]) -> None:
        """Make an earlier state, with its outputs, the one to go on from."""
        self._suspend()
        self._open(dict(state["outputs"]), publishing=False)
        self._ledger.commit(state)

    def start_over(self) -> None:
        """Forget everything an unfinished run did."""
        self._suspend()
        self._ledger.start_over()
        self._begin()

    def publish(self) -> None:
        """Give the outputs their names; call after a commit of the phase PUBLISH."""
        for writer in self.writers.values():
            writer.close()

    def finish(self) -> None:
        """Remove what an unfinished run needs."""
        remove_scratch(self.scratch)
        self._ledger.finish()

    def _begin(self) -> None:
        state = self.state
        publishing = state is not None and state["phase"] == PUBLISH
        if not publishing:
            self.place.refuse_existing()
        try:
            self._open({} if state is None else state["outputs"], publishing)
        except LedgerMismatchError:
            # Unfinished files are gone or cut: only a start from the beginning can help.
            self._suspend()
            if state is None or not self.place.overwrite:
                raise
            self._ledger.start_over()
            self._open({}, publishing=False)
        if self.state is None:
            remove_scratch(self.scratch)
        with scratch_faults(self.scratch):
            self.scratch.mkdir(parents=True, exist_ok=True)

    def _open(self, states: dict[str, Any], publishing: bool) -> None:
        self.writers = {}
        for role, path in self.place.outputs.items():
            # While outputs get their names, a missing `.partial` file stands at its name already.
            if not publishing or os.path.exists(path + ".partial"):
                self.writers[role] = JsonlWriter(path, overwrite=self.place.overwrite, state=states.get(role))

    def _suspend(self) -> None:
        for writer in self.writers.values():
            writer.suspend()
        self.writers = {}


def _open_ledger(place: Place, fingerprint: Mapping[str, Any]) -> Ledger:
    try:
        return Ledger(place.work, fingerprint, start_over=place.from_stream)
    except (LedgerMismatchError, LedgerDamagedError):
        if not place.overwrite:
            raise
        return Ledger(place.work, fingerprint, start_over=True)
