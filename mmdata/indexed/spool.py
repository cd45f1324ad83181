"""Lengths, document ends and mode bytes of a growing shard, on disk, and the `.idx` made from them.

Memory is flat: 12 bytes a sequence go to disk while writing, and the index is put together in blocks at the end (about
30 ns a sequence). Knows nothing of tokens beyond their item size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import CheckpointError
from mmdata.indexed.durable import FileDigest, PartialFile, remove
from mmdata.indexed.layout import DOCUMENT_DTYPE, LENGTH_DTYPE, MODE_DTYPE, POINTER_DTYPE, Header

BLOCK_ITEMS: Final = 1 << 17


def read_items(path: str, dtype: np.dtype[Any], count: int) -> Iterator[NDArray[Any]]:
    """The first `count` items of a raw file, in blocks."""
    with open(path, "rb") as file:
        left = count
        while left > 0:
            block = np.fromfile(file, dtype, min(left, BLOCK_ITEMS))
            if block.size == 0:
                raise CheckpointError(f"{path}: {left:,} items are missing at the end; another process cut the file")
            yield block
            left -= block.size


class IndexSpool:
    """Collects what the index needs; `stem` names its scratch files."""

    def __init__(self, stem: str, *, multimodal: bool, resume_at: tuple[int, int] | None = None) -> None:
        """resume_at: (sequences, documents) to keep of scratch files that are there already."""
        self.sequences, self.documents = resume_at or (0, 0)
        self._paths = [f"{stem}.lengths.partial", f"{stem}.documents.partial"]
        if multimodal:
            self._paths.append(f"{stem}.modes.partial")
        self.multimodal = multimodal
        self._files: list[PartialFile] = []
        try:
            for path, size in zip(self._paths, self._sizes(), strict=True):
                if resume_at is None:
                    self._files.append(PartialFile.create(path, hashed=False))
                else:
                    self._files.append(PartialFile.reopen(path, size))
        except BaseException:
            self.close()
            raise

    def _sizes(self) -> list[int]:
        sizes = [LENGTH_DTYPE.itemsize * self.sequences, DOCUMENT_DTYPE.itemsize * self.documents]
        return [*sizes, self.sequences] if self.multimodal else sizes

    @property
    def scratch(self) -> tuple[str, ...]:
        """The scratch files, to be removed once the shard is at its name."""
        return tuple(self._paths)

    def add_sequences(self, lengths: NDArray[Any], modes: NDArray[Any] | None = None) -> None:
        """Add sequences: tokens of each, and in a multimodal spool one int8 mode each (None for zeros)."""
        self._files[0].append(np.ascontiguousarray(lengths, LENGTH_DTYPE))
        if self.multimodal:
            self._files[2].append(np.zeros(lengths.size, MODE_DTYPE) if modes is None else np.ascontiguousarray(modes))
        self.sequences += int(lengths.size)

    def add_ends(self, ends: NDArray[Any]) -> None:
        """Add documents: for each, how many sequences of the whole shard lie before its end; ascending."""
        self._files[1].append(np.ascontiguousarray(ends, DOCUMENT_DTYPE))
        self.documents += int(ends.size)

    def sync(self) -> None:
        """Flush to the disk."""
        for file in self._files:
            file.sync()

    def seal(self) -> None:
        """Close; only `lengths`, `ends` and `write_index` may follow. Scratch files need no flush to the disk here."""
        for file in self._files:
            file.seal(durable=False)

    def lengths(self) -> Iterator[NDArray[np.int32]]:
        """The sequence lengths, in blocks."""
        return read_items(self._paths[0], LENGTH_DTYPE, self.sequences)

    def ends(self) -> Iterator[NDArray[np.int64]]:
        """The document ends in sequences, in blocks."""
        return read_items(self._paths[1], DOCUMENT_DTYPE, self.documents)

    def check_resumed(self, tokens: int) -> None:
        """Raise CheckpointError unless the kept lengths and ends add up to `tokens` and the sequences."""
        total = sum(int(block.sum(dtype=np.int64)) for block in self.lengths())
        last = 0
        for block in self.ends():
            last = int(block[-1])
        if total != tokens or last != self.sequences:
            raise CheckpointError(
                f"{self._paths[0]}: lengths add up to {total:,} tokens and documents to {last:,} sequences, but the "
                f"checkpoint has {tokens:,} and {self.sequences:,}; start without the checkpoint"
            )

    def write_index(self, path: str, dtype: np.dtype[Any]) -> FileDigest:
        """Write `.idx` to `path`, flushed to the disk; tokens are of `dtype`."""
        header = Header(dtype, self.sequences, self.documents + 1, self.multimodal)
        target = PartialFile.create(path, hashed=True)
        try:
            target.append(header.pack())
            for lengths in self.lengths():
                target.append(lengths)
            for pointers in pointer_blocks(self.lengths(), dtype.itemsize):
                target.append(pointers)
            target.append(np.zeros(1, DOCUMENT_DTYPE))
            for ends in self.ends():
                target.append(ends)
            if self.multimodal:
                for modes in read_items(self._paths[2], MODE_DTYPE, self.sequences):
                    target.append(modes)
            target.seal()
        except BaseException:
            target.discard()
            raise
        assert target.size == header.size
        return FileDigest(target.size, target.xxh3_128)

    def close(self) -> None:
        """Close and keep the scratch files."""
        for file in self._files:
            file.close()

    def discard(self) -> None:
        """Close and remove the scratch files."""
        for file in self._files:
            file.discard()
        for path in self._paths[len(self._files) :]:
            if os.path.exists(path):
                remove(path)


def pointer_blocks(lengths: Iterator[NDArray[np.int32]], itemsize: int) -> Iterator[NDArray[np.int64]]:
    """Byte offsets of sequences from blocks of their lengths, in 64 bits throughout."""
    base = 0
    for block in lengths:
        sums = np.cumsum(block, dtype=POINTER_DTYPE)
        pointers = np.empty(block.size, POINTER_DTYPE)
        pointers[0] = base
        pointers[1:] = sums[:-1] * itemsize + base
        base += int(sums[-1]) * itemsize
        yield pointers
