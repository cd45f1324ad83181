"""What every tokenizer looks like from outside, and the few values that travel with it.

`Tokenizer` is the protocol the pipeline works with; `Encoder` is the smaller one behind which an engine (fastokens,
Hugging Face `tokenizers`, SentencePiece, tiktoken) sits. Holds no tokenizer and imports none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import TokenizerTextError


@dataclass(slots=True, frozen=True)
class TokenBatch:
    """Token ids of many texts, back to back.

    tokens: int32, shape (sum of lengths,). lengths: int64, shape (number of texts,); a text may have length 0.
    """

    tokens: NDArray[np.int32]
    lengths: NDArray[np.int64]

    def split(self) -> list[NDArray[np.int32]]:
        """One view for each text, in order."""
        return np.split(self.tokens, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []


@dataclass(slots=True, frozen=True)
class OffsetEncoding:
    """Ids of one text and where each came from.

    ids: int32, shape (n,). starts, ends: int64, shape (n,): half-open range of characters (Unicode code points) of the
    text as it was given. Tokens that hold part of a character cover the whole of it, so ranges may overlap.
    """

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


@dataclass(slots=True, frozen=True)
class SpecialToken:
    """An entry of the vocabulary that ordinary text never yields.

    special: declared a control token (false for Qwen3's `<think>`, which is added yet not special). The four other
    flags are those of Hugging Face's AddedToken and matter only with `allow_special`.
    """

    id: int
    content: str
    special: bool = True
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


@dataclass(slots=True, frozen=True)
class TokenizerOptions:
    """How a tokenizer is to be loaded.

    eod_token: the end-of-document token by name, else it is looked for. allow_special: special-token text inside user
    text becomes the control token, as Hugging Face's `encode` does by default. special_tokens: a JSON file with the
    special tokens of a tiktoken rank file. engine: `auto`, `fast` (fastokens or an error), `huggingface` or `none`.
    """

    eod_token: str | None = None
    allow_special: bool = False
    special_tokens: str | None = None
    engine: str = "auto"


@dataclass(slots=True, frozen=True)
class EndOfDocument:
    """The token that ends a document, and why it was taken (`reason`, said to the user)."""

    id: int
    token: str
    reason: str


class Encoder(Protocol):
    """An engine: texts to ids, single-threaded, a pure function of its input."""

    @property
    def name(self) -> str:
        """Engine and version, such as `fastokens 0.3.5`."""

    def encode_batch(self, texts: Sequence[str]) -> TokenBatch:
        """Ids of each text, nothing added. Raises TokenizerTextError for a text that is not valid Unicode."""


class Tokenizer(Protocol):
    """Any tokenizer. Encoding is a pure function of the text: no beginning or end token is added.

    Pickling stores where it was loaded from and how (never the vocabulary), so that a spawned worker loads its own
    copy; loading there fails when the files have changed meanwhile.
    """

    @property
    def kind(self) -> str:
        """`huggingface`, `sentencepiece` or `tiktoken`."""

    @property
    def engine(self) -> str:
        """Which program encodes and why, in words for the user."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens counted: every id is below it."""

    @property
    def fingerprint(self) -> str:
        """xxh3-128 in hex of what decides ids and bytes (see `mmdata.tokenizers.fingerprint`)."""

    @property
    def special_tokens(self) -> tuple[SpecialToken, ...]:
        """Added and control tokens in order of id."""

    @property
    def eod(self) -> EndOfDocument | None:
        """The end-of-document token, or None where the vocabulary has none."""

    @property
    def eod_id(self) -> int:
        """Its id. Raises TokenizerEodError, listing candidates, where there is none."""

    @property
    def source(self) -> Path:
        """The file the vocabulary was read from."""

    @property
    def config(self) -> Mapping[str, Any]:
        """`tokenizer_config.json` beside the source, or an empty mapping."""

    def encode_batch(self, texts: Sequence[str]) -> TokenBatch:
        """Ids of each text, nothing added. Raises TokenizerTextError for a text that is not valid Unicode."""

    def encode_with_offsets(self, text: str) -> OffsetEncoding:
        """Ids of one text and the half-open character range of each."""

    def decode(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """Text of `ids`, special tokens included. Raises TokenizerTextError for an id outside the vocabulary."""

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes the token stands for; none for an id no token has."""

    def id_to_token(self, token_id: int) -> str | None:
        """The piece as the tokenizer writes it, or None for an id no token has."""

    def token_to_id(self, token: str) -> int | None:
        """Id of a piece as the tokenizer writes it, or None."""


def batch_from_lists(rows: Sequence[Sequence[int]]) -> TokenBatch:
    """Rows of Python ids as one TokenBatch; about 40 ns for each token."""
    lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    tokens = np.fromiter((token for row in rows for token in row), np.int32, int(lengths.sum()))
    return TokenBatch(tokens, lengths)


def refuse_surrogates(texts: Sequence[str]) -> None:
    """Raise TokenizerTextError for the first text holding a lone surrogate; return when there is none.

    Engines refuse such a text each in its own words; called only after one has.
    """
    for number, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerTextError(
                f"text {number} of the batch holds a lone surrogate (U+{ord(text[error.start]):04X} at character "
                f"{error.start}): it is not valid Unicode, so no tokenizer can encode it"
            ) from None
