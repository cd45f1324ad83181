"""Names of the files of a shard: prefix arithmetic, no file is touched."""

from __future__ import annotations

import os
import re
from typing import Final

from mmdata.errors import UsageError

SIDECARS: Final = ("origin", "loss_spans")
PARTIAL: Final = ".partial"

_KEYED: Final = re.compile(r"^(?P<head>.+?)(?P<tail>_[^_]+_(?:document|sentence))$")


def bin_path(prefix: str) -> str:
    """The token file."""
    return prefix + ".bin"


def idx_path(prefix: str) -> str:
    """The index file."""
    return prefix + ".idx"


def manifest_path(prefix: str) -> str:
    """The manifest."""
    return prefix + ".json"


def sidecar_prefix(prefix: str, name: str) -> str:
    """The prefix of the sidecar `origin` or `loss_spans`."""
    return f"{prefix}_{name}"


def shard_files(prefix: str) -> list[str]:
    """Every file that may belong to the shard; `.idx` first, as it is to be removed first."""
    sides = [sidecar_prefix(prefix, name) for name in SIDECARS]
    return [
        idx_path(prefix),
        *(idx_path(side) for side in sides),
        *(bin_path(side) for side in sides),
        manifest_path(prefix),
        bin_path(prefix),
    ]


def clean_prefix(prefix: str | os.PathLike[str]) -> str:
    """The prefix as text; a given `.bin` or `.idx` ending is taken off, since users often pass one of the files."""
    text = os.fspath(prefix)
    for ending in (".bin", ".idx"):
        if text.endswith(ending):
            return text[: -len(ending)]
    return text


def output_prefix(prefix: str | os.PathLike[str]) -> str:
    """`clean_prefix` of what is to be written. Raises UsageError for a folder, which leaves the files no name."""
    text = clean_prefix(prefix)
    if not os.path.basename(text):
        inside = os.path.join(text, "my")
        raise UsageError(f"output prefix {os.fspath(prefix)!r} names a folder; add a name, such as {inside}")
    return text


def key_suffix(prefix: str, key: str | None = None) -> str:
    """The `_KEY_document` part of a prefix, or the empty string where it follows no such habit.

    key: the JSON key where it is known, since a key may itself hold underscores.
    """
    name = re.split(r"[/\\]", prefix)[-1]
    if key is not None:
        for level in ("document", "sentence"):
            if name.endswith(f"_{key}_{level}"):
                return f"_{key}_{level}"
    match = _KEYED.match(name)
    return match.group("tail") if match else ""
