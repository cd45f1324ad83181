"""SentencePiece models (`tokenizer.model`): ids exactly as `SentencePieceProcessor.encode` gives them.

Control pieces (`<s>`, `</s>`) are never read out of text, by SentencePiece's own rule; user-defined pieces are, since
they are part of the model's segmentation. Tokens that `added_tokens.json` or `tokenizer_config.json` beside the model
add above its pieces count as special tokens. One thread, about 8 MB/s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from mmdata.errors import TokenizerFormatError, UsageError
from mmdata.tokenizers.base import OffsetEncoding, SpecialToken, TokenBatch, TokenizerOptions, refuse_surrogates
from mmdata.tokenizers.definition import read_added_tokens
from mmdata.tokenizers.engine_choice import Engines
from mmdata.tokenizers.eod import declared_eos
from mmdata.tokenizers.fingerprint import fingerprint
from mmdata.tokenizers.locate import Source
from mmdata.tokenizers.long_texts import spaces_only_lead
from mmdata.tokenizers.sentencepiece_model import only_marks_spaces
from mmdata.tokenizers.vocabulary import Vocabulary, metaspace_bytes


class SentencePieceEncoder:
    """One loaded model behind the Encoder protocol."""

    def __init__(self, path: Path) -> None:
        import sentencepiece

        self.name = f"sentencepiece {version('sentencepiece')}"
        try:
            self.processor: Any = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError) as error:
            raise TokenizerFormatError(f"{path}: not a SentencePiece model: {error}") from None

    def encode_batch(self, texts: Sequence[str]) -> TokenBatch:
        """Ids of each text. Raises TokenizerTextError for a text with a lone surrogate."""
        try:
            rows = self.processor.encode_as_numpy(list(texts), num_threads=1) if len(texts) else []
        except TypeError:
            refuse_surrogates(texts)
            raise
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return TokenBatch(np.concatenate(rows) if rows else np.empty(0, np.int32), lengths)


class SentencePieceKind:
    """Everything a SentencePiece model gives (see `mmdata.tokenizers.kind.Kind`)."""

    name = "sentencepiece"
    bytes_joined = False

    def __init__(self, source: Source, options: TokenizerOptions) -> None:
        if options.allow_special:
            raise UsageError(
                f"{source.files[0]}: SentencePiece never reads control pieces out of text, so --allow-special would do "
                "nothing; leave it out, or use the model's tokenizer.json"
            )
        self._encoder = SentencePieceEncoder(source.files[0])
        processor = self._encoder.processor
        model = processor.serialized_model_proto()
        own = [processor.id_to_piece(number) for number in range(processor.vocab_size())]
        added = [token for token in _added_beside(source) if token.id >= len(own)]
        pieces: list[str | None] = [*own, *([None] * (max((t.id for t in added), default=-1) + 1 - len(own)))]
        for token in added:
            pieces[token.id] = token.content
        marks = [
            SpecialToken(number, piece)
            for number, piece in enumerate(own)
            if processor.is_control(number) or processor.is_unknown(number)
        ]
        self.specials = (*marks, *added)
        self.vocabulary = Vocabulary(pieces, metaspace_bytes, {token.id for token in self.specials})
        self.cut = "space" if only_marks_spaces(model) and spaces_only_lead(own) else None
        self.config: Mapping[str, Any] = source.sibling("tokenizer_config.json")
        eos = processor.eos_id()
        self.declared_eos = own[eos] if 0 <= eos < len(own) else declared_eos(self.config)
        shown = {token.id: token.content for token in self.specials}
        self._shown = {
            number: name for number, name in shown.items() if number >= len(own) or processor.is_control(number)
        }
        # The library writes fields in one fixed order, so the same model gives the same bytes.
        header = {"kind": "SentencePiece", "model": xxhash.xxh3_128_hexdigest(model)}
        self.fingerprint = fingerprint(header, self.specials, self.vocabulary, ())
        self.hidden: tuple[int, ...] = ()
        self.engines = Engines(lambda: self._encoder, None)

    def forget(self) -> None:
        """Nothing is kept beside the engine."""

    def encode_with_offsets(self, text: str) -> OffsetEncoding:
        """Ids of one text and the half-open character range of each. Raises TokenizerTextError."""
        refuse_surrogates([text])
        found = self._encoder.processor.encode_as_offset_mapping(text)
        offsets = np.array(found["offsets"], np.int64).reshape(-1, 2)
        starts, ends = offsets[:, 0], offsets[:, 1].copy()
        for number in range(len(ends) - 2, -1, -1):  # the first bytes of a character are given no width
            if starts[number] == ends[number] == starts[number + 1]:
                ends[number] = ends[number + 1]
        return OffsetEncoding(np.array(found["ids"], np.int32), starts, ends)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids. Control pieces and added tokens show; SentencePiece itself would leave them out."""
        parts: list[str] = []
        for is_control, group in groupby(ids, self._shown.__contains__):
            run = list(group)
            parts += [self._shown[number] for number in run] if is_control else [self._text(run)]
        return "".join(parts)

    def _text(self, ids: list[int]) -> str:
        return str(self._encoder.processor.decode(ids))


def _added_beside(source: Source) -> tuple[SpecialToken, ...]:
    """Tokens a fine-tuned model's files beside the SentencePiece model add to it (ChatML marks on Llama 2, say)."""
    rows = [{"id": number, "content": name} for name, number in source.sibling("added_tokens.json").items()]
    return read_added_tokens(rows, source)
