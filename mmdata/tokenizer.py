"""Any tokenizer behind one protocol: ids, bytes, special tokens, end of document, fingerprint.

Takes a `tokenizer.json`, a Hugging Face folder, `vocab.json` + `merges.txt` (in a folder, or as two paths), a
SentencePiece model, or a tiktoken rank file (`NAME:FILE`, or the bare file with `special_tokens`). Reads local files
only. Text is encoded as ordinary text: a special token's name inside it becomes the pieces it is spelled with, and no
beginning or end token is added. Loading Qwen3 takes 1.7 s with its self-check, 1.3 s in a worker and where the same
check has passed before; encoding runs at 100 MB/s and more on one core with the fast engine, 3 MB/s without.

Not covered: WordPiece and Unigram models and SentencePiece have no fast engine here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import TokenizerChangedError, TokenizerEodError, TokenizerTextError, UsageError
from mmdata.tokenizers.base import (
    Encoder,
    EndOfDocument,
    OffsetEncoding,
    SpecialToken,
    TokenBatch,
    Tokenizer,
    TokenizerOptions,
)
from mmdata.tokenizers.engine_choice import GuardedEncoder, Verdict, choose, recalled, resume
from mmdata.tokenizers.eod import CANDIDATES, choose_eod, suggestions
from mmdata.tokenizers.kind import Kind
from mmdata.tokenizers.locate import Source, Where, locate
from mmdata.tokenizers.long_texts import encode_in_pieces
from mmdata.tokenizers.threads import release_memory
from mmdata.tokenizers.verdicts import memory_of

__all__ = [
    "EndOfDocument",
    "OffsetEncoding",
    "SpecialToken",
    "TokenBatch",
    "Tokenizer",
    "TokenizerOptions",
    "TokenizerSpec",
    "load_tokenizer",
]


@dataclass(slots=True, frozen=True)
class TokenizerSpec:
    """How to load a tokenizer again elsewhere: small, picklable, and sure to give the same ids or fail.

    source: its files. options: how it was asked for. verdict: which engine passed. fingerprint: what it must match.
    """

    source: Source
    options: TokenizerOptions
    verdict: Verdict
    fingerprint: str

    def load(self) -> LoadedTokenizer:
        """The tokenizer. Raises TokenizerChangedError when its files no longer have this fingerprint."""
        kind, encoder = _PRELOADED.pop((self.source, self.options, _stamp(self.source)), (None, None))
        if kind is None:
            kind = kind_of(self.source, self.options)
        if kind.fingerprint != self.fingerprint:
            raise TokenizerChangedError(
                f"{self.source.files[0]}: changed since the run was planned (fingerprint {kind.fingerprint}, expected "
                f"{self.fingerprint}); start the run again"
            )
        if encoder is None or not self.verdict.fast:
            encoder = resume(kind.engines, self.verdict)
        return LoadedTokenizer(kind, encoder, self)


# What `preload_tokenizer` loaded and nobody has taken yet; at most one.
_PRELOADED: dict[tuple[Source, TokenizerOptions, tuple[tuple[int, int], ...]], tuple[Kind, Encoder]] = {}


def preload_tokenizer(
    path: Where, *, eod_token: str | None, allow_special: bool, special_tokens: str | Path | None, engine: str
) -> None:
    """Load what a TokenizerSpec of the same arguments will take, while its verdict is still being found elsewhere.

    The fast engine is loaded; should the verdict go against it, that was for nothing. Raises as load_tokenizer does.
    """
    source, options = _asked_for(path, eod_token, allow_special, special_tokens, engine)
    stamp = _stamp(source)
    kind = kind_of(source, options)
    if kind.engines.fast is not None and engine in ("auto", "fast"):
        encoder = kind.engines.fast()
        encoder.encode_batch(["a"])  # the engine makes its tables at the first text: 0.1 s for Qwen3
        kind.forget()
        release_memory()
        _PRELOADED.clear()
        _PRELOADED[source, options, stamp] = kind, encoder


def _stamp(source: Source) -> tuple[tuple[int, int], ...]:
    """Size and time of the source's files: what was loaded before they changed is of no use."""
    stats = [os.stat(file) for file in source.files if file.exists()]
    return tuple((stat.st_size, stat.st_mtime_ns) for stat in stats)


