"""Encoding of the stretches of plain text between control tokens.

A stretch is encoded as ordinary text: no control token can come out of it. SentencePiece-like tokenizers put a space
before the first text of a document only; there a later stretch is encoded behind a line feed whose ids are then taken
off, as transformers does. Character positions inside a stretch become token positions through the bytes of the tokens,
checked to be the bytes of the text, else through the tokenizer's own offsets.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.chat.joined import JoinedEncoder
from mmdata.errors import ChatTemplateError
from mmdata.tokenizers.base import SpecialToken, TokenBatch, Tokenizer

Tokens = NDArray[np.int32]
Indices = NDArray[np.int64]


class StretchEncoder:
    """Texts to ids for one tokenizer, and where in the ids a character is."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.specials: dict[str, SpecialToken] = {s.content: s for s in tokenizer.special_tokens if s.content}
        self._line_feed = tokenizer.encode_batch(["\n"]).tokens
        self._prefix_first_only = self._finds_prefix()
        self._joined = JoinedEncoder(tokenizer)

    @cached_property
    def control(self) -> re.Pattern[str]:
        """Matches any control token in template text, the longest first (as `tokenizers` does)."""
        longest = sorted(self.specials, key=lambda content: (-len(content), content))
        return re.compile("|".join(map(re.escape, longest)) or r"(?!)")

    def is_control(self, text: str) -> bool:
        """Whether `text` holds a control token."""
        return self.control.search(text) is not None

    def encode(self, texts: list[str], later: Any, seams: list[str] | None = None) -> TokenBatch:
        """Ids of each stretch; `later` (booleans) says which do not stand at the start of their document. seams: see
        `JoinedEncoder.encode`."""
        if not self._prefix_first_only:
            return self._joined.encode(texts, seams or [""] * len(texts))
        shifted = [bool(behind and text) for text, behind in zip(texts, later, strict=True)]
        batch = self.tokenizer.encode_batch(["\n" + t if shift else t for t, shift in zip(texts, shifted, strict=True)])
        cut = np.array(shifted, np.int64) * len(self._line_feed)
        starts = np.cumsum(batch.lengths) - batch.lengths
        keep = np.ones(len(batch.tokens), bool)
        for i, token in enumerate(self._line_feed):
            at = starts[cut > 0] + i
            if not np.array_equal(batch.tokens[at], np.full(len(at), token)):
                raise ChatTemplateError(
                    f"{self.tokenizer.source}: a line feed before a text changes its first token, so text behind a "
                    "control token cannot be encoded apart from it"
                )
            keep[at] = False
        return TokenBatch(batch.tokens[keep], batch.lengths - cut)

    def positions(self, text: str, later: bool, offset: int) -> tuple[int, int]:
        """For a cut at character `offset` of one stretch: the first token that ends behind it, and the number of
        tokens that start before it (equal unless a token spans the cut)."""
        encoding = self.tokenizer.encode_with_offsets("\n" + text if later and self._prefix_first_only else text)
        skip = len(self._line_feed) if later and self._prefix_first_only else 0
        shift = 1 if skip else 0
        starts, ends = encoding.starts[skip:] - shift, encoding.ends[skip:] - shift
        first = int(np.argmax(ends > offset)) if (ends > offset).any() else len(ends)
        return first, int(np.count_nonzero(starts < offset))

    def byte_lengths(self, tokens: Tokens) -> Indices:
        """Bytes of each token, int64; they say where a token lies in its text only where `joins_bytes`."""
        sizes: Indices = self._sizes[tokens]
        unknown = sizes < 0
        if unknown.any():
            for token in np.unique(tokens[unknown]).tolist():
                self._sizes[token] = len(self.tokenizer.token_bytes(token))
            sizes = self._sizes[tokens]
        return sizes

    @cached_property
    def _sizes(self) -> Indices:
        """Bytes of each token looked up so far, else -1."""
        return np.full(self.tokenizer.vocab_size, -1, np.int64)

    @cached_property
    def joins_bytes(self) -> bool:
        """Whether tokens are the bytes of the text, composed (NFC) at most."""
        # No character of the probe changes under NFC; each changes under another normaliser in use.
        probe = "a B\n\n\tä É ß ﬁ ① ½ Ａ ｶ 中文 ``x'' …  y"
        ids = self.tokenizer.encode_batch([probe]).tokens
        return b"".join(self.tokenizer.token_bytes(int(i)) for i in ids) == probe.encode()

    def _finds_prefix(self) -> bool:
        """Whether only the first text of a document gets a space in front."""
        alone, behind = self.tokenizer.encode_batch(["a"]).tokens, self.tokenizer.encode_batch(["\na"]).tokens
        if np.array_equal(behind[len(self._line_feed) :], alone):
            return False
        if self.tokenizer.kind != "huggingface" or self.tokenizer.source.suffix != ".json":
            return True
        header = json.loads(self.tokenizer.source.read_text(encoding="utf-8")).get("pre_tokenizer")
        return _has_first_scheme(header)


def _has_first_scheme(node: Any) -> bool:
    if isinstance(node, dict):
        if node.get("type") == "Metaspace":
            return bool(node.get("prepend_scheme") == "first")
        return any(_has_first_scheme(value) for value in node.values())
    return isinstance(node, list) and any(_has_first_scheme(value) for value in node)
