"""One safetensors file written tensor by tensor.

The library writes a file from tensors that are all in memory; here only one is, and of it one block of rows in the
output's dtype. Format: https://github.com/huggingface/safetensors (8 bytes little-endian length, JSON header, data
without holes). Values that are not finite are refused: they would make a model that only says NaN.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from mmdata.indexed.durable import disk_faults
from mmdata_train.errors import ExportError

BLOCK_BYTES = 64 << 20
NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to be written."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its data in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_tensors(path: Path, entries: Sequence[Entry], produce: Callable[[str], Tensor]) -> int:
    """Write the file, durable when this returns; returns its bytes.

    produce: name -> tensor of the entry's shape, any dtype and device, called once for each in the file's order. Raises
    ExportError for a value that is not finite or does not fit the dtype, DiskFullError, OutputError.
    """
    # Wider types first keeps every tensor aligned to its element size.
    ordered = sorted(entries, key=lambda entry: -entry.dtype.itemsize)
    with disk_faults(str(path)), path.open("wb") as file:
        file.write(_header(ordered))
        for entry in ordered:
            _write_tensor(file, entry, produce(entry.name))
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _header(entries: Sequence[Entry]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for entry in entries:
        place = [at, at + entry.nbytes]
        header[entry.name] = {"dtype": NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": place}
        at += entry.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_tensor(file: BinaryIO, entry: Entry, tensor: Tensor) -> None:
    assert tuple(tensor.shape) == entry.shape, f"{entry.name} is {tuple(tensor.shape)}, not {entry.shape}"
    rows = max(1, BLOCK_BYTES // max(1, entry.nbytes // max(1, entry.shape[0] if entry.shape else 1)))
    whole = tensor.detach() if tensor.dim() else tensor.detach().reshape(1)
    for start in range(0, whole.shape[0], rows):
        block = whole[start : start + rows].cpu()
        cast = block.to(entry.dtype).contiguous()
        if not torch.isfinite(cast).all():
            raise ExportError(_not_finite(entry, block))
        file.write(cast.view(torch.uint8).reshape(-1).numpy().data)


def _not_finite(entry: Entry, block: Tensor) -> str:
    if not torch.isfinite(block).all():
        return f"{entry.name} holds NaN or infinity: training has failed before this checkpoint; export an earlier one"
    largest = float(block.abs().max())
    return (
        f"{entry.name} holds {largest:.4g}, beyond {str(entry.dtype).removeprefix('torch.')}'s"
        f" {torch.finfo(entry.dtype).max:.5g}; use --dtype bf16 or fp32"
    )
