"""Scratch files and folders: the system's errors while writing them as our own, and their removal."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmdata.errors import DiskFullError, OutputError

_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def scratch_faults(folder: str | os.PathLike[str], what: str = "scratch files") -> Iterator[None]:
    """Turn a full disk into DiskFullError and a folder that cannot be written into OutputError; others pass."""
    try:
        yield
    except OSError as fault:
        if fault.errno in _FULL:
            raise DiskFullError(
                f"{os.fspath(folder)}: the disk is full, {what} cannot be written; free space and run the command again"
            ) from fault
        if fault.errno in _FORBIDDEN:
            raise OutputError(
                f"{os.fspath(folder)}: {what} cannot be written ({fault.strerror}); change its permissions or choose "
                "another folder"
            ) from fault
        raise


def remove_scratch(folder: Path) -> None:
    """Delete a work folder made for one run."""
    shutil.rmtree(folder, ignore_errors=True)
