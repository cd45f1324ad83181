"""Puts finished shards at their names: the token file first, `.idx` last, so a reader sees a whole shard or none.

Costs a few renames and folder syncs. Two publishers to one prefix at the same moment are not told apart.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mmdata.errors import OutputExistsError, OutputReplacedError
from mmdata.indexed.durable import FileDigest, disk_faults, remove, stage_beside, stage_content, sync_directory
from mmdata.indexed.manifest import Manifest
from mmdata.indexed.paths import bin_path, idx_path, manifest_path, shard_files, sidecar_prefix


@dataclass(slots=True, frozen=True)
class SealedShard:
    """A shard that is written and flushed but not at its name yet (or, after publishing, is).

    bin_partial, idx_partial: where the two files stand before publishing. scratch: files to remove afterwards.
    """

    prefix: str
    dtype: np.dtype[Any]
    sequences: int
    documents: int
    tokens: int
    multimodal: bool
    bin: FileDigest
    idx: FileDigest
    bin_partial: str
    idx_partial: str
    scratch: tuple[str, ...] = ()

    def discard(self) -> None:
        """Remove the unpublished files."""
        for path in (self.bin_partial, self.idx_partial, *self.scratch):
            remove(path)


def refuse_existing(prefix: str) -> None:
    """Raise OutputExistsError if any file of the shard is there."""
    for path in shard_files(prefix):
        if os.path.exists(path):
            raise OutputExistsError(f"{path}: exists already; choose another name, or overwrite it (--overwrite)")


def complete_manifest(manifest: Manifest, shard: SealedShard, sidecars: Mapping[str, SealedShard]) -> Manifest:
    """`manifest` with dtype, counts, loss and files as the sealed shards have them."""
    files = {"bin": shard.bin, "idx": shard.idx}
    for name, sidecar in sidecars.items():
        files |= {f"{name}.bin": sidecar.bin, f"{name}.idx": sidecar.idx}
    return replace(
        manifest,
        dtype=shard.dtype.name,
        multimodal=shard.multimodal,
        sequences=shard.sequences,
        documents=shard.documents,
        tokens=shard.tokens,
        loss="spans" if "loss_spans" in sidecars else "all",
        files=files,
    )


def publish_shard(
    shard: SealedShard,
    sidecars: Mapping[str, SealedShard] | None = None,
    manifest: Manifest | None = None,
    *,
    overwrite: bool = False,
) -> Manifest | None:
    """Give the shard, its sidecars (by name: `origin`, `loss_spans`) and its manifest their names.

    The manifest is completed with `complete_manifest` and returned. Raises OutputExistsError when anything is in the
    way and not `overwrite`, OutputError and DiskFullError; the unpublished files then stay where they are.
    """
    sides = dict(sidecars or {})
    for name, side in sides.items():
        assert side.prefix == sidecar_prefix(shard.prefix, name), f"{side.prefix} is no {name} sidecar"
    if manifest is not None:
        manifest = complete_manifest(manifest, shard, sides)
    if not overwrite:
        refuse_existing(shard.prefix)
    renames = _stage(shard, sides, manifest)
    with disk_faults(shard.prefix):
        # The old index goes first: from here on there is no shard until the last rename.
        old = [path for path in shard_files(shard.prefix)[:-1] if os.path.exists(path)]
        for path in old:
            remove(path)
        if old:
            sync_directory(shard.prefix)
        for number, (source, target) in enumerate(renames, start=1):
            if number == len(renames):
                sync_directory(shard.prefix)
            os.replace(source, target)
        sync_directory(shard.prefix)
    for part in (shard, *sides.values()):
        part.discard()
    return manifest


def _stage(shard: SealedShard, sides: Mapping[str, SealedShard], manifest: Manifest | None) -> list[tuple[str, str]]:
    """Everything that needs disk space, done before anything is touched: the renames left to do, `.idx` last."""
    parts = [shard, *sides.values()]
    wanted = [move for part in parts for move in _moves_of(part)]
    wanted.append(wanted.pop(1))
    staged: list[tuple[str, str]] = []
    try:
        for source, target in wanted:
            staged.append((stage_beside(source, target), target))
        if manifest is not None:
            path = manifest_path(shard.prefix)
            staged.insert(-1, (stage_content(path, manifest.to_json()), path))
    except BaseException:
        for (source, _), (near, _) in zip(wanted, staged, strict=False):
            if near != source:
                remove(near)
        raise
    return staged


def _moves_of(part: SealedShard) -> list[tuple[str, str]]:
    """`.bin`, then `.idx`: where each stands and where it goes; another writer's file of that name is refused."""
    for path, digest in ((part.bin_partial, part.bin), (part.idx_partial, part.idx)):
        if not os.path.exists(path) or os.path.getsize(path) != digest.size:
            raise OutputReplacedError(f"{path}: another writer took this name over; let one run at a time write here")
    return [(part.bin_partial, bin_path(part.prefix)), (part.idx_partial, idx_path(part.prefix))]
