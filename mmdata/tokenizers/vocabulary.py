"""The vocabulary as two flat byte strings: pieces as the tokenizer writes them, and the bytes they stand for.

A Python list of 150,000 strings takes about 12 MB and a dict as much again; this takes 3 MB. Looking up a token by its
text scans once and is meant for the few special tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def byte_level_alphabet() -> dict[int, int]:
    """Code point -> byte of GPT-2's byte-level alphabet (its `bytes_to_unicode`, turned round).

    Printable Latin-1 bytes stand for themselves; the other 68, in order, are U+0100 upwards.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: byte for byte in printable}
    table.update({0x100 + n: byte for n, byte in enumerate(sorted(set(range(256)) - set(printable)))})
    return table


BYTE_LEVEL = byte_level_alphabet()
_ALPHABET = frozenset(map(chr, BYTE_LEVEL))
_IN_ALPHABET = {byte: chr(point) for point, byte in BYTE_LEVEL.items()}


def byte_level_bytes(piece: str) -> bytes:
    """Bytes of a byte-level piece; one with a character outside the alphabet stands for its own UTF-8."""
    return piece.translate(BYTE_LEVEL).encode("latin-1") if _ALPHABET.issuperset(piece) else piece.encode()


def byte_level_blob(pieces: Sequence[str | None], literal: set[int]) -> tuple[bytes, Indices]:
    """`byte_level_bytes` of all pieces, joined, and where each ends: 20 ms for 150,000 pieces.

    Those that stand for their own UTF-8 are spelled in the alphabet first, so that one table look-up serves all.
    """

    def spell(piece: str) -> str:
        return "".join([_IN_ALPHABET[byte] for byte in piece.encode()])

    spelled = [piece or "" for piece in pieces]
    for number in literal:
        spelled[number] = spell(spelled[number])
    if not _ALPHABET.issuperset(joined := "".join(spelled)):
        spelled = [piece if _ALPHABET.issuperset(piece) else spell(piece) for piece in spelled]
        joined = "".join(spelled)
    table = np.zeros(0x100 + len(BYTE_LEVEL), np.uint8)
    table[list(BYTE_LEVEL)] = list(BYTE_LEVEL.values())
    ends = np.cumsum(np.fromiter(map(len, spelled), np.int64, len(spelled)))
    return table[np.frombuffer(joined.encode("utf-16-le"), np.uint16)].tobytes(), ends


def metaspace_bytes(piece: str) -> bytes:
    """Bytes of a SentencePiece-like piece: `<0xE4>` is one byte, `▁` a space."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            pass  # not a byte piece, only shaped like one
    return piece.replace("\u2581", " ").encode()


def plain_bytes(piece: str) -> bytes:
    """Bytes of a piece that is spelled as the text it stands for."""
    return piece.encode()


class Vocabulary:
    """id -> piece and id -> bytes. Ids that no token has yield None and b\"\"."""

    def __init__(self, pieces: Sequence[str | None], to_bytes: Callable[[str], bytes], literal: set[int]) -> None:
        """pieces: by id, None for a hole. literal: ids (added tokens) whose bytes are their own UTF-8."""
        self.size = len(pieces)
        self.present = np.fromiter((piece is not None for piece in pieces), np.bool_, self.size)
        self._pieces, self._piece_ends = _join([b"" if piece is None else piece.encode() for piece in pieces])
        if to_bytes is byte_level_bytes:
            self._set_bytes(*byte_level_blob(pieces, literal))
            return
        spelled = [
            b"" if piece is None else piece.encode() if number in literal else to_bytes(piece)
            for number, piece in enumerate(pieces)
        ]
        self._set_bytes(*_join(spelled))

    def _set_bytes(self, blob: bytes, ends: Indices) -> None:
        self._bytes, self._byte_ends = blob, ends
        self.byte_lengths: Indices = np.diff(ends, prepend=0)  # bytes of each token, int64, shape (size,)

    @classmethod
    def of_bytes(cls, tokens: Sequence[bytes | None]) -> Vocabulary:
        """A vocabulary whose pieces are bytes (tiktoken); as text they are decoded with replacement marks."""
        vocabulary = cls(
            [None if token is None else token.decode(errors="replace") for token in tokens], plain_bytes, set()
        )
        vocabulary._set_bytes(*_join([token or b"" for token in tokens]))
        return vocabulary

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes the token stands for; none for an id no token has."""
        return _slice(self._bytes, self._byte_ends, token_id)

    def rows(self, start: int, stop: int) -> list[tuple[int, str]]:
        """Id and bytes in hexadecimal of the tokens with ids from `start` to `stop`, holes left out."""
        stop = min(stop, self.size)
        first = int(self._byte_ends[start - 1]) if start else 0
        ends = (self._byte_ends[start:stop] - first).tolist()
        text = self._bytes[first : first + ends[-1]].hex()
        starts = [0, *ends[:-1]]
        spans = zip(range(start, stop), self.present[start:stop].tolist(), starts, ends, strict=True)
        return [(number, text[2 * low : 2 * high]) for number, present, low, high in spans if present]

    def piece(self, token_id: int) -> str | None:
        """The piece as the tokenizer writes it; None for an id no token has."""
        if not 0 <= token_id < self.size or not self.present[token_id]:
            return None
        return _slice(self._pieces, self._piece_ends, token_id).decode()

    def pieces(self) -> Iterator[str]:
        """All pieces in order of id, holes left out."""
        return (piece for number in self.present.nonzero()[0].tolist() if (piece := self.piece(number)) is not None)

    def find(self, piece: str) -> int | None:
        """Lowest id of a piece, or None: one scan, about a millisecond for 150,000 pieces."""
        wanted, position = piece.encode(), -1
        if not wanted:
            return None
        while (position := self._pieces.find(wanted, position + 1)) >= 0:
            token_id = int(np.searchsorted(self._piece_ends, position, side="right"))
            if _slice(self._pieces, self._piece_ends, token_id) == wanted:
                return token_id
        return None

    def join(self, ids: NDArray[np.integer[Any]]) -> bytes:
        """Bytes of all `ids`, joined."""
        lengths = self.byte_lengths[ids]
        # Byte k of the result is byte (start of its token) + (k - start of its token in the result) of the blob.
        shift = self._byte_ends[ids] - np.cumsum(lengths)
        where = np.arange(int(lengths.sum())) + np.repeat(shift, lengths)
        return bytes(np.frombuffer(self._bytes, np.uint8)[where])


def _join(parts: Sequence[bytes]) -> tuple[bytes, Indices]:
    return b"".join(parts), np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))


def _slice(blob: bytes, ends: Indices, number: int) -> bytes:
    return blob[ends[number - 1] if number else 0 : ends[number]]
