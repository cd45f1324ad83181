"""Compiled kernels: UTF-8 bytes to word hashes, shingle hashes, MinHash minima and band keys.

They run at about 300 MB/s a core together (128 permutations, affine32). `plain.py` computes the same bits without
numba; a test holds the two equal. Input must be valid UTF-8 (surrogates encoded as three bytes are fine).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup.word_table import RUN, SEPARATOR, SINGLE
from mmdata.kernel_loads import ascii_word, get, load8, load8_first_highest, pointer
from mmdata.kernels import inlined, kernel

Bytes = NDArray[np.uint8]
U64 = NDArray[np.uint64]
U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]

WORD_MULTIPLIER = np.uint64(0xC4CEB9FE1A85EC53)
MIX_MULTIPLIER = np.uint64(0xFF51AFD7ED558CCD)
SHINGLE_BASE = np.uint64(0x9E3779B97F4A7C15)
MERSENNE = np.uint64((1 << 61) - 1)
LOW32 = np.uint64(0xFFFFFFFF)
PAD = 64
"""Bytes that kernels may read behind the last text."""
BLOCK = 4096
"""Shingles whose hashes stay in the first-level cache while all permutations run over them."""


@kernel
def _mix(x: np.uint64) -> np.uint64:
    x ^= x >> np.uint64(32)
    x *= MIX_MULTIPLIER
    return x ^ (x >> np.uint64(29))


@kernel
def _end_word(h: np.uint64, acc: np.uint64, held: int) -> np.uint64:
    h = (h ^ acc ^ (np.uint64(held) << np.uint64(56))) * WORD_MULTIPLIER
    return _mix(h)


@inlined
def decode(data: Any, i: Any) -> Any:
    """The code point at byte i, whose lead byte is 0x80 or more, and its length in bytes."""
    block = np.int64(load8(data, i))
    lead, second, third = block & 255, (block >> 8) & 63, (block >> 16) & 63
    point, width = ((lead & 15) << 12) | (second << 6) | third, 3
    if lead < 0xE0:
        point, width = ((lead & 31) << 6) | second, 2
    elif lead >= 0xF0:
        point, width = ((lead & 7) << 18) | (second << 12) | (third << 6) | ((block >> 24) & 63), 4
    return point, width


@inlined
def fold_bytes(data: Any, i: Any, size: Any, word: Any) -> Any:
    """Put `size` bytes of a run into word: (hash, bytes not folded in yet, how many of them)."""
    h, acc, held = word
    at = size - size  # a literal 0 would make numba compile the loops twice
    if held == 0:
        while at + 8 <= size:
            h = (h ^ load8_first_highest(data, i + at)) * WORD_MULTIPLIER
            h ^= h >> np.uint64(32)
            at += 8
        held = size - at
        if held:
            acc = load8_first_highest(data, i + at) >> np.uint64(64 - 8 * held)
        at = size
    while at < size:
        acc = (acc << np.uint64(8)) | np.uint64(get(data, i + at))
        held += 1
        at += 1
        if held == 8:
            h = (h ^ acc) * WORD_MULTIPLIER
            h ^= h >> np.uint64(32)
            acc, held = np.uint64(0), 0
    return h, acc, held


@kernel
def word_hashes(data: Any, span: Any, table: Any, out: Any) -> Any:
    """Hash each word of data[start:stop] into `out` (at least (stop - start) // 2 + 1 long); returns how many.

    Bytes of a run are folded eight at a time, so words of up to seven bytes never collide. data, table and out are
    pointers; up to 32 bytes behind `stop` are read.
    """
    i, stop = span
    count, inside = i - i, False
    h, acc, held = np.uint64(0), np.uint64(0), i - i
    while i < stop:
        byte = get(data, i)
        size, single, width = i - i, i - i, i - i + 1
        if byte >= 0x80:
            single, width = decode(data, i)
            kind = get(table, single)
            if kind == RUN:
                size = width
            if kind != SINGLE:
                single = 0
        elif get(table, byte) == RUN:
            size = min(ascii_word(data, i)[0], stop - i)
            if not inside and size < 32 and i + size < stop and get(data, i + size) < 0x80:
                # Most of English: a word of letters and digits, and a separator.
                h, acc, held = fold_bytes(data, i, size, (h, acc, held))
                out[count] = _end_word(h, acc, held)
                count += 1
                h, acc, held = np.uint64(0), np.uint64(0), i - i
                i += size + 1
                continue
            width = size
        if size:
            h, acc, held = fold_bytes(data, i, size, (h, acc, held))
            inside = True
        elif inside:
            out[count] = _end_word(h, acc, held)
            count += 1
            h, acc, held, inside = np.uint64(0), np.uint64(0), i - i, False
        if single:
            out[count] = _mix(np.uint64(single) * WORD_MULTIPLIER)
            count += 1
        i += width
    if inside:
        out[count] = _end_word(h, acc, held)
        count += 1
    return count


@kernel
def char_hashes(data: Any, span: Any, table: Any, out: Any) -> Any:
    """Hash each code point, runs of SEPARATOR (white space) as one space and none at either end; returns how many.

    Pointers as for word_hashes.
    """
    i, stop = span
    count, gap = i - i, False
    while i < stop:
        point, width = get(data, i), 1
        if point >= 0x80:
            point, width = decode(data, i)
        if get(table, point) == SEPARATOR:
            gap = count > 0
        else:
            if gap:
                out[count] = _mix(np.uint64(32) * WORD_MULTIPLIER)
                count += 1
                gap = False
            out[count] = _mix(np.uint64(point) * WORD_MULTIPLIER)
            count += 1
        i += width
    return count


@kernel
def shingle_hashes(units: Any, count: Any, size: Any, out: Any) -> Any:
    """Hash every window of `size` units into `out`, both pointers; fewer units than that are one shingle; returns how
    many.
    """
    if count == 0:
        return count
    width = min(count, size)
    s, power = np.uint64(0), np.uint64(1)
    for i in range(width):
        s = s * SHINGLE_BASE + units[i]
        power *= SHINGLE_BASE
    out[0] = _mix(s)
    for i in range(width, count):
        s = s * SHINGLE_BASE + units[i] - units[i - width] * power
        out[i - width + 1] = _mix(s)
    return count - width + 1


@kernel
def shingle_batch(texts: Any, table: Bytes, shape: tuple[bool, int], units: U64, out: U64) -> I64:
    """Shingle hashes, repeats included, of many texts one after the other in `out`; returns where each begins.

    texts: UTF-8 bytes, PAD more of any kind, and n + 1 offsets. shape: whether units are characters, and n. units:
    scratch for the longest.
    """
    data, offsets = texts
    chars, size = shape
    text, kinds, scratch = pointer(data), pointer(table), pointer(units)
    starts = np.zeros(len(offsets), dtype=np.int64)
    for d in range(len(offsets) - 1):
        span = (offsets[d], offsets[d + 1])
        count = char_hashes(text, span, kinds, scratch) if chars else word_hashes(text, span, kinds, scratch)
        starts[d + 1] = starts[d] + shingle_hashes(scratch, count, size, pointer(out[starts[d] :]))
    return starts


@kernel
def distinct_batch(hashes: U64, starts: I64, slots: tuple[U64, U32], out: U64) -> I64:
    """Drop the repeats within each document, keeping first occurrences in order; returns where each begins in `out`.

    slots: an open-addressing table (keys, stamps) of a power of two, at least twice the longest document; stamps
    start at zero. `out` may be `hashes`.
    """
    keys, stamps = slots
    ends = np.zeros(len(starts), dtype=np.int64)
    filled = 0
    for d in range(len(starts) - 1):
        stamp = np.uint32(d + 1)
        size = 2
        while size < 2 * (starts[d + 1] - starts[d]):
            size *= 2
        # Only the part of the table that this document needs, so that it stays in cache.
        mask = np.uint64(size - 1)
        for i in range(starts[d], starts[d + 1]):
            h = hashes[i]
            slot = h & mask
            while stamps[slot] == stamp and keys[slot] != h:
                slot = (slot + np.uint64(1)) & mask
            if stamps[slot] != stamp:
                stamps[slot] = stamp
                keys[slot] = h
                out[filled] = h
                filled += 1
        ends[d + 1] = filled
    return ends


@kernel
def minima32(hashes: U64, count: int, a: U32, b: U32, out: U32) -> None:
    """datasketch's affine32: fmix32 of the low 32 bits, then the least a*h + b mod 2^32 for each permutation."""
    mixed = np.empty(min(count, BLOCK), dtype=np.uint32)
    out[:] = np.uint32(0xFFFFFFFF)
    for low in range(0, count, BLOCK):
        high = min(count, low + BLOCK)
        for i in range(low, high):
            x = np.uint32(hashes[i])
            x ^= x >> np.uint32(16)
            x = np.uint32(x * np.uint32(0x85EBCA6B))
            x ^= x >> np.uint32(13)
            x = np.uint32(x * np.uint32(0xC2B2AE35))
            mixed[i - low] = x ^ (x >> np.uint32(16))
        for k in range(len(a)):
            ak, bk, least = a[k], b[k], out[k]
            for i in range(high - low):
                least = min(least, np.uint32(mixed[i] * ak + bk))
            out[k] = least


@kernel
def minima64(hashes: U64, count: int, a: U64, b: U64, out: U64) -> None:
    """datasketch's affine64: fmix64, then the least a*h + b mod 2^64 for each permutation."""
    mixed = np.empty(min(count, BLOCK), dtype=np.uint64)
    out[:] = np.uint64(0xFFFFFFFFFFFFFFFF)
    for low in range(0, count, BLOCK):
        high = min(count, low + BLOCK)
        for i in range(low, high):
            x = hashes[i]
            x ^= x >> np.uint64(33)
            x *= np.uint64(0xFF51AFD7ED558CCD)
            x ^= x >> np.uint64(33)
            x *= np.uint64(0xC4CEB9FE1A85EC53)
            mixed[i - low] = x ^ (x >> np.uint64(33))
        for k in range(len(a)):
            ak, bk, least = a[k], b[k], out[k]
            for i in range(high - low):
                least = min(least, mixed[i] * ak + bk)
            out[k] = least


@kernel
def minima_legacy(hashes: U64, count: int, a: U64, b: U64, out: U64) -> None:
    """datasketch 1.x: the wrapped 64-bit product plus b, modulo 2^61 - 1, low 32 bits; hashes are cut to 32 bits."""
    out[:] = LOW32
    for low in range(0, count, BLOCK):
        high = min(count, low + BLOCK)
        for k in range(len(a)):
            ak, bk, least = a[k], b[k], out[k]
            for i in range(low, high):
                x = (hashes[i] & LOW32) * ak + bk
                # x mod 2^61 - 1 without a division: at most one subtraction is left after folding the top 3 bits.
                x = (x & MERSENNE) + (x >> np.uint64(61))
                if x >= MERSENNE:
                    x -= MERSENNE
                least = min(least, x & LOW32)
            out[k] = least


@kernel
def signatures32(hashes: U64, starts: I64, permutations: tuple[U32, U32], out: U32) -> None:
    """affine32 signatures, one row of `out` for each document; documents without shingles get all ones."""
    for d in range(len(starts) - 1):
        minima32(hashes[starts[d] : starts[d + 1]], starts[d + 1] - starts[d], permutations[0], permutations[1], out[d])


@kernel
def signatures64(hashes: U64, starts: I64, permutations: tuple[U64, U64], out: U64) -> None:
    """affine64 signatures, as `signatures32`."""
    for d in range(len(starts) - 1):
        minima64(hashes[starts[d] : starts[d + 1]], starts[d + 1] - starts[d], permutations[0], permutations[1], out[d])


@kernel
def signatures_legacy(hashes: U64, starts: I64, permutations: tuple[U64, U64], out: U64) -> None:
    """legacy signatures, as `signatures32`."""
    for d in range(len(starts) - 1):
        span = hashes[starts[d] : starts[d + 1]]
        minima_legacy(span, len(span), permutations[0], permutations[1], out[d])


@kernel
def band_keys(signatures: NDArray[np.unsignedinteger[Any]], rows: int, out: U64) -> None:
    """One 64-bit key for each band of `rows` minima, the band's number mixed in; out has a column for each band."""
    for d in range(signatures.shape[0]):
        for band in range(out.shape[1]):
            h = _mix(np.uint64(band + 1) * WORD_MULTIPLIER)
            for k in range(band * rows, (band + 1) * rows):
                h = (h ^ np.uint64(signatures[d, k])) * WORD_MULTIPLIER
                h ^= h >> np.uint64(32)
            out[d, band] = _mix(h)
