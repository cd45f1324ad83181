"""Writes the manifest of a shard made elsewhere, after verifying the shard deeply against the tokenizer.

Reads the whole shard once. What it cannot know (inputs, recipe, counts of stages) stays empty.
"""

from __future__ import annotations

import os
from typing import Protocol

from mmdata.errors import OutputExistsError, ShardError
from mmdata.indexed import checks
from mmdata.indexed.durable import FileDigest, digest_file
from mmdata.indexed.manifest import Manifest, write_manifest
from mmdata.indexed.mapping import forget
from mmdata.indexed.paths import SIDECARS, bin_path, clean_prefix, idx_path, key_suffix, manifest_path, sidecar_prefix
from mmdata.indexed.reader import IndexedDataset
from mmdata.indexed.verify import VerifyResult, verify_against


class TokenizerFacts(Protocol):
    """What adopting needs of a tokenizer: every tokenizer of this package has it."""

    @property
    def vocab_size(self) -> int:
        """Token ids, added tokens counted."""

    @property
    def fingerprint(self) -> str:
        """Hash of what decides the ids."""

    @property
    def kind(self) -> str:
        """Kind of tokenizer."""

    @property
    def eod_id(self) -> int | None:
        """End-of-document token, None where there is none."""


def adopt_shard(
    prefix: str | os.PathLike[str], tokenizer: TokenizerFacts, *, multimodal: bool = False, overwrite: bool = False
) -> Manifest:
    """Verify the shard against `tokenizer` and write its manifest, which is returned.

    Every token must be inside the vocabulary, and no sequence empty. `eod_appended` becomes true when every document
    ends with the tokenizer's EOD and none has one inside, false when no document ends with it, else null.
    Raises OutputExistsError when there is a manifest and not `overwrite`, and the first error verification finds.
    """
    name = clean_prefix(prefix)
    path = manifest_path(name)
    if os.path.exists(path) and not overwrite:
        raise OutputExistsError(f"{path}: the shard has a manifest already; remove it, or overwrite (--overwrite)")
    result = VerifyResult(name, deep=True)
    verify_against(None, result, vocab_size=tokenizer.vocab_size, eod_id=None, multimodal=multimodal)
    for error in result.errors:
        raise error
    dataset = IndexedDataset(name, multimodal=multimodal)
    sides = [side for side in SIDECARS if dataset.sidecar(side) is not None]
    if "origin" in sides:
        raise ShardError(
            "an origin sidecar names inputs that a new manifest would not list",
            path=bin_path(sidecar_prefix(name, "origin")),
            remedy="restore the manifest it belongs to, or remove the sidecar",
        )
    suffix = key_suffix(name)
    manifest = Manifest(
        tokenizer_kind=tokenizer.kind,
        tokenizer_fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        eod_id=tokenizer.eod_id,
        eod_appended=eod_was_appended(dataset, tokenizer.eod_id),
        dtype=dataset.dtype.name,
        multimodal=multimodal,
        sequences=len(dataset),
        documents=dataset.document_count,
        tokens=dataset.token_count,
        key=suffix[1:].rpartition("_")[0] or None,
        loss="spans" if "loss_spans" in sides else "all",
        files=_digests(name, dataset, sides),
    )
    write_manifest(name, manifest)
    return manifest


def _digests(name: str, dataset: IndexedDataset, sides: list[str]) -> dict[str, FileDigest]:
    files = {"bin": digest_file(bin_path(name)), "idx": dataset.index_digest()}
    for side in sides:
        prefix = sidecar_prefix(name, side)
        files |= {f"{side}.bin": digest_file(bin_path(prefix)), f"{side}.idx": digest_file(idx_path(prefix))}
    return files


def eod_was_appended(dataset: IndexedDataset, eod_id: int | None) -> bool | None:
    """Whether EOD ends every document and stands nowhere else (true), ends none (false), or neither (None)."""
    if eod_id is None or dataset.dtype.kind == "f":
        return False if eod_id is None else None
    filled = ended = 0
    tokens = dataset.tokens
    for first, last in checks.blocks(dataset.document_count):
        begins, ends = checks.document_ends(dataset.index, first, last)
        final = ends[ends > begins] - 1
        filled += int(final.size)
        ended += int((tokens[final] == eod_id).sum())
        forget(tokens[int(begins[0]) : int(ends[-1])])
    if ended == 0:
        return False
    inside = checks.read_tokens(tokens, None, eod_id, hashed=False).eods - ended
    return True if ended == filled and inside == 0 else None
