"""The fast engine: fastokens, exact byte-pair encoding at 100 MB/s and more on one core.

Never used unchecked (see `engine_choice`). Loading Qwen3 takes 1.1 s and 200 MB. Handles BPE models only.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from mmdata.errors import TokenizerEngineError
from mmdata.tokenizers.base import TokenBatch
from mmdata.tokenizers.engine_choice import described_failure
from mmdata.tokenizers.threads import use_one_thread


class FastEncoder:
    """fastokens behind the Encoder protocol. Build it with `from_json` or `from_ranks`."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.name = f"fastokens {version('fastokens')}"

    @classmethod
    def from_json(cls, engine_json: str) -> FastEncoder:
        """From the text of a tokenizer.json. Raises TokenizerEngineError when fastokens cannot serve it."""
        return cls(_built("from_json_str", engine_json))

    @classmethod
    def from_ranks(cls, path: Path, pattern: str, special_tokens: dict[str, int]) -> FastEncoder:
        """From a tiktoken rank file and its split pattern; `special_tokens` are recognised in text."""
        return cls(_built("from_tiktoken", str(path), pattern=pattern, special_tokens=special_tokens or None))

    def encode_batch(self, texts: Sequence[str]) -> TokenBatch:
        """Ids of each text. Raises TokenizerEngineError when fastokens gives up on one of them."""
        try:
            ids, offsets = self._tokenizer.encode_batch_flat(texts if isinstance(texts, list) else list(texts))
        except BaseException as error:  # a panic in Rust derives from BaseException
            raise described_failure(self.name, error) from None
        ends = np.frombuffer(offsets, np.int64)
        return TokenBatch(np.frombuffer(ids, np.int32), ends[1:] - ends[:-1])


def _built(constructor: str, *arguments: Any, **options: Any) -> Any:
    use_one_thread()
    try:
        import fastokens
    except ImportError as error:
        raise TokenizerEngineError(f"fastokens cannot be imported: {error}") from None
    try:
        return getattr(fastokens.Tokenizer, constructor)(*arguments, **options)
    except BaseException as error:  # a panic in Rust derives from BaseException
        raise described_failure("fastokens cannot load it", error) from None
