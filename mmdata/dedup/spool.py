"""The spool: cleaned documents on disk between cleaning and encoding, readable again one by one.

A frame is what one worker packed: pieces of about 128 KiB of text, each with its texts' lengths, the texts as they are,
and a zstd block of everything else, so that verifying a candidate reads its text and no JSON. The parent appends
frames; `checkpoint` gives a state from which a killed run continues. Texts are not compressed: the fastest level of
zstd leaves .87 (English) to .91 (Chinese) of them and costs a core more time than the disk gives back. Scratch: its
format may change any time.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import orjson
import zstandard
from numpy.typing import NDArray

from mmdata.dedup.signer import ShingleSets, Signer
from mmdata.document import Document, Part
from mmdata.errors import DedupStateError

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

PIECE_BYTES = 1 << 17
LEVEL = -40
HEAD_FIELDS = 4
"""uint64 at a frame's start: MARK, bytes of the whole frame, documents, pieces."""
PIECE_FIELDS = 4
"""uint64 for each piece: documents, bytes of its texts, bytes of its records block, JSON dialect.
A piece is the lengths of its texts in bytes (uint64 each), the texts, the records block."""
MARK = 0x6C6F6F70536D6D32
ORJSON, JSON = 0, 1


def encode_parts(documents: Sequence[Document], encoded: Sequence[bytes] | None = None) -> list[list[bytes]]:
    """The texts of each document's parts in UTF-8, surrogates passed through.

    encoded: the documents' whole texts, where the caller has them: those of a single part need not be made again.
    """
    if encoded is None:
        return [_parts_of(document) for document in documents]
    pairs = zip(documents, encoded, strict=True)
    return [[text] if len(document.parts) == 1 else _parts_of(document) for document, text in pairs]


def _parts_of(document: Document) -> list[bytes]:
    return [part.text.encode("utf-8", "surrogatepass") for part in document.parts]


def pack_frame(
    documents: Sequence[Document], with_records: bool = True, encoded: Sequence[list[bytes]] | None = None
) -> bytes:
    """Documents as one frame; pure, for workers.

    Records and meta must be JSON values (a tuple in meta comes back as a list); texts may hold anything.
    with_records: without, `Document.record` comes back empty, for callers that read the input again. encoded: what
    encode_parts gives, where the caller has it already.
    """
    encoded = encode_parts(documents) if encoded is None else encoded
    compressor = zstandard.ZstdCompressor(level=LEVEL)
    table: list[int] = []
    blocks: list[bytes] = []
    for low, high in _pieces(documents):
        piece, texts = documents[low:high], encoded[low:high]
        joined = [b"\n".join(parts) for parts in texts]
        lengths = np.array([len(text) for text in joined], dtype="<u8")
        rows = [_row(document, parts, with_records) for document, parts in zip(piece, texts, strict=True)]
        dialect, described = _to_json(rows)
        records = compressor.compress(described)
        table += [len(piece), int(lengths.sum()), len(records), dialect]
        blocks += [lengths.tobytes(), *joined, records]
    pieces = len(table) // PIECE_FIELDS
    size = 8 * (HEAD_FIELDS + len(table)) + sum(map(len, blocks))
    head = np.array([MARK, size, len(documents), pieces, *table], dtype="<u8")
    return b"".join([head.tobytes(), *blocks])


def _pieces(documents: Sequence[Document]) -> Iterator[tuple[int, int]]:
    low, size = 0, 0
    for high, document in enumerate(documents):
        length = sum(len(part.text) for part in document.parts)
        if size and size + length > PIECE_BYTES:
            yield low, high
            low, size = high, 0
        size += length + 1
    if low < len(documents):
        yield low, len(documents)


def _row(document: Document, texts: list[bytes], with_records: bool) -> list[Any]:
    """Everything but the texts: a record's value that equals a part's text is left out and put back on reading."""
    record: dict[str, Any] = document.record if with_records else {}
    held = [part.json_path for part in document.parts if record.get(part.json_path) == part.text]
    if held:
        record = {key: None if key in held else value for key, value in record.items()}
    parts = [[p.json_path, p.role, len(text)] for p, text in zip(document.parts, texts, strict=True)]
    return [
        document.path, document.input_number, document.line, document.id, document.language, document.meta, parts,
        held, record,
    ]  # fmt: skip


