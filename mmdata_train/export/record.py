"""The record in every export: what it was made of. An export is known by it, and only what it lists is replaced."""

from __future__ import annotations

from pathlib import Path

from mmdata_train.errors import ExportError, ModelError
from mmdata_train.hf_folder import read_json
from mmdata_train.whole_folder import Kind

RECORD = "mmdata_export.json"


def _written(folder: Path) -> frozenset[str] | None:
    """The files an export's record lists, None for a folder without one."""
    try:
        files = read_json(folder / RECORD).get("files")
    except ModelError:
        return None
    return frozenset([*map(str, files), RECORD]) if isinstance(files, list) else None


EXPORT = Kind("export", RECORD, ExportError, _written)
