"""Walks over a shard that find what constant time cannot: index arrays, tokens, EODs, sidecars.

Each walk goes in blocks, so memory is flat; the index takes about 5 ns a sequence, tokens as long as reading them.
A walk gives the first fault of its kind, with how many there are, as an error that is not raised.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from mmdata.errors import (
    DocumentIndexError,
    EmptySequenceError,
    EodPlacementError,
    ShardError,
    SidecarMismatchError,
    TokenRangeError,
)
from mmdata.indexed.index import ShardIndex, negative_length, wrong_pointer
from mmdata.indexed.mapping import forget

BLOCK_ITEMS: Final = 1 << 18
BLOCK_TOKENS: Final = 1 << 20
_REBUILD: Final = "the index is damaged: copy it again, or rebuild it with `mmdata verify --repair`"


def blocks(count: int, size: int = BLOCK_ITEMS) -> Iterator[tuple[int, int]]:
    """Half-open ranges that cover `count` items."""
    for start in range(0, count, size):
        yield start, min(start + size, count)


def length_fault(index: ShardIndex) -> ShardError | None:
    """A negative sequence length."""
    for start, stop in blocks(index.header.sequences):
        bad = np.flatnonzero(index.lengths[start:stop] < 0)
        if bad.size:
            sequence = start + int(bad[0])
            return negative_length(index.path, sequence, int(index.lengths[sequence]))
        index.forget()
    return None


def pointer_fault(index: ShardIndex) -> ShardError | None:
    """A pointer that is not the sum of the lengths before it."""
    base = 0
    for start, stop in blocks(index.header.sequences):
        sums = np.cumsum(index.lengths[start:stop], dtype=np.int64) * index.header.dtype.itemsize
        wanted = np.empty(stop - start, np.int64)
        wanted[0], wanted[1:] = base, sums[:-1] + base
        bad = np.flatnonzero(index.pointers[start:stop] != wanted)
        if bad.size:
            first = int(bad[0])
            found = int(index.pointers[start + first])
            facts = f"begins at byte {found:,}, but the lengths before it add up to {int(wanted[first]):,}"
            return wrong_pointer(index.path, start + first, facts)
        base += int(sums[-1])
        index.forget()
    return None


def document_fault(index: ShardIndex) -> ShardError | None:
    """Document indices that do not run from 0 to the number of sequences, or decrease."""
    first, last = int(index.documents[0]), int(index.documents[-1])
    if first != 0 or last != index.header.sequences:
        return DocumentIndexError(
            f"document indices run from {first:,} to {last:,}; they must run from 0 to {index.header.sequences:,}",
            path=index.path,
            remedy=_REBUILD,
        )
    for start, stop in blocks(index.header.entries - 1):
        bad = np.flatnonzero(np.diff(index.documents[start : stop + 1]) < 0)
        if bad.size:
            document = start + int(bad[0])
            values = index.documents[document : document + 2].tolist()
            return DocumentIndexError(
                f"runs backwards, from sequence {values[0]:,} to {values[1]:,}",
                path=index.path,
                where=f"document {document:,}",
                remedy=_REBUILD,
            )
        index.forget()
    return None


def index_faults(index: ShardIndex) -> Iterator[ShardError]:
    """Every kind of fault the index arrays have. Pointers are not judged when a length is negative."""
    length = length_fault(index)
    for fault in (length, None if length else pointer_fault(index), document_fault(index)):
        if fault is not None:
            yield fault


def check_index_arrays(index: ShardIndex) -> None:
    """Raise the first fault of the index arrays."""
    for fault in index_faults(index):
        raise fault


def sequence_blocks(
    lengths: NDArray[np.int32], max_tokens: int = BLOCK_TOKENS, max_sequences: int = BLOCK_ITEMS
) -> Iterator[tuple[int, int]]:
    """Ranges of sequences of at most `max_tokens` tokens each; a longer sequence stands alone."""
    for start, stop in blocks(lengths.size, max_sequences):
        sums = np.cumsum(lengths[start:stop], dtype=np.int64)
        done, base = 0, 0
        while done < sums.size:
            end = max(done + 1, int(np.searchsorted(sums, base + max_tokens, side="right")))
            yield start + done, start + end
            done, base = end, int(sums[end - 1])


@dataclass(slots=True)
class TokenFacts:
    """What one pass over `.bin` found. first_bad: position of the first token out of range, with `bad` of them."""

    xxh3_128: str
    bad: int = 0
    first_bad: int = -1
    eods: int = 0


def read_tokens(
    tokens: NDArray[Any], bounds: tuple[int, int] | None = None, eod_id: int | None = None, *, hashed: bool = True
) -> TokenFacts:
    """Hash all tokens, count those outside `low <= token < high` and those equal to `eod_id`, in one pass."""
    state = xxhash.xxh3_128()
    facts = TokenFacts("")
    for start, stop in blocks(tokens.size, BLOCK_TOKENS):
        block = tokens[start:stop]
        if hashed:
            state.update(cast(Any, block))
        if bounds is not None and (int(block.min()) < bounds[0] or int(block.max()) >= bounds[1]):
            bad = np.flatnonzero((block < bounds[0]) | (block >= bounds[1]))
            if facts.first_bad < 0:
                facts.first_bad = start + int(bad[0])
            facts.bad += int(bad.size)
        if eod_id is not None:
            facts.eods += int(np.count_nonzero(block == eod_id))
        forget(block)
    facts.xxh3_128 = state.hexdigest()
    return facts


def sequence_of_token(index: ShardIndex, position: int) -> int:
    """The sequence that holds token number `position` of `.bin`."""
    return bisect.bisect_right(index.pointers, position * index.header.dtype.itemsize) - 1


def token_fault(index: ShardIndex, tokens: NDArray[Any], facts: TokenFacts, high: int, path: str) -> ShardError | None:
    """Tokens outside the vocabulary, from the facts of a pass."""
    if not facts.bad:
        return None
    sequence = sequence_of_token(index, facts.first_bad)
    inside = facts.first_bad - int(index.pointers[sequence]) // index.header.dtype.itemsize
    return TokenRangeError(
        f"token {inside:,} is {int(tokens[facts.first_bad])}, outside the vocabulary of {high:,} ({facts.bad:,} such)",
        path=path,
        where=f"sequence {sequence:,}",
        remedy="the shard was made with another tokenizer, or is damaged: tokenize again",
    )


def document_ends(index: ShardIndex, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For documents `first` to `last`: their begin and end in `.bin`, in tokens."""
    entries = np.asarray(index.documents[first : last + 1], np.int64)
    count, size = index.header.sequences, index.bin_size()
    at = np.full(entries.size, size, np.int64)
    inside = entries < count
    at[inside] = index.pointers[entries[inside]]
    at //= index.header.dtype.itemsize
    return at[:-1], at[1:]


