"""An output folder that appears whole or not at all.

Everything is written to a hidden folder beside it, which is renamed at the end. An export that is killed leaves
`.NAME.*.partial` behind and the former folder in place (between the two renames of --overwrite, beside it).
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mmdata.errors import DiskFullError, OutputExistsError
from mmdata.indexed.durable import disk_faults, sync_directory
from mmdata_train.errors import ExportError

RECORD = "mmdata_export.json"
"""Written into every export: what it was made of. Only a folder with it is ever replaced."""


def check_output(output: Path, inputs: Iterable[Path], *, overwrite: bool) -> None:
    """Refuse an output that would lose something. inputs: folders the export reads.

    Raises OutputExistsError where something is there and `overwrite` is off, ExportError where it is not an export, or
    holds what the export reads.
    """
    place = output.resolve()
    for held in inputs:
        if held.resolve().is_relative_to(place) or place.is_relative_to(held.resolve()):
            raise ExportError(f"{output} and {held}, which the export reads, lie in one another; choose another folder")
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not output.is_dir():
        raise ExportError(f"{output} is a file; give a folder")
    if not overwrite:
        raise OutputExistsError(f"{output} exists; choose another folder, or give --overwrite")
    if not (output / RECORD).is_file():
        raise ExportError(f"{output} was not written by this command (it has no {RECORD}); remove it yourself")


@contextmanager
def whole_folder(output: Path, needed: int) -> Iterator[Path]:
    """A folder to write into, renamed to `output` when the block ends well; `check_output` has allowed it.

    needed: bytes to be written, checked against the free disk. Raises DiskFullError, OutputError.
    """
    with disk_faults(str(output)):
        output.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(output.parent).free
        if free < needed:
            raise DiskFullError(
                f"{output}: the export takes {needed:,} bytes and {free:,} are free; free space, choose a smaller"
                " --dtype or another disk"
            )
        staging = output.with_name(f".{output.name}.{secrets.token_hex(4)}.partial")
        staging.mkdir()
        existed = output.exists()
    try:
        yield staging
        if output.exists() and not existed:
            raise OutputExistsError(f"{output} appeared while this export was written; choose another folder")
        with disk_faults(str(output)):
            _publish(staging, output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: Path, output: Path) -> None:
    for path in sorted(staging.rglob("*"), reverse=True):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        sync_directory(str(path))
    former = None
    if output.exists():
        former = staging.with_name(f"{staging.name}.former")
        output.rename(former)
    try:
        staging.rename(output)
    except OSError:
        if former is not None:
            former.rename(output)
        raise
    sync_directory(str(output))
    if former is not None:
        shutil.rmtree(former)
