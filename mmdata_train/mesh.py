"""The rank grid as torch process groups: made once, passed along as a value.

Axes from slowest to fastest: pipeline, replica, shard, tensor (Megatron's order; data = replica x shard). Making a
mesh makes one process group an axis and is a collective: every rank calls it in the same order. A group made without a
limit of its own has torch's (gloo 30 minutes, NCCL 10), whatever the default group has: each is given the run's.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import _redistribute
from torch.distributed.tensor._collective_utils import MeshTopoInfo
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from mmdata_train.config import ParallelConfig
from mmdata_train.errors import LayoutError
from mmdata_train.layout import ParallelLayout
from mmdata_train.preflight import SECONDS, meet, preflight
from mmdata_train.slices import TENSOR_AXIS

AXES = ("pipeline", "replica", "shard", TENSOR_AXIS)


def pick_device() -> torch.device:
    """This process's accelerator by its local rank, or the CPU. Raises LayoutError for a rank without a GPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    require_devices(max(local_rank + 1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def require_devices(ranks: int) -> None:
    """Raises LayoutError when this machine has GPUs, but fewer than `ranks`: each rank takes one."""
    devices = torch.cuda.device_count() if torch.cuda.is_available() else ranks
    if ranks > devices:
        raise LayoutError(
            f"{ranks} ranks on this machine need a GPU each, and it has {devices}: use a layout of at most {devices}"
            " here (tensor x pipeline x data), more machines (torchrun --nnodes), or the CPU (CUDA_VISIBLE_DEVICES="
            " before the command)"
        )


def start_process_group(device_type: str, timeout_minutes: float) -> bool:
    """Join the group torchrun describes, or make a group of one. Returns whether this call started it.

    Raises RankError naming a rank that does not come or cannot be reached within two minutes.
    """
    if dist.is_initialized():
        return False
    timeout = datetime.timedelta(minutes=timeout_minutes)
    # Asynchronous checkpoints move host tensors while NCCL works on the device.
    backend = "cuda:nccl,cpu:gloo" if device_type == "cuda" else "gloo"
    if "RANK" in os.environ:
        limit = min(SECONDS, 60 * timeout_minutes)
        store, rank, world_size = meet(limit)
        preflight(store, rank, world_size, limit)
        # What the limit above is for is over; the group's own waits may take as long as its collectives.
        store.set_timeout(timeout)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
    return True


def group_limit(group: dist.ProcessGroup | None = None) -> datetime.timedelta:
    """How long a collective of a group (the default one unless given) may wait: the longest of its backends' limits."""
    chosen = group or distributed_c10d._get_default_group()
    limits: list[datetime.timedelta] = [chosen._get_backend(device).options._timeout for device in chosen._device_types]
    return max(limits)


@contextlib.contextmanager
def _limiting_new_groups(limit: datetime.timedelta) -> Iterator[None]:
    """Give `limit` to each group of this rank that the body makes; its first collective has it already.

    By the groups' own setting: init_device_mesh takes the options of one backend, and a group of ours may have two.
    """
    former = set(distributed_c10d._world.pg_map)
    yield
    for group in distributed_c10d._world.pg_map.keys() - former:
        distributed_c10d._set_pg_timeout(limit, group)


@contextlib.contextmanager
def joined_ranks(device_type: str, timeout_minutes: float) -> Iterator[None]:
    """The ranks' default group for as long as the block runs; groups made inside end with it, whatever happened.

    Where the caller has a default group already it is used and stays open. Raises RankError as start_process_group.
    """
    if start_process_group(device_type, timeout_minutes):
        try:
            yield
        finally:
            dist.destroy_process_group()
        return
    with groups_ended():
        yield


def _forget_meshes() -> None:
    """Empty torch's caches that hold meshes: their groups' threads would stay, and tensors of an equal mesh made later
    would be given the former one.
    """
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
    _redistribute._gen_transform_infos.cache_clear()
    MeshTopoInfo.build_from_mesh.cache_clear()
    forget_planners = getattr(_redistribute, "clear_redistribute_planner_cache", None)
    if forget_planners is not None:  # not every torch has them
        forget_planners()


@contextlib.contextmanager
def groups_ended() -> Iterator[None]:
    """End the groups that are made inside the block; the default group and former ones stay.

    An open group costs: gloo keeps a thread that wakes 100 times a second, NCCL keeps device memory. Meshes and engines
    made inside are of no more use. Every rank calls it; ranks meet at the end unless one fails.
    """
    world = distributed_c10d._world
    former = set(world.pg_map)
    try:
        yield
        # None leaves while another still uses a group.
        dist.barrier()
    finally:
        for group in sorted(world.pg_map.keys() - former, key=lambda group: world.pg_names[group], reverse=True):
            dist.destroy_process_group(group)
        _forget_meshes()


@dataclass(frozen=True, slots=True)
class Mesh:
    """One rank's view of the grid. With one data rank there is nothing to shard, so `zero_stage` is 0 then.

    limit: what a collective of its groups may take.
    """

    world: DeviceMesh
    layout: ParallelLayout
    device: torch.device
    zero_stage: int
    limit: datetime.timedelta

    @classmethod
    def make(cls, parallel: ParallelConfig, device: torch.device) -> Mesh:
        """Groups for the layout over all ranks of the default process group."""
        layout = parallel.layout(dist.get_world_size())
        zero_stage = parallel.zero_stage if layout.data > 1 else 0
        shard = 1 if zero_stage == 0 else parallel.shard_size or layout.data
        shape = (layout.pipeline, layout.data // shard, shard, layout.tensor)
        limit = datetime.timedelta(minutes=parallel.timeout_minutes)
        with _limiting_new_groups(limit):
            grid = init_device_mesh(device.type, shape, mesh_dim_names=AXES)
        return cls(grid, layout, device, zero_stage, limit)

    def rank_on(self, axis: str) -> int:
        """This rank's place on one axis."""
        return self.world.get_local_rank(axis)

    def group(self, axis: str) -> dist.ProcessGroup:
        """The ranks that differ from this one on one axis only."""
        return self.world.get_group(axis)

    @property
    def data_rank(self) -> int:
        """Place among the ranks that hold different samples."""
        return self.rank_on("replica") * self.world.size(AXES.index("shard")) + self.rank_on("shard")

    @property
    def speaks_for_data(self) -> bool:
        """True on one rank of each data rank's block: sums over the world count each sample once."""
        return self.rank_on("pipeline") == 0 and self.rank_on(TENSOR_AXIS) == 0

    def data_mesh(self) -> DeviceMesh:
        """What FSDP shards over: the shard axis, with the replica axis before it where there are replicas."""
        replicas = self.world.size(AXES.index("replica"))
        return self.world["replica", "shard"] if replicas > 1 else self.world["shard"]

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks, in place."""
        dist.all_reduce(tensor)
        return tensor
