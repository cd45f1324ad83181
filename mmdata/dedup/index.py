"""The incremental index: what earlier batches kept, so that a new batch is compared with it and not read again.

A folder with `index.json` and runs; a run holds sorted keys with their documents, each document's shingle hashes and
its identity. Looking a batch up costs a binary search for each of its keys. Adding it writes one run; runs are merged
while the one before is at most twice as large, so a document is rewritten a logarithmic number of times. Disk: 8 bytes
a shingle and 16 a key, plus identities. The folder changes only by the rename of `index.json`, so a crash leaves the
index as it was.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import filelock
import numpy as np
from numpy.typing import NDArray

from mmdata.dedup.external import PairStore
from mmdata.dedup.index_run import Run, RunFacts, merge_runs, write_keys
from mmdata.dedup.params import DedupParams
from mmdata.dedup.signer import ShingleSets, Signed, concatenate_sets
from mmdata.errors import DedupIndexChangedError, DedupIndexError, DedupIndexMismatchError

U64 = NDArray[np.uint64]

FORMAT = 1
MANIFEST = "index.json"
KEY_SHIFT = 56


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a document of the index is: its input's path, line and id when it was added."""

    path: str
    line: int
    id: str | None


class DedupIndex:
    """Read access to an index folder, as a PinnedSource of decide.py; `begin` starts a batch to add."""

    def __init__(self, folder: Path, params: DedupParams) -> None:
        """Open, or start an empty one where there is nothing yet.

        Raises DedupIndexMismatchError when it was made with other parameters, DedupIndexError when it is damaged or
        the folder holds something else.
        """
        self.folder, self.params = Path(folder), params
        manifest = _read_manifest(self.folder)
        if manifest is None:
            if self.folder.is_dir() and any(not name.name.startswith(".") for name in self.folder.iterdir()):
                raise DedupIndexError(f"{self.folder}: not empty and no deduplication index (no {MANIFEST})")
            manifest = {"format": FORMAT, "generation": 0, "params": params.relevant(), "runs": [], "batches": []}
        elif manifest["fingerprint"] != params.fingerprint():
            raise DedupIndexMismatchError(
                f"{self.folder}: made with other parameters ({_differences(manifest['params'], params.relevant())}); "
                "use the index's parameters or another folder"
            )
        self.generation = int(manifest["generation"])
        self.batches: list[str] = list(manifest["batches"])
        self.runs = [Run(self.folder, RunFacts(**facts)) for facts in manifest["runs"]]

    @property
    def documents(self) -> int:
        """How many documents it holds."""
        return sum(run.facts.documents for run in self.runs)

    def find(self, keys: U64) -> tuple[U64, U64]:
        """(key, document number) of every match of distinct ascending keys, ordered by key, then number."""
        found = [run.find(keys) for run in self.runs]
        if not found:
            return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.uint64)
        all_keys = np.concatenate([pair[0] for pair in found])
        numbers = np.concatenate([pair[1] for pair in found])
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
        """Make the batch part of the index, durably and at once. name: remembered in `batches`, for resumed runs."""
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
        _write_manifest(self.index, runs, name)
        self.index.runs = runs
        _remove_unreferenced(self.index)
        self._open = False
        self._lock.release()

    def abandon(self) -> None:
        """Leave the index as it was."""
        for file in self._files.values():
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


def _write_manifest(index: DedupIndex, runs: list[Run], name: str) -> None:
    index.generation += 1
    index.batches = [*index.batches, name] if name else index.batches
    manifest = {
        "format": FORMAT,
        "generation": index.generation,
        "fingerprint": index.params.fingerprint(),
        "params": index.params.relevant(),
        "runs": [asdict(run.facts) for run in runs],
        "batches": index.batches,
    }
    temporary = index.folder / f"{MANIFEST}.partial"
    with temporary.open("wb") as file:
        file.write(json.dumps(manifest, indent=1, sort_keys=True).encode("ascii") + b"\n")
        _sync(file)
    os.replace(temporary, index.folder / MANIFEST)
    if os.name == "posix":
        handle = os.open(index.folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


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
