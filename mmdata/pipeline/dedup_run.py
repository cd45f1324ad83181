"""Deduplication as a conversion sees it: made from the options, planned, run through its phases, put into the index."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmdata.dedup.index import Batch, DedupIndex
from mmdata.dedup.params import DedupParams
from mmdata.dedup.plan import Plan
from mmdata.pipeline.dedup import add_to_index, check_generation, encode_kept, sign_and_encode
from mmdata.pipeline.driver import Consumed, RunTools, Source
from mmdata.pipeline.frames import DedupSetup
from mmdata.pipeline.options import ConvertOptions
from mmdata.pipeline.work import Stages

AVERAGE_RECORD = 2000  # bytes of text; a guess for the plan before anything is read
COMPRESSED_GROWTH = 4


def dedup_params(options: ConvertOptions) -> DedupParams | None:
    """The parameters of deduplication; None where there is none. Raises DedupParameterError."""
    if options.dedup == "none":
        return None
    return DedupParams(method=options.dedup, threshold=options.dedup_threshold)


def documents_in_index(statistics: dict[str, Any] | None) -> int:
    """How many documents were dropped because the index holds them or their like; 0 without an index."""
    if statistics is None or "index_generation" not in statistics:
        return 0
    return sum(row["documents"] for row in statistics["matrix"] if row["kept_in"] == "index")


@dataclass(slots=True, frozen=True)
class DedupRunner:
    """The deduplication of one run."""

    setup: DedupSetup

    @classmethod
    def of(
        cls, options: ConvertOptions, work_dir: Path, memory: int, names: tuple[str, ...], batch: str
    ) -> DedupRunner:
        """From the options; opens the index to see that it fits. Raises DedupError and its kin.

        batch: names the run in the index, the same when it is resumed or made again.
        """
        params = dedup_params(options)
        assert params is not None
        index = None if options.dedup_index is None else Path(options.dedup_index)
        added = None
        if index is not None:
            added = Batch.at(batch, str(work_dir).removesuffix(".work"), index)
            DedupIndex(index, params, added)
        return cls(DedupSetup(work_dir / "dedup", params, memory, names, index, added))

    def plan(self, input_bytes: int) -> Plan:
        """What it will need, guessed from the size of the inputs."""
        return Plan(input_bytes // AVERAGE_RECORD + 1, input_bytes, self.setup.params, self.setup.memory)

    def work(self, source: Source, stages: Stages, consumed: Consumed, tools: RunTools) -> None:
        """Every phase from where the ledger says; raises DedupError and its kin, InputError, RunError, OutputError."""
        check_generation(self.setup, consumed)
        if consumed.dedup is None:
            self.setup.folder.parent.mkdir(parents=True, exist_ok=True)
            size = sum(os.path.getsize(item.path) for item in source.inputs if os.path.isfile(item.path))
            packed = any(item.compression != "none" for item in source.inputs)
            self.plan(size * (COMPRESSED_GROWTH if packed else 1)).check(self.setup.folder.parent)
            sign_and_encode(source, stages, self.setup, consumed, tools)
        else:
            encode_kept(stages, self.setup, consumed, tools)

    def add_to_index(self) -> None:
        """Put what was kept into the index, if there is one; once for each run."""
        if self.setup.index is not None:
            add_to_index(self.setup)
