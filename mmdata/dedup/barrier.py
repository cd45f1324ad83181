"""The barrier as one object: spool, keys and origins on the way in; decisions, drops and statistics on the way out.

    block = sign_documents(documents, signer, policy)       # in a worker
    barrier.take(block)                                      # in the parent, in input order
    state = barrier.checkpoint()                             # JSON; Barrier(..., state=state) goes on from it
    for frame in barrier.decide(): ...                       # frame numbers, kept flags and drops, in input order

Everything lies in one work folder; `close` deletes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmdata.dedup.decide import DEFAULT_MEMORY, DedupRun, Rule, clear_scratch
from mmdata.dedup.decisions import Decisions
from mmdata.dedup.index import DedupIndex
from mmdata.dedup.keeper import KeeperPolicy
from mmdata.dedup.origins import Origins
from mmdata.dedup.params import DedupParams
from mmdata.dedup.scratch import remove_scratch, scratch_faults
from mmdata.dedup.signer import Signed, Signer
from mmdata.dedup.spool import SpoolReader, SpoolSource, SpoolWriter, encode_parts, pack_frame
from mmdata.dedup.statistics import INDEX, DedupStatistics, SampledPair
from mmdata.document import Document, Drop
from mmdata.reading.excerpt import mask

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
EXCERPT = 400
FIRST = KeeperPolicy()
DECIDING = "deciding"
"""A file that says the keys may be gone, since deciding consumes them."""
REASONS = {"minhash": "near_duplicate", "exact": "exact_duplicate"}


@dataclass(frozen=True, slots=True)
class BarrierOptions:
    """policy: which copy is kept. memory: bytes for sorting. index: documents kept by earlier runs, or None.

    threads: how many deciding may use.
    """

    policy: KeeperPolicy = FIRST
    memory: int = DEFAULT_MEMORY
    index: DedupIndex | None = None
    threads: int = 1


@dataclass(frozen=True, slots=True)
class SignedBlock:
    """What a worker hands to the parent for one block of documents; arrays have one row a document.

    frame: of `pack_frame`, as an array, whose memory is not copied into a pickle: 1.2 ms of processor time for 2.3 MB.
    """

    frame: NDArray[np.uint8]
    signed: Signed
    order_keys: F64 | None
    input_numbers: I64
    lines: I64


def sign_documents(
    documents: Sequence[Document], signer: Signer, policy: KeeperPolicy, with_records: bool = True,
    encoded: Sequence[bytes] | None = None,
) -> SignedBlock:  # fmt: skip
    """Sign and pack documents; pure. with_records: see pack_frame. encoded: see encode_parts."""
    count, parts = len(documents), encode_parts(documents, encoded)
    return SignedBlock(
        np.frombuffer(pack_frame(documents, with_records, parts), dtype=np.uint8),
        signer.sign([document.text for document in documents], [b"\n".join(texts) for texts in parts]),
        policy.order_keys(documents) if policy.ranks else None,
        np.fromiter((document.input_number for document in documents), np.int64, count),
        np.fromiter((document.line for document in documents), np.int64, count),
    )


@dataclass(frozen=True, slots=True)
class FrameDecision:
    """Decisions for the documents of one spool frame. kept_names: `path:line` of the kept document, None if kept."""

    frame: int
    first_document: int
    kept_of: I64
    similarity: F64
    kept_names: list[str | None]

    @property
    def kept(self) -> NDArray[np.bool_]:
        """True where the document stays."""
        return np.equal(self.kept_of, -1)


class Barrier:
    """One deduplication with its files in `folder`; see the module's docstring for the order of calls."""

    def __init__(
        self,
        folder: Path,
        params: DedupParams,
        options: BarrierOptions | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        """state: from `checkpoint`. Raises DedupStateError when the files do not reach as far; OutputError when the
        folder cannot be written and DiskFullError when its disk is full, as every other method.
        """
        self.folder, self.params = folder, params
        self.options = options if options is not None else BarrierOptions()
        self.signer = Signer(params)
        self.run = DedupRun(params, folder, self.options.memory, Rule(ranked=self.options.policy.ranks))
        self.statistics = DedupStatistics(params, folder)
        self._decisions: Decisions | None = None
        with scratch_faults(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._open(state)

    def _open(self, state: dict[str, Any] | None) -> None:
        folder, states = self.folder, state or {}
        again = state is not None and (folder / DECIDING).exists()
        if state is None or again:
            clear_scratch(folder)
        else:
            self.run.resume(states["run"])
        self.spool = SpoolWriter(self.spool_path, states.get("spool"))
        self.origins = Origins(folder / "origins", states.get("origins"))
        if again:
            self._sign_again()
        (folder / DECIDING).unlink(missing_ok=True)

    @property
    def spool_path(self) -> Path:
        """Where workers read documents back from, with SpoolReader."""
        return self.folder / "spool"

    def take(self, block: SignedBlock) -> None:
        """Add the next block."""
        with scratch_faults(self.folder):
            self.spool.append(block.frame.data)
            self.run.add(block.signed, block.order_keys)
            self.origins.append(block.input_numbers, block.lines)

    def _sign_again(self) -> None:
        """Make the keys anew from the spool, for a run that was killed while it decided."""
        with SpoolReader(self.spool_path) as reader:
            for frame in range(len(reader)):
                documents = reader.documents(frame)
                signed = self.signer.sign([document.text for document in documents])
                self.run.add(signed, self.options.policy.order_keys(documents) if self.options.policy.ranks else None)

    def checkpoint(self) -> dict[str, Any]:
        """Make everything taken durable; JSON. The last one before `decide` stays good while deciding."""
        with scratch_faults(self.folder):
            return {
                "run": self.run.checkpoint(),
                "spool": self.spool.checkpoint(),
                "origins": self.origins.checkpoint(),
            }

    def reader(self) -> SpoolReader:
        """The spool for reading; nothing can be taken after this."""
        with scratch_faults(self.folder):
            self.spool.close()
            return SpoolReader(self.spool_path)

    def decide(self, source_names: Sequence[str]) -> Iterator[FrameDecision]:
        """Decide, then yield each frame's decisions in input order, counting them into `statistics`.

        source_names: the inputs' paths by number.
        """
        with scratch_faults(self.folder), self.reader() as reader:
            (self.folder / DECIDING).touch()
            source = SpoolSource(reader, self.signer)
            self._decisions = self.run.decide(source, self.options.index, self.signer.native, self.options.threads)
            self.statistics.uncounted, self.statistics.compared = self.run.uncounted, self.run.compared
            yield from self._frames(reader, self._decisions, source_names)
            self.statistics.pairs = [self._pair(reader, source_names, *pair) for pair in self.statistics.sampled()]

    def _frames(
        self, reader: SpoolReader, decisions: Decisions, source_names: Sequence[str]
    ) -> Iterator[FrameDecision]:
        ranges = decisions.ranges()
        start, kept_of, similarity = 0, np.zeros(0, dtype=np.int64), np.zeros(0)
        for frame in range(len(reader)):
            low, high = reader.first_document(frame), reader.first_document(frame + 1)
            while high > start + len(kept_of):
                following = next(ranges)
                keep = low - start
                kept_of = np.concatenate([kept_of[keep:], following.kept_of])
                similarity = np.concatenate([similarity[keep:], following.similarity])
                start = low
            span = slice(low - start, high - start)
            yield self._frame(frame, low, kept_of[span], similarity[span], source_names)

    def _frame(self, frame: int, low: int, kept_of: I64, similarity: F64, source_names: Sequence[str]) -> FrameDecision:
        names: list[str | None] = [None] * len(kept_of)
        kept_sources = []
        for place in np.flatnonzero(kept_of != -1).tolist():
            number, names[place] = self._named(int(kept_of[place]), source_names)
            kept_sources.append(number)
        sources = self.origins.inputs(low, low + len(kept_of))
        self.statistics.count(low, sources, kept_of, similarity, np.array(kept_sources, dtype=np.int64))
        return FrameDecision(frame, low, kept_of, similarity, names)

    def _named(self, kept: int, source_names: Sequence[str]) -> tuple[int, str]:
        """(source number, `path:line`) of a kept document of this run or of the index."""
        if kept >= 0:
            number, line = self.origins.lookup(kept)
            return number, f"{source_names[number]}:{line}"
        assert self.options.index is not None, "negative numbers come from an index"
        identity = self.options.index.identity(-2 - kept)
        return INDEX, f"{identity.path}:{identity.line}"

    def _pair(
        self, reader: SpoolReader, source_names: Sequence[str], document: int, kept: int, exact: float
    ) -> SampledPair:
        """Both texts in excerpts; an index has no text, so there only the names and the exact similarity are known."""
        dropped_text = reader.texts([document])[0]
        kept_text, estimated = "", exact
        if kept >= 0:
            kept_text = reader.texts([kept])[0]
            if self.params.method == "minhash":
                signatures = self.signer.signatures([dropped_text, kept_text])
                estimated = float(np.mean(signatures[0] == signatures[1]))
        names = self._named(document, source_names)[1], self._named(kept, source_names)[1]
        return SampledPair(*names, exact, estimated, _excerpt(dropped_text), _excerpt(kept_text))

    def close(self) -> None:
        """Close and delete everything in the work folder."""
        self.suspend()
        remove_scratch(self.folder)

    def suspend(self) -> None:
        """Close the files and leave them, for a run that continues from its checkpoint."""
        for part in (self.run, self.spool, self.origins):
            # On a full disk: what cannot be flushed is behind the last checkpoint.
            with contextlib.suppress(OSError):
                part.close()


def _excerpt(text: str) -> str:
    """Masked before it is cut, so that no half of something private is left; line feeds stay, to be read by people."""
    return "\n".join(mask(line) for line in text[: 3 * EXCERPT].split("\n"))[:EXCERPT]


def drop_of(
    document: tuple[str, int, int, str | None], decision: FrameDecision, place: int, params: DedupParams
) -> Drop:
    """The account of one dropped document, the `place`-th of its frame: (path, input number, line, id)."""
    similarity = float(decision.similarity[place])
    return Drop(
        path=document[0], input_number=document[1], line=document[2], id=document[3], stage="dedup",
        reason=REASONS[params.method], value=similarity, limit=1.0 if params.method == "exact" else params.threshold,
        kept=decision.kept_names[place], similarity=similarity,
    )  # fmt: skip
