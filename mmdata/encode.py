"""Documents to token arrays, one for each JSON key, ready for the shard writer.

All texts of a batch go to the tokenizer in one call and the end-of-document tokens are spliced in with numpy, so no
Python runs for each token; about 10 ns of Python for each byte of text at most. Chat documents go through
`mmdata.chat` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.document import Document, Drop
from mmdata.errors import TokenizerTextError, UsageError
from mmdata.tokenizers.base import TokenBatch, Tokenizer

INT64_INDEX = NDArray[np.int64]


@dataclass(slots=True, frozen=True)
class EncodeOptions:
    """What encoding needs to know beside the tokenizer.

    dtype: of the shard (uint16 or int32), chosen from the vocabulary size by the caller. json_keys: the texts to
    encode, one shard for each. append_eod and eod_id: end every document with this id (required when append_eod).
    Raises UsageError for an end token that is missing or does not fit the dtype, and for keys absent or given twice.
    """

    dtype: np.dtype[Any]
    json_keys: tuple[str, ...] = ("text",)
    append_eod: bool = True
    eod_id: int | None = None

    def __post_init__(self) -> None:
        if not self.json_keys or len(set(self.json_keys)) != len(self.json_keys):
            raise UsageError(f"--json-keys {' '.join(self.json_keys)!r}: give each key once, and at least one")
        if self.append_eod and self.eod_id is None:
            raise UsageError("an end-of-document token is to be appended but none is given; see --eod-token")
        if self.append_eod and self.eod_id is not None and not 0 <= self.eod_id <= np.iinfo(self.dtype).max:
            raise UsageError(f"the end-of-document id {self.eod_id} does not fit {self.dtype}")


@dataclass(slots=True, frozen=True)
class KeyTokens:
    """Documents of one JSON key.

    tokens: flat, of the shard's dtype, end tokens included. lengths: int64, tokens of each kept document.
    """

    tokens: NDArray[Any]
    lengths: INT64_INDEX


@dataclass(slots=True, frozen=True)
class EncodedBatch:
    """What became of a list of documents.

    keys: JSON key -> its tokens; all keys hold the same documents in the same order. kept: int64 positions of these in
    the list. drops: the others, in input order, reason `empty`.
    """

    keys: dict[str, KeyTokens]
    kept: INT64_INDEX
    drops: list[Drop]


def encode_documents(documents: Sequence[Document], tokenizer: Tokenizer, options: EncodeOptions) -> EncodedBatch:
    """Encode every key of every document.

    A document one of whose texts gives no token (the end token not counted) is dropped whole, so that document i is the
    same record in the shards of all keys. Ids outside the dtype are refused, never wrapped.
    Raises TokenizerTextError, naming path and line, for a text that is not valid Unicode, and
    UsageError when the vocabulary does not fit the dtype.
    """
    if tokenizer.vocab_size - 1 > np.iinfo(options.dtype).max:
        raise UsageError(
            f"a vocabulary of {tokenizer.vocab_size} does not fit {options.dtype} (up to {np.iinfo(options.dtype).max})"
        )
    batches = {key: _encode_key(documents, key, tokenizer) for key in options.json_keys}
    full = np.ones(len(documents), np.bool_)
    for batch in batches.values():
        full &= batch.lengths > 0
    kept = full.nonzero()[0]
    drops = [_empty(documents[position], batches, position) for position in (~full).nonzero()[0].tolist()]
    keys = {key: _finish(batch, full, options) for key, batch in batches.items()}
    return EncodedBatch(keys, kept, drops)


def append_eod(tokens: NDArray[Any], lengths: INT64_INDEX, eod_id: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """`tokens` (flat, `lengths` of each document) with `eod_id` after each document, as `dtype`."""
    ends = np.cumsum(lengths + 1) - 1
    out = np.empty(len(tokens) + len(lengths), dtype)
    is_token = np.ones(len(out), np.bool_)
    is_token[ends] = False
    out[is_token] = tokens
    out[ends] = eod_id
    return out


def _encode_key(documents: Sequence[Document], key: str, tokenizer: Tokenizer) -> TokenBatch:
    texts = [text_of(document, key) for document in documents]
    try:
        return tokenizer.encode_batch(texts)
    except TokenizerTextError as error:
        raise _located(error, documents, texts) from None


def text_of(document: Document, key: str) -> str:
    """The text of the part at `key`. Reading has made sure that it is there."""
    for part in document.parts:
        if part.json_path == key:
            return part.text
    raise AssertionError(f"{document.path}:{document.line}: no part at {key!r}")


def _located(error: TokenizerTextError, documents: Sequence[Document], texts: Sequence[str]) -> TokenizerTextError:
    for document, text in zip(documents, texts, strict=True):
        try:
            text.encode()
        except UnicodeEncodeError as fault:
            return TokenizerTextError(
                f"{document.path}:{document.line}: lone surrogate U+{ord(text[fault.start]):04X} at character "
                f"{fault.start}: not valid Unicode; mend or drop the record"
            )
    return error


def _empty(document: Document, batches: dict[str, TokenBatch], position: int) -> Drop:
    empty = [key for key, batch in batches.items() if batch.lengths[position] == 0]
    where = document.path, document.input_number, document.line, document.id
    return Drop(*where, stage="encode", reason="empty", value=", ".join(empty), limit="at least one token")


def _finish(batch: TokenBatch, full: NDArray[np.bool_], options: EncodeOptions) -> KeyTokens:
    tokens, lengths = batch.tokens, batch.lengths
    if not full.all():
        tokens, lengths = tokens[np.repeat(full, lengths)], lengths[full]
    if not options.append_eod or options.eod_id is None:
        return KeyTokens(tokens.astype(options.dtype, copy=False), lengths)
    return KeyTokens(append_eod(tokens, lengths, options.eod_id, options.dtype), lengths + 1)
