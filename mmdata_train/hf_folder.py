"""What lies in a Hugging Face model folder by name: weight files, JSON files, the token ids they declare. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmdata_train.errors import ModelError, TrainError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SINGLE_BIN = "pytorch_model.bin"
INDEX_BIN = "pytorch_model.bin.index.json"


def read_json(
    path: Path,
    error: type[TrainError] = ModelError,
    missing: str = f"a model folder holds config.json and {SINGLE}",
    *,
    unique: bool = False,
) -> dict[str, Any]:
    """One JSON object. unique: a key that stands twice in an object is refused; else the last one counts.

    Raises `error` naming the file otherwise; `missing` says what belongs there.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique if unique else None)
    except FileNotFoundError:
        raise error(f"{path} is missing; {missing}") from None
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}") from None
    except (ValueError, RecursionError) as problem:
        raise error(f"{path} is not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise error(f"{path} holds a {type(value).__name__}, not an object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{max(names, key=names.count)!r} stands there twice")
    return found


def weight_homes(folder: Path) -> dict[str, list[str] | None]:
    """Weight file -> the tensors its index gives to it, None where a lone file says so itself.

    Found as transformers does: safetensors before `.bin`, one file before an index. Raises ModelError when there are
    none or one that the index names is not there.
    """
    for single, index in ((SINGLE, INDEX), (SINGLE_BIN, INDEX_BIN)):
        if (folder / single).is_file():
            return {single: None}
        if not (folder / index).is_file():
            continue
        weight_map = read_json(folder / index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise ModelError(f"{folder / index} has no weight_map of tensor names to file names")
        homes: dict[str, list[str] | None] = {}
        for name, file in weight_map.items():
            held = homes.setdefault(file, [])
            assert held is not None
            held.append(name)
        missing = [file for file in sorted(homes) if Path(file).name != file or not (folder / file).is_file()]
        if missing:
            raise ModelError(
                f"{folder / index} names {missing[0]}, which is not in the folder ({len(missing)} of {len(homes)} files"
                " are missing); copy the folder again"
            )
        return homes
    raise ModelError(f"{folder} has neither {SINGLE} nor {INDEX}; {_remedy(folder)}")


def _remedy(folder: Path) -> str:
    if not folder.is_dir():
        return "there is no such folder"
    if (folder / "adapter_config.json").is_file():
        return "it is a PEFT adapter; give its base model as the model and the adapter beside it"
    parts = sorted(path.name for path in folder.glob("*.safetensors")) or sorted(p.name for p in folder.glob("*.bin"))
    if parts:
        return f"it holds {parts[0]} but no index that says which tensor lies where; copy the index too"
    return "is this a Hugging Face model folder?"


def token_ids(facts: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    """The ids of `eos_token_id` or its like: a whole number from 0, a list of them, or nothing.

    where: names the file in messages. Raises ModelError for anything else, which would leave a model that never stops.
    """
    value = facts.get(key)
    values = value if isinstance(value, list) else [] if value is None else [value]
    for item in values:
        if not isinstance(item, int) or isinstance(item, bool) or item < 0:
            raise ModelError(
                f"{where}: {key} is {value!r}; it must be a token id (a whole number from 0), a list of them, or null"
            )
    return tuple(values)
