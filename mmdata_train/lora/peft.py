"""PEFT's adapter folders in and out: this engine's adapters as PEFT names them, and back.

Most modules are the same on both sides. GPT-2's fused c_attn is one module there and three here: written, it has their
ranks together, block by block, which computes the same; read, each of the three gets the whole A and its rows of B.
Padded vocabulary rows are left out. Nothing here needs ranks: weights come whole.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from mmdata.errors import OutputExistsError
from mmdata.indexed.durable import sync_directory, write_durably
from mmdata_train.errors import AdapterError
from mmdata_train.lora.adapter import (
    EMBEDDINGS,
    MAGNITUDE_VECTOR,
    TOKENS,
    A,
    Adapter,
    AdapterSource,
    B,
    PeftConfig,
)
from mmdata_train.lora.fits import check_fits, check_whole
from mmdata_train.lora.merge import Merged, merge, refuse_quantised
from mmdata_train.lora.modules import outputs_of, token_modules
from mmdata_train.lora.peft_file import CONFIG, PREFIX, WEIGHTS, config_json, read_config, read_tensors
from mmdata_train.lora.settings import (
    HEAD,
    LoraConfig,
    linear_modules,
    resolve_targets,
)
from mmdata_train.model.config import ModelConfig
from mmdata_train.safetensors_file import Entry, write_tensors

KNOWN_ENDS = (A, B, MAGNITUDE_VECTOR, TOKENS, ".weight", ".bias")
"""The last two are modules stored whole."""


def read_adapter(folder: str | Path, *, mapped: bool = False) -> Adapter:
    """The adapter of a PEFT folder. mapped: tensors are views of the file, of which nothing is read before it is used.

    Raises AdapterError naming the file and what is wrong with it.
    """
    folder = Path(folder)
    config, tensors = read_config(folder), read_tensors(folder, mapped=mapped)
    for name, tensor in list(tensors.items()):
        # Newer and older releases spell the magnitude with and without an ending.
        if name.endswith(MAGNITUDE_VECTOR + ".weight"):
            tensors[name.removesuffix(".weight")] = tensors.pop(name).flatten()
        elif name.endswith((".lora_embedding_A", ".lora_embedding_B", ".lora_A.bias", ".lora_B.bias")):
            raise AdapterError(f"{folder}: {name} is not supported; adapters of linear layers without bias are")
        elif not name.endswith(KNOWN_ENDS) or re.search(r"\.lora_[AB]\.(?!weight$)", name):
            raise AdapterError(f"{folder}: {name} is no tensor of a saved LoRA adapter; save it with save_pretrained()")
        if not tensor.is_floating_point():
            raise AdapterError(f"{folder}: {name} is {tensor.dtype}, not floating point")
    adapter = Adapter(config, tensors)
    check_whole(adapter, folder)
    return adapter


def _by_path(source: AdapterSource) -> dict[str, list[str]]:
    """Hugging Face path -> our modules with an adapter there, in the order their rows lie."""
    modules, found = linear_modules(source.model), dict[str, list[str]]()
    for name in resolve_targets(source.lora, source.model):
        found.setdefault(modules[name], []).append(name)
    return found


@dataclass(frozen=True, slots=True)
class _Fused:
    """Our modules that are one module there. shared: they have the same A (an adapter made by PEFT, not trained on)."""

    path: str
    names: Sequence[str]
    all_names: Sequence[str]
    shared: bool

    def blocks(self) -> int:
        """How many times our rank the module has."""
        return 1 if self.shared else len(self.names)


def _fused(state: Mapping[str, Tensor], source: AdapterSource) -> Iterator[_Fused]:
    modules = linear_modules(source.model)
    for path, names in _by_path(source).items():
        everything = [name for name, there in modules.items() if there == path]
        first = state[f"{names[0]}.lora_A"] if len(names) > 1 else None
        shared = first is None or all(torch.equal(first, state[f"{name}.lora_A"]) for name in names[1:])
        if source.lora.dora and len(names) != len(everything):
            raise AdapterError(
                f"DoRA on {', '.join(names)} alone has no PEFT form: there they are one module, {path}, with"
                f" {', '.join(set(everything) - set(names))}; target all of them"
            )
        yield _Fused(path, names, everything, shared)


def _entries(state: Mapping[str, Tensor], source: AdapterSource) -> Iterator[tuple[Entry, Callable[[], Tensor]]]:
    """Each tensor of the file and what makes it when its turn comes."""
    model, rank = source.model, source.lora.rank
    for group in _fused(state, source):
        names, high = group.names, group.blocks() * rank
        first = state[f"{names[0]}.lora_A"]
        rows = sum(outputs_of(model, name) for name in group.all_names)
        yield Entry(group.path + A, (high, first.shape[1]), first.dtype), partial(_all_a, state, group)
        yield Entry(group.path + B, (rows, high), first.dtype), partial(_all_b, state, source, group)
        if source.lora.dora:
            lengths = Entry(group.path + MAGNITUDE_VECTOR, (rows,), first.dtype)
            yield lengths, partial(_all_magnitudes, state, names)
    if source.token_ids:
        for name, path in token_modules(model).items():
            row = state[name]
            yield Entry(path + TOKENS, tuple(row.shape), row.dtype), partial(state.__getitem__, name)


def _all_a(state: Mapping[str, Tensor], group: _Fused) -> Tensor:
    names = group.names[:1] if group.shared else group.names
    return torch.cat([state[f"{name}.lora_A"] for name in names])


def _all_magnitudes(state: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    return torch.cat([state[f"{name}.lora_magnitude"] for name in names])


def _all_b(state: Mapping[str, Tensor], source: AdapterSource, group: _Fused) -> Tensor:
    rank = source.lora.rank
    blocks = []
    for name in group.all_names:
        rows = outputs_of(source.model, name)
        block = torch.zeros(rows, group.blocks() * rank)
        if name in group.names:
            column = 0 if group.shared else group.names.index(name) * rank
            block[:, column : column + rank] = state[f"{name}.lora_B"][:rows]
        blocks.append(block)
    return torch.cat(blocks)


def peft_config(state: Mapping[str, Tensor], source: AdapterSource) -> PeftConfig:
    """What `adapter_config.json` says of our adapters."""
    lora, model = source.lora, source.model
    groups = list(_fused(state, source))
    alpha = lora.scale * (math.sqrt(lora.rank) if lora.rslora else lora.rank)
    wider = {group.path: group.blocks() for group in groups if group.blocks() > 1}
    # The scale must stay: alpha / (n r), or alpha / sqrt(n r).
    grown = {path: alpha * (math.sqrt(blocks) if lora.rslora else blocks) for path, blocks in wider.items()}
    tokens = {path.rpartition(".")[2]: source.token_ids for path in token_modules(model).values()}
    return PeftConfig(
        rank=lora.rank,
        alpha=alpha,
        targets=_target_names(model, [group.path for group in groups]),
        dropout=lora.dropout,
        rslora=lora.rslora,
        dora=lora.dora,
        fan_in_fan_out=model.family == "gpt2",
        rank_pattern={path.replace(".", r"\."): blocks * lora.rank for path, blocks in wider.items()},
        alpha_pattern={path.replace(".", r"\."): value for path, value in grown.items()},
        trainable_tokens=tokens if source.token_ids else {},
        base_model=source.base_model,
    )


def _target_names(model: ModelConfig, paths: Sequence[str]) -> tuple[str, ...]:
    """Short names where they mean exactly these modules, whole paths otherwise."""
    short = dict.fromkeys(path.rpartition(".")[2] for path in paths)
    meant = {path for path in linear_modules(model).values() if path.rpartition(".")[2] in short}
    return tuple(short) if meant == set(paths) else tuple(paths)


def peft_adapter(state: Mapping[str, Tensor], source: AdapterSource) -> Adapter:
    """Whole adapter weights by our names (as in a checkpoint below `model.`) as PEFT names them."""
    config = peft_config(state, source)
    return Adapter(config, {entry.name: make() for entry, make in _entries(state, source)})


def write_adapter(
    state: Mapping[str, Tensor], source: AdapterSource, folder: str | Path, *, overwrite: bool = False
) -> Path:
    """Write adapter weights by our names as a PEFT folder; one tensor of `state` is in memory at a time.

    The folder appears whole or not at all; other files in it stay. Raises OutputExistsError where an adapter is there
    already and `overwrite` is off, AdapterError where PEFT has no form for it, ExportError for values that are not
    finite, DiskFullError, OutputError.
    """
    folder = Path(folder)
    if (folder / CONFIG).exists() and not overwrite:
        raise OutputExistsError(f"{folder} holds an adapter already; choose another folder, or --overwrite")
    if source.token_ids and not source.model.tie_embeddings and HEAD in resolve_targets(source.lora, source.model):
        raise AdapterError(
            "new tokens beside an adapter of a head with a matrix of its own have no PEFT form; export it merged"
        )
    config = peft_config(state, source)
    made = {PREFIX + entry.name: (entry, make) for entry, make in _entries(state, source)}
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / ".adapter.tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        entries = [replace(entry, name=name) for name, (entry, _) in made.items()]
        write_tensors(scratch / WEIGHTS, entries, lambda name: made[name][1]())
        write_durably(str(scratch / CONFIG), config_json(config).encode())
        (folder / CONFIG).unlink(missing_ok=True)  # a reader sees the old adapter, none, or the new one
        (scratch / WEIGHTS).replace(folder / WEIGHTS)
        (scratch / CONFIG).replace(folder / CONFIG)
        sync_directory(str(folder / CONFIG))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def from_peft(adapter: Adapter, model: ModelConfig, lora: LoraConfig) -> dict[str, Tensor]:
    """The adapter's weights by our names, for adapters shaped by `lora`; scales are folded into B.

    Raises what check_fits raises, and AdapterError for a fused module whose parts have a rank above `lora.rank`.
    """
    check_fits(adapter, model, lora)
    modules, found = linear_modules(model), dict[str, Tensor]()
    for path in adapter.paths():
        start = 0
        for name in [name for name, there in modules.items() if there == path]:
            rows = outputs_of(model, name)
            found.update(_one_module(adapter, path, name, slice(start, start + rows), lora))
            start += rows
    for name, path in token_modules(model).items():
        if path + TOKENS in adapter.tensors:
            found[name] = adapter.tensors[path + TOKENS].float()
    return found


def _one_module(adapter: Adapter, path: str, name: str, rows: slice, lora: LoraConfig) -> dict[str, Tensor]:
    a, b = adapter.tensors[path + A].float(), adapter.tensors[path + B].float()[rows]
    used = b.any(dim=0)
    if a.shape[0] > lora.rank and int(used.sum()) <= lora.rank and not bool(used.all()):
        # A block of a fused module that this engine wrote: the other blocks' columns are zero in these rows.
        a, b = a[used], b[:, used]
    if a.shape[0] > lora.rank:
        raise AdapterError(f"{path} has rank {a.shape[0]}; set lora_rank to at least that (it is {lora.rank})")
    found = {f"{name}.lora_A": a, f"{name}.lora_B": b * (adapter.config.scale(path) / lora.scale)}
    if lora.dora:
        found[f"{name}.lora_magnitude"] = adapter.tensors[path + MAGNITUDE_VECTOR].float()[rows]
    return found


__all__ = [
    "EMBEDDINGS", "Adapter", "AdapterSource", "Merged", "PeftConfig", "from_peft", "merge", "peft_adapter",
    "peft_config", "read_adapter", "refuse_quantised", "write_adapter",
]  # fmt: skip
