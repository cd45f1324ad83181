"""Copies chosen documents of one shard, with their sidecars, into new shards.

Runs of documents are copied as they are; scattered ones are gathered in blocks. Memory is flat, save that a single
document longer than a block is looked at as a whole. All parts appear, or none does.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import OutputExistsError, SidecarMissingError
from mmdata.indexed.checks import BLOCK_TOKENS, blocks, check_index_arrays, document_ends, origin_fault
from mmdata.indexed.durable import disk_faults, remove
from mmdata.indexed.manifest import Manifest
from mmdata.indexed.mapping import forget
from mmdata.indexed.paths import SIDECARS, bin_path, idx_path, shard_files, sidecar_prefix
from mmdata.indexed.reader import IndexedDataset
from mmdata.indexed.shardset import ShardSet
from mmdata.indexed.sidecars import ORIGIN_WIDTH, UNKNOWN_INPUT
from mmdata.indexed.writer import ShardWriter


@dataclass(slots=True, frozen=True)
class SplitPart:
    """One shard written: its prefix and counts."""

    prefix: str
    sequences: int
    documents: int
    tokens: int


class ShardCutter:
    """Cuts `source` into parts. Raises what a walk over its index finds."""

    def __init__(self, source: IndexedDataset, overwrite: bool) -> None:
        self.source = source
        self._overwrite = overwrite
        self._sides = {name: side for name in SIDECARS if (side := source.sidecar(name)) is not None}
        if source.manifest is not None and source.manifest.loss == "all":
            self._sides.pop("loss_spans", None)
        for dataset in (source, *self._sides.values()):
            check_index_arrays(dataset.index)
        if source.manifest is not None and source.manifest.loss == "spans" and "loss_spans" not in self._sides:
            raise SidecarMissingError(
                "the manifest says `loss: spans`, but this file is missing",
                path=bin_path(sidecar_prefix(source.prefix, "loss_spans")),
                remedy="copy the sidecar beside the shard",
            )

    def cut(
        self, runs: Sequence[tuple[str, tuple[int, int]]], how: dict[str, Any], stale: Sequence[str] = ()
    ) -> list[SplitPart]:
        """Write each half-open run of documents under its name.

        how: goes into the manifests' options. stale: names of parts of an earlier cut that are not written now; they
        are removed when overwriting, and otherwise refused.
        """
        self._refuse_stale(stale)
        with ExitStack() as stack:
            parts: list[ShardSet] = []
            stack.callback(lambda: _abort(parts))
            for name, run in runs:
                part = self._start(name)
                parts.append(part)
                part.main.add_shard(self.source, run)
                for side, writer in part.sidecars.items():
                    writer.add_shard(self._sides[side], run)
                part.seal()
            written = self._publish(parts, how)
            stack.pop_all()
        self._remove_shards(stale)
        return written

    def scatter(
        self,
        names: Mapping[int, str],
        place: Callable[[NDArray[np.int32]], NDArray[np.uint8]],
        how: dict[str, Any],
        stale: Sequence[str] = (),
    ) -> list[SplitPart]:
        """Write each document to the part whose number `place` gives for its origin row (int32[n, 4] at a time).

        Raises SidecarMissingError when origins are missing or unknown. how, stale: as in `cut`.
        """
        self._refuse_stale(stale)
        origins = self._known_origins()
        with ExitStack() as stack:
            parts: dict[int, ShardSet] = {}
            stack.callback(lambda: _abort(parts.values()))
            for number, name in names.items():
                parts[number] = self._start(name)
            for first, last in self._document_blocks():
                rows = origins[ORIGIN_WIDTH * first : ORIGIN_WIDTH * last].reshape(-1, ORIGIN_WIDTH)
                places = place(rows)
                for number, part in parts.items():
                    chosen = places == number
                    if chosen.any():
                        _gather(self.source, (first, last), chosen, part.main)
                        for side, writer in part.sidecars.items():
                            _gather(self._sides[side], (first, last), chosen, writer)
                forget(rows)
                self._forget()
            written = self._publish(list(parts.values()), how)
            stack.pop_all()
        self._remove_shards(stale)
        return written

    def _known_origins(self) -> NDArray[np.int32]:
        sidecar = self._sides.get("origin")
        path = bin_path(sidecar_prefix(self.source.prefix, "origin"))
        remedy = "split by order instead (--split-by order), or convert the inputs again"
        if sidecar is None:
            raise SidecarMissingError("splitting by hash needs the origin sidecar", path=path, remedy=remedy)
        fault = origin_fault(sidecar.index, sidecar.tokens, None, path)
        if fault is not None:
            raise fault
        unknown = 0
        for first, last in blocks(sidecar.document_count):
            rows = sidecar.tokens[ORIGIN_WIDTH * first : ORIGIN_WIDTH * last]
            unknown += int(np.count_nonzero(rows[::ORIGIN_WIDTH] == UNKNOWN_INPUT))
            forget(rows)
        if unknown:
            raise SidecarMissingError(f"the origin of {unknown:,} documents is unknown", path=path, remedy=remedy)
        return sidecar.tokens

    def _document_blocks(self) -> Iterator[tuple[int, int]]:
        """Ranges of documents of about a block of tokens; a longer document stands alone."""
        for start, stop in blocks(self.source.document_count):
            begins, ends = document_ends(self.source.index, start, stop)
            done = 0
            while done < ends.size:
                fits = int(np.searchsorted(ends, begins[done] + BLOCK_TOKENS, side="right"))
                after = max(done + 1, fits)
                yield start + done, start + after
                done = after
            self._forget()

    def _forget(self) -> None:
        for dataset in (self.source, *self._sides.values()):
            dataset.index.forget()

    def _start(self, name: str) -> ShardSet:
        return ShardSet(
            name,
            sidecars=self._sides,
            overwrite=self._overwrite,
            dtype=self.source.dtype,
            multimodal=self.source.multimodal,
        )

    def _publish(self, parts: Sequence[ShardSet], how: dict[str, Any]) -> list[SplitPart]:
        """Publish all parts; when one fails, take the earlier ones back and put back what they replaced."""
        for part in parts:
            part.seal()
        replaced = self._set_aside([part.prefix for part in parts])
        done: list[str] = []
        try:
            for part in parts:
                if self._overwrite:  # half replaced counts too; else what is in the way of one is not ours
                    done.append(part.prefix)
                part.publish(self._manifest_of(how))
                if not self._overwrite:
                    done.append(part.prefix)
        except BaseException:
            self._remove_shards(done)
            # Index files last: while they are gone there is no shard, so a reader never meets a mixed one.
            for path in sorted(replaced, key=lambda path: path.endswith(".idx")):
                os.replace(replaced[path], path)
                remove(replaced[path])  # a rename between two names of one file leaves both
            raise
        for copy in replaced.values():
            remove(copy)
        return [SplitPart(p.prefix, p.main.sequences, p.main.documents, p.main.tokens) for p in parts]

    def _set_aside(self, names: Sequence[str]) -> dict[str, str]:
        """Second names for the files of shards about to be replaced, by their first ones; no bytes are copied."""
        found: dict[str, str] = {}
        if self._overwrite:
            try:
                for path in (path for name in names for path in shard_files(name) if os.path.exists(path)):
                    remove(path + ".replaced")
                    found[path] = path + ".replaced"
                    with disk_faults(path):
                        _second_name(path, found[path])
            except BaseException:
                for copy in found.values():
                    remove(copy)
                raise
        return found

    def _manifest_of(self, how: dict[str, Any]) -> Manifest | None:
        manifest = self.source.manifest
        if manifest is None:
            return None
        # Counts speak of the run that read the inputs, so every part keeps them (merging counts them once).
        return replace(manifest, options={**manifest.options, "cut": how}, files={})

    def _refuse_stale(self, stale: Sequence[str]) -> None:
        for name in stale:
            if not self._overwrite and os.path.exists(idx_path(name)):
                raise OutputExistsError(
                    f"{idx_path(name)}: is left of an earlier split and would stand beside the new parts; "
                    "remove it, or overwrite (--overwrite)"
                )

    @staticmethod
    def _remove_shards(names: Sequence[str]) -> None:
        for name in names:
            for path in shard_files(name):
                remove(path)


def _second_name(path: str, copy: str) -> None:
    """A hard link; a copy where the file system has none."""
    try:
        os.link(path, copy)
    except OSError:
        shutil.copyfile(path, copy)


def _abort(parts: Iterable[ShardSet]) -> None:
    for part in parts:
        part.abort()


def _gather(source: IndexedDataset, run: tuple[int, int], chosen: NDArray[np.bool_], writer: ShardWriter) -> None:
    """Add those documents of `run` that are chosen."""
    entries = np.asarray(source.document_indices[run[0] : run[1] + 1])
    per_document = np.diff(entries)
    low, high = int(entries[0]), int(entries[-1])
    lengths = np.asarray(source.sequence_lengths[low:high])
    modes = None if source.sequence_modes is None else source.sequence_modes[low:high]
    begins, ends = document_ends(source.index, *run)
    tokens = source.tokens[int(begins[0]) : int(ends[-1])]
    if chosen.all():
        writer.add_documents(tokens, lengths, per_document, modes)
        forget(tokens)
        return
    kept = np.repeat(chosen, per_document)
    modes = None if modes is None else modes[kept]
    writer.add_documents(tokens[np.repeat(kept, lengths)], lengths[kept], per_document[chosen], modes)
    forget(tokens)
