"""The folder of a run on disk: where its checkpoints stand, which is the newest, what each says of itself. No torch.

OUTPUT/checkpoints/ holds `step_00000010/` folders, and `latest` and `best`, text files which name one of them each; a
step is whole when it has its `state.json`. `run.lock` in OUTPUT is held by the run that writes there.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock

from mmdata.indexed.durable import disk_faults
from mmdata_train.errors import CheckpointError

FORMAT = 1
LATEST = "latest"
BEST = "best"
RUN_CHECKPOINTS = "checkpoints"
"""The folder of a run's output that holds its checkpoints."""
STATE = "state.json"
LOCK = "run.lock"
STEP_FOLDER = re.compile(r"step_\d{8,}")

_NUMBER, _OBJECT = (int, float), (dict,)
ENGINE_STATE: dict[str, tuple[type, ...]] = {
    "optimizer_steps": _NUMBER, "skipped_in_a_row": (int,), "scaler": _OBJECT, "scaler.scale": _NUMBER,
    "scaler.good_steps": _NUMBER, "scaler.patience": _NUMBER,
}  # fmt: skip
"""What an engine takes up again, by its place in `state.json`."""
RUN_STATE = ENGINE_STATE | {
    "step": (int,), "consumed": (int,), "data": _OBJECT, "best": _OBJECT, "best.since": (int,),
    "best.best": (*_NUMBER, type(None)), "best.mark": (*_NUMBER, type(None)),
}  # fmt: skip
"""What a run that is continued takes up again."""
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextlib.contextmanager
def only_run(output: Path) -> Iterator[None]:
    """Hold the lock of a run's output folder, made where it is missing, while the block runs.

    The system lets go of it when the process ends, however it does. Where the file system has no locks nothing is held.
    Raises CheckpointError when another run holds it, OutputError or DiskFullError when the folder cannot be written to.
    """
    lock = filelock.FileLock(output / LOCK, blocking=False)
    with disk_faults(str(output)):
        output.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise CheckpointError(
                f"{output}: another run is writing there ({LOCK} is held); wait for it or end it, or give this run"
                " another output.dir"
            ) from None
        except NotImplementedError:
            pass
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
    try:
        yield
    finally:
        lock.release()


def step_folder(step: int) -> str:
    """Name of the checkpoint after `step` steps."""
    return f"step_{step:08d}"


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint `latest` names, None where there is none. Without `latest` the only whole checkpoint is meant: a
    run was killed between publishing its first one and naming it. Raises CheckpointError when the one named is gone,
    and where `latest` is while several stand there: starting anew would replace them.
    """
    found = _pointed(folder / LATEST)
    if found is None and (whole := _whole(folder)):
        if len(whole) == 1:
            return folder / whole[0]
        raise CheckpointError(
            f"{folder / LATEST} is missing, and whole checkpoints stand there: {', '.join(whole)}. To go on from one,"
            f" write its name into the file (echo {whole[-1]} > {folder / LATEST}); to start anew, give another"
            " output.dir or delete them"
        )
    return found


def _whole(folder: Path) -> list[str]:
    """Names of the whole checkpoints of a folder, the newest last."""
    found = (path for path in folder.glob("step_*") if STEP_FOLDER.fullmatch(path.name) and (path / STATE).is_file())
    return [path.name for path in sorted(found, key=lambda path: int(path.name.removeprefix("step_")))]


def _pointed(pointer: Path) -> Path | None:
    """The checkpoint a text file beside it names, None where there is no such file. Raises CheckpointError."""
    if not pointer.is_file():
        return None
    folder = pointer.parent
    name = pointer.read_text(encoding="utf-8", errors="replace").strip()
    found = folder / name
    if STEP_FOLDER.fullmatch(name) is None or not (found / STATE).is_file():
        raise CheckpointError(
            f"{pointer} names {name!r}, which is not a whole checkpoint;"
            f" whole ones: {', '.join(_whole(folder)) or 'none'}"
        )
    return found


def checkpoint_at(path: Path) -> Path | None:
    """The checkpoint a path means: itself, the one a `best` or `latest` file names, or the latest one there or in the
    run's folder there; None where none is. What export, generate, evaluate and `start_from` take.

    Raises CheckpointError when the one named is gone.
    """
    if path.name in (BEST, LATEST) and path.is_file():
        return _pointed(path)
    if (path / STATE).is_file():
        return path
    return latest_checkpoint(path) or latest_checkpoint(path / RUN_CHECKPOINTS)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The small state beside the tensors. Raises CheckpointError."""
    path = checkpoint / STATE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} is of another format; this version reads format {FORMAT}")
    present = {name: (dict, type(None)) for name in ("lora", "origin") if name in state}
    check_state(checkpoint, state, present)
    return state


def check_state(checkpoint: Path, state: Mapping[str, Any], kinds: Mapping[str, tuple[type, ...]]) -> None:
    """Raises CheckpointError naming the first value (`scaler.scale`) that is missing, of another kind or below zero."""
    for place, kind in kinds.items():
        value: Any = state
        for name in place.split("."):
            value = value.get(name, _MISSING) if isinstance(value, Mapping) else _MISSING
        fits = isinstance(value, kind) and not isinstance(value, bool)
        if not fits or (kind == (int,) and value < 0):
            shown = "missing" if value is _MISSING else repr(value)[:60]
            raise CheckpointError(
                f"{checkpoint / STATE}: {place} is {shown}; the file was changed or damaged: use an earlier checkpoint"
            )


_MISSING = object()
