"""Speed and memory of each layout on one and two GPUs: tokens/s for each GPU, MFU, bubble, exposed communication.

    python benchmarks/scaling.py --out out/scaling.json
    python benchmarks/scaling.py --only '^8B' --budget 500 --out out/scaling-8b.json
    python benchmarks/scaling.py --tiny --device cpu --out out/scaling.json

Shapes of Llama-3.2-1B and Llama-3.1-8B, and `8B/2` with half of the latter's layers, which fits one GPU: with fp32
masters and moments and a bf16 copy full fine-tuning takes 18 bytes a weight, 8B on one H200 would take 135 GiB before
the first activation. Random tokens, 4,096 a sequence, bf16, fused AdamW, 3 steps to warm up, 5 timed, 1 profiled.
LoRA rows train adapters of rank 16 on every linear layer of the frozen model; their MFU counts 4 operations a weight.

Columns: `MFU` against 989 TFLOP/s, 6 x weights + 12 x layers x hidden x length operations a token, recomputation not
counted; `peak` is torch's max_memory_allocated, by rank, and `weights`, `grads`, `optimizer` what of it is live in the
update; `exposed` is time in NCCL kernels while no other kernel runs, as a share of the profiled step (a pipeline's
waiting counts as such); `idle` is the share of the step in which the busiest rank computes nothing, against the
schedule's (p-1)/(mv+p-1). Rows marked `probe` are layouts the library refuses. A row that fails or takes too long
shows the error's first line. --budget starts no row after so many seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import re
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmdata_train.config import ParallelConfig, TrainingConfig
from mmdata_train.config_checks import check_run
from mmdata_train.errors import ConfigError, RankError
from mmdata_train.kernel_time import kernel_time
from mmdata_train.launch import DeviceType, RankPool
from mmdata_train.lora.settings import LoraConfig
from mmdata_train.model.config import ModelConfig

if TYPE_CHECKING:
    import torch

    from mmdata_train.batch import Batch
    from mmdata_train.step import Engine

Record = dict[str, Any]
PEAK_TFLOPS = 989.0
WARM_UP, TIMED = 3, 5
LORA = LoraConfig(rank=16)

ONE = ModelConfig(
    vocab_size=128256, hidden_size=2048, num_layers=16, num_heads=32, num_kv_heads=8, intermediate_size=8192,
    max_positions=4096, rope_theta=500000.0, tie_embeddings=True,
)  # fmt: skip
EIGHT = ModelConfig(
    vocab_size=128256, hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8, intermediate_size=14336,
    max_positions=4096, rope_theta=500000.0,
)  # fmt: skip
TINY = ModelConfig(
    vocab_size=128, hidden_size=32, num_layers=4, num_heads=4, num_kv_heads=2, intermediate_size=48, max_positions=32
)
SHAPES = {"1B": ONE, "8B": EIGHT, "8B/2": replace(EIGHT, num_layers=16)}


@dataclass(frozen=True, slots=True)
class Row:
    """One layout of one shape. rows: sequences a step for each GPU, so that all layouts do the same work for each."""

    shape: str
    layout: str
    parallel: ParallelConfig
    micro_batch: int
    rows: int
    compile: bool = True
    lora: LoraConfig | None = None

    @property
    def ranks(self) -> int:
        return self.parallel.tensor * self.parallel.pipeline * (self.parallel.data or 1)

    @property
    def name(self) -> str:
        return f"{self.shape} {self.layout}"

    def training(self, precision: str) -> TrainingConfig:
        return TrainingConfig(
            micro_batch_size=self.micro_batch, global_batch_size=self.rows * self.ranks, steps=WARM_UP + TIMED + 1,
            lr=1e-5, lr_schedule="constant", precision=precision, compile=self.compile,  # type: ignore[arg-type]
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setup:
    """What all rows share."""

    device: DeviceType
    seq_length: int
    precision: str
    tiny: bool

    def model(self, row: Row) -> ModelConfig:
        return replace(TINY, tie_embeddings=SHAPES[row.shape].tie_embeddings) if self.tiny else SHAPES[row.shape]


def layouts(shape: str, micro_batch: int, rows: int) -> list[Row]:
    """Two GPUs, the layouts that matter most first; pipelines with micro-batches of 1, for more of them."""
    fsdp = ParallelConfig(data=2, zero_stage=3)
    tensor = ParallelConfig(tensor=2, data=1)
    pipeline = ParallelConfig(pipeline=2, data=1)
    looped = replace(pipeline, schedule="interleaved", virtual_stages=2)
    return [
        Row(shape, "FSDP2", fsdp, micro_batch, rows),
        Row(shape, "TP2+SP", tensor, micro_batch, rows, compile=False),
        Row(shape, "FSDP2, layers not compiled", fsdp, micro_batch, rows, compile=False),
        Row(shape, "PP2 1F1B", pipeline, 1, rows),
        Row(shape, "PP2 interleaved, v=2", looped, 1, rows),
        Row(shape, "FSDP2, no overlap", replace(fsdp, overlap=False), micro_batch, rows),
        Row(shape, "TP2+SP, layers compiled", tensor, micro_batch, rows),
    ]


def adapted(shape: str, micro_batch: int, rows: int) -> list[Row]:
    """Adapters on one and two GPUs."""
    tensor, pipeline = ParallelConfig(tensor=2, data=1), ParallelConfig(pipeline=2, data=1)
    sharded = ParallelConfig(data=2, zero_stage=3)
    return [
        Row(shape, "LoRA, one GPU", ParallelConfig(data=1), micro_batch, rows, lora=LORA),
        Row(shape, "LoRA FSDP2", sharded, micro_batch, rows, lora=LORA),
        Row(shape, "LoRA TP2+SP", tensor, micro_batch, rows, compile=False, lora=LORA),
        Row(shape, "LoRA TP2+SP, layers compiled", tensor, micro_batch, rows, lora=LORA),
        Row(shape, "LoRA PP2 1F1B", pipeline, 1, rows, lora=LORA),
    ]


def all_rows() -> list[Row]:
    single = ParallelConfig(data=1)
    return [
        Row("1B", "one GPU", single, 4, 8),
        *layouts("1B", 4, 8),
        Row("8B/2", "one GPU", single, 2, 4),
        Row("8B/2", "FSDP2", ParallelConfig(data=2, zero_stage=3), 2, 4),
        *layouts("8B", 2, 4),
        *adapted("8B", 2, 4),
        Row("1B", "LoRA, one GPU", single, 4, 8, lora=LORA),
        Row("1B", "LoRA FSDP2", ParallelConfig(data=2, zero_stage=3), 4, 8, lora=LORA),
        Row("1B", "ZeRO 1", ParallelConfig(data=2, zero_stage=1), 4, 8),
        Row("1B", "ZeRO 2", ParallelConfig(data=2, zero_stage=2), 4, 8),
    ]


def is_probe(row: Row, setup: Setup) -> bool:
    """Whether the library refuses the layout."""
    try:
        check_run(setup.model(row), row.parallel, row.training(setup.precision), setup.seq_length, row.ranks)
    except ConfigError:
        return True
    return False


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


def summary(row: Row, setup: Setup, by_rank: list[Record]) -> Record:
    """The row's figures from those of its ranks."""
    from mmdata_train.metrics import flops_per_token

    seconds = max(record["step_seconds"] for record in by_rank)
    rate = row.rows * setup.seq_length / seconds
    operations = flops_per_token(setup.model(row), setup.seq_length, frozen=row.lora is not None)
    parallel, figures = row.parallel, {}
    if "busy_seconds" in by_rank[0]:
        figures["exposed"] = max(record["exposed_seconds"] / record["profiled_seconds"] for record in by_rank)
        figures["idle"] = min(1 - record["busy_seconds"] / record["profiled_seconds"] for record in by_rank)
    if parallel.pipeline > 1:
        work = row.rows * row.ranks // row.micro_batch * parallel.virtual_stages
        figures["bubble"] = (parallel.pipeline - 1) / (work + parallel.pipeline - 1)
    return {"tokens_per_second_per_gpu": rate, "mfu": rate * operations / 1e12 / PEAK_TFLOPS,
            "step_seconds": seconds, **figures, "by_rank": by_rank}  # fmt: skip


