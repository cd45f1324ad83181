"""What a path to a model means, and what stands beside its weights. Reads small files only.

A Hugging Face folder has config.json; a PEFT folder adapter_config.json; a run of this engine checkpoints/, of which
the path may name the run, checkpoints/ or one step. A checkpoint says itself what it was trained from.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmdata_train.errors import GenerationError
from mmdata_train.export.origin import read_origin
from mmdata_train.hf_config import config_from_folder
from mmdata_train.hf_folder import read_json, token_ids
from mmdata_train.lora.settings import LoraConfig
from mmdata_train.model.config import ModelConfig
from mmdata_train.run_folder import STATE, checkpoint_at

ADAPTER_CONFIG = "adapter_config.json"
_PROBE = "a"


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Where a model's parts are.

    path: as given. folder: the Hugging Face folder of the base, None for a shape with random weights. checkpoint: one
    of this engine; lora: the adapters it holds. adapter: a PEFT folder. tokenizer: what load_tokenizer takes. facts:
    config.json and generation_config.json, the latter in front. templates: chat templates training rendered with.
    """

    path: Path
    config: ModelConfig
    folder: Path | None = None
    checkpoint: Path | None = None
    lora: LoraConfig | None = None
    adapter: Path | None = None
    tokenizer: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    templates: tuple[str, ...] = ()


def find_source(path: str | Path, adapter: str | Path | None = None) -> ModelSource:
    """The model at a path. Raises GenerationError, naming what was looked for, and ModelError on a bad config."""
    path = Path(path)
    on_top = None if adapter is None else Path(adapter)
    if on_top is not None and not (on_top / ADAPTER_CONFIG).is_file():
        raise GenerationError(
            f"{on_top} holds no {ADAPTER_CONFIG}; --adapter takes a PEFT folder, such as one exported"
        )
    if (path / ADAPTER_CONFIG).is_file() and not (path / "config.json").is_file():
        if on_top is not None:
            raise GenerationError(f"{path} is an adapter itself; name its base first, then one --adapter")
        return _of_adapter(path)
    if (path / "config.json").is_file():
        return _of_folder(path, path, on_top)
    found = checkpoint_at(path)
    if found is None:
        raise GenerationError(
            f"{path} is no model: looked for config.json (Hugging Face), {ADAPTER_CONFIG} (PEFT), and checkpoints/ or"
            f" {STATE} (a run of this engine, or one checkpoint)"
        )
    return _of_checkpoint(path, found, on_top)


def _of_folder(path: Path, folder: Path, adapter: Path | None) -> ModelSource:
    config = config_from_folder(folder, dropout=0.0, attention_dropout=0.0)
    return ModelSource(
        path=path, config=config, folder=folder, adapter=adapter, tokenizer=str(folder), facts=_facts(folder)
    )


def _of_adapter(path: Path) -> ModelSource:
    base = read_json(path / ADAPTER_CONFIG).get("base_model_name_or_path")
    places = [Path(str(base)), path / str(base)] if base else []
    folder = next((place for place in places if (place / "config.json").is_file()), None)
    if folder is None:
        raise GenerationError(
            f"{path / ADAPTER_CONFIG} names the base {base!r}, which is no folder here; give the base's folder as the"
            f" model and this one as --adapter {path}"
        )
    return _of_folder(path, folder, path)


def _of_checkpoint(path: Path, checkpoint: Path, adapter: Path | None) -> ModelSource:
    origin = read_origin(checkpoint)
    if origin.lora is not None and adapter is not None:
        raise GenerationError(f"{path} holds adapters itself; an adapter on top of them has no meaning here")
    if origin.lora is not None and (origin.other_base is not None or origin.source is None or origin.added_tokens):
        base = "added tokens" if origin.added_tokens else origin.other_base or "a random model"
        raise GenerationError(
            f"{checkpoint} holds adapters with {base} beside them; `mmdata-train export {path} --to merged` makes a"
            " folder of the whole that can be opened"
        )
    return ModelSource(
        path=path,
        config=dataclasses.replace(origin.model, dropout=0.0, attention_dropout=0.0),
        folder=None if origin.source is None else Path(origin.source),
        checkpoint=checkpoint,
        lora=origin.lora,
        adapter=adapter,
        tokenizer=origin.tokenizer or origin.source or "",
        facts=_present({**(origin.config or {}), **(origin.generation_config or {})}),
        templates=origin.chat_templates,
    )


def _present(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if value is not None}


def _facts(folder: Path) -> dict[str, Any]:
    """Both files' values. Raises ModelError for token ids that are none: the model would never stop."""
    facts: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            found = read_json(folder / name)
            for key in ("eos_token_id", "bos_token_id"):
                token_ids(found, key, str(folder / name))
            facts.update(_present(found))
    return facts


def declared_ids(source: ModelSource, key: str) -> tuple[int, ...]:
    """`eos_token_id` or `bos_token_id` of the folder's files: none, one id or several. Raises ModelError for others."""
    return token_ids(source.facts, key, f"{source.path}: generation_config.json or config.json")


def begins_with(source: ModelSource, tokenizer: Any) -> tuple[int, ...]:
    """Ids that Hugging Face's tokenizer puts before a text: by its post-processor, or by `add_bos_token`."""
    file = tokenizer.source.parent / "tokenizer.json"
    if file.is_file():
        text = json.loads(file.read_text(encoding="utf-8"))
        if text.get("post_processor") is not None:
            return _added_before(str(file))
    declared = tokenizer.config.get("add_bos_token")
    name = tokenizer.config.get("bos_token")
    name = name.get("content") if isinstance(name, dict) else name
    found = tokenizer.token_to_id(name) if declared and isinstance(name, str) else None
    return () if found is None else (found,)


def _added_before(file: str) -> tuple[int, ...]:
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(file)
    plain = loaded.encode(_PROBE, add_special_tokens=False).ids
    whole = loaded.encode(_PROBE).ids
    return next((tuple(whole[:at]) for at in range(len(whole)) if whole[at : at + len(plain)] == plain), ())
