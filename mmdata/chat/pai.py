"""Chat data as Pai-Megatron-Patch's SFT dataset reads it (`--sft-layout pai`).

One item is 2 x seq_length int32: the tokens, then the labels. Labels are already shifted (label j is the target at
input j) and -100 where nothing counts. The last token of each packed sequence is stored as -1 - id, which is how the
reader finds where positions and attention begin anew; padding is the pad id and -100. Needs int32 for any vocabulary.
Source: alibaba/Pai-Megatron-Patch, toolkits/sft_data_preprocessing/build_idxmap_sft_dataset.py and
megatron_patch/data/utils.py. numpy only, memory for the rows and little more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import ChatError

if TYPE_CHECKING:
    from mmdata.chat.render import RenderedBatch
    from mmdata.samples.pack import PackedBins

IGNORED = -100
Rows = NDArray[np.int32]


@dataclass(frozen=True)
class PaiLayout:
    """seq_length: tokens of a row. pad_id: fills rows. bins: which sequences share a row; None gives each its own."""

    seq_length: int
    pad_id: int
    bins: PackedBins | None = None


def pai_rows(batch: RenderedBatch, layout: PaiLayout) -> Rows:
    """Rows of one batch, int32 (rows, 2 x seq_length).

    Raises ChatError for a sequence longer than a row.
    """
    width, lengths = layout.seq_length, batch.lengths
    too_long = np.flatnonzero(lengths > width)
    if len(too_long):
        raise ChatError(
            f"sequence {int(too_long[0])} has {int(lengths[too_long[0]])} tokens, a row of the pai layout {width}; "
            f"convert with --max-length {width} (and --too-long)"
        )
    order, row = _places(layout, len(lengths))
    placed = lengths[order]
    ends = np.cumsum(placed)
    first_of_row = np.searchsorted(row, row, side="left")
    within_row = (ends - placed) - (ends - placed)[first_of_row]
    target = np.repeat(row * width + within_row - (ends - placed), placed) + np.arange(int(placed.sum()))
    starts = np.cumsum(lengths) - lengths
    source = np.repeat(starts[order] - (ends - placed), placed) + np.arange(int(placed.sum()))
    rows = int(row[-1]) + 1 if len(row) else 0
    tokens = np.full(rows * width, layout.pad_id, np.int32)
    labels = np.full(rows * width, IGNORED, np.int32)
    shifted = _labels(batch)
    tokens[target] = batch.tokens[source]
    labels[target] = shifted[source]
    last = target[ends[placed > 0] - 1]
    tokens[last] = -1 - tokens[last]
    return np.concatenate([tokens.reshape(rows, width), labels.reshape(rows, width)], axis=1)


def _places(layout: PaiLayout, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sequence numbers in the order they are laid out, and the row of each."""
    if layout.bins is None:
        return np.arange(count), np.arange(count)
    bins = layout.bins
    return bins.order, np.repeat(np.arange(len(bins.starts) - 1), np.diff(bins.starts))


def _labels(batch: RenderedBatch) -> Rows:
    """The target at each input: the next token where it counts, else -100."""
    counted = np.zeros(len(batch.tokens) + 1, np.int32)
    starts = np.cumsum(batch.lengths) - batch.lengths
    base = np.repeat(starts, batch.span_lengths // 2)
    np.add.at(counted, base + batch.spans[0::2], 1)
    np.add.at(counted, base + batch.spans[1::2], -1)
    counts = np.cumsum(counted)[:-1] > 0
    labels = np.full(len(batch.tokens), IGNORED, np.int32)
    following = np.flatnonzero(counts)  # token 0 of a sequence never counts, so each has a token before it
    labels[following - 1] = batch.tokens[following]
    return labels
