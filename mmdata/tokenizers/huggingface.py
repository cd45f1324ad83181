"""Hugging Face tokenizers: `tokenizer.json`, a model folder, or `vocab.json` with `merges.txt`.

The reference is the `tokenizers` library (2 to 3 MB/s on a core), the fast engine fastokens. transformers is never
imported. What the library adds unasked (bos, eos, truncation, padding) is taken out; see `definition`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np

from mmdata.errors import TokenizerFormatError, TokenizerTextError
from mmdata.tokenizers.base import OffsetEncoding, TokenBatch, TokenizerOptions, batch_from_lists, refuse_surrogates
from mmdata.tokenizers.definition import Definition, read_definition
from mmdata.tokenizers.engine_choice import Engines
from mmdata.tokenizers.eod import declared_eos
from mmdata.tokenizers.fast import FastEncoder
from mmdata.tokenizers.locate import Source
from mmdata.tokenizers.long_texts import cut_for
from mmdata.tokenizers.threads import use_one_thread


class HuggingFaceEncoder:
    """The `tokenizers` library behind the Encoder protocol, one thread."""

    def __init__(self, engine_json: bytes, where: str) -> None:
        use_one_thread()
        import tokenizers

        self.name = f"tokenizers {version('tokenizers')}"
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_buffer(engine_json)
        except Exception as error:  # the library raises bare Exception
            raise TokenizerFormatError(f"{where}: the tokenizers library cannot load it: {error}") from None

    def encode_batch(self, texts: Sequence[str]) -> TokenBatch:
        """Ids of each text.

        Raises TokenizerTextError for a text with a lone surrogate, and for one the model has no token for (WordLevel
        and Unigram models without an unknown token).
        """
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises bare Exception
            refuse_surrogates(texts)
            raise TokenizerTextError(f"{self.name}: {error}") from None
        return batch_from_lists([encoding.ids for encoding in encodings])

    def encode_with_offsets(self, text: str) -> OffsetEncoding:
        """Ids of one text and the half-open character range of each. Raises TokenizerTextError."""
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        except Exception as error:  # the library raises bare Exception
            refuse_surrogates([text])
            raise TokenizerTextError(f"{self.name}: {error}") from None
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        return OffsetEncoding(np.array(encoding.ids, np.int32), offsets[:, 0], offsets[:, 1])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included, by the library's own decoder."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


class HuggingFaceKind:
    """Everything a tokenizer.json gives, before an engine is loaded (see `mmdata.tokenizers.kind.Kind`)."""

    name = "huggingface"

    def __init__(self, source: Source, options: TokenizerOptions) -> None:
        self._source = source
        self._options = options
        definition = read_definition(source, options.allow_special)
        self._engine_json: bytes | None = definition.engine_json
        self.vocabulary = definition.vocabulary
        self.specials = definition.specials
        self.fingerprint = definition.fingerprint
        self.hidden = definition.hidden
        self.bytes_joined = definition.byte_level
        self.cut = None if options.allow_special else cut_for(definition.header, self.vocabulary.pieces())
        self.config: Mapping[str, Any] = source.sibling("tokenizer_config.json")
        self.declared_eos = declared_eos(self.config)
        self.engines = Engines(self._reference_encoder, self._fast_encoder)

    def _take_json(self) -> bytes:
        """The engine's JSON, read again once `forget` has let it go."""
        if self._engine_json is None:
            self._engine_json = read_definition(self._source, self._options.allow_special).engine_json
        return self._engine_json

    def forget(self) -> None:
        """Let the 10 MB of JSON go once the engine is loaded."""
        self._engine_json = None

    def _reference_encoder(self) -> HuggingFaceEncoder:
        return HuggingFaceEncoder(self._take_json(), str(self._source.files[0]))

    def _fast_encoder(self) -> FastEncoder:
        text = self._take_json().decode()
        self.forget()  # loaded last: the bytes need not stand beside their text
        return FastEncoder.from_json(text)

    @cached_property
    def _reader(self) -> HuggingFaceEncoder:
        """The library, loaded when offsets or decoding ask for it (130 MB for Qwen3)."""
        encoder = self._reference_encoder()
        self.forget()
        return encoder

    @cached_property
    def _decoder(self) -> HuggingFaceEncoder:
        """The library with the added tokens known, so that their ids decode."""
        definition: Definition = read_definition(self._source, allow_special=True)
        return HuggingFaceEncoder(definition.engine_json, str(self._source.files[0]))

    def encode_with_offsets(self, text: str) -> OffsetEncoding:
        """Ids of one text and the half-open character range of each. Raises TokenizerTextError."""
        return self._reader.encode_with_offsets(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, added tokens included. Raises TokenizerTextError for an id no token has."""
        unknown = next((i for i in ids if self.vocabulary.piece(i) is None), None)
        if unknown is not None:
            raise TokenizerTextError(f"id {unknown} is not in the vocabulary ({self.vocabulary.size} ids)")
        return self._decoder.decode(ids)
