"""A shard and its sidecars written together: all appear at their names, or none does.

Three ShardWriters in step; costs what they cost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import numpy as np

from mmdata.errors import CheckpointError
from mmdata.indexed.manifest import Manifest
from mmdata.indexed.paths import clean_prefix, sidecar_prefix
from mmdata.indexed.publish import publish_shard
from mmdata.indexed.writer import ShardWriter

SIDECAR_DTYPE = np.dtype("<i4")


class ShardSet:
    """`main` and `sidecars[name]` are ShardWriters to add to; `publish(manifest)` ends it, anything else aborts."""

    def __init__(
        self,
        prefix: str | os.PathLike[str],
        *,
        sidecars: Iterable[str] = (),
        work_dir: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        **main_options: Any,
    ) -> None:
        """sidecars: names among `origin`, `loss_spans`. main_options: vocab_size, dtype, multimodal of ShardWriter.

        Raises as ShardWriter does.
        """
        self.prefix = clean_prefix(prefix)
        self._overwrite = overwrite
        self._published = False
        self.main = ShardWriter(self.prefix, work_dir=work_dir, overwrite=overwrite, **main_options)
        self.sidecars: dict[str, ShardWriter] = {}
        try:
            for name in sidecars:
                self.sidecars[name] = ShardWriter(
                    sidecar_prefix(self.prefix, name), dtype=SIDECAR_DTYPE, work_dir=work_dir, overwrite=overwrite
                )
        except BaseException:
            self.abort()
            raise

    @classmethod
    def resume(
        cls,
        prefix: str | os.PathLike[str],
        state: dict[str, Any],
        *,
        work_dir: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        **main_options: Any,
    ) -> ShardSet:
        """Go on from `checkpoint()`'s state; raises CheckpointError as ShardWriter.resume does."""
        shard_set = cls.__new__(cls)
        shard_set.prefix = clean_prefix(prefix)
        shard_set._overwrite = overwrite
        shard_set._published = False
        if not isinstance(state.get("main"), dict) or not isinstance(state.get("sidecars"), dict):
            raise CheckpointError(f"{shard_set.prefix}: the checkpoint state is not one of a shard set")
        shard_set.sidecars = {}
        shard_set.main = ShardWriter.resume(
            shard_set.prefix, state["main"], work_dir=work_dir, overwrite=overwrite, **main_options
        )
        try:
            for name, part in sorted(state["sidecars"].items()):
                shard_set.sidecars[name] = ShardWriter.resume(
                    sidecar_prefix(shard_set.prefix, name),
                    part,
                    dtype=SIDECAR_DTYPE,
                    work_dir=work_dir,
                    overwrite=overwrite,
                )
        except BaseException:
            shard_set.abort()
            raise
        return shard_set

    def checkpoint(self) -> dict[str, Any]:
        """Make everything durable; the JSON state for `resume`."""
        return {
            "main": self.main.checkpoint(),
            "sidecars": {name: writer.checkpoint() for name, writer in self.sidecars.items()},
        }

    def seal(self) -> None:
        """Finish every file under its temporary name, which frees all descriptors."""
        for writer in (self.main, *self.sidecars.values()):
            writer.seal()

    def publish(self, manifest: Manifest | None = None) -> Manifest | None:
        """Seal and give all files their names, `.idx` last; returns the completed manifest."""
        self.seal()
        sides = {name: writer.seal() for name, writer in self.sidecars.items()}
        completed = publish_shard(self.main.seal(), sides, manifest, overwrite=self._overwrite)
        self._published = True
        return completed

    def abort(self) -> None:
        """Give up: as ShardWriter.abort, for all."""
        for writer in (self.main, *self.sidecars.values()):
            writer.abort()

    def __enter__(self) -> ShardSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._published:
            self.abort()
