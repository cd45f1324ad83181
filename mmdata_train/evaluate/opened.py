"""A model of an evaluation, open: whole on each rank, or in the engine's parts over all ranks.

Whole models answer, choose and give perplexities; models in parts choose and give perplexities. Ranks with whole
models share the items.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch.distributed as dist

from mmdata_train.config import ParallelConfig, TrainConfig, TrainingConfig
from mmdata_train.evaluate.rows import EngineScorer, RowScorer, WholeScorer
from mmdata_train.evaluate.suite import ModelEntry, Ranks
from mmdata_train.generation.model import LoadedModel, open_model, pick_precision
from mmdata_train.generation.sources import ModelSource, find_source
from mmdata_train.generation.weights import load_named
from mmdata_train.lora.peft import read_adapter
from mmdata_train.lora.settings import is_adapter_weight
from mmdata_train.lora.start import shape_of
from mmdata_train.mesh import pick_device, start_process_group
from mmdata_train.precision import Precision
from mmdata_train.session import open_engine

TIMEOUT_MINUTES = 120.0
"""Ranks wait for each other between sets, and one of them may generate long answers."""


@dataclass(frozen=True)
class OpenedModel:
    """The model, and how its rows are scored. model: whole, or for parts a stand-in with tokenizer and facts only."""

    model: LoadedModel
    scorer: RowScorer
    whole: bool

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer. Raises GenerationError where it has none."""
        return self.model.tokenizer

    @cached_property
    def has_template(self) -> bool:
        """Whether the model brings a chat template."""
        if self.model.chat_template is not None or self.model.source.templates:
            return True
        folder = self.tokenizer.source.parent
        files = (folder / "chat_template.jinja", folder / "chat_template.json")
        return bool(self.tokenizer.config.get("chat_template")) or any(file.is_file() for file in files)


def join_ranks(ranks: Ranks) -> bool:
    """Make the process group where there are several ranks; whether this call did."""
    if ranks.world == 1:
        return False
    return start_process_group(pick_device().type, TIMEOUT_MINUTES)


def open_entry(entry: ModelEntry, ranks: Ranks, seq_length: int, rows: int) -> OpenedModel:
    """Open an entry's model. seq_length: longest row wanted; the model's own limit holds. rows: of one pass, all ranks.

    Raises what open_model raises, and ConfigError for a layout the model does not fit.
    """
    assert entry.model is not None
    if ranks.splits_model:
        return _in_parts(entry, ranks, seq_length, rows)
    model = open_model(
        entry.model, entry.adapter, precision=entry.precision, tokenizer=entry.tokenizer,
        chat_template=entry.chat_template, device=pick_device(),
    )  # fmt: skip
    length = min(seq_length, model.config.max_positions)
    return OpenedModel(model, WholeScorer(model.decoder, length, max(rows, ranks.data)), True)


def _in_parts(entry: ModelEntry, ranks: Ranks, seq_length: int, rows: int) -> OpenedModel:
    source = find_source(str(entry.model), entry.adapter)
    if entry.tokenizer is not None:
        source = replace(source, tokenizer=entry.tokenizer)
    length = min(seq_length, source.config.max_positions)
    each = max(-(-rows // ranks.data), ranks.pipeline)
    precision: Precision = pick_precision(pick_device(), entry.precision)
    config = TrainConfig(
        model=source.config if source.folder is None else str(source.folder),
        parallel=ParallelConfig(
            tensor=ranks.tensor, pipeline=ranks.pipeline, data=ranks.data, timeout_minutes=TIMEOUT_MINUTES,
            parity_check=False,
        ),
        train=TrainingConfig(micro_batch_size=1, global_batch_size=each * ranks.data, precision=precision, steps=1),
        **_adapters(source),
    )  # fmt: skip
    full = source.checkpoint is not None and source.lora is None
    engine = open_engine(config, seq_length=length, total_steps=1, fill=not full)
    if source.checkpoint is not None:
        named = engine.model.named_parameters()
        load_named({n: w for n, w in named if full or is_adapter_weight(n)}, source, no_dist=False)
    stand_in = LoadedModel(engine.model.parts[0], source, engine.model.mesh.device, entry.chat_template)
    return OpenedModel(stand_in, EngineScorer(engine, each * ranks.data), False)


def _adapters(source: ModelSource) -> dict[str, Any]:
    """The configuration's lora_ fields."""
    lora = source.lora
    if source.adapter is not None:
        lora = shape_of(read_adapter(source.adapter))
    if lora is None:
        return {}
    fields = {f"lora_{n}": getattr(lora, n) for n in ("rank", "alpha", "targets", "rslora", "dora")}
    return {**fields, "lora_from": source.adapter}


def rank_and_ranks() -> tuple[int, int]:
    """This process's place among those that share the items."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
