"""One or many shards seen as one row of sequences: lengths, pieces copied into batches, loss spans, fingerprints.

A single shard costs nothing beyond its map; of several, only the lengths and document indices are put together in
memory (12 bytes a sequence). Every copied piece is checked against the index, and an error names shard and document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from mmdata.errors import CorruptSampleError, SampleOptionError, ShardChangedError, ShardError, ShardsDifferError
from mmdata.indexed.checks import document_fault, length_fault
from mmdata.indexed.manifest import Manifest
from mmdata.indexed.reader import IndexedDataset
from mmdata.indexed.sidecars import Origin
from mmdata.samples import copy_kernels
from mmdata.samples.cache import content_hash

Parts = NDArray[np.int64]
_SAMPLED_TOKENS = 1 << 20


class Piece(NamedTuple):
    """Tokens [offset, offset + length) of a sequence. sequence and document: numbers within that shard."""

    shard: str
    document: int
    sequence: int
    offset: int
    length: int
    origin: Origin | None


class _Held(NamedTuple):
    """Flat tokens and the dataset that they are of."""

    tokens: NDArray[Any]
    shard: IndexedDataset


def _addresses(held: Sequence[_Held | None]) -> NDArray[np.int64]:
    """The table of copy_kernels, int64 [shards, 4]; a row of zeros for None."""
    table = np.zeros((len(held), 4), np.int64)
    for row, one in zip(table, held, strict=True):
        if one is not None:
            pointers = one.shard.sequence_pointers
            row[:] = one.tokens.ctypes.data, pointers.ctypes.data, len(pointers), one.tokens.nbytes
    return table


class ShardGroup:
    """Shards in a fixed order; their sequences and documents are numbered through."""

    def __init__(self, shards: IndexedDataset | str | Iterable[IndexedDataset | str]) -> None:
        """Open what is given by prefix. Raises ShardsDifferError when tokenizer, vocabulary or dtype disagree."""
        given = [shards] if isinstance(shards, (IndexedDataset, str)) else list(shards)
        if not given:
            raise SampleOptionError("no shard was given")
        self.shards = [s if isinstance(s, IndexedDataset) else IndexedDataset(s) for s in given]
        check_alike(self.shards)
        self._kind = np.empty(0, self.dtype)
        self._has_remote = any(shard.is_remote for shard in self.shards)
        self.firsts = np.concatenate(([0], np.cumsum([len(shard) for shard in self.shards]))).astype(np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        """Opened again elsewhere; hashes that were taken go along, so that reading workers need not take them."""
        hashes = {name: self.__dict__[name] for name in ("index_digests", "fingerprint") if name in self.__dict__}
        return type(self), (self.shards,), hashes

    def __len__(self) -> int:
        """Sequences of all shards."""
        return int(self.firsts[-1])

    @property
    def prefixes(self) -> list[str]:
        """The shards' prefixes as they were given, in order."""
        return [shard.prefix for shard in self.shards]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the tokens of every shard: uint16 or int32, or what else the format has."""
        return self.shards[0].dtype

    @property
    def manifest(self) -> Manifest | None:
        """The first shard's: where shards have manifests, tokenizer, vocabulary and dtype are the same in all."""
        return self.shards[0].manifest

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """int32 [sequences]: tokens of each. May be unaligned."""
        if len(self.shards) == 1:
            return self.shards[0].sequence_lengths
        return np.concatenate([shard.sequence_lengths for shard in self.shards])

    @cached_property
    def document_indices(self) -> NDArray[np.int64]:
        """int64 [documents + 1]: first sequence of each document. May be unaligned."""
        if len(self.shards) == 1:
            return self.shards[0].document_indices
        starts = [s.document_indices[:-1] + first for s, first in zip(self.shards, self.firsts, strict=False)]
        return np.concatenate([*starts, self.firsts[-1:]])

    def check_indices(self) -> None:
        """Hold lengths and document indices of every `.idx` to the format, so that a damaged one is named here.

        One pass, about 2 ns a sequence. Raises SequenceLengthError, DocumentIndexError.
        """
        for shard in self.shards:
            fault = length_fault(shard.index) or document_fault(shard.index)
            if fault is not None:
                raise fault

    @property
    def documents(self) -> int:
        """Documents of all shards, empty ones included."""
        return sum(shard.document_count for shard in self.shards)

    @cached_property
    def has_spans(self) -> bool:
        """Whether loss spans limit what counts. Raises ShardsDifferError when only some shards have them."""
        found = {shard.has_loss_spans for shard in self.shards}
        if len(found) > 1:
            with_spans = next(shard.prefix for shard in self.shards if shard.has_loss_spans)
            without = next(shard.prefix for shard in self.shards if not shard.has_loss_spans)
            raise ShardsDifferError(
                f"{with_spans} has loss spans and {without} has none; give them as two entries of the blend"
            )
        return found.pop()

    @cached_property
    def index_digests(self) -> list[str]:
        """xxh3-128 of each `.idx`: what every index array depends on. Reads the whole of them once."""
        return [shard.index_digest().xxh3_128 for shard in self.shards]

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits over the content of all shards.

        With a manifest its hash of `.bin` stands for the tokens; without one, up to 1 MiB of each `.bin` is hashed.
        Raises ShardChangedError when the `.idx` or the size of the `.bin` is not what the manifest says.
        """
        state = xxhash.xxh3_128()
        for shard, digest in zip(self.shards, self.index_digests, strict=True):
            state.update(f"{shard.dtype.str} {digest} {_tokens_hash(shard, digest)}\n".encode())
        return str(state.hexdigest())

    @cached_property
    def _table(self) -> NDArray[np.int64]:
        """Where the shards lie in memory, as copy_kernels takes it; they stay there as long as the group."""
        return _addresses([None if shard.is_remote else _Held(shard.tokens, shard) for shard in self.shards])

    @cached_property
    def _spans(self) -> tuple[NDArray[np.int64], NDArray[np.int32], list[_Held]]:
        """The same of the loss spans, how many numbers each sequence has there, and what must be kept alive."""
        held = []
        for shard in self.shards:
            spans = shard.sidecar("loss_spans")
            assert spans is not None, "asked for spans of a shard that has none"
            flat = np.concatenate([np.empty(0, np.int32), *spans[:]]) if spans.is_remote else spans.tokens
            held.append(_Held(flat, spans))
        counts = [each.shard.sequence_lengths for each in held]
        return _addresses(held), counts[0] if len(counts) == 1 else np.concatenate(counts), held

    def copy(self, parts: Parts, out: NDArray[Any]) -> None:
        """Copy the pieces into `out`, integers [rows, columns]. Raises CorruptSampleError."""
        bad = copy_kernels.copy_parts(parts, self.firsts, self._table, self.lengths, self._kind, out)
        if bad != copy_kernels.INTACT:
            raise self._corrupt(parts, int(bad))
        if self._has_remote:
            self._copy_remote(parts, out)

    def _copy_remote(self, parts: Parts, out: NDArray[Any]) -> None:
        for p, place in enumerate(self.shard_of(parts[2]).tolist()):
            if not self.shards[place].is_remote:
                continue
            row, column, sequence, offset, length, _ = parts[:, p].tolist()
            try:
                tokens = self.shards[place].get(int(sequence - self.firsts[place]), offset, length)
            except ShardError as error:
                raise self._corrupt(parts, p) from error
            out[row, column : column + length] = tokens

    def mark_spans(self, parts: Parts, counted: NDArray[np.bool_]) -> None:
        """Count the targets inside the loss spans of the pieces. Raises CorruptSampleError."""
        table, counts, _ = self._spans
        bad = copy_kernels.mark_spans(parts, self.firsts, table, counts, self.lengths, counted)
        if bad != copy_kernels.INTACT:
            raise self._corrupt(parts, int(bad))

    def shard_of(self, sequences: Any) -> Any:
        """The shard each sequence stands in."""
        return np.searchsorted(self.firsts, sequences, side="right") - 1

    def piece(self, parts: Parts, number: int, *, with_origin: bool = False) -> Piece:
        """Where piece `number` comes from."""
        sequence, offset, length = parts[2:5, number].tolist()
        place = int(self.shard_of(sequence))
        shard, local = self.shards[place], int(sequence - self.firsts[place])
        document = int(np.searchsorted(shard.document_indices, local, side="right")) - 1
        known = with_origin and shard.sidecar("origin") is not None
        origin = shard.origin(document) if known else None
        return Piece(shard.prefix, document, local, int(offset), int(length), origin)

    def _corrupt(self, parts: Parts, number: int) -> CorruptSampleError:
        piece = self.piece(parts, number)
        shard = next(shard for shard in self.shards if shard.prefix == piece.shard)
        reason = "its loss spans or pointers do not fit its length"
        try:
            shard.get(piece.sequence, piece.offset, piece.length)
            shard.loss_spans(piece.sequence)
        except ShardError as error:
            reason = str(error)
        return CorruptSampleError(
            f"{piece.shard}: document {piece.document:,} (sequence {piece.sequence:,}, tokens {piece.offset:,} to "
            f"{piece.offset + piece.length:,}) cannot be read: {reason}; run `mmdata verify {piece.shard}`"
        )


def _tokens_hash(shard: IndexedDataset, index_digest: str) -> str:
    manifest = shard.manifest
    if manifest is None or "bin" not in manifest.files or "idx" not in manifest.files:
        if shard.is_remote:
            return str(shard.token_count)
        return content_hash(shard.tokens.view(np.uint8), _SAMPLED_TOKENS)
    if manifest.files["idx"].xxh3_128 != index_digest:
        raise ShardChangedError(
            f"{shard.prefix}.idx has the hash {index_digest}, but its manifest says {manifest.files['idx'].xxh3_128}: "
            f"the shard was changed after it was written; restore it, or run `mmdata adopt {shard.prefix}`"
        )
    size = shard.token_count * shard.dtype.itemsize
    if manifest.files["bin"].size != size:
        raise ShardChangedError(
            f"{shard.prefix}.bin has {size:,} bytes, but its manifest says {manifest.files['bin'].size:,}: restore it"
        )
    return manifest.files["bin"].xxh3_128


def check_alike(shards: Sequence[IndexedDataset]) -> None:
    """Shards that are trained on together share tokenizer, vocabulary and dtype; template and recipe may differ.

    Raises ShardsDifferError naming two shards and both values. Shards without a manifest are compared by dtype alone.
    """
    seen: dict[str, tuple[str, Any]] = {}
    for shard in shards:
        facts: dict[str, Any] = {"dtype": shard.dtype.name}
        manifest = shard.manifest
        if manifest is not None:
            facts |= {"tokenizer fingerprint": manifest.tokenizer_fingerprint, "vocabulary size": manifest.vocab_size}
            if manifest.layout != "plain":
                raise ShardsDifferError(
                    f"{shard.prefix} has the {manifest.layout!r} layout, whose labels stand between its tokens; "
                    "convert the data in the plain layout to train on it here"
                )
        for name, value in facts.items():
            if value is None:
                continue
            other, known = seen.setdefault(name, (shard.prefix, value))
            if known != value:
                remedy = "merge them with `mmdata merge`, which widens" if name == "dtype" else "convert one again"
                raise ShardsDifferError(
                    f"{other} has {name} {known} and {shard.prefix} has {value}; they cannot be used together: {remedy}"
                )
