"""PEFT's adapter folders in and out: this engine's adapters as PEFT names them, and back.

Most modules are the same on both sides. GPT-2's fused c_attn is one module there and three here: written, it has their
ranks together, block by block, which computes the same; read, each of the three gets the whole A and its rows of B.
Padded vocabulary rows are left out. Nothing here needs ranks: weights come whole.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from mmdata.errors import OutputExistsError
from mmdata.indexed.durable import sync_directory, write_durably
from mmdata_train.errors import AdapterError
from mmdata_train.lora.adapter import (
    BASE_COPY,
    EMBEDDINGS,
    LM_HEAD,
    MAGNITUDE_VECTOR,
    TOKENS,
    A,
    Adapter,
    AdapterSource,
    B,
    PeftConfig,
)
from mmdata_train.lora.merge import Merged, merge, refuse_quantised
from mmdata_train.lora.peft_file import CONFIG, WEIGHTS, Entry, config_json, read_config, read_tensors, write_tensors
from mmdata_train.lora.settings import (
    ADDED,
    HEAD,
    HEAD_ADDED,
    LoraConfig,
    linear_modules,
    resolve_targets,
)
from mmdata_train.model.config import ModelConfig

KNOWN_ENDS = (A, B, MAGNITUDE_VECTOR, TOKENS, ".weight", ".bias")
"""The last two are modules stored whole."""


def read_adapter(folder: str | Path) -> Adapter:
    """The adapter of a PEFT folder. Raises AdapterError naming the file and what is wrong with it."""
    folder = Path(folder)
    config, tensors = read_config(folder), read_tensors(folder)
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
    _check(adapter, folder)
    return adapter


def _check(adapter: Adapter, folder: Path) -> None:
    config, tensors = adapter.config, adapter.tensors
    for name in tensors:
        if name.endswith(B) and name.removesuffix(B) + A not in tensors:
            raise AdapterError(f"{folder}: {name} is there but its lora_A is not")
    for path in adapter.paths():
        b = tensors.get(path + B)
        if b is None:
            raise AdapterError(f"{folder}: {path}{A} is there but its lora_B is not")
        ranks = (tensors[path + A].shape[0], b.shape[1])
        if ranks != (config.rank_of(path),) * 2:
            raise AdapterError(f"{folder}: {path} has rank {ranks}, but {CONFIG} says {config.rank_of(path)}")
        if config.dora and path + MAGNITUDE_VECTOR not in tensors:
            raise AdapterError(f"{folder}: use_dora is set but {path}{MAGNITUDE_VECTOR} is missing")
    if not adapter.paths() and not adapter.config.trainable_tokens and not adapter.config.modules_to_save:
        raise AdapterError(f"{folder}: no adapter weight is in the file")


def _by_path(source: AdapterSource) -> dict[str, list[str]]:
    """Hugging Face path -> our modules with an adapter there, in the order their rows lie."""
    modules, found = linear_modules(source.model), dict[str, list[str]]()
    for name in resolve_targets(source.lora, source.model):
        found.setdefault(modules[name], []).append(name)
    return found


def _rows(model: ModelConfig, name: str) -> int:
    """Outputs of one of our modules, vocabulary unpadded."""
    kind = name.rpartition(".")[2]
    return {
        "q_proj": model.num_heads * model.head_dim,
        "k_proj": model.num_kv_heads * model.head_dim,
        "v_proj": model.num_kv_heads * model.head_dim,
        "gate_proj": model.intermediate_size,
        "up_proj": model.intermediate_size,
        HEAD: model.vocab_size,
    }.get(kind, model.hidden_size)


def _columns(model: ModelConfig, name: str) -> int:
    """Inputs of one of our modules."""
    kind = name.rpartition(".")[2]
    wide = {"o_proj": model.num_heads * model.head_dim, "down_proj": model.intermediate_size}
    return wide.get(kind, model.hidden_size)


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


def _entries(state: Mapping[str, Tensor], source: AdapterSource) -> Iterator[Entry]:
    model, rank = source.model, source.lora.rank
    for group in _fused(state, source):
        names, high = group.names, group.blocks() * rank
        first = state[f"{names[0]}.lora_A"]
        rows = sum(_rows(model, name) for name in group.all_names)
        yield Entry(group.path + A, (high, first.shape[1]), first.dtype, partial(_all_a, state, group))
        yield Entry(group.path + B, (rows, high), first.dtype, partial(_all_b, state, source, group))
        if source.lora.dora:
            yield Entry(
                group.path + MAGNITUDE_VECTOR, (rows,), first.dtype,
                partial(_all_magnitudes, state, names),
            )  # fmt: skip
    if source.token_ids:
        for name, path in _token_modules(model).items():
            row = state[name]
            yield Entry(path + TOKENS, tuple(row.shape), row.dtype, partial(state.__getitem__, name))


def _token_modules(model: ModelConfig) -> dict[str, str]:
    """Our weight of added rows -> the module that holds them there; a tied head has none of its own."""
    embedding = "transformer.wte" if model.family == "gpt2" else "model.embed_tokens"
    return {ADDED: embedding} if model.tie_embeddings else {ADDED: embedding, HEAD_ADDED: LM_HEAD}


def _all_a(state: Mapping[str, Tensor], group: _Fused) -> Tensor:
    names = group.names[:1] if group.shared else group.names
    return torch.cat([state[f"{name}.lora_A"] for name in names])


def _all_magnitudes(state: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    return torch.cat([state[f"{name}.lora_magnitude"] for name in names])


def _all_b(state: Mapping[str, Tensor], source: AdapterSource, group: _Fused) -> Tensor:
    rank = source.lora.rank
    blocks = []
    for name in group.all_names:
        rows = _rows(source.model, name)
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
    tokens = {path.rpartition(".")[2]: source.token_ids for path in _token_modules(model).values()}
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
    return Adapter(config, {entry.name: entry.make() for entry in _entries(state, source)})


def write_adapter(
    state: Mapping[str, Tensor], source: AdapterSource, folder: str | Path, *, overwrite: bool = False
) -> Path:
    """Write adapter weights by our names as a PEFT folder; one tensor of `state` is in memory at a time.

    The folder appears whole or not at all; other files in it stay. Raises OutputExistsError where an adapter is there
    already and `overwrite` is off, AdapterError where PEFT has no form for it.
    """
    folder = Path(folder)
    if (folder / CONFIG).exists() and not overwrite:
        raise OutputExistsError(f"{folder} holds an adapter already; choose another folder, or --overwrite")
    if source.token_ids and not source.model.tie_embeddings and HEAD in resolve_targets(source.lora, source.model):
        raise AdapterError(
            "new tokens beside an adapter of a head with a matrix of its own have no PEFT form; export it merged"
        )
    config, entries = peft_config(state, source), list(_entries(state, source))
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / ".adapter.tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        write_tensors(scratch / WEIGHTS, entries)
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

    Raises AdapterError for a module the model or `lora` has no adapter for, a module or row of another size, a rank
    above `lora.rank`, or DoRA on one side only.
    """
    if adapter.config.dora != lora.dora:
        raise AdapterError(f"the adapter {'is' if adapter.config.dora else 'is not'} DoRA; set lora_dora to match it")
    whole = [name for name in adapter.tensors if not name.endswith((A, B, MAGNITUDE_VECTOR, TOKENS, BASE_COPY))]
    if whole:
        raise AdapterError(
            f"the adapter holds whole modules ({', '.join(sorted(whole))}), which are not trained beside LoRA; export"
            " it merged and start from that folder"
        )
    _check_rows(adapter, model, lora)
    modules = linear_modules(model)
    strange = [path for path in adapter.paths() if path not in modules.values()]
    if strange:
        raise AdapterError(
            f"the adapter's module {strange[0]} is not in this {model.family} model ({len(strange)} in all); is it the"
            f" base the adapter was trained on ({adapter.config.base_model or 'unnamed'})?"
        )
    targets, found = set(resolve_targets(lora, model)), dict[str, Tensor]()
    for path in adapter.paths():
        start, name = 0, ""
        for name in [name for name, there in modules.items() if there == path]:
            rows = _rows(model, name)
            if name not in targets:
                raise AdapterError(f"the adapter changes {path}, but lora_targets leave out {name}; add it")
            found.update(_one_module(adapter, path, name, slice(start, start + rows), lora))
            start += rows
        _check_size(adapter, path, (start, _columns(model, name)))
    for name, path in _token_modules(model).items():
        if path + TOKENS in adapter.tensors:
            found[name] = adapter.tensors[path + TOKENS].float()
    return found


