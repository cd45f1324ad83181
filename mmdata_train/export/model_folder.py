"""A whole model's folder: weights streamed, config.json, generation_config.json, tokenizer, template, record."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmdata_train.errors import ExportError
from mmdata_train.export import ollama
from mmdata_train.export.chat import ChatFiles, describe_tokenizer, write_tokenizer
from mmdata_train.export.description import config_of_shape, dtype_name, generation_config, with_changes
from mmdata_train.export.options import ExportOptions, ExportResult
from mmdata_train.export.origin import Origin
from mmdata_train.export.record import EXPORT, RECORD
from mmdata_train.export.stream import write_weights
from mmdata_train.safetensors_file import Entry
from mmdata_train.whole_folder import check_output, whole_folder

SPARE_BYTES = 64 << 20
"""Room for tokenizer, configs and headers in the check of the free disk."""


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """The tensors to write and where each comes from. changes: of config.json, beside the dtype. report: called when
    all are written, to add to the result.
    """

    entries: Sequence[Entry]
    produce: Callable[[str], Tensor]
    dtype: torch.dtype
    changes: Mapping[str, Any] = field(default_factory=dict)
    report: Callable[[ExportResult], None] | None = None


def write_model(
    origin: Origin, options: ExportOptions, result: ExportResult, plan: WeightPlan, inputs: Sequence[Path]
) -> None:
    """Weights, configs, tokenizer and record of a whole model."""
    if origin.source is not None:
        inputs = [*inputs, Path(origin.source)]
    check_output(options.output, EXPORT, inputs, overwrite=options.overwrite)
    total = sum(entry.nbytes for entry in plan.entries)
    with whole_folder(options.output, total + SPARE_BYTES) as folder:
        chat = write_chat(folder, origin, options)
        config = _config(origin, plan, chat)
        write_json(folder / "config.json", config)
        generation = generation_config(origin.generation_config, config, chat.end_of_turn)
        write_json(folder / "generation_config.json", generation)
        if options.serve is not None:
            write_modelfile(folder, "FROM .", chat, generation)
        files = write_weights(folder, plan.entries, plan.produce, options.max_shard_bytes)
        if plan.report is not None:
            plan.report(result)
        result.dtype, result.tensors, result.bytes = dtype_name(plan.dtype), len(plan.entries), sum(files.values())
        result.parameters = sum(entry.nbytes // entry.dtype.itemsize for entry in plan.entries)
        result.vocab_size, result.eos_token_id = config["vocab_size"], generation.get("eos_token_id")
        result.chat_template_differs, result.notices = chat.differs, [*result.notices, *chat.notices]
        finish(folder, result)


def finish(folder: Path, result: ExportResult) -> None:
    """Write the record that makes the folder an export, listing its files."""
    result.files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    write_json(folder / RECORD, {"format": 1, **asdict(result)})


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Indented, in the order given, UTF-8."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_chat(folder: Path, origin: Origin, options: ExportOptions) -> ChatFiles:
    """Tokenizer files and template: see write_tokenizer for what it raises."""
    where = options.tokenizer or origin.tokenizer
    chat = write_tokenizer(folder, where, origin.tokenizer_fingerprint, origin.chat_templates, options.chat_template)
    if origin.added_tokens:
        describe_tokenizer(folder, chat)
    return chat


def _config(origin: Origin, plan: WeightPlan, chat: ChatFiles) -> dict[str, Any]:
    if origin.config is not None:
        return with_changes(origin.config, plan.dtype, **plan.changes)
    eod = None if chat.tokenizer is None or chat.tokenizer.eod is None else chat.tokenizer.eod.id
    ids = {"bos_token_id": eod, "eos_token_id": eod} if origin.model.family == "gpt2" else {"eos_token_id": eod}
    return {**config_of_shape(origin.model, plan.dtype, ids), **plan.changes}


def write_modelfile(folder: Path, start: str, chat: ChatFiles, generation: Mapping[str, Any]) -> None:
    """A Modelfile that begins with `start`; stops at every token that ends an answer.

    Raises ExportError without a template, or for one that Ollama's templates cannot express.
    """
    if chat.template is None:
        raise ExportError("--serve ollama needs a chat template and there is none; give one with --chat-template FILE")
    variables = ollama.variables_of(chat.tokenizer)
    texts = ollama.find_turn_texts(chat.template, variables)
    special = {} if chat.tokenizer is None else {token.id: token.content for token in chat.tokenizer.special_tokens}
    eos = generation.get("eos_token_id")
    ids = [*chat.end_of_turn, *([eos] if isinstance(eos, int) else eos or ())]
    ends = [special[token] for token in ids if token in special]
    text = ollama.modelfile(start, texts.without(variables.get("bos_token", "")), ollama.stop_strings(ends, texts))
    (folder / ollama.MODELFILE).write_text(text, encoding="utf-8", newline="\n")
