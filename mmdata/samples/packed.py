"""Whole documents packed into rows of a fixed length, for chat data and wherever documents must not be cut.

Every document stands in one row; positions restart and attention stops at its first token; what counts are the loss
spans of a chat shard, or every token but a document's first. Rows are padded, and padding never counts. Bins come from
`mmdata.samples.pack`; each epoch takes all bins in a permutation of its own, given as a function of (seed, epoch), so
the index is the bins alone: about 16 bytes a document.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import EmptySplitError, PackingError, SampleOptionError, SampleRangeError
from mmdata.samples import part_kernels
from mmdata.samples.cache import Arrays, cached, key_of
from mmdata.samples.pack import PackedBins
from mmdata.samples.pack import pack as pack_lengths
from mmdata.samples.permutation import shuffled
from mmdata.samples.pieces import PieceSamples, Restarts
from mmdata.samples.reopened import opened
from mmdata.samples.rows import Indices
from mmdata.samples.shards import Parts, ShardGroup
from mmdata.samples.split import Subset, split_range


@dataclass(eq=False)
class PackedSamples(PieceSamples):
    """Packed rows of one shard, or of several seen as one.

    ds: a shard, its prefix, or several of either. seq_length: positions of a row, and the longest document there is.
    num_samples: rows wanted, epoch after epoch (None: one epoch). seed: of the packing and of each epoch's order.
    split, subset: of the documents, by Megatron's rule; None is everything. cache_dir: where the bins are kept.

    Raises PackingError when a document is longer than seq_length, EmptySplitError when there is none to pack,
    SampleOptionError, ShardsDifferError, what opening a shard raises, and DocumentIndexError or SequenceLengthError
    when its index is damaged.
    """

    ds: Any
    seq_length: int = 2048
    num_samples: int | None = None
    seed: int = 1234
    split: str | None = None
    subset: Subset = "train"
    cache_dir: str | os.PathLike[str] | None = None
    group: ShardGroup = field(init=False, repr=False)
    bins: PackedBins = field(init=False, repr=False)
    items: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.num_samples is not None and self.num_samples < 1:
            raise SampleOptionError(f"num_samples is {self.num_samples}; it must be at least 1, or None for one epoch")
        self.group = opened(self.ds)
        self._range = split_range(self.split, self.subset, self.group.documents)
        arrays = cached(self.cache_dir, self._facts(), self._build)
        self.items = arrays["items"]
        self.bins = PackedBins(arrays["order"], arrays["starts"], arrays["lengths"], self.seq_length)

    def _facts(self) -> dict[str, Any]:
        return {
            "kind": "packed",
            "packing": 2,  # which streams `pack` draws from
            "shards": self.group.index_digests,
            "range": [self._range.start, self._range.stop],
            "seq_length": self.seq_length,
            "seed": self.seed,
        }

    def _build(self) -> Arrays:
        self.group.check_indices()
        lengths = self._document_lengths()
        filled = np.flatnonzero(lengths)
        if not len(filled):
            raise EmptySplitError(
                f"{self.group.prefixes[0]}: {self.subset} of split {self.split} holds no token to pack"
            )
        longest = int(lengths.argmax())
        if int(lengths[longest]) > self.seq_length:
            self._refuse(longest, lengths)
        bins = pack_lengths(lengths[filled], self.seq_length, self.seed)
        items = filled.astype(np.int64) + self._range.start
        return {"items": items, "order": bins.order, "starts": bins.starts, "lengths": bins.lengths}

    def _document_lengths(self) -> NDArray[np.int64]:
        """Tokens of each document of the range."""
        borders = self.group.document_indices[self._range.start : self._range.stop + 1]
        if len(borders) < 2:
            return np.empty(0, np.int64)
        first = int(borders[0])
        lengths = self.group.lengths[first : int(borders[-1])]
        if len(lengths) == len(borders) - 1 and bool(np.all(np.diff(borders) == 1)):
            return lengths.astype(np.int64)
        ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        return np.diff(ends[borders - first])

    def _refuse(self, longest: int, lengths: NDArray[np.int64]) -> None:
        sequence = int(self.group.document_indices[longest + self._range.start])
        piece = self.group.piece(np.array([[0], [0], [sequence], [0], [0], [1]]), 0)
        many = int(np.count_nonzero(lengths > self.seq_length))
        raise PackingError(
            f"{piece.shard}: {many:,} documents are longer than seq_length {self.seq_length:,} (the longest is "
            f"document {piece.document:,} with {int(lengths[longest]):,} tokens); convert again with --max-length "
            f"{self.seq_length}, or raise seq_length to {int(lengths[longest])}"
        )

    @property
    def isolates(self) -> bool:
        """Whether documents in a row must not see each other: always."""
        return True

    @property
    def restarts(self) -> Restarts:
        return Restarts(positions=True, documents=True, counted=True)

    @property
    def fingerprint(self) -> str:
        """32 hex digits over tokens, spans, options and code version. Raises as GPTSamples.fingerprint."""
        content = {"content": self.group.fingerprint, "spans": self.group.has_spans}
        return key_of(self._facts() | content | {"num_samples": self.num_samples})

    def __len__(self) -> int:
        return len(self.bins) if self.num_samples is None else self.num_samples

    def bin_of(self, indices: Indices) -> Indices:
        """The bin each sample is, int64 [n]; -1 stays. Raises SampleRangeError."""
        indices = np.asarray(indices, dtype=np.int64)
        if indices.size and not -1 <= int(indices.min()) <= int(indices.max()) < len(self):
            raise SampleRangeError(f"samples {int(indices.min())} to {int(indices.max())} of {len(self):,}")
        epochs, places = np.divmod(indices, len(self.bins))
        result = np.full(len(indices), -1, dtype=np.int64)
        for epoch in np.unique(epochs[indices >= 0]).tolist():
            here = (epochs == epoch) & (indices >= 0)
            result[here] = shuffled(places[here], len(self.bins), self.seed, epoch)
        return result

    def parts(self, indices: Indices, at: Indices | None = None) -> Parts:
        """As PieceSamples.parts: one piece for each sequence of the documents packed together."""
        bins = self.bin_of(indices)
        rows = np.arange(len(bins)) if at is None else at
        index = (self.bins.order, self.bins.starts, self.items, self.group.document_indices)
        parts = np.empty((6, part_kernels.count_packed(bins, *index)), dtype=np.int64)
        used = part_kernels.packed_parts(bins, rows, *index, self.group.lengths, parts)
        return parts[:, :used]