def eod_fault(index: ShardIndex, tokens: NDArray[Any], eod_id: int, eods: int | None, path: str) -> ShardError | None:
    """A document that does not end with EOD; or one with an EOD inside, when `eods` (their number in all) is given."""
    filled = 0
    for start, stop in blocks(index.header.entries - 1):
        begins, ends = document_ends(index, start, stop)
        documents = np.flatnonzero(ends > begins)
        filled += int(documents.size)
        bad = documents[tokens[ends[documents] - 1] != eod_id]
        forget(tokens[int(begins[0]) : int(ends[-1])])
        index.forget()
        if bad.size:
            return EodPlacementError(
                f"ends with token {int(tokens[ends[bad[0]] - 1])}, not with EOD {eod_id} as the manifest says",
                path=path,
                where=f"document {start + int(bad[0]):,}",
                remedy="tokenize again with --append-eod, or restore the manifest that belongs to the shard",
            )
    if eods is None or eods == filled:
        return None
    return _inner_eod(index, tokens, eod_id, eods - filled, path)


def _inner_eod(index: ShardIndex, tokens: NDArray[Any], eod_id: int, surplus: int, path: str) -> ShardError:
    for start, stop in blocks(index.header.entries - 1):
        begins, ends = document_ends(index, start, stop)
        for first, last in blocks(int(ends[-1] - begins[0]), BLOCK_TOKENS):
            base = int(begins[0])
            at = np.flatnonzero(tokens[base + first : base + last] == eod_id) + base + first
            inner = at[~np.isin(at, ends - 1)]
            forget(tokens[base + first : base + last])
            if inner.size:
                document = start + int(np.searchsorted(ends, inner[0], side="right"))
                return EodPlacementError(
                    f"has EOD {eod_id} inside, at token {int(inner[0] - begins[document - start]):,}; "
                    f"{surplus:,} EODs stand inside documents",
                    path=path,
                    where=f"document {document:,}",
                    remedy="special tokens in the text were taken for control tokens: tokenize again",
                )
    raise AssertionError("EODs were counted inside documents and are not there")


