"""Text from tokens as they come: whole characters only, special tokens left out, stop strings found and cut off.

Decoding looks at the last few tokens only, so a text of n tokens costs n short decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

REPLACEMENT = "\ufffd"
_CONTEXT_TOKENS = 6


class Decoder(Protocol):
    """What this asks of a tokenizer."""

    def decode(self, ids: Any) -> str:
        """The text of token ids."""


class TextStream:
    """The text of one continuation.

    prompt: ids before it, for tokenizers whose spaces depend on them. hidden: special ids that give no text.
    """

    def __init__(
        self, tokenizer: Decoder, prompt: Sequence[int], hidden: frozenset[int], stop_strings: Sequence[str] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._stops = tuple(stop_strings)
        self._ids = [token for token in prompt if token not in hidden][-_CONTEXT_TOKENS:]
        self._start, self._read = 0, len(self._ids)
        self._emitted = 0
        self.text = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Add a token; returns the text that is settled now and was not returned before."""
        if token in self._hidden:
            return ""
        self._ids.append(token)
        whole, before = self._decoded()
        # A character whose bytes are not all here yet shows as U+FFFD at the end.
        if len(whole) > len(before) and not whole.endswith(REPLACEMENT):
            self._take(whole[len(before) :])
        return self._settled(final=False)

    def finish(self) -> str:
        """The rest, unfinished characters included; nothing may be pushed afterwards."""
        if not self.stopped:
            whole, before = self._decoded()
            self._take(whole[len(before) :])
        return self._settled(final=True)

    def _decoded(self) -> tuple[str, str]:
        decode = self._tokenizer.decode
        read = self._ids[self._start : self._read]
        return decode(self._ids[self._start :]), decode(read) if read else ""

    def _take(self, new: str) -> None:
        self._start, self._read = self._read, len(self._ids)
        first = max(0, len(self.text) - max((len(stop) for stop in self._stops), default=0))
        self.text += new
        found = [place for stop in self._stops if (place := self.text.find(stop, first)) >= 0]
        if found:
            self.text, self.stopped = self.text[: min(found)], True

    def _settled(self, *, final: bool) -> str:
        """Text not returned yet, without an ending that may become a stop string."""
        end = len(self.text)
        if not (final or self.stopped):
            end -= max((_overlap(self.text, stop) for stop in self._stops), default=0)
        new, self._emitted = self.text[self._emitted : end], max(self._emitted, end)
        return new


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
