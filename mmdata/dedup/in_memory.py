"""Deduplicate texts that are in memory already, with nothing on disk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup.decide import DedupRun, Rule
from mmdata.dedup.params import DedupParams
from mmdata.dedup.signer import ShingleSets, Signer

BATCH = 4096


class TextSource:
    """Shingle sets computed again from a sequence of texts."""

    def __init__(self, texts: Sequence[str], signer: Signer) -> None:
        self.texts, self.signer = texts, signer

    def sizes(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """See SetSource."""
        return np.fromiter((len(self.texts[number]) for number in documents.tolist()), np.int64, len(documents))

    def load(self, documents: NDArray[np.int64], slot: int) -> ShingleSets:
        """See SetSource."""
        return self.signer.sets([self.texts[number] for number in documents.tolist()])


def find_duplicates(
    texts: Sequence[str],
    params: DedupParams | None = None,
    order_keys: NDArray[np.float64] | None = None,
    native: bool | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each text the number of the kept text it duplicates, or -1 where it is kept, and the exact similarity.

    order_keys: float64 a text, greatest kept first; None keeps the first. Returns int64 and float64 of len(texts).
    """
    params = params if params is not None else DedupParams()
    signer = Signer(params, native)
    run = DedupRun(params, rule=Rule(ranked=order_keys is not None))
    for low in range(0, len(texts), BATCH):
        batch = texts[low : low + BATCH]
        run.add(signer.sign(batch), None if order_keys is None else order_keys[low : low + BATCH])
    return run.decide(TextSource(texts, signer), native=signer.native).arrays()