def empty_sequence_fault(index: ShardIndex) -> ShardError | None:
    """Sequences of no tokens."""
    count, first = 0, -1
    for start, stop in blocks(index.header.sequences):
        empty = np.flatnonzero(index.lengths[start:stop] == 0)
        if empty.size and first < 0:
            first = start + int(empty[0])
        count += int(empty.size)
        index.forget()
    if not count:
        return None
    return EmptySequenceError(
        f"holds no token; {count:,} sequences are empty",
        path=index.path,
        where=f"sequence {first:,}",
        remedy="tokenize again: empty texts are dropped with a count",
    )


def spans_fault(index: ShardIndex, sidecar: ShardIndex, flat: NDArray[np.int32], path: str) -> ShardError | None:
    """Loss spans that are odd in number, not ascending, or outside their sequence."""
    for first, last in sequence_blocks(sidecar.lengths):
        counts = sidecar.lengths[first:last].astype(np.int64)
        base = int(sidecar.pointers[first]) // 4
        pairs = flat[base : base + int(counts.sum())]
        odd = counts % 2 != 0
        if odd.any():
            return _bad_spans(path, first + int(odd.argmax()), "hold an odd number of bounds")
        starts, ends = pairs[::2], pairs[1::2]
        owner = np.repeat(np.arange(first, last), counts // 2)
        bad = (starts < 1) | (ends <= starts) | (ends > index.lengths[first:last][owner - first])
        bad[1:] |= (owner[1:] == owner[:-1]) & (starts[1:] < ends[:-1])
        if bad.any():
            at = int(bad.argmax())
            length = int(index.lengths[owner[at]])
            return _bad_spans(path, int(owner[at]), f"hold {starts[at]}, {ends[at]} for {length:,} tokens")
        for part in (index, sidecar):
            part.forget()
        forget(pairs)
    return None


def _bad_spans(path: str, sequence: int, what: str) -> ShardError:
    return SidecarMismatchError(
        f"spans {what}; they must be ascending pairs within 1 and the length",
        path=path,
        where=f"sequence {sequence:,}",
        remedy="convert the chat data again",
    )


def origin_fault(sidecar: ShardIndex, flat: NDArray[np.int32], inputs: int | None, path: str) -> ShardError | None:
    """Origin rows that are not four numbers, or name an input the manifest does not have."""
    for first, last in blocks(sidecar.header.sequences):
        wrong = np.flatnonzero(sidecar.lengths[first:last] != 4)
        if wrong.size:
            return _bad_origin(path, first + int(wrong[0]), "does not hold four numbers")
        rows = flat[4 * first : 4 * last].reshape(-1, 4)
        bad = (rows[:, 0] < -1) | (rows[:, 1:] < 0).any(axis=1)
        if inputs is not None:
            bad |= rows[:, 0] >= inputs
        if bad.any():
            at = int(bad.argmax())
            return _bad_origin(path, first + at, f"is {rows[at].tolist()}, but the manifest has {inputs} inputs")
        sidecar.forget()
        forget(rows)
    return None


def _bad_origin(path: str, document: int, what: str) -> ShardError:
    return SidecarMismatchError(
        f"origin {what}",
        path=path,
        where=f"document {document:,}",
        remedy="copy shard, sidecars and manifest of one run together",
    )
