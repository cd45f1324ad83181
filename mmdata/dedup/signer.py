"""Texts to keys and to shingle sets: the pure part of deduplication, run in workers.

`Signer.sign` streams texts to 64-bit keys, `Signer.sets` gives the exact shingle sets that decisions compare. Both
work in blocks of 256 k characters, so scratch stays in cache: about 170 MB/s English and 190 MB/s Chinese a core.
Longer texts are signed window by window, so scratch does not grow with a document; its set, asked for only where it
shares a key, takes 8 bytes a shingle. Results depend on the text alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup import exact, plain
from mmdata.dedup.params import DedupParams
from mmdata.dedup.sketch import permutations
from mmdata.dedup.windows import WINDOW, windows
from mmdata.dedup.word_table import char_table, word_table

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

BLOCK_BYTES = 1 << 18
_PAD = bytes(64)  # PAD of minhash_kernels, which only loads where numba is
"""What kernels may read behind the last text."""
MOST_SCRATCH = 1 << 21
"""Values kept between calls: 16 MiB."""
SLOW_NOTE = "numba is not installed: deduplication runs on numpy with the same results, many times slower"
logger = logging.getLogger("mmdata.dedup")


@dataclass(frozen=True, slots=True)
class Signed:
    """keys: uint64 (n, keys a document). counted: bool (n,), False for empty documents, which are never compared."""

    keys: U64
    counted: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ShingleSets:
    """The distinct shingle hashes of document i are values[starts[i]:starts[i + 1]] (uint64, int64 of n + 1)."""

    values: U64
    starts: I64

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> U64:
        return self.values[self.starts[index] : self.starts[index + 1]]


def concatenate_sets(parts: Sequence[ShingleSets]) -> ShingleSets:
    """One ShingleSets of several, in order."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([np.zeros(1, dtype=np.int64), *(np.diff(part.starts) for part in parts)])
    values = np.concatenate([np.zeros(0, dtype=np.uint64), *(part.values for part in parts)])
    return ShingleSets(values, np.cumsum(lengths))