def load_tokenizer(
    path: Where,
    *,
    eod_token: str | None = None,
    allow_special: bool = False,
    special_tokens: str | Path | None = None,
    engine: str = "auto",
    sample: Sequence[str] = (),
) -> LoadedTokenizer:
    """The tokenizer at `path` (a file, a folder, `NAME:FILE`, or a pair of vocabulary and merges file).

    eod_token: the end-of-document token by name. allow_special: special-token text in user text becomes the control
    token. special_tokens: JSON file with `pattern` and `special_tokens` for a tiktoken rank file. engine: `auto` (fast
    where its self-check passes), `fast` (that or an error), `huggingface` (the reference), `none` (facts and decoding
    only, 0.4 s for Qwen3). sample: texts of this run for the self-check; one that passed before, with the same texts
    and engines, is not made again (`mmdata.tokenizers.verdicts`).

    Raises TokenizerNotFoundError, TokenizerFormatError, TokenizerEodError (eod_token is not in the vocabulary),
    TokenizerEngineError (`fast` does not hold) and UsageError (unknown engine, special_tokens without a rank file).
    """
    source, options = _asked_for(path, eod_token, allow_special, special_tokens, engine)
    kind = kind_of(source, options)
    special = [token.content for token in kind.specials]
    if kind.engines.fast is None or engine not in ("auto", "fast"):
        encoder, verdict = choose(kind.engines, engine, special, sample)
    else:
        memory = memory_of(source, options, kind.fingerprint, special, sample)
        found = recalled(kind.engines, memory.recall())
        encoder, verdict = choose(kind.engines, engine, special, sample) if found is None else found
        if found is None:
            memory.keep(verdict)
    return LoadedTokenizer(kind, encoder, TokenizerSpec(source, options, verdict, kind.fingerprint))


def _asked_for(
    path: Where, eod_token: str | None, allow_special: bool, special_tokens: str | Path | None, engine: str
) -> tuple[Source, TokenizerOptions]:
    found = locate(path)
    if special_tokens is not None and found.kind != "ranks":
        raise UsageError(
            f"{found.files[0]}: --special-tokens {special_tokens} belongs to a tiktoken rank file and would do nothing "
            "here; leave it out"
        )
    specials_file = None if special_tokens is None else os.path.abspath(special_tokens)
    options = TokenizerOptions(eod_token, allow_special, specials_file, engine)
    source = replace(found, files=tuple(Path(os.path.abspath(file)) for file in found.files))
    return source, options


def kind_of(source: Source, options: TokenizerOptions) -> Kind:
    """The facts of a source, no engine loaded. Each kind's module is imported only when it is met."""
    if source.kind == "sentencepiece":
        from mmdata.tokenizers.sentencepiece import SentencePieceKind

        return SentencePieceKind(source, options)
    if source.kind == "ranks":
        from mmdata.tokenizers.tiktoken import TiktokenKind

        return TiktokenKind(source, options)
    from mmdata.tokenizers.huggingface import HuggingFaceKind

    return HuggingFaceKind(source, options)