def _check_size(adapter: Adapter, path: str, expected: tuple[int, int]) -> None:
    """The module the adapter was made for has the model's outputs and inputs: a smaller one would fill a part."""
    made = (adapter.tensors[path + B].shape[0], adapter.tensors[path + A].shape[1])
    if made != expected:
        raise AdapterError(
            f"the adapter's module {path} has {list(made)} outputs and inputs, the model's {list(expected)}; is it"
            f" the base the adapter was trained on ({adapter.config.base_model or 'unnamed'})?"
        )
    lengths = adapter.tensors.get(path + MAGNITUDE_VECTOR)
    if lengths is not None and tuple(lengths.shape) != expected[:1]:
        raise AdapterError(f"{path}{MAGNITUDE_VECTOR} is {list(lengths.shape)}, the model has {expected[0]} outputs")


def _check_rows(adapter: Adapter, model: ModelConfig, lora: LoraConfig) -> None:
    """Rows of tokens, and copies of a base that has other rows, fit the run or are refused: nothing is left out."""
    expected = _token_modules(model).values()
    for name, tensor in adapter.tensors.items():
        if name.endswith(TOKENS):
            path = name.removesuffix(TOKENS)
            ids = adapter.tokens_of(path)
            if path not in expected or ids != lora.added_ids:
                raise AdapterError(
                    f"the adapter trained the rows of tokens {list(ids)} of {path}, this run's added_tokens are"
                    f" {list(lora.added_ids)}; name the same tokens, or export it merged and start from that folder"
                )
            if tuple(tensor.shape) != (len(ids), model.hidden_size):
                raise AdapterError(f"{name} is {list(tensor.shape)}, the model needs {[len(ids), model.hidden_size]}")
        if name.endswith(BASE_COPY) and tensor.shape[0] != model.vocab_size:
            raise AdapterError(
                f"the adapter brings a {name} of {tensor.shape[0]} rows, the model has {model.vocab_size}: it was made"
                " on a resized model; export it merged and start from that folder"
            )


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
