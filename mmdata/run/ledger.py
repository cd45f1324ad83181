"""The ledger of an unfinished run: how far it came, so that the same command continues after any kind of end.

One file of JSON lines in the work folder: first what the run was started with, then one state for each commit, each on
disk (fsync) before commit() returns. A line torn by a kill or a power cut is dropped. A lock held by the operating
system keeps two runs out of one folder and is gone with its process, however that ended. Costs one fsync a commit.
The file is rewritten with its last state alone when it passes 8 MiB. On filesystems without locks (some network
mounts) the folder is refused.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

import filelock

from mmdata.errors import (
    DiskFullError,
    LedgerDamagedError,
    LedgerMismatchError,
    OutputError,
    WorkFolderBusyError,
)
from mmdata.indexed.durable import sync_directory

VERSION = 1
_NAME = "ledger.jsonl"
_LOCK = "lock"
_OWNER = "owner.json"
_COMPACT_BYTES = 8 << 20
_SHOWN_DIFFERENCES = 5


class Ledger:
    """The ledger of one work folder, locked while open. A context manager: leaving it unlocks, whatever happened.

    fingerprint: JSON of everything that can change the bytes of the output, nested by section, such as
    `{"options": {...}, "inputs": stat_inputs(inputs)}`; keys and values appear in error messages, so no secrets.
    start_over: forget an earlier run (its other files in the folder are the caller's to remove).
    Raises WorkFolderBusyError while another run is alive, LedgerMismatchError naming what differs, LedgerDamagedError,
    OutputError when the folder cannot be written.
    """

    def __init__(self, work_dir: str | os.PathLike[str], fingerprint: Mapping[str, Any], *, start_over: bool = False):
        self.work_dir = Path(work_dir)
        self.path = self.work_dir / _NAME
        self._fingerprint = json.loads(json.dumps(fingerprint))  # as it reads back: tuples as lists
        self._last: dict[str, Any] | None = None
        with self._naming_faults():
            self.work_dir.mkdir(parents=True, exist_ok=True)
            self._lock = self._acquire()
            try:
                if start_over:
                    self.path.unlink(missing_ok=True)
                size = self._read() if self.path.exists() else 0
                self._stream: FileIO = open(self.path, "r+b" if size else "wb", buffering=0)  # noqa: SIM115
                self._stream.truncate(size)
                self._stream.seek(size)
                if not size:
                    self._append({"ledger": VERSION, "fingerprint": self._fingerprint})
                    sync_directory(str(self.path))
            except BaseException:
                self._lock.release()
                raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def last(self) -> dict[str, Any] | None:
        """The last committed state, None for a run that committed nothing yet."""
        return self._last

    def commit(self, state: Mapping[str, Any]) -> None:
        """Append a JSON state; durable when this returns. What it speaks of must be durable before."""
        kept: dict[str, Any] = json.loads(json.dumps(state))
        with self._naming_faults():
            if self._stream.tell() > _COMPACT_BYTES:
                self._compact()
            self._append({"state": kept})
        self._last = kept

    def start_over(self) -> None:
        """Forget every commit of an earlier run; its other files in the folder are the caller's to remove."""
        with self._naming_faults():
            self._stream.seek(0)
            self._stream.truncate()
            self._append({"ledger": VERSION, "fingerprint": self._fingerprint})
        self._last = None

    def close(self) -> None:
        """Unlock; the ledger stays for a later run. A second call does nothing."""
        if not self._stream.closed:
            self._stream.close()
            self._lock.release()

    def finish(self) -> None:
        """The run is complete: remove the ledger, and the work folder when nothing else is in it."""
        if not self._stream.closed:
            self._stream.close()
            self.path.unlink()
            (self.work_dir / _OWNER).unlink(missing_ok=True)
            self._lock.release()
            (self.work_dir / _LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.work_dir.rmdir()

    def _acquire(self) -> filelock.BaseFileLock:
        lock = filelock.FileLock(self.work_dir / _LOCK)
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:
            raise WorkFolderBusyError(
                f"{self.work_dir}: another run{self._owner()} is writing here; wait for it, end it, "
                "or choose another output prefix"
            ) from None
        except NotImplementedError as fault:
            raise OutputError(
                f"{self.work_dir}: this filesystem has no file locks ({fault}); write elsewhere"
            ) from fault
        owner = {"pid": os.getpid(), "host": socket.gethostname()}
        (self.work_dir / _OWNER).write_text(json.dumps(owner), encoding="utf-8")
        return lock

    def _owner(self) -> str:
        try:
            owner = json.loads((self.work_dir / _OWNER).read_text(encoding="utf-8"))
            return f" (process {owner['pid']} on {owner['host']})"
        except (OSError, ValueError, KeyError):
            return ""  # it is just starting: the message does without

    def _read(self) -> int:
        """Take in an earlier run's ledger; returns how many bytes of it are whole lines."""
        data = self.path.read_bytes()
        lines = data.split(b"\n")
        whole = 0
        for number, line in enumerate(lines[:-1], 1):
            try:
                entry = json.loads(line)
                if number == 1:
                    self._compare(entry)
                else:
                    self._last = entry["state"]
            except (ValueError, KeyError, TypeError) as fault:
                if number == len(lines) - 1:  # torn, although a line feed got through
                    break
                raise LedgerDamagedError(
                    f"{self.path}:{number}: not a ledger entry; start again with --overwrite"
                ) from fault
            whole += len(line) + 1
        return whole

    def _compare(self, header: dict[str, Any]) -> None:
        if header["ledger"] != VERSION:
            raise LedgerMismatchError(
                f"{self.path} was written by another version of mmdata (ledger version {header['ledger']}, this one "
                f"writes {VERSION}); finish with that version or start again with --overwrite"
            )
        before, now = dict(_flat(header["fingerprint"])), dict(_flat(self._fingerprint))
        changed = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
        if changed:
            told = "; ".join(
                f"{name} was {before.get(name, 'absent')}, now is {now.get(name, 'absent')}"
                for name in changed[:_SHOWN_DIFFERENCES]
            )
            more = f"; and {len(changed) - _SHOWN_DIFFERENCES} more" if len(changed) > _SHOWN_DIFFERENCES else ""
            raise LedgerMismatchError(
                f"{self.work_dir} holds an unfinished run that differs: {told}{more}. "
                "Run the earlier command again to finish it, or give --overwrite to start from the beginning"
            )

    def _append(self, entry: dict[str, Any]) -> None:
        line = memoryview(json.dumps(entry, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
        start = self._stream.tell()
        try:
            while line:
                line = line[self._stream.write(line) :]
            os.fsync(self._stream.fileno())
        except OSError:
            self._stream.seek(start)
            self._stream.truncate()  # so that a later commit does not follow half a line
            raise

    def _compact(self) -> None:
        fresh = self.path.with_suffix(".tmp")
        self._stream.close()
        self._stream = open(fresh, "wb", buffering=0)  # noqa: SIM115
        self._append({"ledger": VERSION, "fingerprint": self._fingerprint})
        self._append({"state": self._last})
        self._stream.close()
        os.replace(fresh, self.path)
        sync_directory(str(self.path))
        self._stream = open(self.path, "r+b", buffering=0)  # noqa: SIM115
        self._stream.seek(0, os.SEEK_END)

    @contextlib.contextmanager
    def _naming_faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as fault:
            if fault.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFullError(
                    f"{self.work_dir}: the disk is full; free space and run the command again"
                ) from fault
            raise OutputError(f"{self.work_dir} cannot be written: {fault.strerror}") from fault


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, short JSON) of every leaf."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, json.dumps(value, ensure_ascii=False)