class LoadedTokenizer:
    """The `Tokenizer` protocol over one kind and one engine. Pickles as its TokenizerSpec."""

    def __init__(self, kind: Kind, encoder: Encoder, spec: TokenizerSpec) -> None:
        self._kind = kind
        self._encoder = GuardedEncoder(encoder, kind.engines.reference) if spec.verdict.fast else encoder
        self._hidden = np.array(kind.hidden, np.int32)
        self.spec = spec
        self.kind = kind.name
        self.engine = spec.verdict.description
        self.vocab_size = kind.vocabulary.size
        self.fingerprint = kind.fingerprint
        self.special_tokens: tuple[SpecialToken, ...] = kind.specials
        self.eod = choose_eod(spec.options.eod_token, self.token_to_id, kind.specials, kind.declared_eos)
        kind.forget()
        release_memory()

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenizerSpec.load, (self.spec,)

    @property
    def source(self) -> Path:
        """The file the vocabulary was read from."""
        return self.spec.source.files[0]

    @property
    def config(self) -> Mapping[str, Any]:
        """`tokenizer_config.json` beside the source, or an empty mapping."""
        return self._kind.config

    @property
    def cut(self) -> str | None:
        """Where a text may be cut without changing an id: `line`, `space` or None (`mmdata.tokenizers.long_texts`)."""
        return self._kind.cut

    @property
    def eod_id(self) -> int:
        """Id of the end-of-document token. Raises TokenizerEodError, listing candidates, where there is none."""
        if self.eod is None:
            raise TokenizerEodError(
                f"{self.source}: no end-of-document token: none of {', '.join(CANDIDATES)} is in the vocabulary "
                f"and none is declared; name one with --eod-token or turn it off with --no-append-eod; "
                f"{suggestions(self.special_tokens)}"
            )
        return self.eod.id

    def encode_batch(self, texts: Sequence[str]) -> TokenBatch:
        """Ids of each text, nothing added. Raises TokenizerTextError for a text that is not valid Unicode."""
        cut = self._kind.cut
        batch = encode_in_pieces(self._encoder, texts, cut) if cut else self._encoder.encode_batch(texts)
        self._refuse_hidden(batch.tokens)
        return batch

    def encode_with_offsets(self, text: str) -> OffsetEncoding:
        """Ids of one text and the half-open character range of each.

        From the bytes of the tokens where these are the bytes of the text, else from the reference program.
        """
        if self._kind.bytes_joined:
            ids = self.encode_batch([text]).tokens
            encoding = offsets_from_bytes(
                text, ids, self._kind.vocabulary.byte_lengths, self._kind.vocabulary.join(ids)
            )
            if encoding is not None:
                return encoding
        encoding = self._kind.encode_with_offsets(text)
        self._refuse_hidden(encoding.ids)
        return encoding

    def decode(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """Text of `ids`, special tokens included; bytes that are not UTF-8 become U+FFFD.

        Raises TokenizerTextError for an id outside the vocabulary.
        """
        array = np.asarray(ids, np.int64).reshape(-1)
        outside = array[(array < 0) | (array >= self.vocab_size)]
        if outside.size:
            raise TokenizerTextError(f"id {outside[0]} is outside the vocabulary (0 to {self.vocab_size - 1})")
        if self._kind.bytes_joined:
            return self._kind.vocabulary.join(array).decode(errors="replace")
        return self._kind.decode(array.tolist())

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes the token stands for (part of a character, it may be); b\"\" for an id no token has."""
        return self._kind.vocabulary.token_bytes(token_id)

    def id_to_token(self, token_id: int) -> str | None:
        """The piece as the tokenizer writes it (`Ġthe`, `▁the`), or None for an id no token has."""
        return self._kind.vocabulary.piece(token_id)

    def token_to_id(self, token: str) -> int | None:
        """Id of a piece as the tokenizer writes it, or None; a special token goes before a piece of the same text."""
        for special in self._kind.specials:
            if special.content == token:
                return special.id
        return self._kind.vocabulary.find(token)

    def _refuse_hidden(self, tokens: NDArray[np.int32]) -> None:
        if self._hidden.size and np.isin(tokens, self._hidden).any():
            raise TokenizerTextError("a text spells the hidden name of a control token; remove U+FDD0 from the input")


def offsets_from_bytes(
    text: str, ids: NDArray[np.int32], byte_lengths: NDArray[np.int64], joined: bytes
) -> OffsetEncoding | None:
    """Character ranges of tokens whose `joined` bytes are the text; None when they are not (it was normalised)."""
    encoded = text.encode()
    if joined != encoded:
        return None
    ends = np.cumsum(byte_lengths[ids])
    starts = ends - byte_lengths[ids]
    if text.isascii():
        return OffsetEncoding(ids, starts, ends)
    # Continuation bytes are 10xxxxxx: counting the others gives the character each byte belongs to.
    character = np.cumsum((np.frombuffer(encoded, np.uint8) & 0xC0) != 0x80) - 1
    return OffsetEncoding(ids, character[starts], character[ends - 1] + 1)
