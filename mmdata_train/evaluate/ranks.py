"""Work of one rank of an evaluation while the others wait for how it ended. torch only where models are opened."""

from __future__ import annotations

from collections.abc import Callable

from mmdata.errors import MMDataError
from mmdata_train.errors import RankError


def on_first_rank(work: Callable[[], object]) -> None:
    """Do `work` on rank 0 alone. A collective where there are several ranks.

    What it raises is raised on every rank: on the others an error of this project as it is, anything else as a
    RankError that names it. So none waits for a rank that has failed.
    """
    from mmdata_train.evaluate.opened import rank_and_ranks

    rank, ranks = rank_and_ranks()
    problem: BaseException | None = None
    if rank == 0:
        try:
            work()
        except BaseException as error:  # raised again below, once the others know
            problem = error
    if ranks > 1:
        import torch.distributed as dist

        told: list[MMDataError | None] = [_for_others(problem)]
        dist.broadcast_object_list(told)
        problem = problem or told[0]
    if problem is not None:
        raise problem


def _for_others(problem: BaseException | None) -> MMDataError | None:
    if problem is None or isinstance(problem, MMDataError):
        return problem
    return RankError(f"rank 0 failed: {type(problem).__name__}: {problem}")
