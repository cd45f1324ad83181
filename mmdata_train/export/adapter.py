"""Adapters out: as a PEFT folder, or merged into their base tensor by tensor.

The base is read from the folder the adapter was trained on, or the one given in its place; where its config.json is
another one now, the merge is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from mmdata.indexed.durable import disk_faults
from mmdata_train.errors import ExportError
from mmdata_train.export.description import dtype_name, generation_config, stored_dtype
from mmdata_train.export.model_folder import (
    SPARE_BYTES,
    WeightPlan,
    finish,
    write_chat,
    write_model,
    write_modelfile,
)
from mmdata_train.export.options import ExportOptions, ExportResult
from mmdata_train.export.origin import Origin, origin_of_folder
from mmdata_train.export.record import EXPORT
from mmdata_train.export.tensors import CheckpointTensors, outgoing
from mmdata_train.hf import check_folder
from mmdata_train.hf_config import config_from_folder
from mmdata_train.hf_files import WeightFiles
from mmdata_train.hf_folder import read_json
from mmdata_train.hf_names import sources
from mmdata_train.lora.adapter import TOKENS
from mmdata_train.lora.fits import check_complete
from mmdata_train.lora.peft import (
    Adapter,
    AdapterSource,
    merge,
    peft_adapter,
    read_adapter,
    refuse_quantised,
    write_adapter,
)
from mmdata_train.model.config import ModelConfig
from mmdata_train.precision import DTYPES
from mmdata_train.safetensors_file import Entry
from mmdata_train.whole_folder import check_output, whole_folder

ADAPTER_FILE = "adapter_model.safetensors"
HEAD = "lm_head.weight"


def export_adapter(
    held: CheckpointTensors, origin: Origin, options: ExportOptions, result: ExportResult
) -> ExportResult:
    """A LoRA checkpoint as a PEFT folder or merged into its base. Raises ExportError, AdapterError, ModelError."""
    if origin.lora is None:
        raise ExportError(
            f"{held.checkpoint} does not say how its adapter is scaled; it was not written by this engine"
        )
    state = {name: held.read(name) for name in held.adapters}
    source = AdapterSource(origin.lora, origin.model, origin.source)
    if options.to == "merged":
        return _merge(peft_adapter(state, source), origin, options, result, held.checkpoint)
    if origin.other_base is not None:
        result.notices.append(f"the adapter stands on {origin.other_base}, not on {origin.source}; name it with --base")
    check_output(options.output, EXPORT, [held.checkpoint], overwrite=options.overwrite)
    size = sum(tensor.nbytes for tensor in state.values())
    with whole_folder(options.output, 3 * size + SPARE_BYTES) as folder:
        chat = write_chat(folder, origin, options)
        with disk_faults(str(folder)):
            write_adapter(state, source, folder)
        if options.serve is not None:
            if origin.source is None:
                raise ExportError("--serve ollama of an adapter needs its base model; give it with --base")
            generation = generation_config(origin.generation_config, origin.config or {}, chat.end_of_turn)
            write_modelfile(folder, f"FROM {origin.source}\nADAPTER .", chat, generation)
        result.dtype, result.tensors = dtype_name(torch.float32), len(state)
        result.parameters, result.bytes = size // 4, (folder / ADAPTER_FILE).stat().st_size
        result.vocab_size, result.chat_template_differs = origin.model.vocab_size, chat.differs
        result.notices += chat.notices
        finish(folder, result)
    return result


def export_peft_folder(adapter: Path, options: ExportOptions) -> ExportResult:
    """An adapter made elsewhere, merged into its base. Raises ExportError, AdapterError, ModelError."""
    if options.to != "merged":
        raise ExportError(f"{adapter} is a PEFT adapter already; with --to merged it is merged into its base")
    read = read_adapter(adapter)
    base = options.base or read.config.base_model
    if base is None or not Path(base).is_dir():
        raise ExportError(f"{adapter} names the base {base!r}, which is no folder here; give the base with --base")
    beside = adapter if (adapter / "tokenizer.json").is_file() else Path(base)
    origin = origin_of_folder(base, str(beside))
    result = ExportResult(options.to, str(options.output), str(adapter))
    return _merge(read, origin, options, result, adapter)


def _merge(adapter: Adapter, origin: Origin, options: ExportOptions, result: ExportResult, given: Path) -> ExportResult:
    base = _base_folder(origin)
    model = config_from_folder(base)
    files = WeightFiles.of(base)
    check_folder(files, model, sources(model))
    names = _base_names(files, model)
    changes: dict[str, object] = {}
    if model.tie_embeddings and adapter.unties():
        # The adapter changes the head and not the embedding it was tied to: the folder now needs both.
        names[HEAD] = names[next(iter(names))]
        changes["tie_word_embeddings"] = False
    rows = max(model.vocab_size, adapter.rows_needed())
    if rows != model.vocab_size:
        changes["vocab_size"] = rows
    _refuse_strangers(adapter, names)
    check_complete(adapter, model)
    merger = _Merger(files, names, adapter, DTYPES.get(options.dtype), rows)
    dtype = DTYPES.get(options.dtype) or stored_dtype(origin.config)
    plan = WeightPlan(merger.entries(), merger.produce, dtype, changes, merger.report)
    with merger:
        write_model(origin, options, result, plan, [given])
    return result


def _base_folder(origin: Origin) -> Path:
    """The base, if it still is the one the adapter was trained on."""
    if origin.source is None:
        raise ExportError("the adapter was trained on a model without a folder; give its base with --base")
    if origin.other_base is not None:
        raise ExportError(
            f"the adapter was not trained on {origin.source} itself, but on {origin.other_base}; give that folder with"
            " --base"
        )
    base = Path(origin.source)
    if not base.is_dir():
        raise ExportError(f"the base {base} is gone; give its folder with --base")
    refuse_quantised(base)
    if origin.config is not None and read_json(base / "config.json") != origin.config:
        raise ExportError(
            f"{base / 'config.json'} is another one than when the adapter was trained; give the base it was trained on"
            " with --base"
        )
    return base


def _base_names(files: WeightFiles, model: ModelConfig) -> dict[str, str]:
    """Name in the output -> name in the base folder, the embedding first."""
    names = {}
    for out in outgoing(model):
        found = files.name_of(out.name)
        assert found is not None, "check_folder names missing tensors"
        names[out.name] = found
    return names


def _refuse_strangers(adapter: Adapter, names: Mapping[str, str]) -> None:
    strangers = [path for path in adapter.touched() if f"{path}.weight" not in names]
    if strangers:
        raise ExportError(
            f"the adapter changes {strangers[0]} ({len(strangers)} modules in all), which the base does not have; is"
            f" it the base the adapter was trained on ({adapter.config.base_model or 'not named'})?"
        )


class _Merger:
    """Base tensors with the adapter's update, one at a time, one base file open at a time."""

    def __init__(
        self, files: WeightFiles, names: Mapping[str, str], adapter: Adapter, dtype: torch.dtype | None, rows: int
    ) -> None:
        self.files, self.names, self.adapter, self.dtype, self.rows = files, names, adapter, dtype, rows
        self.change = self.rounding = 0.0
        self._open: tuple[str, Callable[[str], Tensor]] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> _Merger:
        return self

    def __exit__(self, *problem: object) -> None:
        self._stack.close()

    def entries(self) -> list[Entry]:
        """What will be written; tensors keep the base's dtype unless one was asked for."""
        made = []
        for name, key in self.names.items():
            stored = self.files.tensors[key]
            tables = (name, self._tied_to(name) or name)
            grows = any(f"{table.removesuffix('.weight')}{TOKENS}" in self.adapter.tensors for table in tables)
            shape = (self.rows, *stored.shape[1:]) if grows else stored.shape
            made.append(Entry(name, shape, self.dtype or getattr(torch, stored.dtype)))
        return made

    def produce(self, name: str) -> Tensor:
        """The merged tensor in the dtype it is stored in."""
        key = self.names[name]
        merged = merge(self.adapter, name, self._read(key), self.dtype, tied_to=self._tied_to(name))
        self.change = max(self.change, merged.change)
        if merged.change:
            self.rounding = max(self.rounding, merged.rounding)
        return merged.weight

    def _tied_to(self, name: str) -> str | None:
        """The embedding whose table a head is made of, None for every other tensor."""
        same = (other for other, key in self.names.items() if other != name and key == self.names[name])
        return next(same, None) if name == HEAD else None

    def _read(self, key: str) -> Tensor:
        file = self.files.tensors[key].file
        if self._open is None or self._open[0] != file:
            self._open = None
            self._stack.close()
            self._open = (file, self._stack.enter_context(self.files.open(file)))
        return self._open[1](key)

    def report(self, result: ExportResult) -> None:
        """Say what the merge changed, and whether the dtype can hold it."""
        result.largest_change, result.largest_rounding = self.change, self.rounding
        if self.rounding >= self.change > 0:
            result.notices.append(
                f"the largest rounding ({self.rounding:.3g}) is no smaller than the largest change of the adapter"
                f" ({self.change:.3g}): this dtype loses the fine-tuning; use --dtype fp32"
            )
