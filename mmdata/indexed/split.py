"""Cuts a shard into train, valid and test, or into shards of a given size; documents stay whole.

By hash, a document's place depends only on the seed, its input and its line, so appending data moves nothing. By order
the ranges are Megatron's. Costs one copy of the tokens, memory is flat; sidecars and manifest are cut alike.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import UsageError
from mmdata.indexed.checks import blocks, document_ends
from mmdata.indexed.cutter import ShardCutter, SplitPart
from mmdata.indexed.index import ShardIndex, has_mode_bytes
from mmdata.indexed.manifest import read_manifest
from mmdata.indexed.paths import clean_prefix, idx_path, key_suffix, output_prefix
from mmdata.indexed.reader import IndexedDataset
from mmdata.indexed.sidecars import decode_origins

SPLIT_NAMES: Final = ("train", "valid", "test")
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_MASK: Final = (1 << 64) - 1
# Increment and multipliers of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


def parse_ratio(ratio: str | Sequence[float]) -> tuple[Fraction, ...]:
    """Shares of train, valid and test from `969,30,1`, `0.9/0.1` or numbers; they need not add up to anything.

    Raises UsageError unless there are one to three numbers, none negative, not all zero.
    """
    if isinstance(ratio, str):
        fields = [field for field in re.split(r"[,/:\s]+", ratio.strip()) if field]
        if not all(_NUMBER.fullmatch(field) for field in fields):
            raise UsageError(f"split {ratio!r} is not made of numbers; give shares such as 969,30,1")
        shares = tuple(Fraction(field) for field in fields)
    else:
        if not all(math.isfinite(share) for share in ratio):
            raise UsageError(f"split {list(ratio)} holds a number that is not finite; give shares such as 969,30,1")
        shares = tuple(Fraction(str(share)) for share in ratio)
    if not 1 <= len(shares) <= len(SPLIT_NAMES):
        raise UsageError(f"split {ratio!r} has {len(shares)} shares; give train,valid,test, such as 969,30,1")
    if any(share < 0 for share in shares) or not any(shares):
        raise UsageError(f"split {ratio!r} needs shares of at least 0, one of them above 0")
    return shares


def split_of(seed: int, input_numbers: Any, lines: Any, ratio: str | Sequence[float]) -> NDArray[np.uint8]:
    """The split of each document: uint8[n], 0 train, 1 valid, 2 test.

    input_numbers, lines: integers[n], where the documents came from; all parts of one record go together. The value
    depends on nothing else, on any machine. Raises UsageError for a bad ratio.
    """
    shares = parse_ratio(ratio)
    start = np.uint64(_scramble((seed + _GOLDEN) & _MASK))
    hashes = _mix(np.asarray(input_numbers, np.int64).view(np.uint64) + start)
    hashes = _mix(np.asarray(lines, np.int64).view(np.uint64) ^ hashes)
    total = sum(shares)
    splits = np.zeros(hashes.shape, np.uint8)
    for bound in list(accumulate(shares))[:-1]:
        threshold = int(bound * (1 << 64) / total)
        if threshold <= _MASK:
            splits += hashes >= np.uint64(threshold)
    return splits


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finalizer, wrapping at 64 bits."""
    mixed = values + np.uint64(_GOLDEN)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))


def _scramble(value: int) -> int:
    return int(_mix(np.array([value], np.uint64))[0])


def order_bounds(count: int, ratio: str | Sequence[float]) -> list[int]:
    """Ends of the contiguous ranges of `count` documents, as Megatron rounds them (in float64, half to even)."""
    shares = [float(share) for share in parse_ratio(ratio)]
    total = sum(shares)
    return [round(bound * float(count)) for bound in accumulate(share / total for share in shares)]


def size_bounds(index_ends: Iterator[NDArray[np.int64]], max_tokens: int) -> list[int]:
    """Ends of runs of documents of at most `max_tokens` tokens each; a longer document stands alone.

    index_ends: the end of each document in tokens, in blocks.
    """
    bounds: list[int] = []
    start_tokens = previous = documents = 0
    for ends in index_ends:
        position = 0
        while position < ends.size:
            fits = int(np.searchsorted(ends[position:], start_tokens + max_tokens, side="right"))
            position += fits
            if fits:
                previous = int(ends[position - 1])
            if position == ends.size:
                break
            if previous == start_tokens:
                # This document alone is longer than the limit.
                previous = int(ends[position])
                position += 1
            bounds.append(documents + position)
            start_tokens = previous
        documents += int(ends.size)
    if documents and (not bounds or bounds[-1] != documents):
        bounds.append(documents)
    return bounds


