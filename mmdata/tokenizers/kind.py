"""What a kind of tokenizer (Hugging Face, SentencePiece, tiktoken) must offer for `mmdata.tokenizer` to build on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mmdata.tokenizers.base import OffsetEncoding, SpecialToken
from mmdata.tokenizers.engine_choice import Engines
from mmdata.tokenizers.vocabulary import Vocabulary


class Kind(Protocol):
    """Facts of one tokenizer and the engines that can serve it.

    name: `huggingface`, `sentencepiece` or `tiktoken`. vocabulary, specials, fingerprint: as in the Tokenizer protocol.
    declared_eos: the end token its files declare, or None. hidden: ids that ordinary text must never yield and that
    have to be looked for in each result. bytes_joined: a text is the bytes of its tokens, joined. cut: where very
    long texts may be cut, `line`, `space` or None (see `long_texts`). config: `tokenizer_config.json`, or empty.
    """

    name: str
    vocabulary: Vocabulary
    specials: tuple[SpecialToken, ...]
    fingerprint: str
    declared_eos: str | None
    hidden: tuple[int, ...]
    bytes_joined: bool
    cut: str | None
    config: Mapping[str, Any]
    engines: Engines

    def forget(self) -> None:
        """Let go of what only loading an engine needs."""

    def encode_with_offsets(self, text: str) -> OffsetEncoding:
        """Ids and character ranges from the reference program, loaded when first asked."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included, from the reference program."""
