"""Everything `mmdata convert` can be told, as one checked value.

Fields that can change a byte of the output enter `byte_options()` and so the manifest and the ledger's fingerprint;
fields that only change how the work is done (workers, progress, block size) do not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal

from mmdata.chat.fit import TooLong
from mmdata.errors import UsageError
from mmdata.indexed.split import parse_ratio
from mmdata.records import Format

DEFAULT_SEED = 1234  # Megatron's default seed.


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """One run's options; field names are the long option names with underscores.

    split: three non-negative shares such as `969,30,1`, or None for one shard. max_tokens_per_shard: tokens after
    which a new shard begins, at a document's end. max_rejects: a count (`10`) or a share (`2%`) of rejected records
    beyond which the run fails. turn_order: what happens to conversations whose roles are out of order. chat_date: what
    templates that ask for today's date are told, as 2026-01-31.
    """

    recipe: str = "auto"
    pii: Literal["off", "count", "replace", "hash"] | None = None
    pii_key: str | None = None
    dedup: Literal["none", "exact", "minhash"] = "minhash"
    dedup_threshold: float = 0.8
    dedup_index: str | None = None
    format: Format = "auto"
    map: tuple[str, ...] = ()
    chat_template: str = "auto"
    train_on: Literal["assistant", "last", "all"] = "assistant"
    thinking: Literal["keep", "strip", "empty"] = "keep"
    count_empty_thinking: bool = False
    turn_order: Literal["reject", "repair"] = "reject"
    chat_date: str | None = None
    max_length: int | None = None
    too_long: TooLong = "error"
    sft_layout: Literal["spans", "pai"] = "spans"
    json_keys: tuple[str, ...] = ("text",)
    append_eod: bool = True
    eod_token: str | None = None
    allow_special: bool = False
    encoding: str = "utf-8"
    txt_document: Literal["file", "line", "blank-line"] = "file"
    split: str | None = None
    split_by: Literal["hash", "order"] = "hash"
    seed: int = DEFAULT_SEED
    max_tokens_per_shard: int | None = None
    dtype: Literal["auto", "uint16", "int32"] = "auto"
    on_error: Literal["fail", "skip"] = "skip"
    max_rejects: str | None = None

    def __post_init__(self) -> None:
        self._check_choices()
        if not all(self.json_keys) or not self.json_keys or len(set(self.json_keys)) != len(self.json_keys):
            raise UsageError(f"--json-keys needs one key or more, none empty and each once: {list(self.json_keys)}")
        for key in self.json_keys:
            if any(mark in key for mark in "/\\\0"):
                raise UsageError(f"--json-keys {key!r}: a key becomes part of a file name; rename the field first")
        if not 0.0 < self.dedup_threshold <= 1.0:
            raise UsageError(f"--dedup-threshold must be above 0 and at most 1, got {self.dedup_threshold}")
        if self.max_tokens_per_shard is not None and self.max_tokens_per_shard < 1:
            raise UsageError(f"--max-tokens-per-shard must be at least 1, got {self.max_tokens_per_shard}")
        if self.max_length is not None and self.max_length < 2:
            raise UsageError(f"--max-length must be at least 2, got {self.max_length}")
        if self.split_by == "order" and self.max_tokens_per_shard is not None:
            raise UsageError("--split-by order cannot be joined with --max-tokens-per-shard; use --split-by hash")
        if self.split is not None:
            parse_ratio(self.split)
        if self.max_rejects is not None:
            reject_limit(self.max_rejects, records=0)

    def _check_choices(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in allowed:
                nearest = get_close_matches(str(value), [str(item) for item in allowed], n=1, cutoff=0.0)
                option, names = "--" + name.replace("_", "-"), ", ".join(str(item) for item in allowed)
                raise UsageError(f"{option} cannot be {value!r}; did you mean {nearest[0]!r}? One of: {names}")

    def byte_options(self) -> dict[str, Any]:
        """The options that can change a byte of the output, as plain JSON values (no key material)."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("on_error", "max_rejects", "pii_key", "dedup_index"):
            del values[name]
        if self.split is None:
            values["split_by"] = None
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


CHOICES: dict[str, tuple[str, ...]] = {
    "pii": ("off", "count", "replace", "hash"),
    "dedup": ("none", "exact", "minhash"),
    "train_on": ("assistant", "last", "all"),
    "thinking": ("keep", "strip", "empty"),
    "turn_order": ("reject", "repair"),
    "too_long": ("drop", "truncate-left", "truncate-right", "split-turns", "error"),
    "sft_layout": ("spans", "pai"),
    "txt_document": ("file", "line", "blank-line"),
    "split_by": ("hash", "order"),
    "dtype": ("auto", "uint16", "int32"),
    "on_error": ("fail", "skip"),
}


def reject_limit(text: str, records: int) -> int:
    """How many rejects `--max-rejects` allows among `records`; a share rounds down."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text)
    if match is None or (not match[2] and "." in match[1]):
        raise UsageError(f"--max-rejects needs a count such as 100 or a share such as 0.5%, got {text!r}")
    return int(float(match[1]) * records / 100) if match[2] else int(match[1])
