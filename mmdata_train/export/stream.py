"""A model's weights as one safetensors file, or as shards with the index that transformers reads.

Shards are filled in the order given, as transformers does; one tensor is in memory at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from mmdata_train.hf_folder import INDEX, SINGLE
from mmdata_train.safetensors_file import Entry, write_tensors


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
        files[file] = write_tensors(folder / file, shard, produce)
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
