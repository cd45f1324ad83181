"""The pipeline schedules on offer and their rules, as one table of plain values: no torch, no processes.

A schedule orders the forward and backward passes of M micro-batches over P pipeline ranks holding V stages each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ScheduleName = Literal["1f1b", "gpipe", "interleaved", "looped_bfs", "zero_bubble", "zbv", "dualpipev"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """torch_name: the class in torch.distributed.pipelining. several: takes a list of stages (any V), else V is 1.

    folded: V is 2 and the second half of the stages runs backwards over the ranks (rank r holds r and 2P-1-r).
    splits_backward: gradients of inputs and of weights are two passes. rounds: M must split into equal rounds of at
    least P. depth: M must be at least depth x P.
    """

    torch_name: str
    several: bool = False
    folded: bool = False
    splits_backward: bool = False
    rounds: bool = False
    depth: int = 1


SCHEDULES: dict[ScheduleName, Schedule] = {
    "1f1b": Schedule("1F1B"),
    "gpipe": Schedule("GPipe"),
    "interleaved": Schedule("Interleaved1F1B", several=True, rounds=True),
    "looped_bfs": Schedule("LoopedBFS", several=True),
    "zero_bubble": Schedule("InterleavedZeroBubble", several=True, splits_backward=True, rounds=True),
    "zbv": Schedule("ZBVZeroBubble", several=True, folded=True, splits_backward=True, depth=2),
    "dualpipev": Schedule("DualPipeV", several=True, folded=True, splits_backward=True, depth=2),
}


def micro_batches_fit(schedule: Schedule, micro_batches: int, ranks: int) -> bool:
    """Whether M micro-batches can be scheduled over P ranks."""
    if micro_batches < schedule.depth * ranks:
        return False
    return not schedule.rounds or micro_batches % (micro_batches // ranks) == 0


def stages_of_rank(schedule: Schedule, rank: int, ranks: int, per_rank: int) -> list[int]:
    """Numbers of the stages a pipeline rank holds, in the order of the model."""
    if schedule.folded:
        return [rank, 2 * ranks - 1 - rank]
    return [rank + ranks * index for index in range(per_rank)]


def rank_of_stage(schedule: Schedule, stage: int, ranks: int) -> int:
    """The pipeline rank that holds a stage."""
    if schedule.folded:
        return min(stage, 2 * ranks - 1 - stage)
    return stage % ranks


def split_layers(layers: int, stages: int, head_cost: float) -> tuple[int, ...]:
    """Layers of each stage, contiguous, so that the dearest stage is as cheap as can be.

    A layer costs 1 and the last stage bears `head_cost` more (the output matrix, in layers). Every stage has at least
    one layer. The embedding costs a look-up, which is next to nothing.
    """
    assert 1 <= stages <= layers
    last = max(1, min(layers - stages + 1, round((layers + head_cost) / stages - head_cost)))
    if stages == 1:
        return (layers,)
    rest = layers - last
    base, extra = divmod(rest, stages - 1)
    return (*(base + (index < extra) for index in range(stages - 1)), last)
