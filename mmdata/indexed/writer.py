"""Writes a shard: tokens go straight to disk, lengths to scratch files, and the pair takes its names at the end.

Adding in bulk costs one range check, one cast, one hash and one write of the tokens. Memory is flat. A writer is
not thread-safe; one writer at a time may work on a prefix.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import CheckpointError, LengthMismatchError, OutputError, UsageError
from mmdata.indexed.durable import FileDigest, PartialFile, digest_file, disk_faults, remove, stage_beside
from mmdata.indexed.mapping import forget
from mmdata.indexed.paths import PARTIAL, bin_path, idx_path, output_prefix
from mmdata.indexed.publish import SealedShard, publish_shard, refuse_existing
from mmdata.indexed.reader import IndexedDataset
from mmdata.indexed.remote import is_remote
from mmdata.indexed.spool import IndexSpool
from mmdata.indexed.tokens import TokenRange, checked_ends, checked_lengths, checked_modes

# Tokens are cast, hashed and written in pieces that stay in a core's cache.
_PIECE: Final = 1 << 17
_PENDING_DOCUMENTS: Final = 1 << 12


class ShardWriter:
    """Writes `PREFIX.bin` and `PREFIX.idx`.

    with ShardWriter("out", vocab_size=50257) as writer:
        writer.add_document([1, 2, 3])

    Leaving the block without an exception publishes the pair. An exception leaves nothing at the final names, and no
    unfinished file either, unless a checkpoint was taken: then they stay for `resume`.
    """

    def __init__(
        self,
        prefix: str | os.PathLike[str],
        *,
        vocab_size: int | None = None,
        dtype: Any = None,
        work_dir: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        multimodal: bool = False,
    ) -> None:
        """Start a shard.

        vocab_size: number of token ids, added tokens counted; tokens are checked against it, and it decides the dtype
        (uint16 below 65,500, else int32; int32 when unknown). dtype: overrides that. work_dir: where unfinished files
        grow, by default beside the output; keep it on the same file system. multimodal: keep one mode byte a sequence.
        Raises OutputExistsError when a file of the shard exists and not `overwrite`, OutputError, UsageError.
        """
        self._configure(prefix, TokenRange.of(vocab_size, dtype), work_dir, overwrite, multimodal)
        if not overwrite:
            refuse_existing(self.prefix)
        with disk_faults(self._stem):
            os.makedirs(os.path.dirname(self._stem) or ".", exist_ok=True)
            os.makedirs(os.path.dirname(self.prefix) or ".", exist_ok=True)
        self._bin = PartialFile.create(self._bin_partial, hashed=True)
        try:
            self._spool = IndexSpool(self._stem, multimodal=multimodal)
        except BaseException:
            self._bin.discard()
            raise

    def _configure(
        self,
        prefix: str | os.PathLike[str],
        token_range: TokenRange,
        work_dir: str | os.PathLike[str] | None,
        overwrite: bool,
        multimodal: bool,
    ) -> None:
        self.prefix = output_prefix(prefix)
        if is_remote(self.prefix):
            raise UsageError(f"{self.prefix}: shards are written to local paths; write here, then copy the files there")
        self.dtype = token_range.dtype
        self._tokens = 0
        self._pending: list[NDArray[Any]] = []
        self._pending_tokens = 0
        self._range = token_range
        self._overwrite = overwrite
        self._multimodal = multimodal
        self._stem = self.prefix if work_dir is None else os.path.join(work_dir, os.path.basename(self.prefix))
        self._bin_partial = bin_path(self._stem) + PARTIAL
        self._checkpointed = False
        self._whole = True
        self._sealed: SealedShard | None = None
        self._closed = False
        self._published = False

    @classmethod
    def resume(
        cls,
        prefix: str | os.PathLike[str],
        state: dict[str, Any],
        *,
        vocab_size: int | None = None,
        dtype: Any = None,
        work_dir: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> ShardWriter:
        """Go on from `checkpoint()`'s state with the same arguments as before; what was added since is cut off.

        Reads what is there once, to go on hashing and to prove that it is what the checkpoint saw. A publication
        that was cut short is taken back first. Raises CheckpointError when files or arguments do not fit the state.
        """
        writer = cls.__new__(cls)
        multimodal = bool(state.get("multimodal"))
        writer._configure(prefix, TokenRange.of(vocab_size, dtype), work_dir, overwrite, multimodal)
        try:
            bin_bytes, sequences, documents = (int(state[k]) for k in ("bin_bytes", "sequences", "documents"))
            digest, dtype_name = str(state["bin_xxh3_128"]), state["dtype"]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{writer.prefix}: the checkpoint state is not one of this writer") from error
        if dtype_name != writer.dtype.name:
            raise CheckpointError(f"{writer.prefix}: the checkpoint is of {dtype_name}, not {writer.dtype.name}")
        writer._tokens = bin_bytes // writer.dtype.itemsize
        writer._spool = IndexSpool(writer._stem, multimodal=multimodal, resume_at=(sequences, documents))
        try:
            writer._spool.check_resumed(writer._tokens)
            writer._take_back(FileDigest(bin_bytes, digest))
            writer._bin = PartialFile.reopen(writer._bin_partial, bin_bytes, digest=digest)
        except BaseException:
            writer._spool.close()
            raise
        writer._checkpointed = True
        return writer

    def _take_back(self, seen: FileDigest) -> None:
        """Undo a publication cut short: the token file had its name already, the scratch files were still there."""
        published = bin_path(self.prefix)
        if os.path.exists(self._bin_partial) or not os.path.exists(published):
            return
        if digest_file(published, seen.size) != seen:
            raise CheckpointError(
                f"{self._bin_partial}: gone, and {published} is not what the checkpoint saw; start afresh"
            )
        with disk_faults(published):
            remove(idx_path(self.prefix))
            os.replace(stage_beside(published, self._bin_partial), self._bin_partial)

    @property
    def sequences(self) -> int:
        """Sequences added so far."""
        return self._spool.sequences + sum(part.size > 0 for part in self._pending)

    @property
    def documents(self) -> int:
        """Documents added so far."""
        return self._spool.documents + len(self._pending)

    @property
    def tokens(self) -> int:
        """Tokens added so far."""
        return self._tokens + self._pending_tokens

    def add_document(self, tokens: Any, lengths: Any = None, modes: Any = None) -> None:
        """Add one document.

        tokens: flat list or array of ids. lengths: tokens of each of its sequences; by default one sequence, or none
        when there are no tokens (an empty document). modes: one mode byte a sequence, multimodal shards only.
        Raises TokenRangeError, LengthMismatchError, SequenceTooLongError; then nothing was added.
        """
        self._refuse_closed()
        array = self._range.checked(tokens, self.prefix)
        if lengths is None and modes is None and array.size < _PIECE:
            # Small documents are collected: a copy here, since the caller may go on using its array.
            self._pending.append(array.astype(self.dtype))
            self._pending_tokens += array.size
            if self._pending_tokens >= _PIECE or len(self._pending) >= _PENDING_DOCUMENTS:
                self._flush()
            return
        if lengths is None:
            lengths = [array.size] if array.size else []
        counts = checked_lengths(lengths, array.size, self.prefix)
        self._append(array, counts, np.array([counts.size]), modes)

    def _flush(self) -> None:
        """Write the collected documents."""
        if not self._pending:
            return
        pending, self._pending, self._pending_tokens = self._pending, [], 0
        lengths = np.array([part.size for part in pending])
        filled = lengths > 0
        self._write(np.concatenate(pending), lengths[filled], np.cumsum(filled), None)

    def add_documents(self, tokens: Any, lengths: Any, documents: Any = None, modes: Any = None) -> None:
        """Add many documents at once.

        tokens: flat ids of all. lengths: tokens of each sequence, adding up to the tokens. documents: sequences of each
        document, adding up to the sequences; without it each length is a document of its own, and a length of 0 is an
        empty document with no sequence. modes: one mode byte a sequence, multimodal shards only.
        Raises TokenRangeError, LengthMismatchError, SequenceTooLongError; then nothing was added.
        """
        array = self._range.checked(tokens, self.prefix)
        counts = checked_lengths(lengths, array.size, self.prefix)
        if documents is not None:
            ends = checked_ends(documents, counts.size, self.prefix)
        elif counts.size and int(counts.min()) == 0:
            filled = counts > 0
            ends = np.cumsum(filled, dtype=np.int64)
            modes = None if modes is None else checked_modes(modes, counts.size, self.prefix)[filled]
            counts = counts[filled]
        else:
            ends = np.arange(1, counts.size + 1, dtype=np.int64)
        self._append(array, counts, ends, modes)

    def add_shard(
        self,
        source: IndexedDataset,
        documents: tuple[int, int] | None = None,
        observe: Callable[[NDArray[Any]], object] | None = None,
    ) -> None:
        """Copy documents `first` to `last` (half-open, all by default) of a local shard in blocks.

        The copy is as trusted as the source's index: walk it first (`checks.check_index_arrays`). A dtype that this
        writer's holds is widened, another one range-checked. observe: called with each piece of source tokens.
        Raises TokenRangeError; then the writer cannot go on.
        """
        self._flush()
        first, last = documents or (0, source.document_count)
        entries = source.document_indices[first : last + 1]
        low, high = int(entries[0]), int(entries[-1])
        self._whole = False
        pointers = (
            int(source.sequence_pointers[i]) if i < len(source) else source.token_count * source.dtype.itemsize
            for i in (low, high)
        )
        begin, end = (pointer // source.dtype.itemsize for pointer in pointers)
        widens = np.can_cast(source.dtype, self.dtype)
        for start in range(begin, end, _PIECE):
            piece = source.tokens[start : min(start + _PIECE, end)]
            if observe is not None:
                observe(piece)
            self._bin.append(
                np.ascontiguousarray(piece if widens else self._range.checked(piece, self.prefix), self.dtype)
            )
            forget(piece)
        self._tokens += end - begin
        modes = source.sequence_modes
        for start in range(low, high, _PIECE):
            stop = min(start + _PIECE, high)
            part = modes[start:stop] if modes is not None and self._multimodal else None
            self._spool.add_sequences(source.sequence_lengths[start:stop], part)
            source.index.forget()
        shift = self._spool.sequences - high
        for start in range(1, entries.size, _PIECE):
            self._spool.add_ends(entries[start : start + _PIECE] + shift)
            source.index.forget()
        self._whole = True

    def _append(self, array: NDArray[Any], lengths: NDArray[Any], ends: NDArray[np.int64], modes: Any) -> None:
        self._refuse_closed()
        self._flush()
        if modes is not None:
            if not self._multimodal:
                raise LengthMismatchError(
                    "modes were given", path=self.prefix, remedy="open the writer with multimodal=True"
                )
            modes = checked_modes(modes, lengths.size, self.prefix)
        self._write(array, lengths, ends, modes)

    def _write(
        self, array: NDArray[Any], lengths: NDArray[Any], ends: NDArray[np.int64], modes: NDArray[np.int8] | None
    ) -> None:
        self._whole = False
        for start in range(0, array.size, _PIECE):
            self._bin.append(np.ascontiguousarray(array[start : start + _PIECE], self.dtype))
        self._tokens += int(array.size)
        base = self._spool.sequences
        self._spool.add_sequences(lengths, modes)
        self._spool.add_ends(ends + base)
        self._whole = True

    def checkpoint(self) -> dict[str, Any]:
        """Make everything added so far durable and return a small JSON state for `resume`."""
        self._refuse_broken()
        self._flush()
        self._bin.sync()
        self._spool.sync()
        self._checkpointed = True
        return {
            "bin_bytes": self._bin.size,
            "bin_xxh3_128": self._bin.xxh3_128,
            "sequences": self.sequences,
            "documents": self.documents,
            "dtype": self.dtype.name,
            "multimodal": self._multimodal,
        }

    def seal(self) -> SealedShard:
        """Finish both files under their temporary names, flushed and hashed, for `publish_shard`.

        For shards with sidecars or a manifest; others just close. Raises OutputError, DiskFullError.
        """
        if self._sealed is not None:
            return self._sealed
        self._refuse_broken()
        self._flush()
        self._bin.seal()
        self._spool.seal()
        idx_partial = idx_path(self._stem) + PARTIAL
        index = self._spool.write_index(idx_partial, self.dtype)
        self._closed = True
        self._sealed = SealedShard(
            prefix=self.prefix,
            dtype=self.dtype,
            sequences=self.sequences,
            documents=self.documents,
            tokens=self._tokens,
            multimodal=self._multimodal,
            bin=FileDigest(self._bin.size, self._bin.xxh3_128),
            idx=index,
            bin_partial=self._bin_partial,
            idx_partial=idx_partial,
            scratch=self._spool.scratch,
        )
        return self._sealed

    def _refuse_closed(self) -> None:
        if self._closed:
            raise OutputError(f"{self.prefix}: this writer is closed; write to another prefix, and merge the two")

    def _refuse_broken(self) -> None:
        self._refuse_closed()
        if not self._whole:
            raise OutputError(f"{self.prefix}: an earlier write failed half way; this writer can only be given up")

    def close(self) -> SealedShard:
        """Finish and publish the pair, once; returns counts and hashes. Raises OutputError, DiskFullError."""
        sealed = self.seal()
        if not self._published:
            publish_shard(sealed, overwrite=self._overwrite)
            self._published = True
        return sealed

    def abort(self) -> None:
        """Give up: nothing at the final names; unfinished files go, unless a checkpoint needs them."""
        self._closed = True
        if self._checkpointed:
            self._bin.close()
            self._spool.close()
            return
        if self._sealed is not None:
            self._sealed.discard()
        self._bin.discard()
        self._spool.discard()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._sealed is None and not self._closed:
            try:
                self.close()
            except BaseException:
                self.abort()
                raise
