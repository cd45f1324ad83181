"""The rank grid as pure integers: rank to coordinates and back, and who belongs to whose group.

Ranks are numbered as Megatron numbers them (order tp-cp-dp-pp): tensor peers are neighbours, pipeline stages are
farthest apart. `arange(world).reshape(pipeline, data, context, tensor)[p, d, c, t]` is the rank at those coordinates.
Nothing here knows torch, processes or devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from mmdata_train.errors import LayoutError

Axis = Literal["tensor", "context", "data", "pipeline"]
AXES: tuple[Axis, ...] = get_args(Axis)


class Coordinates(NamedTuple):
    """Where a rank stands on each axis, fastest axis first."""

    tensor: int
    context: int
    data: int
    pipeline: int


@dataclass(frozen=True)
class ParallelLayout:
    """How many ranks stand on each axis; the world is their product.

    tensor: ranks that split each matrix. pipeline: stages. data: replicas, each with its own micro-batches.
    context: ranks that split a sequence; they share the data coordinate, so they load the same samples.
    Raises LayoutError when a degree is not a whole number of at least 1.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1

    def __post_init__(self) -> None:
        for axis in AXES:
            degree = getattr(self, axis)
            if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
                raise LayoutError(f"parallel degree {axis} is {degree!r}; it must be a whole number of at least 1")

    @classmethod
    def for_world(cls, world_size: int, tensor: int = 1, pipeline: int = 1, context: int = 1) -> ParallelLayout:
        """The layout that gives what the other axes leave over to `data`.

        Raises LayoutError when `world_size` is not a multiple of tensor x pipeline x context.
        """
        block = cls(tensor, pipeline, 1, context).world_size
        if world_size < 1 or world_size % block:
            below, above = world_size // block * block, (world_size // block + 1) * block
            nearest = " or ".join(str(size) for size in (below, above) if size > 0)
            raise LayoutError(
                f"world size {world_size} is not a multiple of tensor {tensor} x pipeline {pipeline} x context "
                f"{context} = {block}; start {nearest} ranks or change the degrees"
            )
        return cls(tensor, pipeline, world_size // block, context)

    @property
    def world_size(self) -> int:
        """Ranks in all: the product of the degrees."""
        return self.tensor * self.context * self.data * self.pipeline

    def degree(self, axis: Axis) -> int:
        """The number of ranks along `axis`."""
        return int(getattr(self, axis))

    def coordinates(self, rank: int) -> Coordinates:
        """Where `rank` stands. Raises LayoutError when it is not in [0, world_size)."""
        if not 0 <= rank < self.world_size:
            raise LayoutError(f"rank {rank} is outside the world of {self.world_size} ranks of {self}")
        position, places = rank, []
        for axis in AXES:
            position, place = divmod(position, self.degree(axis))
            places.append(place)
        return Coordinates(*places)

    def rank(self, coordinates: Coordinates) -> int:
        """The inverse of `coordinates`. Raises LayoutError when a coordinate is outside its axis."""
        rank = 0
        for axis, place in zip(reversed(AXES), reversed(coordinates), strict=True):
            degree = self.degree(axis)
            if not 0 <= place < degree:
                raise LayoutError(f"{axis} coordinate {place} is outside [0, {degree})")
            rank = rank * degree + place
        return rank

    def group(self, rank: int, axis: Axis) -> tuple[int, ...]:
        """The ranks that differ from `rank` on `axis` alone, in the axis' order (`rank` included)."""
        here = self.coordinates(rank)
        return tuple(self.rank(here._replace(**{axis: place})) for place in range(self.degree(axis)))

    def groups(self, axis: Axis) -> Iterator[tuple[int, ...]]:
        """Every group along `axis`, ordered by its first rank; together they hold each rank once."""
        for rank in range(self.world_size):
            group = self.group(rank, axis)
            if group[0] == rank:
                yield group

    def is_first_stage(self, rank: int) -> bool:
        """Whether `rank` is on the first pipeline rank, which holds the embedding."""
        return self.coordinates(rank).pipeline == 0

    def is_last_stage(self, rank: int) -> bool:
        """Whether `rank` is on the last pipeline rank."""
        return self.coordinates(rank).pipeline == self.pipeline - 1