def split_shard(
    prefix: str | os.PathLike[str],
    output: str | os.PathLike[str],
    ratio: str | Sequence[float] | None = None,
    *,
    max_tokens: int | None = None,
    by: Literal["hash", "order"] = "hash",
    seed: int = 1234,
    overwrite: bool = False,
) -> list[SplitPart]:
    """Write parts of the shard under `output`, and return what was written.

    ratio: shares of train, valid and test, named `OUTPUT_train_KEY_document` and so on; a share of 0 has no shard. by:
    `hash` needs the origin sidecar, `order` takes contiguous ranges. max_tokens instead of ratio: consecutive shards
    `OUTPUT_00000_KEY_document` of at most so many tokens (a longer document stands alone).
    Raises UsageError, SidecarMissingError, the errors of opening, OutputExistsError, DiskFullError; then none is left.
    """
    source_name, target = clean_prefix(prefix), output_prefix(output)
    if (ratio is None) == (max_tokens is None):
        raise UsageError("give either ratio (such as 969,30,1) or max_tokens")
    if by not in ("hash", "order"):
        raise UsageError(f"by is {by!r}; known are hash, order")
    if max_tokens is not None and max_tokens < 1:
        raise UsageError(f"max_tokens is {max_tokens}; it must be at least 1")
    manifest = read_manifest(source_name)
    multimodal = manifest.multimodal if manifest is not None else has_mode_bytes(idx_path(source_name))
    source = IndexedDataset(source_name, multimodal=multimodal)
    cutter = ShardCutter(source, overwrite)
    suffix = key_suffix(source_name, manifest.key if manifest else None)
    if max_tokens is not None:
        return _split_by_size(cutter, f"{target}_", suffix, max_tokens)
    assert ratio is not None
    names = [f"{target}_{name}{suffix}" for name in SPLIT_NAMES]
    _refuse_source(source_name, names)
    shares = parse_ratio(ratio)
    kept = [number for number, share in enumerate(shares) if share]
    stale = [name for number, name in enumerate(names) if number not in kept]
    how: dict[str, Any] = {"by": by, "ratio": [str(share) for share in shares]}
    if by == "hash":
        how["seed"] = seed

        def place(rows: NDArray[np.int32]) -> NDArray[np.uint8]:
            input_numbers, lines, _ = decode_origins(rows)
            return split_of(seed, input_numbers, lines, ratio)

        return cutter.scatter({number: names[number] for number in kept}, place, how, stale)
    ends = order_bounds(source.document_count, ratio)
    starts = [0, *ends[:-1]]
    return cutter.cut([(names[number], (starts[number], ends[number])) for number in kept], how, stale)


def _refuse_source(source: str, names: Sequence[str]) -> None:
    """Raise UsageError where a part, or an earlier part that would be removed, is the shard being cut."""
    for name in names:
        if os.path.realpath(name) == os.path.realpath(source):
            raise UsageError(f"{name}: the shard to be cut would be replaced by a part of itself; choose another name")


def _token_ends(index: ShardIndex) -> Iterator[NDArray[np.int64]]:
    for first, last in blocks(index.header.entries - 1):
        yield document_ends(index, first, last)[1]
        index.forget()


def _split_by_size(cutter: ShardCutter, head: str, tail: str, max_tokens: int) -> list[SplitPart]:
    source = cutter.source
    ends = size_bounds(_token_ends(source.index), max_tokens)
    runs = zip([0, *ends[:-1]], ends, strict=True)
    numbered = [(f"{head}{number:05d}{tail}", run) for number, run in enumerate(runs)]
    stale: list[str] = []
    while IndexedDataset.exists(name := f"{head}{len(numbered) + len(stale):05d}{tail}"):
        stale.append(name)
    _refuse_source(source.prefix, [*(name for name, _ in numbered), *stale])
    return cutter.cut(numbered, {"max_tokens": max_tokens}, stale)
