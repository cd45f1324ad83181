"""Sizes that cannot work: what a rank must hold at the very least, against the memory there is, before it is allocated.

Lower bounds only, so that nothing is refused that could run: one step's rows, the attention mask where one is built,
the inputs of the layers, weights with gradients and moments. What a run really takes is more and is measured when it
fails (see `explain`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from mmdata_train.config import TrainConfig
from mmdata_train.errors import ConfigError
from mmdata_train.host_memory import host_bytes, in_words
from mmdata_train.model.config import ModelConfig

LARGEST_DEVICE = 288 * 2**30
"""Bytes of the largest accelerators on sale in 2025 (B300, MI355X): what a machine that is not here may have."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What holds the ranks. host: bytes of memory, None where not known. device: of each rank's accelerator; None:
    ranks compute in host memory. ranks: on this machine.
    """

    host: int | None
    device: int | None
    ranks: int = 1

    @classmethod
    def here(cls, ranks: int) -> Machine:
        """This machine with so many ranks on it (under torchrun: its own number)."""
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
        return cls(host_bytes(), _device_bytes(), ranks)

    @classmethod
    def elsewhere(cls) -> Machine:
        """A machine like this one, but with accelerators where this has none: one rank of it."""
        host, device = host_bytes(), _device_bytes()
        return cls(host, max(host or 0, LARGEST_DEVICE) if device is None else device)


def _device_bytes() -> int | None:
    return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


def row_bytes(config: TrainConfig, world_size: int) -> int:
    """The rows of one step on one data rank while they are read: 13 bytes a position as they come out of the index, and
    int64 tokens and labels, once joined and once apart, positions, and documents where they count (see StepReader).
    """
    rows = config.train.global_batch_size // config.parallel.layout(world_size).data
    return rows * config.data.seq_length * (13 + 8 * (5 if _isolates(config) else 4))


def _isolates(config: TrainConfig) -> bool:
    return config.data.reset_attention or config.data.mode == "packed"


def device_parts(config: TrainConfig, model: ModelConfig, world_size: int) -> dict[str, int]:
    """By cause: the least bytes of one rank's device."""
    length, micro = config.data.seq_length, config.train.micro_batch_size
    parallel = config.parallel
    value = 4 if config.train.precision == "fp32" else 2
    share = parallel.tensor if parallel.splits_sequence else 1
    parts = {"inputs of the layers": micro * length * model.hidden_size * value * model.num_layers}
    parts["inputs of the layers"] //= share * parallel.pipeline
    if _isolates(config) or model.sliding_window is not None:
        # Distances are int64, and who sees whom is a byte for each pair.
        parts["attention mask, length x length"] = length * length * (8 + (micro if _isolates(config) else 1))
    if not parallel.cpu_offload:
        parts["weights, gradients and moments"] = _weight_bytes(config, model, world_size)
    return parts


def _weight_bytes(config: TrainConfig, model: ModelConfig, world_size: int) -> int:
    """A rank's share, float32: 4 bytes of weight, 4 of gradient, 8 of Adam's moments; a frozen base 2 at least."""
    parallel = config.parallel
    vocabulary = model.padded_vocab_size * model.hidden_size * (1 if model.tie_embeddings else 2)
    held = (model.num_layers * model.layer_parameters + vocabulary) // (parallel.tensor * parallel.pipeline)
    shards = parallel.shard_size or parallel.layout(world_size).data
    sharded = [shards if parallel.zero_stage >= stage else 1 for stage in (3, 2, 1)]
    if config.lora is not None:
        return 2 * held // sharded[0]
    return sum(size * held // parts for size, parts in zip((4, 4, 8), sharded, strict=True))


def check_needs(config: TrainConfig, model: ModelConfig, world_size: int, machine: Machine) -> None:
    """Raises ConfigError with the bytes of each part where a rank cannot fit, whatever else is tuned."""
    rows, parts = row_bytes(config, world_size), device_parts(config, model, world_size)
    host = {"rows of a step": rows} | (parts if machine.device is None else {})
    if machine.host is not None and sum(host.values()) * machine.ranks > machine.host:
        where = f"{machine.ranks} ranks of this machine" if machine.ranks > 1 else "a rank"
        raise ConfigError(_too_large(config, host, f"{where} on the host", machine.ranks, machine.host))
    if machine.device is not None and sum(parts.values()) > machine.device:
        raise ConfigError(_too_large(config, parts, "a rank on its device", 1, machine.device))


def _too_large(config: TrainConfig, parts: dict[str, int], where: str, ranks: int, limit: int) -> str:
    needed = sum(parts.values()) * ranks
    told = ", ".join(
        f"{name} {in_words(size * ranks)}" for name, size in sorted(parts.items(), key=lambda one: -one[1])
    )
    most = max(parts, key=lambda name: parts[name])
    if most.startswith("weights"):
        remedy = "use a smaller model, a higher parallel.tensor, pipeline or zero_stage over more ranks"
    elif most.startswith("rows"):
        remedy = f"lower data.seq_length or train.global_batch_size (now {config.train.global_batch_size:,})"
    else:
        remedy = f"lower data.seq_length or train.micro_batch_size (now {config.train.micro_batch_size:,})"
    return (
        f"data.seq_length {config.data.seq_length:,}: {where} needs at least {in_words(needed)} ({told}), but there is"
        f" {in_words(limit)}; {remedy}"
    )
