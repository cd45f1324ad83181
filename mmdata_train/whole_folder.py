"""Output folders that appear whole or not at all, and are replaced only by the command that wrote all they hold.

Everything is written to a hidden folder beside the output, which is renamed at the end. A command that is killed leaves
`.NAME.*.partial` behind and the former folder in place (between the two renames of --overwrite, beside it); the next
one for the same output removes it. Whether the writer still lives is told by a lock on `.NAME.*.lock`, which the system
lets go of when a process ends; where a file system has no locks, what was left is named and not touched. No torch.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import filelock

from mmdata.errors import DiskFullError, OutputExistsError, UsageError
from mmdata.indexed.durable import disk_faults, sync_directory
from mmdata_train.errors import TrainError

logger = logging.getLogger("mmdata_train")

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
PARTIAL, LOCK, FORMER = ".partial", ".lock", ".former"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a command writes. mark: the file by which its folders are known. written: folder -> names of the files it
    wrote there, None where the folder is none of its own.

    inside_inputs: whether the output may lie in a folder that the command reads.
    """

    what: str
    mark: str
    error: type[TrainError]
    written: Callable[[Path], frozenset[str] | None]
    inside_inputs: bool = False


def check_output(output: Path, kind: Kind, inputs: Iterable[Path], *, overwrite: bool) -> None:
    """Refuse an output that would lose something, after removing what a killed command left for this one.

    inputs: what the command reads. Raises UsageError for a path that names no folder of its own, OutputExistsError
    where something is there and `overwrite` is off, kind.error where it is not of this kind, holds files of others or
    what the command reads.
    """
    if output.name in ("", ".."):
        raise UsageError(f"-o {str(output)!r} names no folder of its own; give a name, such as out/{kind.what}")
    _refuse_inputs(output, kind, inputs)
    existing = next(path for path in (output, *output.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise kind.error(f"{output} {'is' if existing == output else 'lies below'} a file; give a folder")
    clear_stale(output)
    if not output.exists() or not any(output.iterdir()):
        return
    if not overwrite:
        raise OutputExistsError(f"{output} exists; choose another folder, or give --overwrite")
    written = kind.written(output)
    if written is None:
        raise kind.error(
            f"{output} was not written by this command (it has no {kind.mark} of its own); remove it yourself"
        )
    held = (path.relative_to(output).as_posix() for path in output.rglob("*") if not path.is_dir())
    strange = sorted(set(held) - written)
    if strange:
        raise kind.error(
            f"{output} holds {strange[0]} ({len(strange)} files in all), which this command did not write; move it"
            " away, or choose another folder"
        )


def _refuse_inputs(output: Path, kind: Kind, inputs: Iterable[Path]) -> None:
    place = output.resolve()
    for held in inputs:
        read = held.resolve()
        if read.is_relative_to(place) or (not kind.inside_inputs and place.is_relative_to(read)):
            raise kind.error(
                f"{output} and {held}, which the {kind.what} reads, lie in one another; choose another folder"
            )


def clear_stale(output: Path) -> None:
    """Remove what killed commands left beside `output`; a former output that was moved away is put back.

    What a living one is writing is left alone, and so is what cannot be told; both are logged.
    """
    output = output.resolve()
    pattern = re.compile(rf"(\.{re.escape(output.name)}\.[0-9a-f]{{8}})({re.escape(PARTIAL)})({re.escape(FORMER)})?")
    stems = {match[1] for path in _beside(output) if (match := pattern.fullmatch(path.name))}
    for stem in sorted(stems):
        lock = filelock.FileLock(output.with_name(stem + LOCK))
        staging = output.with_name(stem + PARTIAL)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            logger.warning("notice: another command is writing %s just now (%s)", output, staging.name)
            continue
        except (OSError, NotImplementedError):
            logger.warning("notice: %s may be left by a killed command; remove it if none runs", staging)
            continue
        with disk_faults(str(output)):
            former = staging.with_name(staging.name + FORMER)
            if former.exists() and not output.exists():
                former.rename(output)
            for left in (staging, former):
                if left.exists():
                    shutil.rmtree(left)
                    logger.warning("notice: removed %s, left by a command that was killed", left)
        _let_go(lock)


def _beside(output: Path) -> list[Path]:
    return list(output.parent.iterdir()) if output.parent.is_dir() else []


def _hold(lock: filelock.BaseFileLock) -> None:
    """Lock where the file system can; else nobody can tell later whether this command lives, nor remove its folder."""
    try:
        lock.acquire()
    except NotImplementedError:
        return
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _let_go(lock: filelock.BaseFileLock) -> None:
    lock.release()
    with contextlib.suppress(OSError):
        Path(lock.lock_file).unlink(missing_ok=True)


@contextmanager
def whole_folder(output: Path, needed: int) -> Iterator[Path]:
    """A folder to write into, renamed to `output` when the block ends well; `check_output` has allowed it.

    needed: bytes to be written, checked against the free disk. Raises DiskFullError, OutputError, and OutputExistsError
    where the output appeared meanwhile.
    """
    output = output.resolve()
    stem = f".{output.name}.{secrets.token_hex(4)}"
    staging, lock = output.with_name(stem + PARTIAL), filelock.FileLock(output.with_name(stem + LOCK))
    with disk_faults(str(output)):
        output.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(output.parent).free
        if free < needed:
            raise DiskFullError(
                f"{output}: {needed:,} bytes are to be written and {free:,} are free; free space, write less (such as a"
                " smaller --dtype) or choose another disk"
            )
        _hold(lock)
    try:
        with disk_faults(str(output)):
            staging.mkdir()
        existed = output.exists()
        yield staging
        if output.exists() and not existed:
            raise OutputExistsError(f"{output} appeared while it was written here; choose another folder")
        with disk_faults(str(output)):
            _publish(staging, output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        _let_go(lock)


def _publish(staging: Path, output: Path) -> None:
    for path in sorted(staging.rglob("*"), reverse=True):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        sync_directory(str(path))
    former = None
    if output.exists():
        former = staging.with_name(staging.name + FORMER)
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