def _to_json(rows: list[list[Any]]) -> tuple[int, bytes]:
    try:
        return ORJSON, orjson.dumps(rows, option=orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError:
        # Integers beyond 64 bits; `json` writes and reads them exactly.
        return JSON, json.dumps(rows, ensure_ascii=True).encode("ascii")


class SpoolWriter:
    """Appends frames to one file; made by the process that reads results in order."""

    def __init__(self, path: Path, state: dict[str, Any] | None = None) -> None:
        """state: from `checkpoint`, to go on after a kill; raises DedupStateError when the file is shorter."""
        self.path = path
        self.bytes, self.documents = 0, 0
        if state is not None:
            self.bytes, self.documents = int(state["bytes"]), int(state["documents"])
            found = path.stat().st_size if path.exists() else 0
            if found < self.bytes:
                raise DedupStateError(f"{path}: {found} bytes, the checkpoint recorded {self.bytes}: start anew")
        self._file: BinaryIO = path.open("wb" if state is None or not path.exists() else "rb+")
        if self._file.seek(0, os.SEEK_END) != self.bytes:  # ext4 hurries to the disk with a file that was truncated
            self._file.truncate(self.bytes)
        self._file.seek(self.bytes)

    def append(self, frame: bytes | memoryview) -> None:
        """Add one frame of `pack_frame`."""
        self._file.write(frame)
        self.bytes += len(frame)
        self.documents += int(np.frombuffer(frame, dtype="<u8", count=HEAD_FIELDS)[2])

    def checkpoint(self) -> dict[str, Any]:
        """Make everything appended durable; JSON."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"bytes": self.bytes, "documents": self.documents}

    def close(self) -> None:
        """Flush and close; the file stays."""
        self._file.close()


@dataclass(frozen=True, slots=True)
class _Piece:
    first: int
    documents: int
    offset: int
    text_bytes: int
    record_bytes: int
    dialect: int


class SpoolReader:
    """Reads frames and documents by number. Memory: about 100 bytes for each 128 KiB of text; one piece at a time."""

    def __init__(self, path: Path) -> None:
        """Raises DedupStateError when the file is no spool or torn."""
        self.path = path
        self._file = path.open("rb")
        self._pieces: list[_Piece] = []
        self._frames: list[int] = [0]
        self.documents_total = 0
        try:
            self._scan()
        except BaseException:
            self._file.close()
            raise
        self._firsts = np.array([piece.first for piece in self._pieces], dtype=np.int64)
        self._decompressor = zstandard.ZstdDecompressor()

    def __enter__(self) -> SpoolReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """The number of frames."""
        return len(self._frames) - 1

    def _scan(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        offset = 0
        while offset < size:
            head = self._integers(offset, HEAD_FIELDS)
            if len(head) < HEAD_FIELDS or head[0] != MARK or offset + head[1] > size:
                raise DedupStateError(f"{self.path}: torn or no spool at byte {offset}: start anew")
            table = self._integers(offset + 8 * HEAD_FIELDS, PIECE_FIELDS * head[3])
            place = offset + 8 * (HEAD_FIELDS + len(table))
            for i in range(0, len(table), PIECE_FIELDS):
                count, text_bytes, record_bytes, dialect = table[i : i + PIECE_FIELDS]
                self._pieces.append(_Piece(self.documents_total, count, place, text_bytes, record_bytes, dialect))
                self.documents_total += count
                place += 8 * count + text_bytes + record_bytes
            self._frames.append(len(self._pieces))
            offset += head[1]

    def _integers(self, offset: int, count: int) -> list[int]:
        self._file.seek(offset)
        return [int(value) for value in np.frombuffer(self._file.read(8 * count), dtype="<u8")]

    def documents(self, frame: int) -> list[Document]:
        """All documents of one frame, equal to those packed."""
        pieces = self._pieces[self._frames[frame] : self._frames[frame + 1]]
        return [document for piece in pieces for document in self._unpack(piece)]

    def first_document(self, frame: int) -> int:
        """The number of the frame's first document (that of the next frame if it has none)."""
        at = self._frames[frame]
        return self._pieces[at].first if at < len(self._pieces) else self.documents_total

    def document(self, number: int) -> Document:
        """One document by number."""
        piece = self._pieces[int(np.searchsorted(self._firsts, number, side="right")) - 1]
        return self._unpack(piece)[number - piece.first]

    def identities(self, frame: int) -> list[tuple[str, int, int, str | None]]:
        """(path, input number, line, id) of each document of a frame, without unpacking texts."""
        pieces = self._pieces[self._frames[frame] : self._frames[frame + 1]]
        return [(row[0], row[1], row[2], row[3]) for piece in pieces for row in self._rows(piece)]

    def texts(self, numbers: Sequence[int]) -> list[str]:
        """The texts of these documents."""
        return [str(text, "utf-8", "surrogatepass") for text in self.encoded_texts(numbers)]

    def sizes(self, numbers: I64) -> I64:
        """Bytes of each of these texts in UTF-8."""
        out = np.empty(len(numbers), dtype=np.int64)
        for piece, ends, slots in self._by_piece(numbers):
            local = numbers[slots] - piece.first
            out[slots] = ends[local + 1] - ends[local]
        return out

    def encoded_texts(self, numbers: Sequence[int]) -> list[bytes]:
        """As `texts`, in UTF-8; read in file order."""
        out = [b""] * len(numbers)
        for piece, ends, slots in self._by_piece(np.asarray(numbers, dtype=np.int64)):
            self._read_texts(piece, ends, slots, numbers, out)
        return out

    def _by_piece(self, numbers: I64) -> Iterator[tuple[_Piece, I64, list[int]]]:
        """Each piece with documents asked for, its bounds, and their slots in `numbers`; all in file order."""
        places = (np.searchsorted(self._firsts, numbers, side="right") - 1).tolist()
        for place, slots in groupby(np.argsort(numbers, kind="stable").tolist(), key=places.__getitem__):
            piece = self._pieces[place]
            yield piece, self._bounds(piece), list(slots)

    def _read_texts(
        self, piece: _Piece, ends: I64, slots: list[int], numbers: Sequence[int], out: list[bytes]
    ) -> None:  # fmt: skip
        """Texts of one piece into their slots, which ascend by number: read at once, with what lies between them."""
        low, high = (int(ends[numbers[slot] - piece.first + end]) for slot, end in ((slots[0], 0), (slots[-1], 1)))
        self._file.seek(piece.offset + 8 * piece.documents + low)
        whole = self._file.read(high - low)
        for slot in slots:
            local = numbers[slot] - piece.first
            out[slot] = whole[ends[local] - low : ends[local + 1] - low]

    def _bounds(self, piece: _Piece) -> I64:
        """documents + 1 offsets into the piece's texts."""
        self._file.seek(piece.offset)
        lengths = np.frombuffer(self._file.read(8 * piece.documents), dtype="<u8").astype(np.int64)
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])

    def _rows(self, piece: _Piece) -> list[list[Any]]:
        self._file.seek(piece.offset + 8 * piece.documents + piece.text_bytes)
        return self._described(piece, self._file.read(piece.record_bytes))

    def _described(self, piece: _Piece, records: bytes | memoryview) -> list[list[Any]]:
        described = self._decompressor.decompress(records)
        rows: list[list[Any]] = orjson.loads(described) if piece.dialect == ORJSON else json.loads(described)
        return rows

    def _unpack(self, piece: _Piece) -> list[Document]:
        self._file.seek(piece.offset)
        whole = memoryview(self._file.read(8 * piece.documents + piece.text_bytes + piece.record_bytes))
        begin = 8 * piece.documents
        lengths = np.frombuffer(whole[:begin], dtype="<u8").tolist()
        documents = []
        for row, length in zip(self._described(piece, whole[-piece.record_bytes :]), lengths, strict=True):
            documents.append(_document(row, whole[begin : begin + length]))
            begin += length
        return documents

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _document(row: list[Any], joined: memoryview) -> Document:
    path, input_number, line, identity, language, meta, described, held, record = row
    parts, at = [], 0
    for json_path, role, length in described:
        text = str(joined[at : at + length], "utf-8", "surrogatepass")
        parts.append(Part(json_path, role, text))
        at += length + 1
        if json_path in held and record:
            record[json_path] = text
    return Document(path, input_number, line, identity, record, tuple(parts), language, meta)


class SpoolSource:
    """Shingle sets of spooled documents, computed again from their texts (see decide.SetSource).

    Each slot has a signer and memory for sets, filled again and again: touching new memory costs more than what is put
    there. What a single huge document takes is not kept.
    """

    def __init__(self, reader: SpoolReader, signer: Signer) -> None:
        self._reader, self._signer = reader, signer
        self._reading = threading.Lock()
        self._slots: dict[int, tuple[Signer, U64]] = {}

    def sizes(self, documents: I64) -> I64:
        """See SetSource."""
        with self._reading:
            return self._reader.sizes(documents)

    def load(self, documents: I64, slot: int) -> ShingleSets:
        """See SetSource."""
        with self._reading:
            texts = self._reader.encoded_texts(documents.tolist())
        signer, room = self._slots.pop(slot, (None, np.empty(0, dtype=np.uint64)))
        if signer is None:
            signer = Signer(self._signer.params, self._signer.native)
        wanted = signer.room_of(texts)
        if len(room) < wanted:
            room = np.empty(wanted, dtype=np.uint64)
        self._slots[slot] = signer, room if len(texts) > 1 else np.empty(0, dtype=np.uint64)
        return signer.sets_of_utf8(texts, room)
