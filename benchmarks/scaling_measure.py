"""What one rank of a row of `scaling.py` measures: seconds of its steps, memory by cause, and one profiled step."""

from __future__ import annotations

import gc
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scaling_rows import TIMED, WARM_UP, Row, Setup

from mmdata_train.kernel_time import kernel_time

if TYPE_CHECKING:
    import torch

    from mmdata_train.batch import Batch
    from mmdata_train.step import Engine

Record = dict[str, Any]


def fill(engine: Engine) -> None:
    """Weights of the usual size, drawn on the device: drawing 8B on the host takes minutes, and speed is all we ask."""
    import torch

    from mmdata_train.loss import to_local

    with torch.no_grad():
        for name, weight in engine.model.named_parameters():
            local = to_local(weight)
            if "norm" in name:
                local.fill_(1.0)
            else:
                local.normal_(0.0, 0.02)


def build(row: Row, setup: Setup) -> Engine:
    import torch

    from mmdata_train.mesh import Mesh
    from mmdata_train.parallelize import build_parts
    from mmdata_train.parity import current_device
    from mmdata_train.step import Engine

    torch.set_float32_matmul_precision("highest")
    training = row.training(setup.precision)
    mesh = Mesh.make(row.parallel, current_device(setup.device))
    parts = build_parts(setup.model(row), row.parallel, training, mesh, row.lora)
    engine = Engine(parts, row.parallel, training, setup.seq_length, WARM_UP + TIMED + 1)
    fill(engine)
    return engine


def random_batch(row: Row, setup: Setup, data_rank: int) -> Batch:
    import torch

    from mmdata_train.batch import Batch

    own = row.training(setup.precision).global_batch_size // (row.parallel.data or 1)
    generator = torch.Generator().manual_seed(data_rank)
    size = (own, setup.seq_length + 1)
    stream = torch.randint(0, setup.model(row).vocab_size, size, generator=generator)
    return Batch.causal(stream[:, :-1].contiguous(), stream[:, 1:].contiguous())


def measure_row(row: Row, setup: Setup) -> Record:
    """One rank's figures; called on every rank of the row."""
    import torch

    torch.compiler.reset()
    engine = build(row, setup)
    try:
        return _measure(engine, row, setup)
    finally:
        # The next row needs the memory.
        del engine
        gc.collect()
        if setup.device == "cuda":
            torch.cuda.empty_cache()


def _measure(engine: Engine, row: Row, setup: Setup) -> Record:
    import torch

    cuda = setup.device == "cuda"
    live = watch_update(engine)
    batch = random_batch(row, setup, engine.model.mesh.data_rank)
    for step in range(WARM_UP):
        engine.train_step(batch, step)
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    meet(engine)
    began = time.perf_counter()
    for step in range(WARM_UP, WARM_UP + TIMED):
        result = engine.train_step(batch, step)
    if cuda:
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / TIMED
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
    profile = profiled_step(engine, batch) if cuda else {}
    return {"step_seconds": seconds, "loss": result.loss, "norm": result.grad_norm, "peak_gib": peak, **live, **profile}


def meet(engine: Engine) -> None:
    """Until all ranks are here and their devices idle."""
    import torch

    mesh = engine.model.mesh
    mesh.sum(torch.zeros((), device=mesh.device)).item()


def watch_update(engine: Engine) -> dict[str, float]:
    """A dictionary that each update fills with GiB of weights, gradients and optimizer state on this rank."""
    import torch

    from mmdata_train.loss import to_local

    found: dict[str, float] = {}

    def gib(tensors: list[torch.Tensor]) -> float:
        return sum(local.numel() * local.element_size() for local in map(to_local, tensors)) / 2**30

    def note(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        weights = [weight for _, weight in engine.model.named_parameters()]
        moments = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
        found["weights_gib"] = gib(list(weights))
        found["grads_gib"] = gib([weight.grad for weight in weights if weight.grad is not None])
        found["optimizer_gib"] = gib(moments)

    if engine.optimizer is not None:
        engine.optimizer.register_step_pre_hook(note)
    return found


def profiled_step(engine: Engine, batch: Batch) -> Record:
    """Seconds of one step and of its kernels, from torch's profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    meet(engine)
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        began = time.perf_counter()
        engine.train_step(batch, WARM_UP + TIMED)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    kernels = [
        (event.name, event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in found.events() or ()
        if event.device_type == torch.profiler.DeviceType.CUDA
    ]
    return {"profiled_seconds": seconds, **asdict(kernel_time(kernels))}
