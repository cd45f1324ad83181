"""The few fields of a SentencePiece model file that say how text is prepared, read without the protobuf package.

A model is a protocol-buffer message: field 1 repeats the pieces, 2 is the trainer's specification (3: model type, 24:
white space as suffix), 3 the normaliser's (2: compiled character map, 3: add_dummy_prefix, 4: remove_extra_whitespaces,
5: escape_whitespaces; these three are true when absent).
"""

from __future__ import annotations

from collections.abc import Iterator

BPE = 2


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of one message: an int for variable-length fields, bytes for all others."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        kind = key & 7
        if kind == 0:
            value, position = _varint(message, position)
            yield key >> 3, value
            continue
        if kind == 2:
            size, position = _varint(message, position)
        else:
            size = 8 if kind == 1 else 4
        yield key >> 3, message[position : position + size]
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        shift, position = shift + 7, position + 1
        if byte < 0x80:
            return value, position


def only_marks_spaces(model: bytes) -> bool:
    """Whether this is a BPE model that does to text no more than put `▁` in front and in place of each space."""
    parts: dict[int, bytes] = {number: value for number, value in fields(model) if isinstance(value, bytes)}
    trainer, normalizer = dict(fields(parts.get(2, b""))), dict(fields(parts.get(3, b"")))
    return (
        trainer.get(3, 1) == BPE
        and not trainer.get(24, 0)
        and not normalizer.get(2, b"")
        and normalizer.get(3, 1) == 1
        and normalizer.get(4, 1) == 0
        and normalizer.get(5, 1) == 1
    )
