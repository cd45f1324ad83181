"""Rank to coordinates and back, in Megatron's order."""

from __future__ import annotations

import itertools

import pytest

from mmdata_train.errors import LayoutError
from mmdata_train.layout import AXES, Coordinates, ParallelLayout

GRID = [ParallelLayout(t, p, d, c) for t, p, d, c in itertools.product((1, 2, 4), (1, 2, 3), (1, 2, 3), (1, 2))]


@pytest.mark.parametrize("layout", GRID, ids=str)
def test_coordinates_and_rank_are_inverse_and_cover_the_world(layout: ParallelLayout) -> None:
    seen = [layout.coordinates(rank) for rank in range(layout.world_size)]
    assert [layout.rank(place) for place in seen] == list(range(layout.world_size))
    assert len(set(seen)) == layout.world_size


@pytest.mark.parametrize("layout", GRID, ids=str)
def test_groups_of_each_axis_hold_every_rank_once(layout: ParallelLayout) -> None:
    for axis in AXES:
        groups = list(layout.groups(axis))
        assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
        assert all(len(group) == layout.degree(axis) for group in groups)
        assert all(layout.group(rank, axis) == group for group in groups for rank in group)


def test_tensor_peers_are_neighbours_and_stages_are_farthest() -> None:
    layout = ParallelLayout(tensor=2, pipeline=2, data=2)
    assert layout.coordinates(5) == Coordinates(tensor=1, context=0, data=0, pipeline=1)
    assert layout.group(0, "tensor") == (0, 1)
    assert layout.group(0, "data") == (0, 2)
    assert layout.group(0, "pipeline") == (0, 4)
    assert [layout.is_first_stage(rank) for rank in (0, 3, 4, 7)] == [True, True, False, False]
    assert [layout.is_last_stage(rank) for rank in (0, 3, 4, 7)] == [False, False, True, True]


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", GRID, ids=str)
def test_groups_equal_megatron_cores(layout: ParallelLayout) -> None:
    state = pytest.importorskip("megatron.core.parallel_state")
    grid = state.RankGenerator(
        tp=layout.tensor, ep=1, dp=layout.data, pp=layout.pipeline, cp=layout.context, order="tp-cp-ep-dp-pp"
    )
    for axis, token in (("tensor", "tp"), ("context", "cp"), ("data", "dp"), ("pipeline", "pp")):
        assert sorted(map(tuple, grid.get_ranks(token))) == sorted(layout.groups(axis))


@pytest.mark.parametrize("degrees", [(0, 1, 1), (1, -1, 1), (1, 1, 1.5), (True, 1, 1)])
def test_a_degree_below_one_or_not_whole_is_refused(degrees: tuple[int, int, int]) -> None:
    with pytest.raises(LayoutError, match="whole number of at least 1"):
        ParallelLayout(*degrees)


def test_rank_and_coordinate_outside_the_world_are_refused() -> None:
    with pytest.raises(LayoutError, match="rank 8 is outside the world of 8"):
        ParallelLayout(2, 2, 2).coordinates(8)
    with pytest.raises(LayoutError, match=r"data coordinate 2 is outside \[0, 2\)"):
        ParallelLayout(2, 2, 2).rank(Coordinates(0, 0, 2, 0))


def test_for_world_gives_the_rest_to_data_and_names_the_world_sizes_that_fit() -> None:
    assert ParallelLayout.for_world(16, tensor=4, pipeline=2) == ParallelLayout(4, 2, 2)
    with pytest.raises(LayoutError, match="start 8 or 16 ranks"):
        ParallelLayout.for_world(12, tensor=4, pipeline=2)
    with pytest.raises(LayoutError, match="start 8 ranks"):
        ParallelLayout.for_world(3, tensor=4, pipeline=2)