def first_line(error: RankError) -> str:
    """What went wrong: the last line that names an error, without the traceback."""
    lines = [line for line in str(error).split("\n") if line and not line.startswith((" ", "Traceback"))]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Unsupported|Exceeded)\b", line)]
    return (named or lines)[-1 if named else 0][:200]


def run_rows(rows: list[Row], setup: Setup, options: argparse.Namespace) -> list[Record]:
    began, results = time.monotonic(), []
    pools: dict[int, RankPool] = {}
    for row in rows:
        record: Record = {"row": asdict(row), "name": row.name, "probe": is_probe(row, setup)}
        started = time.monotonic()
        if options.budget and started - began > options.budget:
            record["error"] = f"not run: the budget of {options.budget:g} s is used up"
        else:
            if row.ranks not in pools:
                for size in list(pools):
                    pools.pop(size).close()
                pools[row.ranks] = RankPool(row.ranks, options.row_seconds, setup.device)
            try:
                record.update(summary(row, setup, pools[row.ranks].run(measure_row, row, setup)))
            except RankError as error:
                record["error"], record["traceback"] = first_line(error), str(error)[-4000:]
        record["row_seconds"] = round(time.monotonic() - started, 1)
        results.append(record)
        print(table_line(record), flush=True)
        options.out.write_text(json.dumps({**machine(setup), "rows": results}, indent=1), encoding="utf-8")
    for pool in pools.values():
        pool.close()
    return results


