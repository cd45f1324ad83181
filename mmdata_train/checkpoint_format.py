"""Reading torch's distributed checkpoints without trusting them.

The format's index is a pickle. It is read with an unpickler that knows the few classes the index is made of and
refuses everything else, so a checkpoint made elsewhere cannot run code. Tensors themselves are plain bytes (see
`checkpoint_storage`), or of torch's own writer and read with its weights-only loader.
"""

from __future__ import annotations

import io
import pickle
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.futures import Future

from mmdata_train.checkpoint_storage import is_raw, read_raw
from mmdata_train.errors import CheckpointError

INDEX_FILE = ".metadata"
ALLOWED = {
    ("torch.distributed.checkpoint.metadata", name)
    for name in (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    )
} | {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.distributed.checkpoint.filesystem", "StreamTransformExtension"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("torch", "device"),
    ("collections", "OrderedDict"),
    ("builtins", "set"),
}  # fmt: skip
DTYPES = frozenset({"float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"})


class _IndexUnpickler(pickle.Unpickler):
    """Builds the index's own classes and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED or (module == "torch" and name in DTYPES):
            return super().find_class(module, name)
        if module == "pathlib" and name in ("PosixPath", "WindowsPath", "Path", "PurePath"):
            return Path
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a checkpoint index")


def read_index(folder: Path) -> Metadata:
    """The checkpoint's index. Raises CheckpointError when it is missing, damaged or holds a foreign class."""
    path = folder / INDEX_FILE
    try:
        value = _IndexUnpickler(io.BytesIO(path.read_bytes())).load()
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: {folder} is not a finished checkpoint") from None
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be trusted or read: {error}") from None
    if not isinstance(value, Metadata):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, not a checkpoint index")
    return value


class SafeReader(FileSystemReader):
    """torch's reader with the index read by `read_index` and raw tensors by `read_raw`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index, marked with this load's identity as torch does."""
        metadata = read_index(self.folder)
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Keep the index: raw tensors have their dtypes and sizes there alone."""
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)
        self.metadata = metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the planner's tensors. Raises CheckpointError for bytes that are not those written."""
        raw = [item for item in plan.items if is_raw(self.storage_data[item.storage_index])]
        for item in raw:
            target = planner.resolve_tensor(item).detach()
            read_raw(self.folder, self.storage_data[item.storage_index], item, target, self.metadata)
            planner.commit_tensor(item, target)
        others = [item for item in plan.items if not is_raw(self.storage_data[item.storage_index])]
        return super().read_data(replace(plan, items=others), planner)


def load_tensors(
    tensors: dict[str, Any],
    folder: Path,
    *,
    group: dist.ProcessGroup | None = None,
    no_dist: bool = False,
    reader: SafeReader | None = None,
) -> None:
    """Fill tensors (distributed ones too) by their names in a checkpoint, in place; a collective unless `no_dist`.

    Raises CheckpointError on every rank, naming what one of them could not read.
    """
    try:
        with warnings.catch_warnings():
            if no_dist:  # what torch warns of is what is meant
                warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
            load_distributed(tensors, storage_reader=reader or SafeReader(folder), process_group=group, no_dist=no_dist)
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items(), key=lambda failure: failure[0])
        if isinstance(cause, CheckpointError):
            raise cause from None
        where = "" if no_dist else f" (rank {rank})"
        raise CheckpointError(
            f"{folder} cannot be read{where}: {type(cause).__name__}: {cause}; use an earlier checkpoint"
        ) from error
