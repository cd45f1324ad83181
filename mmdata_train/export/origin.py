"""What a checkpoint carries so that it can be exported by itself: shape, source, tokenizer, template, layout.

A few kilobytes of JSON in each checkpoint's state. Weights of the source are not among them: merging an adapter needs
the folder it was trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmdata.indexed.reader import IndexedDataset
from mmdata_train.config import TrainConfig
from mmdata_train.config_io import build, to_mapping
from mmdata_train.errors import ExportError
from mmdata_train.hf_config import config_from_json
from mmdata_train.hf_folder import read_json
from mmdata_train.lora.settings import LoraConfig
from mmdata_train.model.config import ModelConfig
from mmdata_train.run_folder import LATEST, STATE, checkpoint_at, read_state

KEY = "origin"


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """source: the Hugging Face folder training began from, None for a shape. config, generation_config: its files' JSON
    at that time. tokenizer: path, or NAME:FILE. chat_templates: those of the shards, each once, in their order. lora:
    the adapter trained. other_base: in words, the adapter's base where it is not the source. start_from: the checkpoint
    training began from.
    """

    model: ModelConfig
    source: str | None = None
    config: Mapping[str, Any] | None = None
    generation_config: Mapping[str, Any] | None = None
    tokenizer: str | None = None
    tokenizer_fingerprint: str | None = None
    chat_templates: tuple[str, ...] = ()
    layout: str = ""
    lora: LoraConfig | None = None
    other_base: str | None = None
    start_from: str | None = None

    @property
    def added_tokens(self) -> tuple[int, ...]:
        """Ids of the tokens whose rows were trained beside the adapter."""
        return () if self.lora is None else self.lora.added_ids

    def to_state(self) -> dict[str, Any]:
        """As JSON values, for a checkpoint's state."""
        mapping: dict[str, Any] = to_mapping(self)
        del mapping["lora"]  # the checkpoint's state has it
        return mapping


def origin_of_folder(folder: str, tokenizer: str | None, **facts: Any) -> Origin:
    """What a model folder says. facts: other fields. Raises ModelError when it cannot be read."""
    config = read_json(Path(folder) / "config.json")
    beside = Path(folder) / "generation_config.json"
    facts.setdefault("model", config_from_json(config, str(Path(folder) / "config.json")))
    return Origin(
        source=str(Path(folder).resolve()),
        config=config,
        generation_config=read_json(beside) if beside.is_file() else None,
        tokenizer=_absolute(tokenizer),
        **facts,
    )


def origin_of_run(
    config: TrainConfig, tokenizer: str | None, model: ModelConfig, shards: Iterable[IndexedDataset], layout: str
) -> Origin:
    """What the run at hand is trained from. tokenizer: its path. model: the shape trained. layout: in words.

    Raises ModelError when the model folder cannot be read.
    """
    manifests = [shard.manifest for shard in shards if shard.manifest is not None]
    facts: dict[str, Any] = {
        "model": model,
        "tokenizer_fingerprint": next((m.tokenizer_fingerprint for m in manifests if m.tokenizer_fingerprint), None),
        "chat_templates": tuple(dict.fromkeys(m.chat_template for m in manifests if m.chat_template)),
        "layout": layout,
        "other_base": _other_base(config),
        "start_from": None if config.start_from is None else str(config.start_from.resolve()),
    }
    if isinstance(config.model, ModelConfig):
        return Origin(tokenizer=_absolute(tokenizer), **facts)
    return origin_of_folder(config.model, tokenizer, **facts)


def _absolute(tokenizer: str | None) -> str | None:
    """A path as it is found from anywhere; NAME:FILE stays."""
    return str(Path(tokenizer).resolve()) if tokenizer is not None and Path(tokenizer).exists() else tokenizer


def _other_base(config: TrainConfig) -> str | None:
    """What an adapter's frozen base is, where it is not the model folder's weights."""
    if config.lora is None:
        return None
    if config.lora_merge_first:
        return f"the model with the adapter {config.lora_from} merged in (export that adapter --to merged)"
    if config.start_from is not None and read_state(config.start_from).get("lora") is None:
        return f"the weights of the checkpoint {config.start_from} (export it --to hf)"
    return None


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint at a path: itself, or the latest of a run's folder. Raises ExportError, CheckpointError."""
    given = Path(path)
    found = checkpoint_at(given)
    if found is not None:
        return found
    what = "does not exist" if not given.exists() else f"holds neither {STATE} nor {LATEST}"
    raise ExportError(f"{given} {what}; give a run's output folder or one of its checkpoints, such as step_00000100")


def read_origin(checkpoint: Path, base: str | None = None) -> Origin:
    """What the checkpoint says of itself. base: a model folder to use in place of the recorded source.

    Raises ExportError for a checkpoint that says nothing where no base is given, ModelError, CheckpointError.
    """
    state = read_state(checkpoint)
    stored = {**state[KEY], "lora": state.get("lora")} if state.get(KEY) else None
    if stored is None and base is None:
        raise ExportError(
            f"{checkpoint} does not say what it was trained from; give the model folder of its run with --base"
        )
    if base is None:
        return build(Origin, stored, KEY)
    given = origin_of_folder(base, base)
    if stored is None:
        return given
    origin = build(Origin, stored, KEY)
    return replace(
        origin, source=given.source, config=given.config, generation_config=given.generation_config, other_base=None
    )
