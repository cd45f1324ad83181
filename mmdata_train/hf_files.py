"""The files of a Hugging Face model folder: which tensor lies where, and reading any part of one.

Reads safetensors, and the older `.bin` files through torch's weights-only loader, which builds tensors and nothing
else. Opening a folder reads every file's header and no tensor: files that are missing, torn, or do not hold what the
index says are named before any memory is used. Tensors are views of the mapped file, so only the parts that are copied
out of them are read, and one file is mapped at a time. Not mapped but read whole: `.bin` files of torch before 1.6.
"""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mmdata_train.errors import ModelError
from mmdata_train.hf_folder import weight_homes

FLOATS = ("float64", "float32", "float16", "bfloat16")
_SAFE_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}

_FORBIDDEN = re.compile(r"GLOBAL ([\w.]+)")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a folder. dtype: torch's name, or the file's own name where it is no floating-point type of torch."""

    file: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """A folder whose headers were read: every tensor by its name there."""

    folder: Path
    tensors: Mapping[str, StoredTensor]

    @classmethod
    def of(cls, folder: Path) -> WeightFiles:
        """Find the files as transformers does (safetensors before `.bin`, one file before an index) and read headers.

        Raises ModelError when there are none, one is missing or torn, or one lacks a tensor the index gives to it.
        """
        homes = weight_homes(folder)
        tensors: dict[str, StoredTensor] = {}
        for file, promised in homes.items():
            header = _header(folder / file)
            if promised is None:
                tensors.update(header)
                continue
            absent = [name for name in promised if name not in header]
            if absent:
                raise ModelError(
                    f"{folder / file} lacks {absent[0]!r} ({len(absent)} in all), which the index says it holds;"
                    " copy the file again"
                )
            tensors.update({name: header[name] for name in promised})
        return cls(folder, tensors)

    def name_of(self, key: str) -> str | None:
        """The folder's own spelling of a key: base models lack the `model.` or `transformer.` prefix."""
        for name in (key, key.partition(".")[2]):
            if name in self.tensors:
                return name
        return None

    @contextmanager
    def open(self, file: str) -> Iterator[Callable[[str], Tensor]]:
        """name -> tensor on the CPU, mapped from the file: nothing is read before its elements are used."""
        path = self.folder / file
        if path.suffix == ".bin":
            loaded = load_bin(path)
            yield loaded.__getitem__
            return
        with safe_open(path, framework="pt") as mapped:
            # The library slices a mapped storage, so this is a view and no copy.
            yield lambda name: mapped.get_slice(name)[...]


def _header(path: Path) -> dict[str, StoredTensor]:
    """What one file holds. Raises ModelError when it is torn or something else."""
    if path.suffix == ".bin":
        loaded = load_bin(path).items()
        return {
            name: StoredTensor(path.name, tuple(value.shape), str(value.dtype).removeprefix("torch."))
            for name, value in loaded
        }
    found = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                part = file.get_slice(name)
                dtype = str(part.get_dtype())
                found[name] = StoredTensor(path.name, tuple(part.get_shape()), _SAFE_NAMES.get(dtype, dtype))
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size
        raise ModelError(
            f"{path} ({size:,} bytes) is not a whole safetensors file: {error}; copy it again (a Git LFS pointer has"
            " some 130 bytes)"
        ) from None
    return found


def load_bin(path: Path, error: type[ModelError] = ModelError) -> dict[str, Tensor]:
    """A pickled state dict through torch's weights-only loader, mapped where the file allows it.

    Raises `error` for a file that cannot be read, holds more than tensors by name, or is torn. torch's own message is
    not passed on: it advises to load the file without this protection.
    """
    try:
        mapped = _is_zip(path)
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}") from None
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as problem:
        wanted = _FORBIDDEN.search(str(problem))
        what = f"asks for {wanted[1]}, which is no tensor" if wanted else "holds more than tensors, or is torn"
        raise error(f"{path} {what}: only tensors are read from such files; use safetensors files") from None
    except Exception:  # damaged bytes make the unpickler fail in any way
        raise error(f"{path} is not a whole file of torch.save; copy it again") from None
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise error(f"{path} is not a state dict: a dictionary of names and tensors")
    return {str(name): value for name, value in loaded.items()}


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        mapped = file.read(4) == b"PK\x03\x04"
    if not mapped:
        _log.warning("%s is in torch's format before 1.6, which cannot be mapped: it is read whole into memory", path)
    return mapped