def machine(setup: Setup) -> Record:
    import torch

    gpu = torch.cuda.get_device_name() if setup.device == "cuda" else None
    return {"torch": torch.__version__, "gpu": gpu, "setup": dataclasses.asdict(setup)}


HEAD = (
    "| row | tokens/s/GPU | MFU | peak GiB by rank | weights + grads + optimizer GiB | exposed | idle (schedule) |"
    " seconds |\n" + "|" + "---|" * 8
)


def table_line(record: Record) -> str:
    name = record["name"] + (" (probe)" if record["probe"] else "")
    if "error" in record:
        return f"| {name} | {record['error']} |"
    ranks = record["by_rank"]
    share = {key: f"{record[key]:.1%}" if key in record else "-" for key in ("exposed", "idle", "bubble")}
    parts = [max(rank.get(key, 0.0) for rank in ranks) for key in ("weights_gib", "grads_gib", "optimizer_gib")]
    values = [
        name, f"{record['tokens_per_second_per_gpu']:,.0f}", f"{record['mfu']:.3f}",
        " / ".join(f"{rank['peak_gib']:.1f}" for rank in ranks), " + ".join(f"{part:.1f}" for part in parts),
        share["exposed"], f"{share['idle']} ({share['bubble']})", f"{record['row_seconds']:.0f}",
    ]  # fmt: skip
    return "| " + " | ".join(values) + " |"


def ratios(results: list[Record]) -> list[str]:
    """What the layouts are worth against one another, where both rows ran."""
    rate = {record["name"]: record["tokens_per_second_per_gpu"] for record in results if "error" not in record}
    wanted = [(f"{shape} FSDP2", f"{shape} one GPU") for shape in SHAPES]
    for shape in ("1B", "8B"):
        others = ("TP2+SP", "TP2+SP, layers compiled", "PP2 1F1B", "PP2 interleaved, v=2", "FSDP2, no overlap")
        wanted += [(f"{shape} {other}", f"{shape} FSDP2") for other in others]
        wanted.append((f"{shape} TP2+SP", f"{shape} FSDP2, layers not compiled"))
        lora = ("LoRA TP2+SP", "LoRA TP2+SP, layers compiled", "LoRA PP2 1F1B")
        wanted.append((f"{shape} LoRA FSDP2", f"{shape} LoRA, one GPU"))
        wanted += [(f"{shape} {other}", f"{shape} LoRA FSDP2") for other in lora]
    return [f"{a} / {b}: {rate[a] / rate[b]:.1%}" for a, b in wanted if a in rate and b in rate]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--max-ranks", type=int, default=2)
    parser.add_argument("--only", default="", help="a regular expression rows must match, such as '^1B'")
    parser.add_argument(
        "--row-seconds", type=float, default=120.0, help="limit of one row, start and compiler included"
    )
    parser.add_argument("--budget", type=float, default=0.0, help="seconds after which no row is started (0: none)")
    parser.add_argument("--no-compile", action="store_true", help="leave the compiler out of all rows")
    parser.add_argument("--tiny", action="store_true", help="a very small shape, to try the script")
    parser.add_argument("--out", type=Path, default=Path("out/scaling.json"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    setup = Setup(options.device, 32 if options.tiny else 4096, "bf16", options.tiny)
    rows = [row for row in all_rows() if row.ranks <= options.max_ranks and re.search(options.only, row.name)]
    if options.no_compile:
        rows = [replace(row, compile=False) for row in rows]
    # One GPU first: a change of the number of ranks starts processes anew.
    rows.sort(key=lambda row: row.ranks)
    results = run_rows(rows, setup, options)
    print(HEAD, *map(table_line, results), "", *ratios(results), sep="\n")
    return int(all("error" in record for record in results))


if __name__ == "__main__":
    sys.exit(main())
