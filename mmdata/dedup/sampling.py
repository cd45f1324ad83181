"""`mmdata.sample(...)`: a stratified test set, and a rest that holds no near-duplicate of it.

Strata are the values of one field; each gives its share of the n documents (largest remainders, at least one while
n allows). Which ones is a pure function of (seed, input number, line), so neither chunking nor workers nor appended
records in other strata change it. Memory: n entries a stratum, one byte and those of deduplication a document.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray

from mmdata.dedup.barrier import Barrier, FrameDecision
from mmdata.dedup.decide import Rule
from mmdata.dedup.file_run import KEPT, SAMPLED, FileRun
from mmdata.dedup.files import FileOptions, FilePass, SignedInput, plan_for, sibling, split_options
from mmdata.dedup.params import DedupParams
from mmdata.dedup.rewrite import write_json
from mmdata.dedup.session import Place, Session
from mmdata.errors import DedupParameterError, DedupStateError
from mmdata.jsonl import check_outputs

ORDER_CHUNK = 1 << 20
REASON = "near_duplicate_of_test"


@dataclass(frozen=True, slots=True)
class SampleReport:
    """records = sampled + rest + dropped (near-duplicates of the test set) + rejected.

    strata: for each value of the field how many documents there are and how many were sampled.
    """

    output: str
    rest_output: str
    records: int
    sampled: int
    rest: int
    dropped: int
    rejected: int
    blank: int
    strata: dict[str, dict[str, int]]

    def lines(self) -> str:
        """The account in words."""
        strata = [f"  {name}: {row['sampled']:,} of {row['documents']:,}" for name, row in self.strata.items()]
        return "\n".join([
            f"{self.records:,} records read: {self.sampled:,} sampled into {self.output}",
            *strata,
            f"{self.dropped:,} near-duplicates of the test set left the rest",
            f"{self.rest:,} records in {self.rest_output}; {self.rejected:,} rejected, {self.blank:,} blank lines",
        ])  # fmt: skip


class Strata:
    """Keeps, for each stratum, the n documents of the lowest hash."""

    def __init__(self, wanted: int, seed: int) -> None:
        self.wanted, self.seed = wanted, seed
        self.documents: dict[str, int] = {}
        self._chosen: dict[str, list[tuple[int, int]]] = {}
        self._seen = 0

    def take(self, names: list[str | None], origins: list[tuple[int, int]]) -> None:
        """Look at the next documents: their stratum, None for one without a word, and (input number, line)."""
        for stratum, (number, line) in zip(names, origins, strict=True):
            if stratum is not None:
                self.documents[stratum] = self.documents.get(stratum, 0) + 1
                rank = xxhash.xxh3_64_intdigest(f"{number}:{line}".encode("ascii"), seed=self.seed)
                heap = self._chosen.setdefault(stratum, [])
                # A heap of negated hashes: its first entry is the highest hash kept so far.
                if len(heap) < self.wanted:
                    heapq.heappush(heap, (-rank, -self._seen))
                else:
                    heapq.heappushpop(heap, (-rank, -self._seen))
            self._seen += 1

    def shares(self) -> dict[str, int]:
        """How many documents each stratum gives: proportional, largest remainders, ties by name."""
        total = sum(self.documents.values())
        if total < self.wanted:
            raise DedupParameterError(f"-n {self.wanted}: the inputs hold only {total} documents with words")
        names = sorted(name for name, count in self.documents.items() if count)
        shares = {name: self.wanted * self.documents[name] // total for name in names}
        if self.wanted >= len(names):
            shares = {name: max(share, 1) for name, share in shares.items()}
        left = self.wanted - sum(shares.values())
        remainder = sorted(names, key=lambda name: (-(self.wanted * self.documents[name] % total), name))
        for name in remainder[: max(left, 0)]:
            shares[name] += 1
        while sum(shares.values()) > self.wanted:
            shares[max(names, key=lambda name: (shares[name], name))] -= 1
        return shares

    def sampled(self) -> tuple[NDArray[np.bool_], dict[str, int]]:
        """A flag for each document, and the shares."""
        flags, shares = np.zeros(self._seen, dtype=np.bool_), self.shares()
        for name, share in shares.items():
            for _, negated in sorted(self._chosen[name], reverse=True)[:share]:
                flags[-negated] = True
        return flags, shares


def sample(inputs: Any, output: str | os.PathLike[str], rest: str | os.PathLike[str], **options: Any) -> SampleReport:
    """Write n documents drawn by stratum to `output`, and the others to `rest` without near-duplicates of them.

    options: n (500), by (a record field, None for one stratum), seed (1234), and the fields of DedupParams and
    FileOptions. Raises DedupParameterError when there are fewer than n documents, and the errors of `dedup`.
    """
    wanted, seed = int(options.pop("n", 500)), int(options.pop("seed", 1234))
    by = options.pop("by", None)
    if wanted < 1:
        raise DedupParameterError(f"n {wanted}: must be at least 1, such as 500")
    params, run = split_options(options, DedupParams, FileOptions)
    if params.cluster:
        raise DedupParameterError("cluster: a test set leaves by exact similarity only; leave cluster out")
    files = FilePass(inputs, params, run, by)
    return _Sampling(files, os.fspath(output), os.fspath(rest), Strata(wanted, seed)).execute()


class SamplingCourse:
    """Draws while documents are signed; then only the drawn ones make others leave. See Course.

    The strata of the documents go to a log, so that a killed run draws as if it had not been.
    """

    reason: str | None = REASON

    def __init__(self, strata: Strata, by: str | None) -> None:
        self.strata, self._by = strata, by
        self._shares: dict[str, int] = {}
        self._flags: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._log: BinaryIO | None = None

    def open(self, folder: Path, state: dict[str, Any] | None) -> None:
        """See Course. Raises DedupStateError where the log is cut."""
        self.strata = Strata(self.strata.wanted, self.strata.seed)
        path, size = folder / "strata.jsonl", 0 if state is None else int(state["bytes"])
        self._log = path.open("ab+")
        if self._log.seek(0, os.SEEK_END) < size:
            raise DedupStateError(f"{path}: shorter than the {size} bytes recorded: start anew")
        self._log.truncate(size)
        self._log.seek(0)
        for line in self._log:
            names, origins = json.loads(line)
            self.strata.take(names, origins)

    def take(self, result: SignedInput) -> None:
        """See Course."""
        assert self._log is not None, "open it first"
        block = result.block
        names = result.strata if self._by is not None else ["all"] * len(block.lines)
        counted = zip(names, block.signed.counted.tolist(), strict=True)
        of_words = [name if has_words else None for name, has_words in counted]
        origins = list(zip(block.input_numbers.tolist(), block.lines.tolist(), strict=True))
        self._log.write(json.dumps([of_words, origins]).encode("ascii") + b"\n")
        self.strata.take(of_words, origins)

    def checkpoint(self) -> dict[str, Any]:
        """See Course."""
        assert self._log is not None, "open it first"
        self._log.flush()
        os.fsync(self._log.fileno())
        return {"bytes": self._log.tell()}

    def prepare(self, barrier: Barrier) -> None:
        """See Course."""
        self.close()
        if self._by is not None and set(self.strata.documents) == {"None"}:
            raise DedupParameterError(f"by {self._by!r}: no record has this field; leave by out for one stratum")
        self._flags, self._shares = self.strata.sampled()
        barrier.run.rule = Rule(ranked=True, always_kept=self._flags)
        for low in range(0, len(self._flags), ORDER_CHUNK):
            barrier.run.add_order(self._flags[low : low + ORDER_CHUNK].astype(np.float64))

    def fates(self, decision: FrameDecision) -> NDArray[np.uint8]:
        """See Course."""
        first = decision.first_document
        drawn = self._flags[first : first + len(decision.kept)]
        return np.where(drawn, SAMPLED, np.where(decision.kept, KEPT, 0)).astype(np.uint8)

    def close(self) -> None:
        """See Course."""
        if self._log is not None:
            # On a full disk: what cannot be flushed is behind the last checkpoint.
            with contextlib.suppress(OSError):
                self._log.close()

    def summary(self) -> dict[str, Any]:
        """The strata as SampleReport has them."""
        documents = self.strata.documents
        return {n: {"documents": documents[n], "sampled": self._shares.get(n, 0)} for n in sorted(documents)}


class _Sampling:
    """One call of sample."""

    def __init__(self, files: FilePass, output: str, rest: str, strata: Strata) -> None:
        self._files, self._output, self._rest, self._strata = files, output, rest, strata
        outputs = {
            "sampled": output, "kept": rest, "dropped": sibling(rest, "_dropped.jsonl.gz"),
            "rejects": sibling(rest, "_rejects.jsonl"),
        }  # fmt: skip
        options = files.options
        self._place = Place(
            Path(sibling(output, ".work")), outputs, sibling(output, "_report.json"), options.overwrite,
            files.from_stream, options.commit_seconds,
        )  # fmt: skip
        check_outputs(files.inputs, (*outputs.values(), self._place.report))
        self._place.check()

    def execute(self) -> SampleReport:
        """Raises the errors of `sample`."""
        files, strata, rest = self._files, self._strata, os.path.abspath(self._rest)
        chosen = {"by": files.by, "n": strata.wanted, "seed": strata.seed, "rest": rest}
        with Session(self._place, files.fingerprint("sample", chosen)) as session:
            if session.state is None:
                plan_for(files).check(session.scratch)
            else:
                files.options.notice(f"going on with the unfinished run in {self._place.work}")
            files.prepare_kernels()
            course = SamplingCourse(self._strata, files.by)
            run = FileRun(files, session, course)
            state = run.execute()
            session.publish()
            totals = asdict(files.counts)
            drawn: dict[str, Any] = {"sampled": run.sampled, "rest": totals.pop("kept"), "strata": state["summary"]}
            report = SampleReport(self._output, self._rest, **drawn, **totals)
            write_json(self._place.report, {name: getattr(report, name) for name in SampleReport.__slots__})
            session.finish()
        return report
