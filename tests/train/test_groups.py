"""Every process group of a run waits as long as `parallel.timeout_minutes` says, and no group is left out."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.distributed import distributed_c10d  # noqa: E402

from mmdata_train.checkpoint import Checkpointer  # noqa: E402
from mmdata_train.config import OutputConfig, ParallelConfig, TrainConfig, TrainingConfig  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.mesh import Mesh, group_limit, groups_ended  # noqa: E402
from mmdata_train.model.config import ModelConfig  # noqa: E402
from mmdata_train.session import open_engine  # noqa: E402

MODEL = ModelConfig(
    vocab_size=61, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, vocab_multiple=16, tie_embeddings=True
)
MINUTES = 0.7


def limits(folder: Path, parallel: ParallelConfig) -> tuple[float, dict[str, float]]:
    """(of the default group, of each group made for a run: its description and number) in seconds."""
    with groups_ended():
        former = set(distributed_c10d._world.pg_map)
        training = TrainingConfig(micro_batch_size=2, global_batch_size=8, lr=1e-3, precision="fp32")
        config = TrainConfig(model=MODEL, parallel=parallel, train=training, output=OutputConfig(dir=folder))
        open_engine(config, seq_length=8, total_steps=2)
        Checkpointer(folder / "checkpoints")
        made = distributed_c10d._world.pg_map.keys() - former
        names = {group: f"{group.group_desc} {distributed_c10d._world.pg_names[group]}" for group in made}
        return group_limit().total_seconds(), {name: group_limit(g).total_seconds() for g, name in names.items()}


@pytest.mark.parametrize(
    ("parallel", "more"),
    [
        (ParallelConfig(pipeline=2, timeout_minutes=MINUTES), 1),  # the pair that shares the tied embedding
        (ParallelConfig(tensor=2, timeout_minutes=MINUTES), 0),
        (ParallelConfig(data=2, zero_stage=2, timeout_minutes=MINUTES), 0),
        (ParallelConfig(data=2, zero_stage=2, shard_size=1, timeout_minutes=MINUTES), 0),
    ],
    ids=["pipeline", "tensor", "shards", "replicas"],
)
def test_every_group_of_a_run_has_the_configured_limit(
    parallel: ParallelConfig, more: int, two: RankPool, tmp_path: Path
) -> None:
    for default, found in two.run(limits, tmp_path, parallel):
        # A save waits for the slowest rank's files, which are no collective of a step: three limits of the default
        # group, here that of the pool's calls.
        saving = [limit for limit in found.values() if limit == 3 * default]
        others = [limit for limit in found.values() if limit != 3 * default]
        assert default == two.deadline_s and len(saving) == 1
        # An axis over all ranks is the default group itself; the other three have one each.
        assert others == [60 * MINUTES] * (3 + more), found


def test_limit_of_a_group_is_that_of_the_mesh(one: RankPool) -> None:
    assert one.run(limit_of_mesh)[0] == datetime.timedelta(seconds=1.2)


def limit_of_mesh() -> datetime.timedelta:
    with groups_ended():
        return Mesh.make(ParallelConfig(timeout_minutes=0.02), torch.device("cpu")).limit
