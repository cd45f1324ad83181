"""Samples of a fixed length cut from a stream of shuffled documents: Megatron's GPTDataset, bit for bit.

`GPTSamples("my_text_document", seq_length=2048, num_samples=1000)[i]` is sample i, 2,049 tokens, in the order training
takes them. Building costs one pass over the lengths (well below a second for ten million documents); reading a batch
is one call of compiled code. Positions and attention may restart at true document boundaries; nothing scans for an
end-of-document token. docs/samples.md lists where Megatron fails and this does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import EmptySplitError, SampleRangeError
from mmdata.indexed.reader import IndexedDataset
from mmdata.samples import order as orders
from mmdata.samples import part_kernels
from mmdata.samples.cache import Built, cached, key_of
from mmdata.samples.order import Cut, Engine
from mmdata.samples.pieces import PieceSamples, Restarts
from mmdata.samples.reopened import opened
from mmdata.samples.rows import Indices
from mmdata.samples.shards import Parts, ShardGroup
from mmdata.samples.split import Subset, split_range


@dataclass(eq=False)
class GPTSamples(PieceSamples):
    """Samples of one shard, or of several seen as one.

    ds: a shard, its prefix, or several of either (their order matters). seq_length: tokens trained on in a sample.
    num_samples: how many are needed; documents are passed through as often as it takes (None: once). seed: Megatron's
    `--seed`. split, subset: `969,30,1` and which part of it; None is everything. extra_token: a sample holds one more
    token, its last label. drop_last: leave out a last sample that is not full (Megatron's rule for training).
    reset_positions, reset_attention: positions restart, and attention stops, at document boundaries; the first token of
    a document is then no target. cache_dir: where the index is kept and shared between processes; None builds it in
    memory. engine: numba or numpy, which give the same.

    Raises EmptySplitError, SampleOptionError, ShardsDifferError, what opening a shard raises, and DocumentIndexError or
    SequenceLengthError when its index is damaged.
    """

    ds: Any
    seq_length: int = 2048
    num_samples: int | None = 1000
    seed: int = 1234
    split: str | None = None
    subset: Subset = "train"
    extra_token: bool = True
    drop_last: bool = True
    reset_positions: bool = False
    reset_attention: bool = False
    cache_dir: str | os.PathLike[str] | None = None
    engine: Engine = "auto"
    group: ShardGroup = field(init=False, repr=False)
    document_index: NDArray[Any] = field(init=False, repr=False)
    sample_index: NDArray[Any] = field(init=False, repr=False)
    shuffle_index: NDArray[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.group = opened(self.ds)
        self._cut = Cut(self.seq_length, int(self.extra_token), self.drop_last)
        self._range = split_range(self.split, self.subset, len(self.group))
        arrays = cached(self.cache_dir, self._facts(), self._build)
        self.document_index = arrays["document_index"]
        self.sample_index = arrays["sample_index"]
        self.shuffle_index = arrays["shuffle_index"]

    def _facts(self) -> dict[str, Any]:
        """Everything that decides the three indices."""
        return {
            "kind": "gpt",
            "shards": self.group.index_digests,
            "range": [self._range.start, self._range.stop],
            "seq_length": self.seq_length,
            "num_samples": self.num_samples,
            "seed": self.seed,
            "extra": self._cut.extra,
            "drop_last": self.drop_last,
        }

    def _build(self) -> Built:
        self.group.check_indices()
        lengths = self.group.lengths
        tokens = int(lengths[self._range.start : self._range.stop].sum(dtype=np.int64))
        try:
            plan = orders.plan_epochs(tokens, self.num_samples, self._cut)
        except EmptySplitError as error:
            part = f"{self.subset} of split {self.split} ({len(self._range):,} of {len(self.group):,} sequences)"
            where = self.group.prefixes[0] if self.split is None else f"{self.group.prefixes[0]}, {part}"
            raise EmptySplitError(f"{where}: {error}") from None
        return orders.index_arrays(lengths, self._range, plan, self._cut, self.seed, self.engine)

    @property
    def isolates(self) -> bool:
        """Whether documents in a row must not see each other: `reset_attention`."""
        return self.reset_attention

    @property
    def restarts(self) -> Restarts:
        return Restarts(self.reset_positions, self.reset_attention, self.reset_attention)

    @property
    def fingerprint(self) -> str:
        """32 hex digits over tokens, options and code version.

        Raises ShardChangedError when a shard is not what its manifest says, ShardsDifferError when some have no spans.
        """
        options = {"reset_positions": self.reset_positions, "reset_attention": self.reset_attention}
        return key_of(self._facts() | options | {"content": self.group.fingerprint, "spans": self.group.has_spans})

    def __len__(self) -> int:
        return len(self.shuffle_index)

    def parts(self, indices: Indices, at: Indices | None = None) -> Parts:
        """As PieceSamples.parts: one piece for each sequence a sample takes tokens from."""
        indices = np.asarray(indices, dtype=np.int64)
        rows = np.arange(len(indices)) if at is None else at
        index = (self.shuffle_index, self.sample_index, self.document_index)
        bound = part_kernels.count_gpt(indices, *index)
        if bound < 0:
            raise SampleRangeError(f"samples {int(indices.min())} to {int(indices.max())} of {len(self):,}")
        parts = np.empty((6, bound), dtype=np.int64)
        arrays = (*index, self.group.lengths)
        used = part_kernels.gpt_parts(indices, rows, *arrays, self._cut.extra, parts)
        return parts[:, :used]


Shards = IndexedDataset | str | Iterable[IndexedDataset | str]
