"""Merges shards into one: token files are copied in blocks, and only one part's index is looked at at a time.

Runs at about the speed of the disk with flat memory, for thousands of parts. uint16 parts are widened when an int32
part asks for it. Sidecars and manifests are merged with the tokens. Refuses parts of different tokenizers; parts that
have no manifest can only be merged among themselves, since nothing proves what made them. Conversations may join plain
text, and each other when one chat template rendered them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from mmdata.errors import (
    ChecksumError,
    DtypeMergeError,
    ManifestMismatchError,
    SidecarMissingError,
    TokenizerMismatchError,
    UsageError,
)
from mmdata.indexed.checks import blocks, check_index_arrays, origin_fault
from mmdata.indexed.combine import InputNumbers, combine_manifests
from mmdata.indexed.index import has_mode_bytes
from mmdata.indexed.manifest import Manifest
from mmdata.indexed.mapping import forget
from mmdata.indexed.paths import SIDECARS, bin_path, clean_prefix, idx_path, manifest_path, output_prefix
from mmdata.indexed.reader import IndexedDataset
from mmdata.indexed.shardset import ShardSet
from mmdata.indexed.sidecars import ORIGIN_WIDTH, UNKNOWN_INPUT, whole_spans
from mmdata.indexed.verify import manifest_faults
from mmdata.indexed.writer import ShardWriter


@dataclass(slots=True, frozen=True)
class MergeResult:
    """What was written: counts and the manifest (None when no part had one)."""

    prefix: str
    parts: int
    dtype: str
    sequences: int
    documents: int
    tokens: int
    manifest: Manifest | None


@dataclass(slots=True, frozen=True)
class _Part:
    """The little that is kept of each part between the two passes."""

    prefix: str
    dtype: np.dtype[Any]
    manifest: Manifest | None
    sidecars: tuple[str, ...]

    def open(self, multimodal: bool) -> IndexedDataset:
        return IndexedDataset(self.prefix, multimodal=multimodal)


def merge_shards(
    prefixes: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    multimodal: bool = False,
) -> MergeResult:
    """Write the sequences of all parts, in the order given, as one shard at `output`.

    multimodal: the parts have mode bytes; found out from the first part when not said.
    Raises UsageError, TokenizerMismatchError, ManifestMismatchError (layouts or chat templates differ),
    DtypeMergeError, ChecksumError (a part's bytes are not its manifest's),
    the errors of opening a shard, OutputExistsError, DiskFullError; then nothing is left at `output`.
    """
    if isinstance(prefixes, (str, os.PathLike)):
        raise UsageError(f"{os.fspath(prefixes)}: one prefix is not a list of parts; give [{os.fspath(prefixes)!r}]")
    names, target = [clean_prefix(prefix) for prefix in prefixes], output_prefix(output)
    if not names:
        raise UsageError("there is nothing to merge: give at least one prefix")
    if os.path.abspath(target) in {os.path.abspath(name) for name in names}:
        raise UsageError(f"{target}: the output is one of the parts; choose another name")
    multimodal = multimodal or has_mode_bytes(idx_path(names[0]))
    parts = [_survey(name, multimodal) for name in names]
    _check_tokenizers(parts)
    dtype = common_dtype([part.dtype for part in parts], names)
    sidecars = [name for name in SIDECARS if any(name in part.sidecars for part in parts)]
    numbers = InputNumbers()
    with ShardSet(target, sidecars=sidecars, overwrite=overwrite, dtype=dtype, multimodal=multimodal) as merged:
        for part in parts:
            source = part.open(multimodal)
            _copy_tokens(source, part, merged.main)
            if "origin" in merged.sidecars:
                _copy_origins(source, part, numbers, merged.sidecars["origin"])
            if "loss_spans" in merged.sidecars:
                _copy_spans(source, part, merged.sidecars["loss_spans"])
        manifests = [part.manifest for part in parts if part.manifest is not None]
        manifest = merged.publish(combine_manifests(manifests, InputNumbers()) if manifests else None)
        main = merged.main
        return MergeResult(target, len(parts), dtype.name, main.sequences, main.documents, main.tokens, manifest)


def _survey(name: str, multimodal: bool) -> _Part:
    dataset = IndexedDataset(name, multimodal=multimodal)
    manifest = dataset.manifest
    if manifest is not None:
        for fault in manifest_faults(dataset.index, dataset.token_count * dataset.dtype.itemsize, manifest):
            raise fault
    there = tuple(side for side in SIDECARS if dataset.sidecar(side) is not None)
    if manifest is not None and manifest.loss == "spans" and "loss_spans" not in there:
        raise SidecarMissingError("the manifest says `loss: spans`, but the sidecar is missing", path=bin_path(name))
    if manifest is None and "origin" in there:
        raise SidecarMissingError(
            "there is an origin sidecar but no manifest that lists its inputs",
            path=manifest_path(name),
            remedy="restore the manifest, or remove the sidecar",
        )
    return _Part(name, dataset.dtype, manifest, there)


def _check_tokenizers(parts: list[_Part]) -> None:
    without = [part.prefix for part in parts if part.manifest is None]
    if without and len(without) < len(parts):
        raise TokenizerMismatchError(
            f"has no manifest, so nothing proves that its tokenizer is the others' ({len(without):,} such parts)",
            path=without[0],
            remedy="give it one: `mmdata adopt PREFIX --tokenizer T`",
        )
    first = parts[0].manifest
    for part in parts:
        manifest = part.manifest
        if manifest is None or first is None:
            continue
        for key in ("tokenizer_fingerprint", "vocab_size", "eod_id"):
            ours, theirs = getattr(first, key), getattr(manifest, key)
            if ours != theirs:
                raise TokenizerMismatchError(
                    f"its {key} is {theirs}, but that of {parts[0].prefix} is {ours}",
                    path=part.prefix,
                    remedy="tokenize all parts with one tokenizer and one EOD",
                )
        if manifest.layout != first.layout:
            raise ManifestMismatchError(
                f"its layout is {manifest.layout}, but that of {parts[0].prefix} is {first.layout}", path=part.prefix
            )
    _check_templates(parts)


def _check_templates(parts: list[_Part]) -> None:
    """One shard speaks one chat format, or a model that learnt from it could not be asked in either for certain."""
    rendered: dict[str, tuple[str, Manifest]] = {}
    for part in parts:
        manifest = part.manifest
        if manifest is not None and manifest.chat_template is not None:
            rendered.setdefault(manifest.chat_template, (part.prefix, manifest))
    if len(rendered) > 1:
        (first, known), (second, other) = list(rendered.values())[:2]
        names = [_template_name(manifest) for manifest in (known, other)]
        raise ManifestMismatchError(
            f"its conversations were rendered by another chat template ({names[1]}) than those of {first} ({names[0]})",
            path=second,
            remedy="convert both with one template, or keep them apart and name both under data.train",
        )


def _template_name(manifest: Manifest) -> str:
    """How it was asked for, its hash and how it begins: `auto` alone may be any."""
    text = manifest.chat_template or ""
    asked = manifest.options.get("chat_template")
    words = [] if asked is None else [f"--chat-template {asked}"]
    digest = xxhash.xxh3_64_hexdigest(text.encode())[:8]
    return ", ".join([*words, f"xxh3 {digest}", repr(" ".join(text.split())[:40])])


def common_dtype(dtypes: list[np.dtype[Any]], names: list[str]) -> np.dtype[Any]:
    """The dtype that holds every part without loss: the common one, else the smallest integer dtype that does.

    Raises DtypeMergeError when floats and integers meet, or two float dtypes.
    """
    distinct = sorted(set(dtypes), key=lambda dtype: dtype.name)
    if len(distinct) == 1:
        return distinct[0]
    if any(dtype.kind == "f" for dtype in distinct):
        other = next(i for i, dtype in enumerate(dtypes) if dtype != dtypes[0])
        raise DtypeMergeError(f"holds {dtypes[other].name}, but {names[0]} holds {dtypes[0].name}", path=names[other])
    return np.dtype(np.result_type(*distinct)).newbyteorder("<")


def _copy_tokens(source: IndexedDataset, part: _Part, writer: ShardWriter) -> None:
    """Copy tokens and index, and prove on the way that the bytes are those the part's manifest names."""
    check_index_arrays(source.index)
    wanted = part.manifest.files.get("bin") if part.manifest is not None else None
    state: Any = xxhash.xxh3_128()
    writer.add_shard(source, observe=None if wanted is None else state.update)
    if wanted is not None and state.hexdigest() != wanted.xxh3_128:
        raise ChecksumError(
            f"its hash is {state.hexdigest()}, the manifest says {wanted.xxh3_128}",
            path=bin_path(part.prefix),
            remedy="the part is damaged: copy it again, or tokenize again",
        )


