"""A checkpoint's tensors as plain bytes, each with its checksum, in one file a rank.

torch's own writer makes an archive of every tensor (1.6 KB beside its numbers) and repeats names in its index: much for
adapters, whose tensors are small. Here a tensor takes its bytes (row by row, little-endian), eight of their xxh3-64
behind them, and some 190 of the index; planning, sharding and the index's format stay torch's. Entries are marked by
their `transform_descriptors`; those without the mark are torch's own and read by torch. A whole chunk is read in place;
a part of one takes the memory of the chunk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import RawIOBase
from pathlib import Path
from typing import Any, TypeVar

import torch
import xxhash
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from mmdata_train.errors import CheckpointError

RAW = ("mmdata.raw/1",)
T = TypeVar("T")


@contextmanager
def writing(path: Path, size: int | None = None) -> Iterator[None]:
    """Turn the system's errors while writing `path` into CheckpointError: path, cause, bytes to be written and free."""
    try:
        yield
    except OSError as error:
        told = "" if size is None else f"; {size:,} bytes are to be written to it"
        with suppress(OSError):
            told += f"{',' if told else ';'} {shutil.disk_usage(path.parent).free:,} are free there"
        raise CheckpointError(f"{path}: {error.strerror or error}{told}") from error


class RawWriter(FileSystemWriter):
    """torch's file writer, with raw tensors. Files are on disk when a save returns.

    Raises CheckpointError naming the file that cannot be written, the cause and the bytes needed and free.
    """

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """As torch does: makes the folder."""
        with writing(Path(self.path)):
            return super().prepare_local_plan(plan)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's tensors one behind the other."""
        name = f"{plan.storage_data.prefix}0.distcp"
        results = []
        size = sum(_bytes_of(planner.resolve_data(item)) for item in plan.items)
        path = Path(self.path) / name
        with writing(path, size), path.open("wb") as file:
            for item in plan.items:
                tensor = planner.resolve_data(item)
                assert isinstance(tensor, Tensor), f"{item.index.fqn}: a checkpoint's state is tensors"
                content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
                place = _StorageInfo(name, file.tell(), len(content), transform_descriptors=RAW)
                results.append(WriteResult(index=item.index, size_in_bytes=len(content), storage_data=place))
                file.write(content)
                file.write(xxhash.xxh3_64_digest(content))
            file.flush()
            os.fsync(file.fileno())
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index, in which equal names and sizes are one object: a pickle stores those once."""
        shared = _Shared()
        for stored in metadata.state_dict_metadata.values():
            assert isinstance(stored, TensorStorageMetadata)
            stored.properties = shared.of(stored.properties, repr(stored.properties))
            stored.size = shared.of(stored.size)
            stored.chunks = [
                replace(chunk, offsets=shared.of(chunk.offsets), sizes=shared.of(chunk.sizes))
                for chunk in stored.chunks
            ]
        named = metadata.state_dict_metadata.items()
        metadata.state_dict_metadata = {shared.of(name): stored for name, stored in named}
        if isinstance(metadata.planner_data, dict):
            paths = metadata.planner_data.items()
            metadata.planner_data = {shared.of(n): tuple(map(shared.of, path)) for n, path in paths}
        with writing(Path(self.path) / ".metadata"):
            super().finish(metadata, [[_lean(result, shared) for result in part] for part in results])


def _bytes_of(tensor: object) -> int:
    """With the checksum behind it."""
    return tensor.nbytes + 8 if isinstance(tensor, Tensor) else 0


class _Shared:
    """Equal values as one object."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def of(self, value: T, key: Hashable = None) -> T:
        found: T = self._known.setdefault((type(value), value if key is None else key), value)
        return found


def _lean(result: WriteResult, shared: _Shared) -> WriteResult:
    old, place = result.index, result.storage_data
    index = MetadataIndex(shared.of(old.fqn), index=old.index)
    if old.offset is not None:
        object.__setattr__(index, "offset", shared.of(old.offset))
    return replace(result, index=index, storage_data=replace(place, relative_path=shared.of(place.relative_path)))


def is_raw(place: _StorageInfo) -> bool:
    """Whether a tensor was written by RawWriter."""
    return tuple(place.transform_descriptors or ()) == RAW


def read_raw(folder: Path, place: _StorageInfo, item: ReadItem, target: Tensor, metadata: Metadata) -> None:
    """Fill `target` with the part of a stored chunk that is asked for; a whole one is read in place.

    Raises CheckpointError for bytes that are not those written.
    """
    stored = metadata.state_dict_metadata[item.storage_index.fqn]
    assert isinstance(stored, TensorStorageMetadata)
    chunk, dtype = next(c for c in stored.chunks if c.offsets == item.storage_index.offset), stored.properties.dtype
    assert target.size() == item.lengths, f"{item.storage_index}: {target.size()} is not {item.lengths}"
    in_place = item.lengths == chunk.sizes and target.dtype == dtype and target.is_cpu and target.is_contiguous()
    content = (target if in_place else torch.empty(chunk.sizes, dtype=dtype)).reshape(-1).view(torch.uint8)
    path = folder / Path(place.relative_path).name
    with path.open("rb", buffering=0) as file:
        file.seek(place.offset)
        held, digest = _fill(file, content.numpy().data), file.read(8)
    right = digest == xxhash.xxh3_64_digest(content.numpy().data)
    if not right or not held == place.length == content.numel():
        raise CheckpointError(
            f"{path}: bytes {place.offset:,} to {place.offset + place.length:,}, which hold {item.storage_index.fqn},"
            " are not those that were written; use an earlier checkpoint"
        )
    if not in_place:
        part = content.view(dtype).reshape(chunk.sizes)
        for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            part = part.narrow(dim, start, length)
        target.copy_(part)


def _fill(file: RawIOBase, view: memoryview) -> int:
    """Read until `view` is full or the file ends; returns the bytes read. The system gives at most 2 GiB at once."""
    held = 0
    while held < len(view):
        got = file.readinto(view[held:])
        if not got:
            break
        held += got
    return held
