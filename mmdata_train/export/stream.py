"""Safetensors files written tensor by tensor, with the index that transformers reads.

The library writes a file from tensors that are all in memory; here only one is, and of it one block of rows in the
output's dtype. Format: https://github.com/huggingface/safetensors (8 bytes little-endian length, JSON header, data
without holes). Shards are filled in the order given, as transformers does.
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
from mmdata_train.hf_folder import INDEX, SINGLE

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
        return math.prod(self.shape) * self.dtype.itemsize


def plan_shards(entries: Sequence[Entry], max_bytes: int) -> list[list[Entry]]:
    """Entries in their order, cut so that no shard exceeds max_bytes unless one tensor alone does."""
    shards: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if shards[-1] and size + entry.nbytes > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(entry)
        size += entry.nbytes
    return shards


def write_weights(
    folder: Path, entries: Sequence[Entry], produce: Callable[[str], Tensor], max_bytes: int
) -> dict[str, int]:
    """Write `model.safetensors`, or shards and their index; returns each file's bytes.

    produce: name -> tensor of the entry's shape, called once for each in order. Raises ExportError for a value that is
    not finite or does not fit the dtype, DiskFullError, OutputError.
    """
    shards = plan_shards(entries, max_bytes)
    count = len(shards)
    files, weight_map = {}, {}
    for number, shard in enumerate(shards, 1):
        file = SINGLE if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
        files[file] = _write_file(folder / file, shard, produce)
        weight_map.update({entry.name: file for entry in shard})
    if count > 1:
        index = {
            "metadata": {"total_size": sum(entry.nbytes for entry in entries)},
            "weight_map": dict(sorted(weight_map.items())),
        }
        text = json.dumps(index, indent=2) + "\n"
        (folder / INDEX).write_text(text, encoding="utf-8")
        files[INDEX] = len(text)
    return files


def _write_file(path: Path, entries: Sequence[Entry], produce: Callable[[str], Tensor]) -> int:
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
    whole = tensor if tensor.dim() else tensor.reshape(1)
    for start in range(0, whole.shape[0], rows):
        block = whole[start : start + rows]
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
