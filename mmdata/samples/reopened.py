"""What sets over one group of shards share: opening it, and being opened again in another process.

With a cache only the arguments travel to a worker, which maps the index there; without one the arrays are copied.
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

from mmdata.samples.shards import ShardGroup


def opened(shards: Any) -> ShardGroup:
    """The group as it is, or the one of a shard, a prefix, or several of either. Raises as ShardGroup does."""
    return shards if isinstance(shards, ShardGroup) else ShardGroup(shards)


class Reopened:
    """Base of dataclasses whose `__post_init__` makes everything that is no argument from `ds` and `cache_dir`."""

    cache_dir: str | os.PathLike[str] | None
    group: ShardGroup

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: with a cache only the arguments, since the index is mapped there."""
        if self.cache_dir is None:
            return self.__dict__
        state = {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]
        return state | {"ds": self.group}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "group" not in state:
            self.__post_init__()

    def __post_init__(self) -> None:
        raise NotImplementedError
