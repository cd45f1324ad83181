"""Repairs what can be repaired for certain: a lost index, wrong pointers, a lost manifest (docs/shard-format.md).

Nothing is guessed: an index made anew from EODs counts only when its hash is the manifest's. Reads the shard once or
twice; memory is flat. The index that is replaced is kept as `PREFIX.idx.broken`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import ChecksumError, RepairError, ShardError, ShardNotFoundError
from mmdata.indexed import checks
from mmdata.indexed.adopt import TokenizerFacts, adopt_shard
from mmdata.indexed.durable import FileDigest, digest_file, disk_faults, remove, sync_directory
from mmdata.indexed.index import ShardIndex, read_index_arrays
from mmdata.indexed.layout import Header, stored_dtype
from mmdata.indexed.manifest import Manifest, read_manifest
from mmdata.indexed.mapping import forget, map_file, reading_faults
from mmdata.indexed.paths import PARTIAL, bin_path, clean_prefix, idx_path, manifest_path
from mmdata.indexed.spool import IndexSpool
from mmdata.indexed.verify import verify_shard


@dataclass(slots=True, frozen=True)
class RepairResult:
    """What was done, one sentence each; empty when there was nothing to repair."""

    prefix: str
    actions: tuple[str, ...]


def repair_shard(
    prefix: str | os.PathLike[str], tokenizer_info: TokenizerFacts | None = None, *, multimodal: bool = False
) -> RepairResult:
    """Mend the shard's index and manifest as far as what is there proves it right.

    tokenizer_info: needed to restore a missing manifest; without it the index of such a shard is still mended.
    Raises RepairError that says what is missing; then nothing changed.
    """
    name = clean_prefix(prefix)
    manifest = read_manifest(name)
    multimodal = manifest.multimodal if manifest is not None else multimodal
    actions: list[str] = []
    raw = _bin_bytes(name)
    try:
        index = read_index_arrays(idx_path(name), multimodal)
    except ShardError as fault:
        _rebuild_from_eods(name, raw, manifest, fault)
        actions.append(f"{idx_path(name)}: rebuilt from the EODs in `.bin`; its hash is the manifest's")
    else:
        found = next(checks.index_faults(index), None)
        if found is None and index.bin_size() != raw.size:
            raise RepairError(
                f"{raw.size:,} bytes, but the index needs {index.bin_size():,}",
                path=bin_path(name),
                remedy="tokens are lost or foreign: copy the file again, or tokenize again",
            )
        if found is None and manifest is not None and index.digest() != manifest.files.get("idx"):
            found = ChecksumError("the index is not the manifest's", path=index.path)
        if found is not None:
            actions.append(_repair_index(name, index, raw, manifest, found))
    if manifest is None and (tokenizer_info is not None or not actions):
        actions.append(_restore_manifest(name, tokenizer_info, multimodal))
    left = verify_shard(name, multimodal=multimodal)
    if not left.ok:
        raise RepairError(
            f"after {len(actions)} repairs this is left: {left.findings[0].message}",
            path=name,
            remedy="no repair is known for it: convert the inputs again",
        )
    return RepairResult(name, tuple(actions))


def _bin_bytes(name: str) -> NDArray[np.uint8]:
    try:
        with reading_faults(bin_path(name)):
            return map_file(bin_path(name))
    except ShardNotFoundError as error:
        raise RepairError(
            "the tokens are gone", path=bin_path(name), remedy="restore this file, or convert the inputs again"
        ) from error


def _repair_index(
    name: str, index: ShardIndex, raw: NDArray[np.uint8], manifest: Manifest | None, fault: ShardError
) -> str:
    """Pointers from lengths where those are sound, else everything from EODs."""
    sound = checks.length_fault(index) is None and checks.document_fault(index) is None
    total = sum(int(index.lengths[a:b].sum(dtype=np.int64)) for a, b in checks.blocks(index.header.sequences))
    if sound and total * index.header.dtype.itemsize == raw.size:
        wanted = manifest.files.get("idx") if manifest is not None else None
        if _replace_index(name, partial(_fill_from_lengths, index), index.header, wanted):
            return f"{index.path}: pointers rebuilt from the lengths, which add up to `.bin`"
    _rebuild_from_eods(name, raw, manifest, fault)
    return f"{index.path}: rebuilt from the EODs in `.bin`; its hash is the manifest's"


def _rebuild_from_eods(name: str, raw: NDArray[np.uint8], manifest: Manifest | None, fault: ShardError) -> None:
    """Put an index of one sequence a document, each ending at an EOD, in place; raises RepairError."""
    path = idx_path(name)
    if manifest is None:
        raise _impossible(path, fault, "there is no manifest that knows the EOD and the hash of the index")
    if not manifest.eod_appended or manifest.eod_id is None:
        raise _impossible(path, fault, "the manifest does not say that an EOD ends every document")
    if manifest.multimodal:
        raise _impossible(path, fault, "mode bytes are kept in the index alone")
    wanted_bin, wanted_idx = manifest.files.get("bin"), manifest.files.get("idx")
    if wanted_bin is None or wanted_idx is None:
        raise _impossible(path, fault, "the manifest does not have the hashes of `.bin` and `.idx`")
    if digest_file(bin_path(name)) != wanted_bin:
        raise _impossible(path, fault, "`.bin` is not the one of the manifest either")
    dtype = stored_dtype(manifest.dtype)
    if raw.size % dtype.itemsize:
        raise _impossible(path, fault, f"`.bin` does not hold whole {dtype.name} tokens")
    tokens = raw.view(dtype)
    header = Header(tokens.dtype, 0, 1)
    if not _replace_index(name, partial(_fill_from_eods, tokens, manifest.eod_id), header, wanted_idx):
        raise _impossible(
            path,
            fault,
            "an index made from the EODs is not the manifest's (documents were empty or of several sequences)",
        )


def _impossible(path: str, fault: ShardError, why: str) -> RepairError:
    return RepairError(
        f"cannot be repaired ({type(fault).__name__}: {fault}): {why}",
        path=path,
        remedy="copy the file again, or convert the inputs again",
    )


def _replace_index(name: str, fill: Callable[[IndexSpool], None], header: Header, wanted: FileDigest | None) -> bool:
    """Write a new index of what `fill` adds; in place only if its hash is `wanted` (None: any)."""
    path = idx_path(name)
    spool = IndexSpool(name + ".repair", multimodal=header.multimodal)
    try:
        fill(spool)
        spool.seal()
        digest = spool.write_index(path + PARTIAL, header.dtype)
        if wanted is not None and digest != wanted:
            remove(path + PARTIAL)
            return False
        with disk_faults(path):
            if os.path.exists(path):
                os.replace(path, path + ".broken")
            os.replace(path + PARTIAL, path)
            sync_directory(path)
        return True
    finally:
        spool.discard()


def _fill_from_lengths(index: ShardIndex, spool: IndexSpool) -> None:
    for first, last in checks.blocks(index.header.sequences):
        spool.add_sequences(index.lengths[first:last], None if index.modes is None else index.modes[first:last])
    for first, last in checks.blocks(index.header.entries - 1):
        spool.add_ends(index.documents[first + 1 : last + 1])


def _fill_from_eods(tokens: NDArray[Any], eod_id: int, spool: IndexSpool) -> None:
    done = 0
    for first, last in checks.blocks(tokens.size, checks.BLOCK_TOKENS):
        ends = np.flatnonzero(tokens[first:last] == eod_id) + first + 1
        if ends.size:
            spool.add_sequences(np.diff(ends, prepend=done))
            spool.add_ends(np.arange(spool.documents + 1, spool.documents + ends.size + 1))
            done = int(ends[-1])
        forget(tokens[first:last])


def _restore_manifest(name: str, tokenizer_info: TokenizerFacts | None, multimodal: bool) -> str:
    path = manifest_path(name)
    if tokenizer_info is None:
        raise RepairError(
            "the manifest is missing, and no tokenizer was given to restore it with",
            path=path,
            remedy="give the tokenizer the shard was made with (--tokenizer)",
        )
    adopt_shard(name, tokenizer_info, multimodal=multimodal)
    return f"{path}: restored from the shard and the tokenizer"
