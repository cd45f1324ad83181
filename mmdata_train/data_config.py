"""The `data` section: which shards, in which shares, cut how, loaded how. Every check that needs no file.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mmdata.errors import SamplesError
from mmdata.samples.entries import parse_data_path
from mmdata.samples.mix_plan import MixOptions, Mode, WeighBy
from mmdata.samples.split import Subset, parse_split
from mmdata_train.errors import ConfigError
from mmdata_train.limits import MOST_TOKENS, Limit, check_numbers
from mmdata_train.sampler import Order, Tail

_WEIGHT = Limit(0, above=True, hint="leave out an entry that is not wanted, or all weights to go by size")
LOADING_LIMITS = {
    "workers": Limit(0, 1024, hint="they are processes of each rank; 2 is usual, 0 reads in the training process"),
    "prefetch": Limit(1, 10_000, hint="it counts steps held in memory by each worker; 2 is usual"),
    "verify_steps": Limit(0, hint="0 for none"),
}
DATA_LIMITS = {
    "seq_length": Limit(2, MOST_TOKENS, hint="such as 2048; positions are int32"),
    "num_samples": Limit(1, hint="null for steps x global batch"),
    "seed": Limit(0, 2**32 - 2**16 - 1),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DataEntry:
    """One member of the blend. path: a shard prefix, folder, glob, or JSON lines. weight: its share, null: by size."""

    path: str
    weight: float | None = None

    def __post_init__(self) -> None:
        check_numbers(self, f"data.train: {self.path}: ", {"weight": _WEIGHT})


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadingConfig:
    """How batches are read; nothing here changes what is in them.

    workers: reading processes of each rank (0: in the training process). prefetch: steps read ahead by each worker.
    start_method: how workers start. pin_memory: null where there is a GPU. tensor_peers: `read`: each rank of a tensor
    group reads the same files; `broadcast`: the first reads and sends, for slow disks. verify_steps: how many first
    steps to prove by hash that tensor peers and pipeline stages hold the same samples. verify_ids: check ids against
    the vocabulary (null: for shards without a manifest).
    """

    workers: int = 2
    prefetch: int = 2
    start_method: Literal["spawn", "forkserver", "fork"] = "spawn"
    pin_memory: bool | None = None
    tensor_peers: Literal["read", "broadcast"] = "read"
    verify_steps: int = 1
    verify_ids: bool | None = None

    def __post_init__(self) -> None:
        check_numbers(self, "data.loading.", LOADING_LIMITS)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """The `data` section.

    train: entries `{path, weight}`, paths, or Megatron's list `[0.3, a, 0.7, b]`. valid: by name, one path each;
    without it, the `valid` share of `split` over the training entries. seq_length: positions of a sample. mode: `gpt`
    cuts a stream of documents (Megatron), `packed` puts whole documents into rows; chat shards are always packed.
    reset_attention: documents do not see each other (always so in packed rows); reset_positions: positions restart too
    (null: as reset_attention). split: Megatron's `969,30,1`; null trains on everything. num_samples: for which the
    sample index is built; null takes steps x global batch. seed: of shuffles. cache_dir: where indices are kept;
    null takes a folder beside the checkpoints. weigh_by: weights are shares of samples, of tokens, or epochs. order,
    tail: see ParallelSampler. new_phase: on resuming, begin a new phase so that shards that joined a folder take part.
    convert: for entries that are raw files (JSON lines and their like), the options of mmdata.convert.
    """

    train: tuple[DataEntry | str | float, ...] | str = ()
    valid: Mapping[str, str] = field(default_factory=dict)
    seq_length: int = 2048
    mode: Mode = "gpt"
    reset_attention: bool = False
    reset_positions: bool | None = None
    split: str | None = None
    num_samples: int | None = None
    seed: int = 1234
    cache_dir: Path | None = None
    weigh_by: WeighBy = "sample"
    order: Order = "default"
    tail: Tail = "drop"
    new_phase: bool = False
    convert: Mapping[str, Any] = field(default_factory=dict)
    loading: LoadingConfig = LoadingConfig()

    def __post_init__(self) -> None:
        check_numbers(self, "data.", DATA_LIMITS)
        if self.order == "cyclic" and self.tail == "pad":
            raise ConfigError("data.order cyclic has no padded tail; use tail: drop, or order: default")
        try:
            if self.split is not None:
                parse_split(self.split)
            weights = [weight for _, weight in self.entries]
        except SamplesError as error:
            raise ConfigError(f"data: {error}") from None
        if any(weight is None for weight in weights) and any(weight is not None for weight in weights):
            raise ConfigError("data.train gives a weight to some entries only; give one to each, or to none")
        for path, weight in self.entries:
            if weight is not None and not 0 < weight < float("inf"):
                raise ConfigError(f"data.train: {path} has the weight {weight}; weights are above 0, so leave it out")

    @property
    def entries(self) -> list[tuple[str, float | None]]:
        """The training entries as (path, weight), whichever way they were written."""
        given = (self.train,) if isinstance(self.train, str) else self.train
        if all(isinstance(item, DataEntry) for item in given):
            return [(item.path, item.weight) for item in given if isinstance(item, DataEntry)]
        if any(isinstance(item, DataEntry) for item in given):
            raise ConfigError("data.train mixes `path:` entries with plain words; write all of them one way")
        return parse_data_path([str(item) for item in given])

    @property
    def validation_names(self) -> tuple[str, ...]:
        """Of the validation sets: those of `valid`, or `valid` where `split` has a share for it, or none."""
        if self.valid:
            return tuple(self.valid)
        shares = [] if self.split is None else self.split.split(",")
        return ("valid",) if len(shares) > 1 and float(shares[1]) > 0 else ()

    def options(self, subset: Subset, cache_dir: Path | None) -> MixOptions:
        """How samples are cut; `cache_dir` is used where the section names none."""
        reset = self.reset_attention if self.reset_positions is None else self.reset_positions
        return MixOptions(
            seq_length=self.seq_length,
            seed=self.seed,
            split=self.split,
            subset=subset,
            mode=self.mode,
            reset_positions=reset,
            reset_attention=self.reset_attention,
            weigh_by=self.weigh_by,
            cache_dir=self.cache_dir or cache_dir,
        )
