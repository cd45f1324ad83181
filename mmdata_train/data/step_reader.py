"""Reads one step's samples into tensors of one shape; runs in the training process or in a reading worker.

A pure function of the request, whichever process runs it. Costs about 10 us a sample of 4,096 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from mmdata.errors import MMDataError, TokenOutsideVocabularyError
from mmdata.samples.rows import Rows, SampleSet
from mmdata_train.data.open import TrainingData
from mmdata_train.loss import IGNORED


@dataclass(frozen=True)
class Request:
    """One step of one rank: int64 [rows] sample numbers (-1: padding), and the run's `consumed` after it."""

    indices: NDArray[np.int64]
    consumed: int


@dataclass(frozen=True)
class StepReader:
    """What reading needs. with_tokens: False on middle pipeline stages, which need the index alone.

    vocab_size: check every id against it, None where a manifest vouches for them.
    """

    data: TrainingData | SampleSet
    with_tokens: bool = True
    vocab_size: int | None = None

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def samples(self) -> SampleSet:
        """What samples are read from."""
        return self.data.samples if isinstance(self.data, TrainingData) else self.data

    def __getitem__(self, request: Request) -> dict[str, Any]:
        """The step, or under `error` what went wrong: a worker's own traceback would hide the message."""
        try:
            return self.read(request)
        except MMDataError as error:
            return {"error": f"{error}", "kind": type(error), "request": request}

    def read(self, request: Request) -> dict[str, Any]:
        """tokens, labels, positions: int64 [rows, seq_length]; documents: int64 or None; sources: int64 [rows] or None.

        token_digest (None without tokens) and index_digest: 63-bit hashes of what was read and of what follows from the
        index, equal on every rank that holds the same samples. Raises TokenOutsideVocabularyError, CorruptSampleError.
        """
        samples = self.samples
        rows = Rows.empty(len(request.indices), samples.seq_length, with_tokens=self.with_tokens)
        samples.read(request.indices, rows)
        if rows.tokens is not None and self.vocab_size is not None:
            self._check_ids(request, rows.tokens)
        source = self.data.source_of(request.indices) if isinstance(self.data, TrainingData) else None
        return {
            **self._tensors(rows, samples.isolates),
            "sources": None if source is None else torch.from_numpy(source),
            "token_digest": None if rows.tokens is None else _digest(request.indices, rows.tokens),
            "index_digest": _digest(request.indices, rows.positions, rows.documents, rows.counted),
            "request": request,
        }

    def _tensors(self, rows: Rows, isolates: bool) -> dict[str, Any]:
        counted = torch.from_numpy(rows.counted)
        if rows.tokens is None:
            # Middle stages never look at ids, but must know how many targets count.
            tokens = torch.zeros(counted.shape, dtype=torch.int64)
            targets = tokens
        else:
            both = torch.from_numpy(rows.tokens).long()
            tokens, targets = both[:, :-1].contiguous(), both[:, 1:]
        return {
            "tokens": tokens,
            "labels": torch.where(counted, targets, IGNORED),
            "positions": torch.from_numpy(rows.positions).long(),
            "documents": torch.from_numpy(rows.documents).long() if isolates else None,
        }

    def _check_ids(self, request: Request, tokens: NDArray[Any]) -> None:
        assert self.vocab_size is not None
        if int(tokens.max()) < self.vocab_size and int(tokens.min()) >= 0:
            return
        row, column = np.argwhere((tokens >= self.vocab_size) | (tokens < 0))[0].tolist()
        samples: Any = self.samples
        found, seen = None, 0
        for piece in samples.pieces(int(request.indices[row])):
            if seen <= column < seen + piece.length:
                found = piece
            seen += piece.length
        where = f"{found.shard}: document {found.document:,}" if found else f"sample {request.indices[row]}"
        raise TokenOutsideVocabularyError(
            f"{where} holds the token id {int(tokens[row, column]):,}, but the model's vocabulary has "
            f"{self.vocab_size:,}: the shard was made with another tokenizer; convert the data again with the model's"
        )


def _digest(*arrays: NDArray[Any]) -> int:
    state = xxhash.xxh3_64()
    for array in arrays:
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    # 63 bits: the digest travels between ranks as a signed integer.
    return state.intdigest() >> 1
