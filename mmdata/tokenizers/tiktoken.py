"""tiktoken rank files: ids exactly as `tiktoken.Encoding.encode_ordinary` gives them.

The reference is tiktoken (15 MB/s on a core), the fast engine fastokens. A rank file lacks the pattern that cuts text
into words and the special tokens: they come with a NAME (see `rank_encodings`) or from a JSON file
`{"pattern": "...", "special_tokens": {"<|endoftext|>": 100257}}`. Nothing is cached on disk or fetched.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mmdata.errors import TokenizerFormatError
from mmdata.tokenizers.base import (
    OffsetEncoding,
    SpecialToken,
    TokenBatch,
    TokenizerOptions,
    batch_from_lists,
    refuse_surrogates,
)
from mmdata.tokenizers.engine_choice import Engines
from mmdata.tokenizers.eod import declared_eos
from mmdata.tokenizers.fast import FastEncoder
from mmdata.tokenizers.fingerprint import fingerprint
from mmdata.tokenizers.locate import Source, read_json_object
from mmdata.tokenizers.long_texts import pattern_allows_cuts
from mmdata.tokenizers.rank_encodings import ENCODINGS, RankEncoding
from mmdata.tokenizers.vocabulary import Vocabulary


class TiktokenEncoder:
    """tiktoken behind the Encoder protocol, one thread."""

    def __init__(self, path: Path, encoding: RankEncoding, allow_special: bool) -> None:
        import tiktoken

        self.name = f"tiktoken {version('tiktoken')}"
        try:
            self._encoding = tiktoken.Encoding(
                path.name,
                pat_str=encoding.pattern,
                mergeable_ranks=read_ranks(path),
                special_tokens=encoding.special_tokens,
            )
        except ValueError as error:
            raise TokenizerFormatError(f"{path}: tiktoken cannot use it with this pattern: {error}") from None
        self._allow_special = allow_special

    def encode_batch(self, texts: Sequence[str]) -> TokenBatch:
        """Ids of each text. Raises TokenizerTextError for a text with a lone surrogate.

        tiktoken itself would quietly put U+FFFD in its place.
        """
        refuse_surrogates(texts)
        if self._allow_special:
            return batch_from_lists([self._encoding.encode(text, allowed_special="all") for text in texts])
        return batch_from_lists([self._encoding.encode_ordinary(text) for text in texts])


class TiktokenKind:
    """Everything a rank file and its encoding give (see `mmdata.tokenizers.kind.Kind`)."""

    name = "tiktoken"
    bytes_joined = True

    def __init__(self, source: Source, options: TokenizerOptions) -> None:
        path = source.files[0]
        encoding = find_encoding(source, options.special_tokens)
        ranks = read_ranks(path)
        clash = next((name for name, number in encoding.special_tokens.items() if number < len(ranks)), None)
        if clash is not None:
            raise TokenizerFormatError(
                f"{path}: {len(ranks)} ranks, but the special token {clash!r} has id {encoding.special_tokens[clash]}: "
                "the file and the encoding do not belong together"
            )
        by_id = {rank: token for token, rank in ranks.items()}
        by_id.update((number, name.encode()) for name, number in encoding.special_tokens.items())
        self.vocabulary = Vocabulary.of_bytes([by_id.get(number) for number in range(max(by_id) + 1)])
        ordered = sorted(encoding.special_tokens.items(), key=lambda item: item[1])
        self.specials = tuple(SpecialToken(number, name) for name, number in ordered)
        # Ranks order the merges and are the ids, so the vocabulary holds the merges already.
        header = {"kind": "tiktoken", "pattern": encoding.pattern}
        self.fingerprint = fingerprint(header, self.specials, self.vocabulary, ())
        self.config: Mapping[str, Any] = source.sibling("tokenizer_config.json")
        self.declared_eos = declared_eos(self.config)
        self.hidden: tuple[int, ...] = ()
        safe = not options.allow_special and pattern_allows_cuts(encoding.pattern)
        self.cut = "line" if safe else None
        spoken = encoding.special_tokens if options.allow_special else {}
        self.engines = Engines(
            lambda: TiktokenEncoder(path, encoding, options.allow_special),
            lambda: FastEncoder.from_ranks(path, encoding.pattern, spoken),
        )

    def forget(self) -> None:
        """Nothing is kept beside the engine."""

    def encode_with_offsets(self, text: str) -> OffsetEncoding:
        """Never called: `LoadedTokenizer` knows the ranges from the bytes of the tokens."""
        raise AssertionError("tokens of a rank file are the bytes of the text, always")

    def decode(self, ids: Sequence[int]) -> str:
        """Never called: `LoadedTokenizer` joins the bytes of the tokens."""
        raise AssertionError("tokens of a rank file are the bytes of the text, always")


def find_encoding(source: Source, special_tokens: str | None) -> RankEncoding:
    """Pattern and special tokens by NAME, with those of a JSON file in place of them where one is given."""
    known = ENCODINGS[source.encoding] if source.encoding else None
    if special_tokens is None:
        if known is None:
            raise TokenizerFormatError(
                f"{source.files[0]}: a rank file needs its encoding: write NAME:{source.files[0]} with one of "
                f"{', '.join(sorted(ENCODINGS))}, or give --special-tokens FILE"
            )
        return known
    path = Path(special_tokens)
    given = read_json_object(path) if path.is_file() else None
    if given is None:
        raise TokenizerFormatError(f"{path}: no such file (special tokens of {source.files[0]})")
    pattern = given.get("pattern", known.pattern if known else None)
    tokens = given.get("special_tokens")
    sound = isinstance(tokens, dict) and all(type(number) is int and number >= 0 for number in tokens.values())
    if not isinstance(pattern, str) or not sound or not isinstance(tokens, dict):
        raise TokenizerFormatError(
            f'{path}: needs {{"pattern": "a regular expression", "special_tokens": {{"<|endoftext|>": 100257}}}}; '
            "`pattern` may be left out only with NAME:FILE"
        )
    return RankEncoding(pattern, tokens)


def read_ranks(path: Path) -> dict[bytes, int]:
    """Token bytes -> rank. Raises TokenizerFormatError with the line that cannot be understood."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise TokenizerFormatError(f"{path}:{number}: {line[:60]!r} is not base64 text and a rank") from None
    single = sum(len(token) == 1 for token in ranks)
    if single != 256:
        raise TokenizerFormatError(f"{path}: {single} of the 256 single bytes have a rank: not a byte-level rank file")
    return ranks
