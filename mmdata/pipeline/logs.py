"""The two files that account for every record that was not written: rejects and drops.

Both grow in the work folder in input order, survive a kill through checkpoints, and are moved into place at the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from mmdata.document import Drop, Reject
from mmdata.indexed.durable import disk_faults, sync_directory
from mmdata.jsonl import JsonlWriter
from mmdata.reading.excerpt import mask

_DROPPED = [field.name for field in fields(Drop) if field.name != "input_number"]


class RecordLogs:
    """`PREFIX_rejects.jsonl` and `PREFIX_dropped.jsonl.gz` of one run."""

    def __init__(
        self, prefix: str, work_dir: str, state: dict[str, Any] | None = None, *, publishing: bool = False
    ) -> None:
        """state: from `checkpoint`, to go on after a kill. publishing: it was taken before `publish`, so either file
        may be finished or at its name already. Raises OutputError and its kin.
        """
        self.rejects_path = f"{prefix}_rejects.jsonl"
        self.dropped_path = f"{prefix}_dropped.jsonl.gz"
        self.first_reject: Reject | None = None  # of this process, to show when the run fails
        states = {} if state is None else state
        self._writers: dict[str, JsonlWriter] = {}  # final path -> writer; finished files have none
        try:
            for path, part in ((self.rejects_path, states.get("rejects")), (self.dropped_path, states.get("dropped"))):
                here = os.path.join(work_dir, os.path.basename(path))
                if not publishing or os.path.exists(here + ".partial"):
                    self._writers[path] = JsonlWriter(here, overwrite=True, state=part)
        except BaseException:
            self.suspend()
            raise
        self._work_dir = work_dir

    def add(self, rejects: Iterable[Reject], drops: Iterable[Drop]) -> None:
        """Append records of one block, each kind in input order."""
        for reject in rejects:
            self.first_reject = self.first_reject or reject
            self._writers[self.rejects_path].write(
                {"path": reject.path, "line": reject.line, "reason": reject.reason, "excerpt": reject.excerpt}
            )
        for drop in drops:
            self._writers[self.dropped_path].write(drop_record(drop))

    def checkpoint(self) -> dict[str, Any]:
        """Make everything durable; the JSON state to resume from."""
        return {
            "rejects": self._writers[self.rejects_path].checkpoint(),
            "dropped": self._writers[self.dropped_path].checkpoint(),
        }

    def publish(self) -> None:
        """Finish both files and move them to their names."""
        for writer in self._writers.values():
            writer.close()
        for target in (self.rejects_path, self.dropped_path):
            source = os.path.join(self._work_dir, os.path.basename(target))
            if os.path.exists(source):
                with disk_faults(target):
                    os.replace(source, target)
        sync_directory(self.rejects_path)

    def suspend(self) -> None:
        """Close both; what the last checkpoint saw stays for a later run."""
        for writer in self._writers.values():
            writer.suspend()


def drop_record(drop: Drop) -> dict[str, Any]:
    """The line of the dropped file; `text` only where there is one. Id and text are masked as excerpts are."""
    record = {name: getattr(drop, name) for name in _DROPPED}  # plain values, which asdict would copy one by one
    if drop.id is not None:
        record["id"] = mask(drop.id)
    if drop.text is None:
        del record["text"]
    else:
        record["text"] = "\n".join(mask(line) for line in drop.text.split("\n"))
    return record
