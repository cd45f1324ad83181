"""What a user wrote as training data, resolved to shards: prefixes, folders, globs, Megatron's `--data-path`.

An entry is one member of a blend. A folder or glob is one entry of many shards in sorted order; sidecars of other
shards are not data. Resolving lists folders and opens nothing.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass

from mmdata.errors import BlendError, ShardNotFoundError
from mmdata.indexed.paths import clean_prefix, idx_path
from mmdata.indexed.remote import is_remote

_SIDECARS = ("_origin", "_loss_spans")


@dataclass(frozen=True)
class Entry:
    """One member of a blend. path: as the user wrote it. weight: its share, None where none was given.

    shards: prefixes, in the order in which they are one set.
    """

    path: str
    weight: float | None = None
    shards: tuple[str, ...] = ()


def parse_data_path(words: Sequence[str]) -> list[tuple[str, float | None]]:
    """Paths and weights from a list such as `0.3 a 0.7 b` or `a b`, as Megatron's `--data-path` takes it.

    Raises BlendError on a list that is neither, such as three words of which two are numbers: Megatron then takes the
    numbers for prefixes.
    """
    if not words:
        raise BlendError("the list of data paths is empty")
    numbers = [_number(word) for word in words]
    if len(words) % 2 == 0 and all(number is not None for number in numbers[::2]):
        return [(path.strip(), weight) for path, weight in zip(words[1::2], numbers[::2], strict=True)]
    found = [word for word, number in zip(words, numbers, strict=True) if number is not None]
    if found:
        raise BlendError(
            f"the data paths {' '.join(words)!r} are neither prefixes alone nor pairs of weight and prefix: "
            f"{found[0]!r} is a number; give a weight before every prefix, or none"
        )
    return [(word.strip(), None) for word in words]


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def resolve(path: str, weight: float | None = None) -> Entry:
    """The shards that `path` names: a prefix (with or without extension), a folder, or a glob.

    Raises ShardNotFoundError when there are none.
    """
    if is_remote(path):
        return Entry(path, weight, (clean_prefix(path),))
    if os.path.isdir(path):
        shards = _listed(os.path.join(glob.escape(path), "*.idx"))
    elif any(sign in path for sign in "*?["):
        shards = _listed(path if path.endswith(".idx") else path + ".idx")
    else:
        shards = [clean_prefix(path)]
        if not os.path.exists(idx_path(shards[0])):
            raise ShardNotFoundError(
                "there is no such shard, folder or glob",
                path=idx_path(shards[0]),
                remedy="check the entry of the blend",
            )
    if not shards:
        raise ShardNotFoundError("no shard (.idx) is there", path=path, remedy="check the entry of the blend")
    return Entry(path, weight, tuple(shards))


def _listed(pattern: str) -> list[str]:
    found = {clean_prefix(name) for name in glob.glob(pattern, recursive=True)}
    return sorted(prefix for prefix in found if not _is_sidecar(prefix, found))


def _is_sidecar(prefix: str, among: set[str]) -> bool:
    return any(prefix.endswith(end) and prefix.removesuffix(end) in among for end in _SIDECARS)