class Signer:
    """Computes keys and shingle sets under one set of parameters; picklable, for one thread; keeps scratch memory.

    native: None takes the compiled kernels when numba is there and logs a warning when not; True or False forces.
    """

    def __init__(self, params: DedupParams, native: bool | None = None) -> None:
        self.params = params
        self.native = find_spec("numba") is not None if native is None else native
        self.engine = "numba" if self.native else "numpy"
        self._scratch: U64 = np.empty(0, dtype=np.uint64)
        if native is None and not self.native:
            logger.warning(SLOW_NOTE)

    def sign(self, texts: Sequence[str], encoded: Sequence[bytes] | None = None) -> Signed:
        """The keys under which documents become candidates, in the order of `texts`.

        encoded: the same in UTF-8 with surrogates passed through, where the caller has it already.
        """
        width = self.params.keys_per_document
        keys = np.empty((len(texts), width), dtype=np.uint64)
        counted = np.zeros(len(texts), dtype=np.bool_)
        for low, high in _blocks(texts):
            block = self._normalized(texts[low:high])
            if self.params.method == "exact":
                keys[low:high] = exact.text_hashes(block)[:, :1]
                counted[low:high] = [bool(text) for text in block]
                continue
            held = None if encoded is None or self.params.normalize else encoded[low:high]
            minima, counted[low:high] = self._sketch(block, width * self.params.rows, held)
            self._band_keys(minima, keys[low:high])
        return Signed(keys, counted)

    def sets(self, texts: Sequence[str]) -> ShingleSets:
        """The distinct shingle hashes of each text; empty documents have none.

        First occurrences in order, but ascending for texts of more than WINDOW characters.
        """
        parts = []
        for low, high in _blocks(texts):
            block = self._normalized(texts[low:high])
            if self.params.method == "exact":
                filled = np.array([bool(text) for text in block], dtype=np.bool_)
                starts = np.concatenate([[0], np.cumsum(filled)]).astype(np.int64)
                parts.append(ShingleSets(exact.text_hashes(block)[filled, 1], starts))
            elif _is_long(block):
                parts.append(self._long_set(block[0]))
            else:
                parts.append(self._shingles(block, distinct=True))
        return concatenate_sets(parts)

    def sets_of_utf8(self, texts: Sequence[bytes], room: U64 | None = None) -> ShingleSets:
        """As `sets`, of texts in UTF-8 with surrogates passed through; decodes them only where there is no kernel.

        room: memory that the kernels may fill, of room_of(texts) values or more, in place of new memory.
        """
        params = self.params
        if params.method == "exact" or params.normalize or not self.native or params.item_hash != "rolling":
            return self.sets([str(text, "utf-8", "surrogatepass") for text in texts])
        return self._fill(texts, np.empty(self.room_of(texts), dtype=np.uint64) if room is None else room)

    def _fill(self, texts: Sequence[bytes], values: U64) -> ShingleSets:
        """Sets by the kernels, in `values` from its beginning on."""
        starts, filled = [np.zeros(1, dtype=np.int64)], 0
        for low, high in _blocks(texts):
            if high - low == 1 and len(texts[low]) > WINDOW:
                part = self.sets([str(texts[low], "utf-8", "surrogatepass")])
                values[filled : filled + len(part.values)] = part.values
            else:
                part = self._native(texts[low:high], values[filled:])
            starts.append(part.starts[1:] + filled)
            filled += int(part.starts[-1])
        return ShingleSets(values[:filled], np.concatenate(starts))

    def signatures(self, texts: Sequence[str]) -> NDArray[Any]:
        """MinHash signatures (n, num_perm), uint32 for affine32, else uint64; all ones for an empty document."""
        count = self.params.num_perm
        return np.concatenate([
            self._sketch(self._normalized(texts[low:high]), count)[0] for low, high in _blocks(texts)
        ])  # fmt: skip

    def signatures_of_hashes(self, sets: ShingleSets) -> NDArray[Any]:
        """Signatures of values hashed elsewhere (32 bits for affine32 and legacy, 64 for affine64)."""
        return self._minima(sets, self.params.num_perm)

    def keys_of_signatures(self, signatures: NDArray[Any]) -> U64:
        """Band keys (n, bands) of signatures, such as ones imported with `from_datasketch`."""
        keys = np.empty((len(signatures), self.params.bands), dtype=np.uint64)
        self._band_keys(signatures, keys)
        return keys

    def _normalized(self, texts: Sequence[str]) -> Sequence[str]:
        steps = self.params.normalize
        return [exact.normalize(text, steps) for text in texts] if steps else texts

    def _sketch(
        self, texts: Sequence[str], count: int, encoded: Sequence[bytes] | None = None
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The first `count` minima of each text, and whether it has a shingle at all."""
        if not _is_long(texts):
            sets = self._shingles(texts, distinct=False, encoded=encoded)
            return self._minima(sets, count), np.diff(sets.starts) > 0
        least, counted = self._minima(ShingleSets(np.zeros(0, np.uint64), np.zeros(2, np.int64)), count), False
        for piece in self._windows(texts[0]):
            np.minimum(least, self._minima(self._shingles([piece], distinct=False), count), out=least)
            counted = True
        return least, np.array([counted])

    def _windows(self, text: str) -> Iterator[str]:
        return windows(text, self.params.unit == "char", self.params.ngram)

    def _long_set(self, text: str) -> ShingleSets:
        # One shingle a character at most, and as many again where windows overlap; what is not used takes no memory.
        values = np.empty(len(text) + (len(text) // WINDOW + 2) * (self.params.ngram + 2), dtype=np.uint64)
        filled = 0
        for piece in self._windows(text):
            found = self._shingles([piece], distinct=True).values
            values[filled : filled + len(found)] = found
            filled += len(found)
        values = values[:filled]
        values.sort()
        kept = _drop_repeats(values)
        return ShingleSets(values[:kept], np.array([0, kept], dtype=np.int64))

    def _shingles(self, texts: Sequence[str], distinct: bool, encoded: Sequence[bytes] | None = None) -> ShingleSets:
        """Where not distinct, values are in this object's scratch memory until the next call."""
        if self.native and self.params.item_hash == "rolling":
            pieces = encoded if encoded is not None else [text.encode("utf-8", "surrogatepass") for text in texts]
            return self._native(pieces, np.empty(self.room_of(pieces), dtype=np.uint64) if distinct else None)
        chars, size = self.params.unit == "char", self.params.ngram
        make = plain.sha1_shingles if self.params.item_hash == "sha1" else plain.rolling_shingles
        arrays = [make(text, chars, size) for text in texts]
        if distinct:
            arrays = [plain.distinct(array) for array in arrays]
        starts = np.concatenate([[0], np.cumsum([len(array) for array in arrays])]).astype(np.int64)
        return ShingleSets(np.concatenate([np.zeros(0, dtype=np.uint64), *arrays]), starts)

    def room_of(self, texts: Sequence[bytes]) -> int:
        """The most shingles that texts can have: a word takes a byte and a separator at least, a character one byte.

        What they do not fill of new memory is never touched, so it takes none.
        """
        chars = self.params.unit == "char"
        return sum(len(text) if chars else len(text) // 2 + 1 for text in texts)

    def _native(self, texts: Sequence[bytes], distinct: U64 | None) -> ShingleSets:
        """Shingles by the kernels: the distinct ones in `distinct`, or all in scratch memory until the next call."""
        from mmdata.dedup import minhash_kernels as native

        chars = self.params.unit == "char"
        data, offsets = _joined(texts)
        most = (len(data) if chars else len(data) // 2) + len(offsets)
        scratch = self._scratch
        if len(scratch) < 2 * most:
            scratch = np.empty(2 * most, dtype=np.uint64)
            # One huge document does not leave its memory behind.
            self._scratch = scratch if 2 * most <= MOST_SCRATCH else self._scratch
        units, out = scratch[: len(scratch) // 2], scratch[len(scratch) // 2 :]
        table = char_table() if chars else word_table()
        starts = native.shingle_batch((data, offsets), table, (chars, self.params.ngram), units, out)
        if distinct is None:
            return ShingleSets(out[: starts[-1]], starts)
        slots = 1 << int(2 * max(int(np.diff(starts).max(initial=0)), 1)).bit_length()
        table_arrays = (np.empty(slots, dtype=np.uint64), np.zeros(slots, dtype=np.uint32))
        starts = native.distinct_batch(out, starts, table_arrays, distinct)
        return ShingleSets(distinct[: starts[-1]], starts)

    def _minima(self, sets: ShingleSets, count: int) -> NDArray[Any]:
        scheme = self.params.scheme
        # The first `count` permutations of num_perm: legacy draws in turns and affine as vectors of num_perm.
        a, b = (part[:count] for part in permutations(scheme, self.params.num_perm, self.params.seed))
        if not self.native:
            rows = [plain.signature(sets[i], scheme, a, b) for i in range(len(sets))]
            return np.array(rows, dtype=a.dtype).reshape(len(sets), count)
        from mmdata.dedup import minhash_kernels as native

        out = np.empty((len(sets), count), dtype=a.dtype)
        by_scheme: dict[str, Callable[..., None]] = {
            "affine32": native.signatures32,
            "affine64": native.signatures64,
            "legacy": native.signatures_legacy,
        }
        by_scheme[scheme](sets.values, sets.starts, (a, b), out)
        return out

    def _band_keys(self, signatures: NDArray[Any], out: U64) -> None:
        rows = self.params.rows
        if not self.native:
            out[:] = plain.band_keys(signatures, out.shape[1], rows)
            return
        from mmdata.dedup import minhash_kernels as native

        native.band_keys(signatures, rows, out)


def _is_long(texts: Sequence[str]) -> bool:
    """Whether this block is one text too long to be shingled at once."""
    return len(texts) == 1 and len(texts[0]) > WINDOW


def _drop_repeats(values: U64) -> int:
    """Move the distinct ones of ascending values to the front, in place; returns how many."""
    kept = 0
    for low in range(0, len(values), MOST_SCRATCH):
        part = values[low : low + MOST_SCRATCH]
        new = np.ones(len(part), dtype=np.bool_)
        new[1:] = part[1:] != part[:-1]
        new[0] = kept == 0 or part[0] != values[kept - 1]
        chosen = part[new]
        values[kept : kept + len(chosen)] = chosen
        kept += len(chosen)
    return kept


def _joined(pieces: Sequence[bytes]) -> tuple[NDArray[np.uint8], I64]:
    """The pieces and _PAD in one array, and n + 1 offsets."""
    offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    return np.frombuffer(b"".join((*pieces, _PAD)), dtype=np.uint8), offsets


def _blocks(texts: Sequence[str] | Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Ranges of texts of about BLOCK_BYTES characters, or bytes; at least one, so that results have their dtype."""
    low, size = 0, 0
    for high, text in enumerate(texts):
        if size and size + len(text) > BLOCK_BYTES:
            yield low, high
            low, size = high, 0
        size += len(text) + 1
    yield low, len(texts)


def compile_kernels(params: DedupParams, announce: Callable[[str], None] | None = None) -> float:
    """Compile (or load from the cache) every kernel in this process, before workers start; returns seconds taken.

    announce is told when compiling takes a while, or that numba is missing; workers then load the cached machine code.
    """
    if find_spec("numba") is None:
        if announce is not None:
            announce(SLOW_NOTE)
        return 0.0
    from mmdata.kernels import prepare

    def first_call() -> None:
        signer = Signer(params, native=True)
        signer.sign(["a b c d e f"])
        signer.sets(["a b c d e f"])

    begun = time.monotonic()
    prepare(first_call, "deduplication", announce)
    return time.monotonic() - begun
