"""Rewrites a chat shard with loss spans as the rows Pai-Megatron-Patch trains on (`--sft-layout pai`).

All sequences are packed into rows of `seq_length` tokens (best-fit decreasing, seeded), and rows are written in blocks.
Memory: 24 bytes for each sequence while packing. The loss spans become labels, so no sidecar is written; where a row's
documents came from is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mmdata.chat.pai import PaiLayout, pai_rows
from mmdata.chat.render import RenderedBatch
from mmdata.errors import UsageError
from mmdata.indexed.reader import IndexedDataset
from mmdata.indexed.shardset import ShardSet
from mmdata.pipeline.outputs import PublishedShard
from mmdata.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mmdata.samples.pack import PackedBins

ROWS_AT_ONCE = 256


@dataclass(slots=True, frozen=True)
class PaiPlan:
    """seq_length: tokens of a row. pad_id: fills rows. seed: of the packing."""

    seq_length: int
    pad_id: int
    seed: int


def pai_plan(max_length: int | None, tokenizer: Tokenizer, seed: int) -> PaiPlan:
    """Raises UsageError when there is no row length or nothing to pad with."""
    if max_length is None:
        raise UsageError("--sft-layout pai needs --max-length N: the tokens of a row")
    declared = tokenizer.config.get("pad_token")
    name = declared.get("content") if isinstance(declared, dict) else declared
    pad_id = tokenizer.token_to_id(name) if isinstance(name, str) else None
    return PaiPlan(max_length, tokenizer.eod_id if pad_id is None else pad_id, seed)


def write_pai(whole: PublishedShard, prefix: str, plan: PaiPlan) -> PublishedShard:
    """Write the rows of the shard `whole` to `prefix`, replacing what is there; returns what was written.

    Raises PackingError for a sequence above `seq_length`, OutputError and its kin.
    """
    from mmdata.samples.pack import pack  # brings numba in: only for those who pack

    dataset = IndexedDataset(whole.prefix)
    manifest = dataset.manifest
    assert manifest is not None, "a conversion writes manifests"
    bins = pack(np.asarray(dataset.sequence_lengths), plan.seq_length, plan.seed)
    width = 2 * plan.seq_length
    with ShardSet(prefix, overwrite=True, dtype=np.dtype("<i4")) as shard_set:
        for first in range(0, len(bins), ROWS_AT_ONCE):
            rows = _rows(dataset, bins, first, plan)
            shard_set.main.add_documents(rows.ravel(), np.full(len(rows), width, np.int64))
        done = shard_set.publish(replace(manifest, layout="pai", eod_appended=None))
    assert done is not None
    return PublishedShard(prefix, whole.key, whole.split, done.sequences, done.documents, done.tokens)


def _rows(dataset: IndexedDataset, bins: PackedBins, first: int, plan: PaiPlan) -> npt.NDArray[np.int32]:
    """Rows of up to ROWS_AT_ONCE bins from `first` on."""
    from mmdata.samples.pack import PackedBins

    last = min(first + ROWS_AT_ONCE, len(bins))
    order = bins.order[bins.starts[first] : bins.starts[last]]
    tokens = [np.asarray(dataset[number], np.int32) for number in order.tolist()]
    spans = [dataset.loss_spans(number).ravel() for number in order.tolist()]
    lengths = bins.lengths[order]
    batch = RenderedBatch(
        _joined(tokens), lengths, _joined(spans), np.array([len(span) for span in spans], np.int64),
        np.arange(len(order)), [],
    )  # fmt: skip
    local = PackedBins(
        np.arange(len(order)), bins.starts[first : last + 1] - bins.starts[first], lengths, plan.seq_length
    )
    return pai_rows(batch, PaiLayout(plan.seq_length, plan.pad_id, local))


def _joined(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[np.int32]:
    return np.concatenate([np.zeros(0, np.int32), *arrays]).astype(np.int32, copy=False)
