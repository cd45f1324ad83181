"""Reading torch's distributed checkpoints without trusting them.

The format's index is a pickle. It is read with an unpickler that knows the few classes the index is made of and
refuses everything else, so a checkpoint made elsewhere cannot run code. Tensors themselves are read with torch's
weights-only loader.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

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
    """torch's reader with the index read by `read_index`."""

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
