"""Verifies shards: index, sizes, manifest, hashes and sidecars; with `deep` also every token and EOD.

Reads each file once, in blocks, at about the speed of the disk. Everything found is listed, not only the first.
A shard without a manifest cannot prove its tokenizer, EOD or bytes: the result notes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import (
    ChecksumError,
    ManifestError,
    ManifestMismatchError,
    ShardError,
    SidecarMismatchError,
    SidecarMissingError,
    TokenizerMismatchError,
    UsageError,
)
from mmdata.indexed import checks
from mmdata.indexed.durable import FileDigest, digest_file
from mmdata.indexed.index import ShardIndex, check_bin_size, read_index_arrays
from mmdata.indexed.manifest import Manifest, read_manifest
from mmdata.indexed.mapping import map_file, reading_faults
from mmdata.indexed.paths import SIDECARS, bin_path, clean_prefix, idx_path, manifest_path, sidecar_prefix
from mmdata.indexed.reader import IndexedDataset
from mmdata.indexed.remote import is_remote


@dataclass(slots=True, frozen=True)
class Finding:
    """One fault. error: the class name. path, where: the file and the place in it. remedy: what to do."""

    error: str
    path: str | None
    where: str | None
    message: str
    remedy: str | None

    @classmethod
    def of(cls, error: ShardError) -> Finding:
        """The finding that an error describes."""
        return cls(type(error).__name__, error.path, error.where, str(error), error.remedy)


@dataclass(slots=True)
class VerifyResult:
    """What verification found. ok: no finding. notes: what could not be judged, and why. Counts are of the index."""

    prefix: str
    deep: bool
    findings: list[Finding] = field(default_factory=list)
    errors: list[ShardError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sequences: int = 0
    documents: int = 0
    tokens: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def add(self, *errors: ShardError | None) -> None:
        """Record the errors that are not None."""
        for error in errors:
            if error is not None:
                self.errors.append(error)
                self.findings.append(Finding.of(error))


@dataclass(slots=True, frozen=True)
class _Opened:
    index: ShardIndex
    tokens: NDArray[Any]
    path: str


def verify_shard(
    prefix: str | os.PathLike[str],
    deep: bool = False,
    *,
    vocab_size: int | None = None,
    eod_id: int | None = None,
    multimodal: bool = False,
) -> VerifyResult:
    """Check a local shard and all that belongs to it; faults are listed, not raised.

    deep: also every token against the vocabulary, EOD at the end of each document and nowhere else, empty sequences.
    vocab_size, eod_id, multimodal: for a shard without a manifest. Raises UsageError for a remote address.
    """
    name = clean_prefix(prefix)
    if is_remote(name):
        raise UsageError(f"{name}: only local shards can be verified; copy it here first")
    result = VerifyResult(name, deep)
    manifest = None
    try:
        manifest = read_manifest(name)
        if manifest is None:
            result.notes.append("no manifest: tokenizer, hashes and EOD are not checked (`mmdata adopt` writes one)")
    except ManifestError as error:
        result.add(error)
    verify_against(manifest, result, vocab_size=vocab_size, eod_id=eod_id, multimodal=multimodal)
    return result


def verify_against(
    manifest: Manifest | None, result: VerifyResult, *, vocab_size: int | None, eod_id: int | None, multimodal: bool
) -> None:
    """Check the shard `result.prefix` against `manifest`, or against the other facts where that is None."""
    name = result.prefix
    opened = _open(name, manifest.multimodal if manifest else multimodal, result)
    if opened is None:
        return
    index = opened.index
    result.sequences, result.documents = index.header.sequences, index.header.entries - 1
    result.tokens = opened.tokens.size
    if manifest is not None:
        vocab_size, eod_id = manifest.vocab_size, manifest.eod_id if manifest.eod_appended else None
        result.add(*manifest_faults(index, opened.tokens.nbytes, manifest))
        result.add(_digest_fault(manifest, "idx", index.digest(), index.path))
    _verify_tokens(opened, manifest, (vocab_size, eod_id), result)
    _verify_sidecars(name, index, manifest, result)


def _open(prefix: str, multimodal: bool, result: VerifyResult) -> _Opened | None:
    """Both files with everything about sizes and index arrays checked; None when there was a fault."""
    before = len(result.errors)
    try:
        index = read_index_arrays(idx_path(prefix), multimodal)
        path = bin_path(prefix)
        with reading_faults(path, "copy it beside the index"):
            raw = map_file(path)
    except ShardError as error:
        result.add(error)
        return None
    result.add(*checks.index_faults(index))
    try:
        check_bin_size(index, raw.size, path)
    except ShardError as error:
        result.add(error)
    if len(result.errors) > before:
        return None
    return _Opened(index, raw.view(index.header.dtype), path)


def manifest_faults(index: ShardIndex, bin_bytes: int, manifest: Manifest) -> Iterator[ShardError]:
    """Where the manifest and the shard disagree without reading tokens. Costs nothing."""
    found = {
        "dtype": index.header.dtype.name,
        "multimodal": index.header.multimodal,
        "sequences": index.header.sequences,
        "documents": index.header.entries - 1,
        "tokens": bin_bytes // index.header.dtype.itemsize,
    }
    sizes = {"bin": bin_bytes, "idx": index.raw.size}
    for key, value in found.items():
        if getattr(manifest, key) != value:
            yield _mismatch(index, f"has {value} {key}, the manifest says {getattr(manifest, key)}")
    for key, size in sizes.items():
        digest = manifest.files.get(key)
        if digest is None:
            yield _mismatch(index, f"the manifest lists no `{key}` file")
        elif digest.size != size:
            yield _mismatch(index, f"`.{key}` has {size:,} bytes, the manifest says {digest.size:,}")


def _mismatch(index: ShardIndex, what: str) -> ManifestMismatchError:
    return ManifestMismatchError(
        what, path=index.path, remedy="shard and manifest are of different runs: copy the files of one run together"
    )


def _digest_fault(manifest: Manifest, name: str, found: FileDigest, path: str) -> ShardError | None:
    wanted = manifest.files.get(name)
    if wanted is None or wanted.xxh3_128 == found.xxh3_128:
        return None
    return ChecksumError(
        f"its hash is {found.xxh3_128}, the manifest says {wanted.xxh3_128}",
        path=path,
        remedy="the file is damaged or of another run: copy it again, or tokenize again",
    )


def _listed_fault(manifest: Manifest, name: str, found: FileDigest, path: str) -> ShardError | None:
    """As `_digest_fault` for a file whose size nothing else compares: it must be listed, with its size."""
    wanted = manifest.files.get(name)
    if wanted is not None and wanted.xxh3_128 != found.xxh3_128:
        return _digest_fault(manifest, name, found, path)
    if wanted is not None and wanted.size == found.size:
        return None
    said = f"lists no `{name}` file" if wanted is None else f"says {wanted.size:,}"
    return ManifestMismatchError(
        f"has {found.size:,} bytes, the manifest {said}",
        path=path,
        remedy="shard and manifest are of different runs: copy the files of one run together",
    )


def token_bounds(vocab_size: int | None, layout: str) -> tuple[int, int] | None:
    """Half-open range of the numbers a shard may hold, None when the vocabulary is unknown.

    The `pai` layout stores labels of -100 and marks the end of a packed sample with -1 - token.
    """
    if vocab_size is None:
        return None
    return (min(-vocab_size, -100), vocab_size) if layout == "pai" else (0, vocab_size)


def _verify_tokens(
    opened: _Opened, manifest: Manifest | None, facts: tuple[int | None, int | None], result: VerifyResult
) -> None:
    """One pass over `.bin`: its hash, and if deep its tokens and EODs."""
    vocab_size, eod_id = facts
    index, tokens, path = opened.index, opened.tokens, opened.path
    if not result.deep and manifest is None:
        return
    layout = manifest.layout if manifest else "plain"
    floats = index.header.dtype.kind == "f"
    bounds = token_bounds(vocab_size, layout) if result.deep and not floats else None
    eod_id = eod_id if result.deep and layout == "plain" and not floats else None
    found = checks.read_tokens(tokens, bounds, eod_id, hashed=manifest is not None)
    if manifest is not None:
        result.add(_digest_fault(manifest, "bin", FileDigest(tokens.nbytes, found.xxh3_128), path))
    if not result.deep:
        return
    if bounds is None:
        result.notes.append("the vocabulary is unknown: tokens are not checked against it")
    else:
        result.add(checks.token_fault(index, tokens, found, bounds[1], path))
    if eod_id is not None:
        # Templates may use the EOD between turns, and --allow-special lets text hold it: then only ends are judged.
        inside_allowed = manifest is not None and (manifest.loss == "spans" or manifest.options.get("allow_special"))
        result.add(checks.eod_fault(index, tokens, eod_id, None if inside_allowed else found.eods, path))
    result.add(checks.empty_sequence_fault(index))


def _verify_sidecars(prefix: str, index: ShardIndex, manifest: Manifest | None, result: VerifyResult) -> None:
    for name in SIDECARS:
        side = sidecar_prefix(prefix, name)
        there = os.path.exists(bin_path(side)) or os.path.exists(idx_path(side))
        listed = manifest is not None and (f"{name}.bin" in manifest.files or f"{name}.idx" in manifest.files)
        needed = listed or (name == "loss_spans" and manifest is not None and manifest.loss == "spans")
        if needed and not there:
            result.add(
                SidecarMissingError(
                    "the manifest lists this sidecar, but it is missing",
                    path=bin_path(side),
                    remedy="copy it beside the shard, or convert again",
                )
            )
        elif there and manifest is not None and not needed:
            result.add(
                SidecarMismatchError(
                    "the manifest does not list this sidecar",
                    path=bin_path(side),
                    remedy="it is of another run: remove it, or restore the manifest that belongs to it",
                )
            )
        elif there:
            _verify_sidecar(name, side, index, manifest, result)


def _verify_sidecar(name: str, side: str, index: ShardIndex, manifest: Manifest | None, result: VerifyResult) -> None:
    opened = _open(side, False, result)
    if opened is None:
        return
    sidecar = opened.index
    documents = index.header.entries - 1
    wanted = (documents, index.header.sequences if name == "loss_spans" else documents)
    found = (sidecar.header.entries - 1, sidecar.header.sequences)
    if found != wanted or sidecar.header.dtype != np.dtype("<i4"):
        result.add(
            SidecarMismatchError(
                f"{found[0]:,} documents, {found[1]:,} sequences of {sidecar.header.dtype.name}; the shard needs "
                f"{wanted[0]:,} and {wanted[1]:,} of int32",
                path=sidecar.path,
                remedy="the files are of different runs: copy shard and sidecars together",
            )
        )
        return
    if manifest is not None:
        result.add(_listed_fault(manifest, f"{name}.idx", sidecar.digest(), sidecar.path))
        result.add(_listed_fault(manifest, f"{name}.bin", digest_file(opened.path), opened.path))
    if name == "loss_spans":
        result.add(checks.spans_fault(index, sidecar, opened.tokens, opened.path))
    else:
        inputs = None if manifest is None else len(manifest.inputs)
        result.add(checks.origin_fault(sidecar, opened.tokens, inputs, opened.path))


def check_before_training(dataset: IndexedDataset, tokenizer_fingerprint: str | None) -> bool:
    """What a training run proves once before its first step; False where there is no manifest to prove it with.

    Compares dtype, counts, sizes and the hash of `.idx` with the manifest, the tokenizer with the fingerprint given
    (None skips that), and sees that sidecars the manifest lists are there and fit. Reads `.idx` once.
    Raises ManifestError, ManifestMismatchError, ChecksumError, TokenizerMismatchError, SidecarMissingError,
    SidecarMismatchError.
    """
    manifest = dataset.manifest
    if manifest is None:
        return False
    for fault in manifest_faults(dataset.index, dataset.token_count * dataset.dtype.itemsize, manifest):
        raise fault
    wrong = _digest_fault(manifest, "idx", dataset.index_digest(), idx_path(dataset.prefix))
    if wrong is not None:
        raise wrong
    check_tokenizer(manifest, tokenizer_fingerprint, dataset.prefix)
    for name in SIDECARS:
        if f"{name}.bin" in manifest.files and dataset.sidecar(name) is None:
            raise SidecarMissingError(
                "the manifest lists this sidecar, but it is missing",
                path=bin_path(sidecar_prefix(dataset.prefix, name)),
                remedy="copy it beside the shard, or convert again",
            )
    return True


def check_tokenizer(manifest: Manifest, fingerprint: str | None, prefix: str) -> None:
    """Raise TokenizerMismatchError when both fingerprints are known and differ."""
    if fingerprint is None or manifest.tokenizer_fingerprint in (None, fingerprint):
        return
    raise TokenizerMismatchError(
        f"the shard was made with a {manifest.tokenizer_kind} tokenizer of fingerprint "
        f"{manifest.tokenizer_fingerprint}, the one in use has {fingerprint}",
        path=manifest_path(prefix),
        remedy="use the shard's tokenizer, or tokenize again with this one",
    )
