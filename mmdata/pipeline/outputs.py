"""The shards of a run: one for each split, JSON key and roll, with their sidecars, filled in input order.

Everything grows in the work folder and takes its final names in `publish`, so an unfinished run shows nothing. Adding
costs what the shard writers cost, plus one gather of the tokens when there is a split. Memory is flat.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdata.encode import KeyTokens
from mmdata.indexed.manifest import Manifest, read_manifest
from mmdata.indexed.paths import idx_path
from mmdata.indexed.shardset import ShardSet
from mmdata.indexed.sidecars import ORIGIN_WIDTH, encode_origins
from mmdata.indexed.split import SPLIT_NAMES, parse_ratio, split_of
from mmdata.pipeline.work import Int64, Rows


@dataclass(slots=True, frozen=True)
class OutputPlan:
    """Where shards go. split: shares such as `969,30,1`, or None for one shard without a split name."""

    prefix: str
    work_dir: str
    keys: tuple[str, ...]
    dtype: np.dtype[Any]
    vocab_size: int
    split: str | None = None
    seed: int = 1234
    max_tokens: int | None = None
    sidecars: tuple[str, ...] = ("origin",)
    overwrite: bool = False

    def splits(self) -> tuple[str | None, ...]:
        """Names of the splits with a share above zero; (None,) without a split."""
        if self.split is None:
            return (None,)
        return tuple(name for name, share in zip(SPLIT_NAMES, parse_ratio(self.split), strict=False) if share > 0)

    def shard_prefix(self, split: str | None, roll: int, key: str) -> str:
        """The final prefix of one shard."""
        name = self.prefix if split is None else f"{self.prefix}_{split}"
        return f"{name}_{key}_document" if self.max_tokens is None else f"{name}_{roll:05d}_{key}_document"


@dataclass(slots=True, frozen=True)
class PublishedShard:
    """One shard at its final name."""

    prefix: str
    key: str
    split: str | None
    sequences: int
    documents: int
    tokens: int


@dataclass(slots=True)
class _Column:
    """The shards of one split: those finished and the one being filled, a ShardSet for each key."""

    split: str | None
    rolls: list[dict[str, ShardSet | None]] = field(default_factory=list)  # None: published by an earlier run
    states: list[dict[str, Any]] = field(default_factory=list)  # checkpoints of all rolls but the last
    filled: dict[str, int] = field(default_factory=dict)  # tokens in the last roll, by key


class Outputs:
    """All shards of a run. `add` rows, `checkpoint` now and then, `publish` once."""

    def __init__(self, plan: OutputPlan, state: dict[str, Any] | None = None, *, publishing: bool = False) -> None:
        """state: from `checkpoint`, to go on where a killed run stopped. publishing: it was taken before `publish`,
        so some shards may be at their names already. Raises OutputError and its kin.
        """
        self._plan = plan
        self._publishing = publishing
        self._columns = {split: _Column(split) for split in plan.splits()}
        try:
            for name, column in self._columns.items():
                rolls = [None] if state is None else state["columns"][name or ""]
                for number, roll_state in enumerate(rolls):
                    self._open(column, roll_state)
                    if number < len(rolls) - 1:
                        self._seal(column)
        except BaseException:
            self.suspend()
            raise

    def add(self, rows: Rows) -> None:
        """Append encoded documents, each to its split and roll."""
        for split, part in self._by_split(rows):
            column = self._columns[split]
            for piece in self._by_size(column, part):
                self._append(column, piece)

    def checkpoint(self) -> dict[str, Any]:
        """Make everything durable; the JSON state to resume from."""
        columns = {}
        for name, column in self._columns.items():
            columns[name or ""] = [*column.states, _checkpoints(column.rolls[-1])]
        return {"columns": columns}

    def publish(self, manifest_of: Callable[[str], Manifest], spans: bool) -> list[PublishedShard]:
        """Give all shards their names. manifest_of: the manifest for a JSON key. spans: keep the loss_spans sidecar.

        Idempotent: a shard that an interrupted run had published already, manifest and all, is left as it is.
        """
        published = []
        for column in self._columns.values():
            for roll, shard_sets in enumerate(column.rolls):
                for key, shard_set in shard_sets.items():
                    prefix = self._plan.shard_prefix(column.split, roll, key)
                    done = read_manifest(prefix) if shard_set is None else _publish(shard_set, manifest_of(key), spans)
                    assert done is not None
                    counts = done.sequences, done.documents, done.tokens
                    published.append(PublishedShard(prefix, key, column.split, *counts))
        return published

    def suspend(self) -> None:
        """Close all files; what the last checkpoint saw stays for a later run."""
        for column in self._columns.values():
            for shard_sets in column.rolls:
                for shard_set in shard_sets.values():
                    if shard_set is not None:
                        shard_set.abort()

    def _open(self, column: _Column, state: dict[str, Any] | None) -> None:
        plan = self._plan
        roll = len(column.rolls)
        options: dict[str, Any] = {
            "work_dir": plan.work_dir, "overwrite": plan.overwrite, "vocab_size": plan.vocab_size, "dtype": plan.dtype,
        }  # fmt: skip
        opened: dict[str, ShardSet | None] = {}
        for key in plan.keys:
            prefix = plan.shard_prefix(column.split, roll, key)
            if state is None:
                opened[key] = ShardSet(prefix, sidecars=plan.sidecars, **options)
            elif self._publishing and is_published(prefix, state[key]["main"]["bin_xxh3_128"]):
                opened[key] = None
            else:
                opened[key] = ShardSet.resume(prefix, state[key], **options)
        column.rolls.append(opened)
        column.filled = {key: 0 if one is None else one.main.tokens for key, one in opened.items()}

    def _seal(self, column: _Column) -> None:
        """Finish the last roll: its files are closed, its checkpoint kept for a resume."""
        last = column.rolls[-1]
        column.states.append(_checkpoints(last))
        for shard_set in last.values():
            if shard_set is not None:
                shard_set.seal()

    def _by_split(self, rows: Rows) -> Iterator[tuple[str | None, Rows]]:
        if self._plan.split is None:
            yield None, rows
            return
        places = split_of(self._plan.seed, rows.input_numbers, rows.lines, self._plan.split)
        for place, name in enumerate(SPLIT_NAMES):
            mask = places == place
            if mask.any():
                yield name, _pick(rows, mask)

    def _by_size(self, column: _Column, rows: Rows) -> Iterator[Rows]:
        limit = self._plan.max_tokens
        if limit is None:
            yield rows
            return
        ends = {key: np.cumsum(tokens.lengths) for key, tokens in rows.keys.items()}
        count, start = len(rows.lines), 0
        while start < count:
            stop = count
            for key, end in ends.items():
                before = int(end[start - 1]) if start else 0
                fits = int(np.searchsorted(end, before + limit - column.filled[key], side="right"))
                stop = min(stop, fits)
            if stop <= start:
                if any(column.filled.values()):
                    self._seal(column)
                    self._open(column, None)
                    continue
                stop = start + 1  # this document alone is longer than the limit
            mask = np.zeros(count, np.bool_)
            mask[start:stop] = True
            yield _pick(rows, mask)
            start = stop

    def _append(self, column: _Column, rows: Rows) -> None:
        origins = encode_origins(rows.input_numbers, rows.lines, rows.parts).ravel()
        widths = np.full(len(rows.lines), ORIGIN_WIDTH, np.int64)
        for key, shard_set in column.rolls[-1].items():
            assert shard_set is not None, "a published shard takes no more documents"
            tokens = rows.keys[key]
            shard_set.main.add_documents(tokens.tokens, tokens.lengths)
            shard_set.sidecars["origin"].add_documents(origins, widths)
            if "loss_spans" in shard_set.sidecars:
                assert rows.spans is not None
                flat, counts = rows.spans
                ones = np.ones(len(counts), np.int64)
                shard_set.sidecars["loss_spans"].add_documents(flat, counts, documents=ones)
            column.filled[key] += len(tokens.tokens)


def _checkpoints(shard_sets: dict[str, ShardSet | None]) -> dict[str, Any]:
    return {key: shard_set.checkpoint() for key, shard_set in shard_sets.items() if shard_set is not None}


def _publish(shard_set: ShardSet, manifest: Manifest, spans: bool) -> Manifest | None:
    if not spans and "loss_spans" in shard_set.sidecars:
        shard_set.sidecars.pop("loss_spans").abort()
    return shard_set.publish(manifest)


def is_published(prefix: str, bin_xxh3_128: str) -> bool:
    """Whether the shard at its final name is whole and has this token file."""
    if not os.path.exists(idx_path(prefix)):
        return False
    manifest = read_manifest(prefix)
    return manifest is not None and manifest.files["bin"].xxh3_128 == bin_xxh3_128


def _pick(rows: Rows, mask: npt.NDArray[np.bool_]) -> Rows:
    if mask.all():
        return rows
    keys = {
        key: KeyTokens(tokens.tokens[np.repeat(mask, tokens.lengths)], tokens.lengths[mask])
        for key, tokens in rows.keys.items()
    }
    spans = None
    if rows.spans is not None:
        flat, counts = rows.spans
        spans = flat[np.repeat(mask, counts)], counts[mask]
    return Rows(keys, _take(rows.input_numbers, mask), _take(rows.lines, mask), _take(rows.parts, mask), spans)


def _take(values: Int64, mask: npt.NDArray[np.bool_]) -> Int64:
    return values[mask]
