"""Reads shards: random access to sequences and documents, checked at every access.

Opening takes a tenth of a millisecond and no file descriptor stays open, so thousands of shards can be open at once.
A random sequence costs well below a microsecond, its check included. Arrays are read-only views of the mapped file and
stay valid after the dataset is gone. A file that is cut short while it is mapped cannot be caught (bus error).
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import (
    DocumentIndexError,
    RemoteStorageError,
    SequenceRangeError,
    ShardNotFoundError,
    SidecarMismatchError,
    SidecarMissingError,
)
from mmdata.indexed.durable import FileDigest
from mmdata.indexed.index import ShardIndex, check_bin_size, items, negative_length, open_index, wrong_pointer
from mmdata.indexed.layout import LENGTH_DTYPE, POINTER_DTYPE
from mmdata.indexed.manifest import Manifest, parse_manifest, read_manifest
from mmdata.indexed.mapping import map_file, reading_faults
from mmdata.indexed.paths import bin_path, clean_prefix, idx_path, manifest_path, sidecar_prefix
from mmdata.indexed.remote import RemoteFile, RemoteTokens, default_cache_dir, is_remote
from mmdata.indexed.sidecars import Origin, check_spans, decode_origin, whole_span

Tokens = NDArray[Any]


class IndexedDataset:
    """One shard, opened by its prefix: `IndexedDataset("shards/my_text_document")`.

    len(ds) counts sequences. ds[i] is sequence i as a read-only array, negative i from the end; ds[a:b] a list of them.
    """

    def __init__(
        self, prefix: str | os.PathLike[str], *, multimodal: bool = False, cache_dir: str | None = None
    ) -> None:
        """Open a local prefix, or an address such as `s3://bucket/my_text_document` (extra `mmdata[s3]`).

        multimodal: the index has a mode byte for each sequence. cache_dir: where the index of a remote shard is kept.
        Raises the errors that docs/shard-format.md lists under "open".
        """
        self.prefix = clean_prefix(prefix)
        self.multimodal = multimodal
        self._cache_dir = cache_dir
        self.is_remote = is_remote(self.prefix)
        # Workers and later reads find the shard whatever the working folder is by then.
        self._place = self.prefix if self.is_remote else os.path.abspath(self.prefix)
        shown = idx_path(self.prefix)
        local = RemoteFile(shown).cached(self._cache_dir or default_cache_dir()) if self.is_remote else shown
        self._index = index = open_index(local, multimodal, shown=shown)
        header = index.header
        self.dtype: np.dtype[Any] = header.dtype
        self._count = header.sequences
        self._lengths = items(index.raw, header.lengths_at, header.sequences, LENGTH_DTYPE)
        self._pointers = items(index.raw, header.pointers_at, header.sequences, POINTER_DTYPE)
        self._shift = header.dtype.itemsize.bit_length() - 1
        self._size, self._tokens = self._open_tokens()
        self._manifest: Manifest | None = None
        self._manifest_read = False
        self._sidecars: dict[str, IndexedDataset | None] = {}

    def _open_tokens(self) -> tuple[int, Any]:
        path = bin_path(self.prefix)
        if self.is_remote:
            file = RemoteFile(path)
            size = file.size()
            check_bin_size(self._index, size, path)
            return size, RemoteTokens(file, self.dtype)
        with reading_faults(path):
            raw = map_file(path)
        check_bin_size(self._index, raw.size, path)
        return raw.size, raw.view(self.dtype)

    # Whole arrays.

    @property
    def index(self) -> ShardIndex:
        """The mapped index, for walks over the whole shard."""
        return self._index

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """int32[S]: tokens of each sequence. May be unaligned."""
        return self._index.lengths

    @property
    def sequence_pointers(self) -> NDArray[np.int64]:
        """int64[S]: byte offset of each sequence in `.bin`. May be unaligned."""
        return self._index.pointers

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """int64[documents + 1]: first sequence of each document, then the number of sequences. May be unaligned."""
        return self._index.documents

    @property
    def sequence_modes(self) -> NDArray[np.int8] | None:
        """int8[S]: mode byte of each sequence; None unless opened with multimodal=True."""
        return self._index.modes

    @property
    def tokens(self) -> Tokens:
        """All tokens of a local shard as one mapped array; raises RemoteStorageError for a remote one."""
        if self.is_remote:
            raise RemoteStorageError(
                "a remote shard is not mapped", path=bin_path(self.prefix), remedy="read it by ds[i], or copy it here"
            )
        return self._tokens  # type: ignore[no-any-return]

    @property
    def token_count(self) -> int:
        """Tokens of the whole shard."""
        return self._size >> self._shift

    @property
    def document_count(self) -> int:
        """Documents of the shard, empty ones included."""
        return self._index.header.entries - 1

    def index_digest(self) -> FileDigest:
        """Size and xxh3-128 of `.idx`: a key for caches of anything derived from lengths. Reads the whole index."""
        return self._index.digest()

    # Sequences.

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Tokens: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tokens]: ...
    def __getitem__(self, index: int | slice) -> Tokens | list[Tokens]:
        """Sequence `index`, or a list of sequences.

        Raises SequenceRangeError (an IndexError), PointerError, SequenceLengthError, ShortReadError.
        """
        if type(index) is not int:
            if isinstance(index, slice):
                return self._slice(range(*index.indices(self._count)))
            index = _number(index, "sequence")
        if not 0 <= index < self._count:
            index = self._position(index, self._count, "sequence")
        start = self._pointers[index]
        after = self._pointers[index + 1] if index + 1 < self._count else self._size
        shift = self._shift
        begin = start >> shift
        end = begin + self._lengths[index]
        # One chain for every lie: a pointer off the item grid, beyond the file, or not where the length leads.
        if not 0 <= start <= after <= self._size or begin << shift != start or end << shift != after:
            self._explain(index)
        return self._tokens[begin:end]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Tokens]:
        return (self[index] for index in range(self._count))

    def get(self, index: int, offset: int = 0, length: int | None = None) -> Tokens:
        """`length` tokens of sequence `index` from `offset` on (all that are left by default), one ranged read.

        Raises SequenceRangeError when the range leaves the sequence.
        """
        index = self._position(index, self._count, "sequence")
        begin, total = self._checked_span(index)
        stop = total if length is None else offset + length
        if not 0 <= offset <= stop <= total:
            raise SequenceRangeError(
                f"tokens {offset:,} to {stop:,} were asked for, but it has {total:,}",
                path=self.prefix,
                where=f"sequence {index:,}",
            )
        return self._tokens[begin + offset : begin + stop]  # type: ignore[no-any-return]

    def document(self, index: int) -> Tokens:
        """All tokens of document `index` as one array, its sequences one after the other; an empty one has none.

        Raises SequenceRangeError, DocumentIndexError, PointerError, SequenceLengthError, ShortReadError.
        """
        first, last = self.document_sequences(index)
        if first == last:
            return self._tokens[0:0]  # type: ignore[no-any-return]
        if last - first == 1:
            return self[first]
        begin, end = self._check_run(first, last)
        return self._tokens[begin:end]  # type: ignore[no-any-return]

    def document_sequences(self, index: int) -> tuple[int, int]:
        """The half-open range of sequences of document `index`. Raises SequenceRangeError, DocumentIndexError."""
        index = self._position(index, self.document_count, "document")
        first, last = int(self._index.documents[index]), int(self._index.documents[index + 1])
        if not 0 <= first <= last <= self._count:
            raise DocumentIndexError(
                f"runs from sequence {first:,} to {last:,} of {self._count:,}",
                path=self._index.path,
                where=f"document {index:,}",
                remedy="the index is damaged: copy it again, or rebuild it with `mmdata verify --repair`",
            )
        return first, last

    # Manifest and sidecars.

    @property
    def manifest(self) -> Manifest | None:
        """The manifest, read on first use; None where the shard has none. Raises ManifestError."""
        if not self._manifest_read:
            if self.is_remote:
                path = manifest_path(self._place)
                content = RemoteFile(path).read_all()
                self._manifest = None if content is None else parse_manifest(content, path)
            else:
                self._manifest = read_manifest(self._place)
            self._manifest_read = True
        return self._manifest

    @property
    def has_loss_spans(self) -> bool:
        """Whether a sidecar limits which tokens are targets."""
        return self._spans() is not None

    def loss_spans(self, index: int) -> NDArray[np.int32]:
        """int32[k, 2]: half-open spans of the tokens of sequence `index` that count as targets; token 0 never does.

        Without the sidecar that is `[[1, length]]`. Raises SidecarMissingError, SidecarMismatchError.
        """
        index = self._position(index, self._count, "sequence")
        _, length = self._checked_span(index)
        sidecar = self._spans()
        if sidecar is None:
            return whole_span(length)
        return check_spans(sidecar[index], length, bin_path(sidecar.prefix), index)

    def _spans(self) -> IndexedDataset | None:
        sidecar = self.sidecar("loss_spans")
        if self.manifest is None:
            return sidecar
        if self.manifest.loss == "all":
            return None
        if sidecar is None:
            raise SidecarMissingError(
                "the manifest says `loss: spans`, but this file is missing",
                path=bin_path(sidecar_prefix(self.prefix, "loss_spans")),
                remedy="copy the sidecar beside the shard, or convert the chat data again",
            )
        return sidecar

    def origin(self, index: int) -> Origin | None:
        """Where document `index` came from; None where that document's origin is unknown.

        Raises SidecarMissingError when the shard has no origin sidecar, SidecarMismatchError.
        """
        index = self._position(index, self.document_count, "document")
        sidecar = self.sidecar("origin")
        if sidecar is None:
            raise SidecarMissingError(
                "the shard has no origin sidecar",
                path=bin_path(sidecar_prefix(self.prefix, "origin")),
                remedy="copy it beside the shard; shards made elsewhere have none",
            )
        inputs = None if self.manifest is None else [facts.path for facts in self.manifest.inputs]
        return decode_origin(sidecar.document(index), inputs, bin_path(sidecar.prefix), index)

    def sidecar(self, name: str) -> IndexedDataset | None:
        """The sidecar `origin` or `loss_spans` as a dataset of its own; None where there is none.

        Raises SidecarMismatchError when its counts are not this shard's.
        """
        if name not in self._sidecars:
            prefix = sidecar_prefix(self._place, name)
            try:
                found = IndexedDataset(prefix, cache_dir=self._cache_dir)
            except ShardNotFoundError:
                if not self.is_remote and (os.path.exists(bin_path(prefix)) or os.path.exists(idx_path(prefix))):
                    raise
                found = None
            if found is not None:
                self._check_sidecar(name, found)
            self._sidecars[name] = found
        return self._sidecars[name]

    def _check_sidecar(self, name: str, sidecar: IndexedDataset) -> None:
        wanted = (self.document_count, len(self) if name == "loss_spans" else self.document_count)
        found = (sidecar.document_count, len(sidecar))
        if found != wanted or sidecar.dtype != np.dtype("<i4"):
            raise SidecarMismatchError(
                f"{found[0]:,} documents, {found[1]:,} sequences of {sidecar.dtype.name}; the shard needs "
                f"{wanted[0]:,} and {wanted[1]:,} of int32",
                path=idx_path(sidecar.prefix),
                remedy="the files are of different runs: copy shard and sidecars together",
            )

    # Access checks.

    def _position(self, index: Any, count: int, what: str) -> int:
        number = _number(index, what)
        if not -count <= number < count:
            raise SequenceRangeError(f"there is no {what} {number:,}; the shard has {count:,}", path=self.prefix)
        return number + count if number < 0 else number

    def _checked_span(self, index: int) -> tuple[int, int]:
        """First token and length of a sequence, checked as in `ds[i]`."""
        begin, _ = self._check_run(index, index + 1)
        return begin, self._lengths[index]

    def _check_run(self, first: int, last: int) -> tuple[int, int]:
        """First token and one past the last of sequences `first` to `last`, every pointer between them checked."""
        if last - first == 1:
            start = self._pointers[first]
            end = start + (self._lengths[first] << self._shift)
            following = self._pointers[last] if last < self._count else self._size
            if not 0 <= start <= end <= self._size or start >> self._shift << self._shift != start or end != following:
                self._explain(first)
            return start >> self._shift, end >> self._shift
        bounds = np.empty(last - first + 1, np.int64)
        bounds[:-1] = self._index.pointers[first:last]
        bounds[-1] = self._pointers[last] if last < self._count else self._size
        lengths = self._index.lengths[first:last].astype(np.int64)
        wrong = (lengths < 0) | (np.diff(bounds) != lengths << self._shift)
        on_grid = int(bounds[0]) >> self._shift << self._shift == int(bounds[0])
        if wrong.any() or bounds[0] < 0 or bounds[-1] > self._size or not on_grid:
            self._explain(first + int(wrong.argmax()))
        return int(bounds[0]) >> self._shift, int(bounds[-1]) >> self._shift

    def _explain(self, index: int) -> None:
        """Raise the error for a sequence whose check failed."""
        start, length = self._pointers[index], self._lengths[index]
        if length < 0:
            raise negative_length(self._index.path, index, length)
        following = self._pointers[index + 1] if index + 1 < self._count else self._size
        target = f"sequence {index + 1:,} begins" if index + 1 < self._count else "`.bin` ends"
        raise wrong_pointer(
            self._index.path,
            index,
            f"begins at byte {start:,} and has {length:,} tokens of {1 << self._shift} bytes, but {target} at byte "
            f"{following:,} (of {self._size:,})",
        )

    def _slice(self, chosen: range) -> list[Tokens]:
        if chosen.step != 1 or len(chosen) < 2:
            return [self[index] for index in chosen]
        begin, end = self._check_run(chosen.start, chosen.stop)
        block = self._tokens[begin:end]
        stops = np.cumsum(self._index.lengths[chosen.start : chosen.stop], dtype=np.int64).tolist()
        return [block[a:b] for a, b in zip([0, *stops[:-1]], stops, strict=True)]

    @staticmethod
    def exists(prefix: str | os.PathLike[str]) -> bool:
        """Whether both files of a local shard are there."""
        name = clean_prefix(prefix)
        return os.path.isfile(bin_path(name)) and os.path.isfile(idx_path(name))

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._place, self.multimodal, self._cache_dir)

    def __repr__(self) -> str:
        return (
            f"IndexedDataset({self.prefix!r}, {self._count:,} sequences, {self.document_count:,} documents, "
            f"{self.token_count:,} tokens of {self.dtype.name})"
        )


def _number(index: Any, what: str) -> int:
    try:
        return operator.index(index)
    except TypeError as error:
        raise TypeError(f"{what} numbers are integers or slices, not {type(index).__name__}") from error


def _reopen(prefix: str, multimodal: bool, cache_dir: str | None) -> IndexedDataset:
    return IndexedDataset(prefix, multimodal=multimodal, cache_dir=cache_dir)
