"""The incremental index: what earlier batches kept, so that a new batch is compared with it and not read again.

A folder with `index.json` and runs; a run holds sorted keys with their documents, each document's shingle hashes and
its identity. Looking a batch up costs a binary search for each of its keys. Adding it writes one run; runs are merged
while the one before is at most twice as large, so a document is rewritten a logarithmic number of times. Disk: 8 bytes
a shingle and 16 a key, plus identities. The folder changes only by the rename of `index.json`, so a crash leaves the
index as it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import filelock
import numpy as np
import xxhash
from numpy.typing import NDArray

from mmdata.dedup.external import PairStore
from mmdata.dedup.index_run import Run, RunFacts, merge_runs, write_keys
from mmdata.dedup.params import DedupParams
from mmdata.dedup.signer import ShingleSets, Signed, concatenate_sets
from mmdata.errors import DedupIndexChangedError, DedupIndexError, DedupIndexMismatchError, OutputError
from mmdata.indexed.durable import sync_directory

U64 = NDArray[np.uint64]

FORMAT = 1
MANIFEST = "index.json"
KEY_SHIFT = 56
OWN = re.compile(r"\.|run-\d{8}(\.partial)?$|index\.json\.partial$")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a document of the index is: its input's path, line and id when it was added."""

    path: str
    line: int
    id: str | None


