"""A model to try: from a Hugging Face folder, a checkpoint of this engine, or a base with an adapter.

The whole model on one device, in the dtype it computes in; nothing is sharded. Beside the weights it carries what
prompts need: tokenizer, the token a text begins with, the tokens that end one. Memory: one copy of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import mmdata
from mmdata.errors import TokenizerError
from mmdata_train.errors import GenerationError
from mmdata_train.generation.sources import ModelSource, begins_with, declared_ids, find_source
from mmdata_train.generation.weights import fill_from
from mmdata_train.model.config import ModelConfig
from mmdata_train.model.decoder import Decoder
from mmdata_train.precision import DTYPES, Precision


@dataclass(frozen=True)
class LoadedModel:
    """A decoder ready to run, with its tokenizer and facts.

    source: where it came from. chat_template: `auto`, a built-in's name or a file; None takes what training rendered
    with, else `auto`.
    """

    decoder: Decoder
    source: ModelSource
    device: torch.device
    chat_template: str | None = None

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        return self.decoder.config

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer. Raises GenerationError where it has none."""
        try:
            return mmdata.load_tokenizer(self.source.tokenizer)
        except TokenizerError as error:
            raise GenerationError(f"{self.source.path} has no tokenizer ({error}); give --tokenizer") from None

    @cached_property
    def hidden_ids(self) -> frozenset[int]:
        """Control tokens, which give no text."""
        return frozenset(token.id for token in self.tokenizer.special_tokens if token.special)

    @cached_property
    def begin(self) -> tuple[int, ...]:
        """What the tokenizer itself puts before a text, as Hugging Face does: most often nothing, or one token."""
        return begins_with(self.source, self.tokenizer)

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a text: those of generation_config.json and config.json, and the end of a document."""
        eod = self.tokenizer.eod
        return frozenset(declared_ids(self.source, "eos_token_id")) | (frozenset() if eod is None else {eod.id})

    def alone(self) -> tuple[int, ...]:
        """What stands before an empty prompt: the begin token, else the end-of-document token."""
        return self.begin or declared_ids(self.source, "bos_token_id")[:1] or (self.tokenizer.eod_id,)


def pick_precision(device: torch.device, wanted: Precision | None) -> Precision:
    """As asked; else bf16 on a GPU and fp32 on a CPU."""
    return wanted or ("bf16" if device.type == "cuda" else "fp32")


def open_model(
    path: str | Path,
    adapter: str | Path | None = None,
    *,
    precision: Precision | None = None,
    tokenizer: str | None = None,
    chat_template: str | None = None,
    device: torch.device | None = None,
) -> LoadedModel:
    """Open a Hugging Face folder, a run or checkpoint of this engine, or a PEFT folder, whose base is found by its
    config.

    adapter: a PEFT folder on top. Raises GenerationError when the path is none of these, ModelError, CheckpointError.
    """
    source = find_source(path, adapter)
    if tokenizer is not None:
        source = replace(source, tokenizer=tokenizer)
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("highest")
    with torch.device("meta"):
        decoder = Decoder(source.config)
    decoder = decoder.to_empty(device=device)
    decoder.tie()
    fill_from(source, decoder)
    decoder = decoder.to(device=device, dtype=DTYPES[pick_precision(device, precision)])
    decoder.tie()
    decoder.train(False)
    decoder.requires_grad_(False)
    return LoadedModel(decoder, source, device, chat_template)


def facts_line(model: LoadedModel) -> Mapping[str, Any]:
    """What results say about a model."""
    dtype = str(next(model.decoder.parameters()).dtype).removeprefix("torch.")
    return {"model": str(model.source.path), "adapter": str(model.source.adapter or "") or None, "dtype": dtype}
