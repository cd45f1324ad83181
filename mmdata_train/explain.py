"""What stopped a rank, in words: memory that ran out, a collective that waited too long, a peer that is gone.

Torch raises all three as bare RuntimeErrors. `explained` turns them into our errors, with what used the memory measured
on this rank, and leaves every other error as it is. A watchdog or a signal that ends the process is the launcher's to
explain: see `ranks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mmdata_train.config import TrainConfig
from mmdata_train.errors import MemoryExhaustedError, RankError
from mmdata_train.foreign_text import TOO_LONG, useful_part
from mmdata_train.loss import to_local
from mmdata_train.step import Engine

_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory|cannot allocate memory", re.IGNORECASE)
_PEER_GONE = re.compile(r"connection (closed|reset|refused|aborted)|broken pipe|remote process exited", re.IGNORECASE)


@dataclass(slots=True)
class Watched:
    """The engine of the run, once there is one, so that its memory can be measured."""

    engine: Engine | None = field(default=None)


@contextmanager
def explained(config: TrainConfig) -> Iterator[Watched]:
    """Raises MemoryExhaustedError or RankError where the body ran out of memory or lost its peers."""
    watched = Watched()
    try:
        yield watched
    except MemoryError as error:
        raise MemoryExhaustedError(memory_message(config, watched.engine, str(error) or "MemoryError")) from error
    except RuntimeError as error:
        first = useful_part(error)
        if isinstance(error, torch.OutOfMemoryError) or _NO_MEMORY.search(first):
            raise MemoryExhaustedError(memory_message(config, watched.engine, first)) from error
        if TOO_LONG.search(first):
            raise RankError(
                f"a collective waited longer than parallel.timeout_minutes ({config.parallel.timeout_minutes:g}): a"
                " rank is stuck, gone or much slower than this one. Look at the lines of the rank that failed first;"
                f" raise the limit if a slow step is expected ({first})"
            ) from error
        if _PEER_GONE.search(first):
            raise RankError(
                f"the connection to another rank was lost: that rank ended first and its lines say why ({first})"
            ) from error
        raise


def held_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of this rank's shards of the tensors."""
    return sum(to_local(tensor).nbytes for tensor in tensors if tensor is not None)


def memory_by_cause(engine: Engine) -> dict[str, int]:
    """Bytes on this rank's device: weights, gradients, optimizer, and on a GPU the rest of the peak (activations)."""
    weights = [weight for _, weight in engine.model.named_parameters()]
    state = engine.optimizer.state.values() if engine.optimizer is not None else ()
    causes = {
        "weights": held_bytes(weights),
        "gradients": held_bytes(weight.grad for weight in weights),
        "optimizer state": held_bytes(value for one in state for value in one.values() if isinstance(value, Tensor)),
    }
    device = engine.model.mesh.device
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        causes["activations and buffers at the peak"] = max(0, peak - sum(causes.values()))
        reserved, allocated = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
        causes["reserved by the allocator but unused"] = reserved - allocated
    return causes


def remedies(config: TrainConfig) -> list[str]:
    """What to change, cheapest first; what is at its end already is left out."""
    training, parallel = config.train, config.parallel
    found = []
    if training.micro_batch_size > 1:
        size = training.micro_batch_size
        found.append(f"train.micro_batch_size {size // 2} (now {size})")
    if training.activation_checkpointing != "full":
        better = "selective, then full" if training.activation_checkpointing == "none" else "full"
        found.append(f"train.activation_checkpointing {better} (now {training.activation_checkpointing})")
    if (stage := parallel.zero_stage) < 3:
        found.append(f"parallel.zero_stage {stage + 1} with several data ranks (now {stage})")
    found.append(f"parallel.tensor {2 * parallel.tensor} (now {parallel.tensor})")
    found.append(f"parallel.pipeline {2 * parallel.pipeline} (now {parallel.pipeline})")
    found.append("a shorter data.seq_length")
    if not parallel.cpu_offload and parallel.zero_stage:
        found.append("parallel.cpu_offload true, which is slow")
    return found


def memory_message(config: TrainConfig, engine: Engine | None, cause: str) -> str:
    """The whole message: what torch said, what holds the memory, what to change in which order."""
    if engine is None:
        used = "the model was still being built"
    else:
        used = ", ".join(f"{name} {size / 2**30:.3g} GiB" for name, size in memory_by_cause(engine).items())
    steps = "; ".join(f"{number}. {remedy}" for number, remedy in enumerate(remedies(config), start=1))
    return f"out of memory ({cause}). On this rank: {used}. In this order, try: {steps}"
