"""The two files that account for every record that was not written: rejects and drops.

Both grow in the work folder in input order, survive a kill through checkpoints, and are moved into place at the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from mmdata.document import Drop, Reject
from mmdata.indexed.durable import disk_faults, sync_directory
from mmdata.jsonl import JsonlWriter


class RecordLogs:
    """`PREFIX_rejects.jsonl` and `PREFIX_dropped.jsonl.gz` of one run."""

    def __init__(self, prefix: str, work_dir: str, state: dict[str, Any] | None = None) -> None:
        """state: from `checkpoint`, to go on after a kill. Raises OutputError and its kin."""
        self.rejects_path = f"{prefix}_rejects.jsonl"
        self.dropped_path = f"{prefix}_dropped.jsonl.gz"
        self._here = [os.path.join(work_dir, os.path.basename(path)) for path in (self.rejects_path, self.dropped_path)]
        states = (None, None) if state is None else (state["rejects"], state["dropped"])
        self._rejects, self._dropped = (
            JsonlWriter(path, overwrite=True, state=part) for path, part in zip(self._here, states, strict=True)
        )

    def add(self, rejects: Iterable[Reject], drops: Iterable[Drop]) -> None:
        """Append records of one block, each kind in input order."""
        for reject in rejects:
            self._rejects.write(
                {"path": reject.path, "line": reject.line, "reason": reject.reason, "excerpt": reject.excerpt}
            )
        for drop in drops:
            self._dropped.write(drop_record(drop))

    def checkpoint(self) -> dict[str, Any]:
        """Make everything durable; the JSON state to resume from."""
        return {"rejects": self._rejects.checkpoint(), "dropped": self._dropped.checkpoint()}

    def publish(self) -> None:
        """Finish both files and move them to their names."""
        for writer in (self._rejects, self._dropped):
            writer.close()
        for source, target in zip(self._here, (self.rejects_path, self.dropped_path), strict=True):
            with disk_faults(target):
                os.replace(source, target)
        sync_directory(self.rejects_path)

    def suspend(self) -> None:
        """Close both; what the last checkpoint saw stays for a later run."""
        self._rejects.suspend()
        self._dropped.suspend()


def drop_record(drop: Drop) -> dict[str, Any]:
    """The line of the dropped file; `text` only where there is one."""
    record = asdict(drop)
    del record["input_number"]
    if record["text"] is None:
        del record["text"]
    return record
