"""Whether an adapter is whole, agrees with its own configuration, and fits a model: by names and shapes alone.

No value is read, so an adapter can be judged before a model is loaded or ranks are started.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mmdata_train.errors import AdapterError
from mmdata_train.lora.adapter import BASE_COPY, MAGNITUDE_VECTOR, TOKENS, A, Adapter, B
from mmdata_train.lora.modules import inputs_of, outputs_of, token_modules
from mmdata_train.lora.peft_file import CONFIG
from mmdata_train.lora.settings import LoraConfig, linear_modules, resolve_targets
from mmdata_train.model.config import ModelConfig


def check_whole(adapter: Adapter, folder: Path) -> None:
    """An adapter's tensors are what its configuration says. Raises AdapterError with both, naming the folder."""
    for problem in _contradictions(adapter):
        raise AdapterError(f"{folder}: {problem}")


def _contradictions(adapter: Adapter) -> Iterator[str]:
    config, tensors = adapter.config, adapter.tensors
    for name in tensors:
        if name.endswith(B) and name.removesuffix(B) + A not in tensors:
            yield f"{name} is there but its lora_A is not"
        if name.endswith(MAGNITUDE_VECTOR) and not config.dora:
            yield f"{name} is a tensor of DoRA, but {CONFIG} says use_dora false"
        if name.endswith(TOKENS):
            ids = adapter.tokens_of(name.removesuffix(TOKENS))
            if tensors[name].dim() != 2 or tensors[name].shape[0] != len(ids):
                yield (
                    f"{name} is {list(tensors[name].shape)}, but trainable_token_indices of {CONFIG} name {len(ids)}"
                    " tokens there"
                )
    for path in adapter.paths():
        yield from _of_module(adapter, path)
    if not adapter.paths() and not config.trainable_tokens and not config.modules_to_save:
        yield "no adapter weight is in the file"


def _of_module(adapter: Adapter, path: str) -> Iterator[str]:
    config, tensors = adapter.config, adapter.tensors
    a, b = tensors[path + A], tensors.get(path + B)
    if b is None:
        yield f"{path}{A} is there but its lora_B is not"
        return
    if a.dim() != 2 or b.dim() != 2:
        yield f"{path} has matrices of {list(a.shape)} and {list(b.shape)}; those of a linear layer have two dimensions"
        return
    if (a.shape[0], b.shape[1]) != (config.rank_of(path),) * 2:
        yield f"{path} has rank {(a.shape[0], b.shape[1])}, but {CONFIG} says {config.rank_of(path)}"
    if not config.covers(path):
        yield f"the file adapts {path}, but target_modules of {CONFIG} are {_words(config.targets)}"
    if config.dora and path + MAGNITUDE_VECTOR not in tensors:
        yield f"use_dora is set but {path}{MAGNITUDE_VECTOR} is missing"


def _words(targets: tuple[str, ...] | str) -> str:
    return repr(targets) if isinstance(targets, str) else ", ".join(targets) or "empty"


def check_complete(adapter: Adapter, model: ModelConfig) -> None:
    """Every layer of the model that the configuration targets has its tensors. Raises AdapterError."""
    there = set(adapter.paths())
    targeted = [path for path in dict.fromkeys(linear_modules(model).values()) if adapter.config.covers(path)]
    missing = [path for path in targeted if path not in there]
    if missing:
        raise AdapterError(
            f"{CONFIG} targets {_words(adapter.config.targets)}, but the file has no tensors for {missing[0]}"
            f" ({len(missing)} of {len(targeted)} layers); a part of the adapter is missing, or it is another model's"
        )


def check_fits(adapter: Adapter, model: ModelConfig, lora: LoraConfig) -> None:
    """The adapter can fill adapters shaped by `lora` beside this model: nothing is left out or filled in part.

    Raises AdapterError for a module the model or `lora` has no adapter for, a module or row of another size with both
    sizes, a rank above `lora.rank`, DoRA on one side only, and layers without tensors.
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
    targets = set(resolve_targets(lora, model))
    for path in adapter.paths():
        names = [name for name, there in modules.items() if there == path]
        outside = [name for name in names if name not in targets]
        if outside:
            raise AdapterError(f"the adapter changes {path}, but lora_targets leave out {outside[0]}; add it")
        rows = sum(outputs_of(model, name) for name in names)
        _check_size(adapter, path, (rows, inputs_of(model, names[0])))
        rank = adapter.tensors[path + A].shape[0]
        if rank > lora.rank * len(names):
            raise AdapterError(f"{path} has rank {rank}; set lora_rank to at least that (it is {lora.rank})")
    check_complete(adapter, model)


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
    expected = token_modules(model).values()
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
