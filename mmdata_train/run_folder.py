"""The folder of a run on disk: where its checkpoints stand, which is the newest, what each says of itself. No torch.

OUTPUT/checkpoints/ holds `step_00000010/` folders, and `latest` and `best`, text files which name one of them each; a
step is whole when it has its `state.json`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mmdata_train.errors import CheckpointError

FORMAT = 1
LATEST = "latest"
BEST = "best"
RUN_CHECKPOINTS = "checkpoints"
"""The folder of a run's output that holds its checkpoints."""
STATE = "state.json"
STEP_FOLDER = re.compile(r"step_\d{8,}")


def step_folder(step: int) -> str:
    """Name of the checkpoint after `step` steps."""
    return f"step_{step:08d}"


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint `latest` names, None where there is none. Raises CheckpointError when that one is gone."""
    return _pointed(folder / LATEST)


def _pointed(pointer: Path) -> Path | None:
    """The checkpoint a text file beside it names, None where there is no such file. Raises CheckpointError."""
    if not pointer.is_file():
        return None
    folder = pointer.parent
    name = pointer.read_text(encoding="utf-8", errors="replace").strip()
    found = folder / name
    if STEP_FOLDER.fullmatch(name) is None or not (found / STATE).is_file():
        whole = sorted(path.name for path in folder.glob("step_*") if (path / STATE).is_file())
        raise CheckpointError(
            f"{pointer} names {name!r}, which is not a whole checkpoint; whole ones: {', '.join(whole) or 'none'}"
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
    return state
