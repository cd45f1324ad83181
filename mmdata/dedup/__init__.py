"""Deduplication: exact and MinHash with exact verification, an incremental index, decontamination, test-set sampling.

The package is callable: `mmdata.dedup(inputs, output)` is `mmdata.dedup.dedup(inputs, output)`. Names load on first
use. docs/dedup.md explains the rule, the numbers and the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmdata._callable import make_callable
from mmdata._lazy import exporter

if TYPE_CHECKING:
    from mmdata.dedup.barrier import Barrier as Barrier
    from mmdata.dedup.corpus import DedupReport as DedupReport
    from mmdata.dedup.corpus import dedup as dedup
    from mmdata.dedup.decide import DedupRun as DedupRun
    from mmdata.dedup.decontamination import DecontaminationReport as DecontaminationReport
    from mmdata.dedup.decontamination import decontaminate as decontaminate
    from mmdata.dedup.in_memory import find_duplicates as find_duplicates
    from mmdata.dedup.index import DedupIndex as DedupIndex
    from mmdata.dedup.params import DedupParams as DedupParams
    from mmdata.dedup.repeated import remove_repeated as remove_repeated
    from mmdata.dedup.sampling import SampleReport as SampleReport
    from mmdata.dedup.sampling import sample as sample
    from mmdata.dedup.signer import Signer as Signer

_HOMES = {
    "Barrier": "mmdata.dedup.barrier",
    "DecontaminationReport": "mmdata.dedup.decontamination",
    "DedupIndex": "mmdata.dedup.index",
    "DedupParams": "mmdata.dedup.params",
    "DedupReport": "mmdata.dedup.corpus",
    "DedupRun": "mmdata.dedup.decide",
    "SampleReport": "mmdata.dedup.sampling",
    "Signer": "mmdata.dedup.signer",
    "decontaminate": "mmdata.dedup.decontamination",
    "dedup": "mmdata.dedup.corpus",
    "find_duplicates": "mmdata.dedup.in_memory",
    "remove_repeated": "mmdata.dedup.repeated",
    "sample": "mmdata.dedup.sampling",
}

__all__ = sorted(_HOMES)

__getattr__ = exporter(__name__, _HOMES)


make_callable(__name__)
