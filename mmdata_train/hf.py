"""Weights and shapes from Hugging Face folders: Llama, Mistral, Qwen2, Qwen3 and GPT-2, from safetensors.

Each rank reads only the rows and columns it keeps, straight from the mapped file, one weight at a time. Nothing is
unpickled: folders with only `.bin` files are refused with the way to convert them. Both spellings of a config are
read (`rope_theta` and `rope_parameters`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from mmdata_train.errors import ModelError
from mmdata_train.hf_names import Source, ignorable, sources
from mmdata_train.model.config import ModelConfig
from mmdata_train.slices import Slices, fill, local_slices, named_weights

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object; ModelError naming the file otherwise."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing; a model folder holds config.json and {SINGLE}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds a {type(value).__name__}, not an object")
    return value


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Which file of a folder holds which tensor."""

    folder: Path
    homes: Mapping[str, str]

    @classmethod
    def of(cls, folder: Path) -> WeightFiles:
        """Read the index, or the one file's own list. Raises ModelError when there is neither or a file is missing."""
        if (folder / INDEX).is_file():
            homes = read_json(folder / INDEX).get("weight_map")
            if not isinstance(homes, dict):
                raise ModelError(f"{folder / INDEX} has no weight_map")
            for file in sorted(set(homes.values())):
                if Path(file).name != file or not (folder / file).is_file():
                    raise ModelError(f"{folder / INDEX} names {file}, which is not in the folder")
            return cls(folder, homes)
        if not (folder / SINGLE).is_file():
            pickled = sorted(path.name for path in folder.glob("*.bin"))
            remedy = (
                f"{pickled[0]} is a pickle; load it once with transformers and save_pretrained() it as safetensors"
                if pickled
                else "is this a Hugging Face model folder?"
            )
            raise ModelError(f"{folder} has neither {SINGLE} nor {INDEX}; {remedy}")
        try:
            with safe_open(folder / SINGLE, framework="pt") as file:
                return cls(folder, {name: SINGLE for name in file.keys()})  # noqa: SIM118 (not a mapping)
        except SafetensorError as error:
            raise ModelError(f"{folder / SINGLE} is not a whole safetensors file: {error}") from None

    def name_of(self, key: str) -> str | None:
        """The folder's own spelling of a key: base models lack the `model.` or `transformer.` prefix."""
        for name in (key, key.partition(".")[2]):
            if name in self.homes:
                return name
        return None


@torch.no_grad()
def load_weights(parts: Iterable[nn.Module], config: ModelConfig, folder: str | Path) -> None:
    """Fill every weight of the parts from the folder; padded vocabulary rows become 0.

    Raises ModelError when a weight is missing, has another shape, or a tensor of the folder is used by nothing.
    """
    files = WeightFiles.of(Path(folder))
    table = sources(config)
    used = {files.name_of(source.key) for source in table.values()}
    unknown = [name for name in files.homes if name not in used and not ignorable(config, name)]
    if unknown:
        raise ModelError(
            f"{folder}: {len(unknown)} tensors have no place in a {config.family} model, such as {sorted(unknown)[0]!r}"
        )
    with ExitStack() as stack:
        opened: dict[str, Any] = {}
        for name, weight in named_weights(parts):
            key = files.name_of(table[name].key)
            if key is None:
                raise ModelError(f"{folder}: tensor {table[name].key!r} is missing")
            file = files.homes[key]
            if file not in opened:
                opened[file] = stack.enter_context(safe_open(files.folder / file, framework="pt"))
            stored = opened[file].get_slice(key)
            _check_shape(config, name, weight, table[name], tuple(stored.get_shape()), str(files.folder / file))
            fill(weight, _read(stored, table[name], local_slices(weight)))


def _check_shape(
    config: ModelConfig, name: str, weight: Tensor, source: Source, stored: tuple[int, ...], file: str
) -> None:
    rows = source.rows or weight.shape[0]
    rows = config.vocab_size if source.vocabulary else rows
    expected = (rows * source.fused, *weight.shape[1:])
    if source.transposed:
        expected = expected[::-1]
    if expected != stored:
        raise ModelError(f"{file}: {source.key!r} is {list(stored)}, but {name} of this config needs {list(expected)}")


def _read(stored: Any, source: Source, slices: Slices) -> Tensor:
    """This rank's part, in the dtype of the file; rows beyond the stored ones (vocabulary padding) are zeros."""
    shape = tuple(stored.get_shape())
    total = shape[1] if source.transposed else shape[0]
    first = slices[0].start + source.offset
    rows = slice(min(first, total), min(slices[0].stop + source.offset, total))
    value = stored[slices[1], rows].T if source.transposed else stored[(rows, *slices[1:])]
    missing = slices[0].stop - slices[0].start - value.shape[0]
    if missing:
        value = torch.cat((value, value.new_zeros(missing, *value.shape[1:])))
    result: Tensor = value
    return result