def _copy_origins(source: IndexedDataset, part: _Part, numbers: InputNumbers, writer: ShardWriter) -> None:
    assert part.manifest is not None, "parts with origins have manifests"
    new_numbers = numbers.of_part(part.manifest.inputs)
    sidecar = source.sidecar("origin")
    if sidecar is not None:
        check_index_arrays(sidecar.index)
        fault = origin_fault(sidecar.index, sidecar.tokens, len(new_numbers), bin_path(sidecar.prefix))
        if fault is not None:
            raise fault
    for first, last in blocks(source.document_count):
        if sidecar is None:
            rows = np.zeros((last - first, ORIGIN_WIDTH), np.int32)
            rows[:, 0] = UNKNOWN_INPUT
        else:
            rows = sidecar.tokens[ORIGIN_WIDTH * first : ORIGIN_WIDTH * last].reshape(-1, ORIGIN_WIDTH).copy()
            known = rows[:, 0] >= 0
            rows[known, 0] = new_numbers[rows[known, 0]]
            forget(sidecar.tokens[ORIGIN_WIDTH * first : ORIGIN_WIDTH * last])
        add_rows(writer, rows)


def add_rows(writer: ShardWriter, rows: NDArray[np.int32]) -> None:
    """Add origin rows, int32[n, 4], as one document each."""
    writer.add_documents(rows.ravel(), np.full(len(rows), ORIGIN_WIDTH, np.int64))


def _copy_spans(source: IndexedDataset, part: _Part, writer: ShardWriter) -> None:
    sidecar = source.sidecar("loss_spans")
    plain = part.manifest is not None and part.manifest.loss == "all"
    if sidecar is not None and not plain:
        check_index_arrays(sidecar.index)
        writer.add_shard(sidecar)
        return
    documents, lengths = source.document_indices, source.sequence_lengths
    for first, last in blocks(source.document_count):
        flat, counts = whole_spans(lengths[int(documents[first]) : int(documents[last])])
        writer.add_documents(flat, counts, np.diff(documents[first : last + 1]))
        source.index.forget()