@dataclass(frozen=True, slots=True)
class Batch:
    """What is added at once. name: the same for the same inputs and options. output: where the kept records go.

    One output has one batch in the index: when a run writes the output again, what the earlier one added does not
    count against it. With the same name the index stays as it is, and nothing added later counts either, so that the
    outcome is the same; with another name the earlier batch is replaced.
    """

    name: str
    output: str

    @classmethod
    def of(cls, fingerprint: Mapping[str, Any], output: str, index: Path) -> Batch:
        """fingerprint: JSON values of everything that can change the outcome. output: its path."""
        text = json.dumps(fingerprint, sort_keys=True, ensure_ascii=True)
        return cls.at(xxhash.xxh3_128_hexdigest(text.encode("ascii")), output, index)

    @classmethod
    def at(cls, name: str, output: str, index: Path) -> Batch:
        """With a name that the caller made."""
        place = os.path.abspath(output)
        with contextlib.suppress(ValueError):  # another drive
            # Folders that are moved together stay together.
            place = os.path.relpath(place, os.path.abspath(index))
        return cls(name, place.replace(os.sep, "/"))


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch of the index: its documents are first, first + 1, ... replaced: they count no longer."""

    name: str
    output: str
    first: int
    documents: int
    replaced: bool = False


class DedupIndex:
    """Read access to an index folder, as a PinnedSource of decide.py; `begin` starts a batch to add."""

    def __init__(self, folder: Path, params: DedupParams, batch: Batch | None = None) -> None:
        """Open, or start an empty one where there is nothing yet. batch: what is to be added, see Batch.

        Raises DedupIndexMismatchError when it was made with other parameters, DedupIndexError when it is damaged or
        the folder holds something else.
        """
        self.folder, self.params, self.batch = Path(folder), params, batch
        self._refuse_unwritable()
        manifest = _read_manifest(self.folder)
        if manifest is None:
            # A first run that was killed leaves its unfinished files.
            if self.folder.is_dir() and not all(OWN.match(path.name) for path in self.folder.iterdir()):
                raise DedupIndexError(f"{self.folder}: not empty and no deduplication index (no {MANIFEST})")
            manifest = {"format": FORMAT, "generation": 0, "params": params.relevant(), "runs": [], "batches": []}
        elif manifest["fingerprint"] != params.fingerprint():
            raise DedupIndexMismatchError(
                f"{self.folder}: made with other parameters ({_differences(manifest['params'], params.relevant())}); "
                "use the index's parameters or another folder"
            )
        self.generation = int(manifest["generation"])
        try:
            self.stored = [StoredBatch(**facts) for facts in manifest["batches"]]
        except TypeError as fault:
            raise DedupIndexError(f"{self.folder / MANIFEST}: damaged ({fault}); build the index anew") from fault
        self.runs = [Run(self.folder, RunFacts(**facts)) for facts in manifest["runs"]]

    def _refuse_unwritable(self) -> None:
        """Before hours of work, not after. Raises OutputError and DedupIndexError."""
        place = self.folder
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise DedupIndexError(f"{place}: a file, where the index needs a folder; choose another place")
        if not os.access(place, os.W_OK | os.X_OK):
            raise OutputError(f"{place}: not writable, so the index cannot be added to; change its permissions")

    @property
    def documents(self) -> int:
        """How many documents it holds."""
        return sum(run.facts.documents for run in self.runs)

    @property
    def batches(self) -> list[str]:
        """Names of the batches it holds, without those that were replaced."""
        return [stored.name for stored in self.stored if stored.name and not stored.replaced]

    @property
    def earlier(self) -> StoredBatch | None:
        """The batch that an earlier run put in for the output of `batch`."""
        wanted = self.batch
        if wanted is None:
            return None
        return next((one for one in self.stored if one.output == wanted.output and not one.replaced), None)

    @property
    def holds_batch(self) -> bool:
        """Whether `batch` itself is in already: nothing is to be added."""
        earlier = self.earlier
        return earlier is not None and self.batch is not None and earlier.name == self.batch.name

    def _hidden(self) -> list[tuple[int, int]]:
        """Ranges of documents that do not count; see Batch."""
        ranges = [(one.first, one.first + one.documents) for one in self.stored if one.replaced]
        earlier = self.earlier
        if earlier is not None:
            ranges.append((earlier.first, self.documents if self.holds_batch else earlier.first + earlier.documents))
        return ranges

    def find(self, keys: U64) -> tuple[U64, U64]:
        """(key, document number) of every match of distinct ascending keys, ordered by key, then number."""
        found = [run.find(keys) for run in self.runs]
        if not found:
            return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.uint64)
        all_keys = np.concatenate([pair[0] for pair in found])
        numbers = np.concatenate([pair[1] for pair in found])
        for low, high in self._hidden():
            counts = (numbers < np.uint64(low)) | (numbers >= np.uint64(high))
            all_keys, numbers = all_keys[counts], numbers[counts]
        order = np.lexsort((numbers, all_keys))
        return all_keys[order], numbers[order]

    def sets(self, numbers: U64) -> ShingleSets:
        """Shingle sets of documents by number."""
        return concatenate_sets([self._run_of(number).shingles(number) for number in numbers.tolist()])

    def identity(self, number: int) -> Identity:
        """Path, line and id of a document by number."""
        return Identity(*self._run_of(number).identity(number))

    def begin(self) -> IndexBatch:
        """Start a batch; nothing changes until its `commit`. Raises DedupIndexChangedError while another is open."""
        return IndexBatch(self)

    def _run_of(self, number: int) -> Run:
        for run in self.runs:
            if run.facts.first <= number < run.facts.first + run.facts.documents:
                return run
        raise AssertionError(f"document {number} is not in the index")


class IndexBatch:
    """Documents to add: `add` in input order, then `commit`; as a context manager it is abandoned on leaving."""

    def __init__(self, index: DedupIndex) -> None:
        self.index = index
        index.folder.mkdir(parents=True, exist_ok=True)
        self._lock = filelock.FileLock(index.folder / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise DedupIndexChangedError(f"{index.folder}: another run is adding to this index; wait for it") from None
        current = _read_manifest(index.folder)
        if (0 if current is None else int(current["generation"])) != index.generation:
            self._lock.release()
            raise DedupIndexChangedError(
                f"{index.folder}: another run added to the index after this one opened it; run the command again"
            )
        _remove_unreferenced(index)
        self._name = f"run-{index.generation + 1:08d}"
        self._partial = index.folder / f"{self._name}.partial"
        self._partial.mkdir()
        self._keys = PairStore(self._partial, "keys", KEY_SHIFT)
        self._files: dict[str, BinaryIO] = {
            name: (self._partial / name).open("wb") for name in ("values", "starts", "ids", "id-starts")
        }
        self._documents, self._values, self._id_bytes = 0, 0, 0
        self._open = True

    def __enter__(self) -> IndexBatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open:
            self.abandon()

    def add(self, identities: Sequence[Identity], signed: Signed, sets: ShingleSets) -> None:
        """Take kept documents. Those not counted (empty) are left out: nothing could ever match them."""
        places = np.flatnonzero(signed.counted)
        numbers = np.arange(self._documents, self._documents + len(places), dtype=np.uint64)
        self._keys.append(signed.keys[places].ravel(), np.repeat(numbers, signed.keys.shape[1]))
        for place in places.tolist():
            values = np.sort(sets[place])
            line = json.dumps([identities[place].path, identities[place].line, identities[place].id]).encode("ascii")
            self._write("starts", self._values)
            self._write("id-starts", self._id_bytes)
            self._files["values"].write(values.astype("<u8").tobytes())
            self._files["ids"].write(line)
            self._values += len(values)
            self._id_bytes += len(line)
        self._documents += len(places)

    def _write(self, name: str, value: int) -> None:
        self._files[name].write(value.to_bytes(8, "little"))

    def commit(self, name: str = "", memory: int = 64 << 20) -> None:
        """Make the batch part of the index, durably and at once. name: of a batch without an output."""
        self._write("starts", self._values)
        self._write("id-starts", self._id_bytes)
        for file in self._files.values():
            _sync(file)
            file.close()
        first = self.index.documents
        pairs = write_keys(self._partial, self._keys.read_sorted(memory, consume=True))
        runs = list(self.index.runs)
        if self._documents:
            os.replace(self._partial, self.index.folder / self._name)
            facts = RunFacts(self._name, first, self._documents, pairs, self._values, self._id_bytes)
            runs.append(Run(self.index.folder, facts))
        else:
            shutil.rmtree(self._partial)
        runs = merge_runs(self.index.folder, runs, self.index.generation + 1)
        self._remember(StoredBatch(name, "", first, self._documents))
        _write_manifest(self.index, runs)
        self.index.runs = runs
        _remove_unreferenced(self.index)
        self._open = False
        self._lock.release()

    def _remember(self, added: StoredBatch) -> None:
        index = self.index
        earlier, batch = index.earlier, index.batch
        index.stored = [replace(one, replaced=True) if one is earlier else one for one in index.stored]
        if batch is not None:
            added = replace(added, name=batch.name, output=batch.output)
        if added.name:
            index.stored.append(added)

    def abandon(self) -> None:
        """Leave the index as it was."""
        for file in self._files.values():
            with contextlib.suppress(OSError):  # a full disk: what cannot be flushed is deleted anyway
                file.close()
        shutil.rmtree(self._partial, ignore_errors=True)
        self._open = False
        self._lock.release()


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        if manifest["format"] != FORMAT:
            raise DedupIndexError(f"{path}: format {manifest['format']}, this version reads format {FORMAT}")
        return manifest
    except (ValueError, KeyError, TypeError) as fault:
        raise DedupIndexError(f"{path}: damaged ({fault}); build the index anew") from fault


def _write_manifest(index: DedupIndex, runs: list[Run]) -> None:
    index.generation += 1
    manifest = {
        "format": FORMAT,
        "generation": index.generation,
        "fingerprint": index.params.fingerprint(),
        "params": index.params.relevant(),
        "runs": [asdict(run.facts) for run in runs],
        "batches": [asdict(stored) for stored in index.stored],
    }
    temporary = index.folder / f"{MANIFEST}.partial"
    with temporary.open("wb") as file:
        file.write(json.dumps(manifest, indent=1, sort_keys=True).encode("ascii") + b"\n")
        _sync(file)
    os.replace(temporary, index.folder / MANIFEST)
    sync_directory(str(index.folder / MANIFEST))


def _remove_unreferenced(index: DedupIndex) -> None:
    """Delete runs that a crash or a merge left behind; called under the lock."""
    wanted = {run.facts.name for run in index.runs}
    for path in index.folder.glob("run-*"):
        if path.name not in wanted:
            shutil.rmtree(path, ignore_errors=True)


def _differences(stored: dict[str, Any], given: dict[str, Any]) -> str:
    names = sorted(stored.keys() | given.keys())
    return ", ".join(
        f"{name} {stored.get(name)!r} there, {given.get(name)!r} here"
        for name in names
        if _plain(stored.get(name)) != _plain(given.get(name))
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
