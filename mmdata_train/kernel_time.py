"""Where a step's time on a GPU goes: computing, communicating, or communicating while nothing computes.

Works on kernels as the profiler lists them, so copies between memories count as neither. A receive that waits for its
sender is a running kernel: in a pipeline, exposed communication includes the bubble.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Spans = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Seconds in which a computing kernel runs, an NCCL kernel runs, and the latter without the former."""

    busy_seconds: float
    nccl_seconds: float
    exposed_seconds: float


def kernel_time(kernels: Iterable[tuple[str, float, float]]) -> KernelTime:
    """From (name, start, end) of everything one device ran, in seconds, in any order; streams may overlap."""
    computing: Spans = []
    talking: Spans = []
    for name, start, end in kernels:
        if name.startswith(("Memcpy", "Memset")):
            continue
        (talking if "nccl" in name.lower() else computing).append((start, end))
    busy, nccl = merged(computing), merged(talking)
    return KernelTime(length(busy), length(nccl), length(nccl) - overlap(nccl, busy))


def merged(spans: Spans) -> Spans:
    """The union of intervals as disjoint ones in order."""
    found: Spans = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def length(spans: Spans) -> float:
    """Length of disjoint intervals together."""
    return sum(end - start for start, end in spans)


def overlap(ours: Spans, theirs: Spans) -> float:
    """Length of the part that two lists of disjoint ordered intervals share."""
    shared, i, j = 0.0, 0, 0
    while i < len(ours) and j < len(theirs):
        shared += max(0.0, min(ours[i][1], theirs[j][1]) - max(ours[i][0], theirs[j][0]))
        if ours[i][1] < theirs[j][1]:
            i += 1
        else:
            j += 1
    return shared
