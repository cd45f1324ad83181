"""Entries that name JSON lines or other raw files: converted once into shards, before any process group exists.

The result lies in the cache under a key of the inputs, the tokenizer, the chat template and every option, so a changed
template converts again and an unchanged one costs a look at the files (their size, time and up to 1 MiB each). On each
machine one rank converts and the others wait for its shards without a deadline: no collective is under way. A rank that
dies lets go of the lock, and the next one goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import glob
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock

import mmdata
from mmdata.errors import OutputExistsError, ShardNotFoundError
from mmdata.indexed.mapping import map_file
from mmdata.samples.cache import content_hash, key_of
from mmdata_train.data_config import DataConfig, DataEntry
from mmdata_train.errors import ConfigError

_PACKINGS = ("", ".gz", ".zst")
_RAW_ENDINGS = (".parquet", *(kind + end for kind in (".jsonl", ".json", ".ndjson", ".txt") for end in _PACKINGS))
# How convert runs, not what it makes.
_RUN_OPTIONS = frozenset({"workers", "executor", "memory", "block_bytes", "block_records", "commit_seconds", "engine"})
_NOT_HERE = frozenset({"split", "split_by", "max_tokens_per_shard", "json_keys", "sft_layout", "shard", "overwrite"})
_SAMPLED = 1 << 20
_POLL_SECONDS = 0.5

_log = logging.getLogger(__name__)


def raw_inputs(path: str) -> list[str]:
    """The raw files that `path` names: a file, a glob, or a folder without shards; empty when it names shards."""
    if os.path.isdir(path):
        if glob.glob(os.path.join(glob.escape(path), "*.idx")):
            return []
        inside = glob.glob(os.path.join(glob.escape(path), "**", "*"), recursive=True)
        return sorted(name for name in inside if name.lower().endswith(_RAW_ENDINGS))
    if not path.lower().endswith(_RAW_ENDINGS):
        return []
    return sorted(glob.glob(path, recursive=True)) if any(sign in path for sign in "*?[") else [path]


def prepare_data(config: DataConfig, cache_dir: Path, tokenizer: str | Path | None) -> DataConfig:
    """`config` with every raw entry converted and replaced by its folder of shards; itself when there is none.

    tokenizer: what mmdata.load_tokenizer takes. Call it on every rank, before the process group is made. Raises
    ConfigError without a tokenizer or with options that make no training shard, ShardNotFoundError on a missing file,
    and what mmdata.convert raises.
    """
    named = [path for path, _ in config.entries] + list(config.valid.values())
    raw = {path: inputs for path in named if (inputs := raw_inputs(path))}
    if not raw:
        return config
    if tokenizer is None:
        raise ConfigError(f"data names raw files ({next(iter(raw))}): converting them needs `tokenizer` to be set")
    options = _checked_options(config.convert)
    fingerprint = mmdata.load_tokenizer(tokenizer, engine="huggingface").fingerprint
    folder = (config.cache_dir or cache_dir) / "converted"
    made = {path: _convert(inputs, folder, tokenizer, fingerprint, options) for path, inputs in raw.items()}
    train = tuple(DataEntry(path=made.get(path, path), weight=weight) for path, weight in config.entries)
    return replace(config, train=train, valid={name: made.get(path, path) for name, path in config.valid.items()})


def _checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    unfit = sorted(options.keys() & _NOT_HERE)
    if unfit:
        raise ConfigError(
            f"data.convert.{unfit[0]} cannot be given here; run `mmdata convert` with it and name the shards in data"
        )
    return dict(options)


def _convert(
    inputs: Sequence[str], folder: Path, tokenizer: str | Path, fingerprint: str, options: dict[str, Any]
) -> str:
    """The folder that holds the shards of these inputs, made now unless it is there."""
    facts: dict[str, Any] = {
        "kind": "converted",
        "mmdata": mmdata.__version__,
        "inputs": [_facts_of(path) for path in inputs],
        "tokenizer": fingerprint,
        "options": {name: value for name, value in options.items() if name not in _RUN_OPTIONS},
        "template": _template_hash(options),
    }
    stem = os.path.basename(inputs[0]).split(".")[0]
    place = folder / f"{stem}-{key_of(facts)}"
    done = place / "done"
    place.mkdir(parents=True, exist_ok=True)
    if done.exists():
        return str(place)
    # The system frees the lock of a process that dies, and the next one goes on where it stopped.
    with filelock.FileLock(place / "lock", poll_interval=_POLL_SECONDS):
        if not done.exists():
            _log.info("converting %s into %s", inputs[0] if len(inputs) == 1 else f"{len(inputs)} files", place)
            # Complete but for the mark: a process died in between.
            with contextlib.suppress(OutputExistsError):
                mmdata.convert(list(inputs), place / "data", tokenizer, **options)
            told = {name: value for name, value in facts["options"].items() if name != "pii_key"}  # a secret
            done.write_text(json.dumps({**facts, "options": told}, sort_keys=True), encoding="utf-8")
    return str(place)


def _facts_of(path: str) -> list[Any]:
    try:
        facts = os.stat(path)
        return [path, facts.st_size, facts.st_mtime_ns, content_hash(map_file(path), _SAMPLED)]
    except FileNotFoundError as error:
        raise ShardNotFoundError("there is no such file", path=path, remedy="check the entry of the blend") from error


def _template_hash(options: Mapping[str, Any]) -> str | None:
    template = options.get("chat_template")
    if not isinstance(template, str) or not os.path.isfile(template):
        return None
    return content_hash(map_file(template))
