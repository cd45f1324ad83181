"""`mmdata.sample(...)`: a stratified test set, and a rest that holds no near-duplicate of it.

Strata are the values of one field; each gives its share of the n documents (largest remainders, at least one while
n allows). Which ones is a pure function of (seed, input number, line), so neither chunking nor workers nor appended
records in other strata change it. Memory: n entries a stratum, one byte and those of deduplication a document.
"""

from __future__ import annotations

import heapq
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from mmdata.dedup.barrier import Barrier, BarrierOptions
from mmdata.dedup.decide import Rule, remove_scratch
from mmdata.dedup.files import FileOptions, FilePass, SignedInput, check_outputs, sibling, split_options
from mmdata.dedup.params import DedupParams
from mmdata.dedup.rewrite import write_json
from mmdata.errors import DedupParameterError
from mmdata.jsonl import JsonlWriter

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

    def take(self, result: SignedInput, by: str | None) -> None:
        """Look at a block's documents; those without a word are never sampled."""
        block = result.block
        strata = result.strata if by is not None else ["all"] * len(block.lines)
        origins = zip(block.input_numbers.tolist(), block.lines.tolist(), block.signed.counted.tolist(), strict=True)
        for stratum, (number, line, counted) in zip(strata, origins, strict=True):
            self.documents[stratum] = self.documents.get(stratum, 0) + counted
            if counted:
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
            raise DedupParameterError(f"--n {self.wanted}: the inputs hold only {total} documents with words")
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

    def sampled(self) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], dict[str, int]]:
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


class _Sampling:
    """One call of sample."""

    def __init__(self, files: FilePass, output: str, rest: str, strata: Strata) -> None:
        self._files, self._output, self._rest, self._strata = files, output, rest, strata
        self._dropped, self._rejects = sibling(rest, "_dropped.jsonl.gz"), sibling(rest, "_rejects.jsonl")
        self._report = sibling(output, "_report.json")
        paths = (output, rest, self._dropped, self._rejects, self._report)
        check_outputs(files.inputs, paths, files.options.overwrite)

    def execute(self) -> SampleReport:
        folder = Path(self._output + ".work")
        remove_scratch(folder)
        folder.mkdir()
        try:
            self._files.prepare_kernels()
            barrier = Barrier(folder, self._files.params, BarrierOptions(memory=self._files.options.memory))
            try:
                return self._through(barrier)
            finally:
                barrier.close()
        finally:
            remove_scratch(folder)

    def _through(self, barrier: Barrier) -> SampleReport:
        overwrite, counts, sampled = self._files.options.overwrite, self._files.counts, 0
        with (
            JsonlWriter(self._rejects, overwrite=overwrite) as rejects,
            JsonlWriter(self._dropped, overwrite=overwrite) as dropped,
            JsonlWriter(self._output, overwrite=overwrite) as test_file,
            JsonlWriter(self._rest, overwrite=overwrite) as rest_file,
        ):
            for result in self._files.read(barrier, rejects):
                self._strata.take(result, self._files.by)
            flags, shares = self._strata.sampled()
            barrier.run.rule = Rule(ranked=True, always_kept=flags)
            for low in range(0, len(flags), ORDER_CHUNK):
                barrier.run.add_order(flags[low : low + ORDER_CHUNK].astype(np.float64))
            with barrier.reader() as reader:
                for decision, lines in self._files.frames(barrier, reader):
                    for place, line in enumerate(lines):
                        if flags[decision.first_document + place]:
                            test_file.write_line(line)
                            sampled += 1
                        elif decision.kept_of[place] == -1:
                            rest_file.write_line(line)
                            counts.kept += 1
                    self._files.write_dropped(dropped, reader, decision, REASON)
        documents = self._strata.documents
        table = {n: {"documents": documents[n], "sampled": shares.get(n, 0)} for n in sorted(documents)}
        totals = asdict(counts)
        report = SampleReport(
            self._output, self._rest, sampled=sampled, rest=totals.pop("kept"), strata=table, **totals
        )
        write_json(self._report, {name: getattr(report, name) for name in SampleReport.__slots__})
        return report
