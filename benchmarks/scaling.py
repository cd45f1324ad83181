"""Speed and memory of each layout on one to eight GPUs: tokens/s for each GPU, MFU, bubble, exposed communication.

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
import json
import re
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from scaling_measure import Record, measure_row
from scaling_rows import SHAPES, Row, Setup, all_rows, is_probe

from mmdata_train.errors import RankError
from mmdata_train.launch import RankPool

PEAK_TFLOPS = 989.0


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


def visible(setup: Setup) -> int:
    """The ranks there are devices for; two on the CPU."""
    import torch

    return torch.cuda.device_count() if setup.device == "cuda" else 2


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
    wanted = [(f"{shape} FSDP{gpus}", f"{shape} one GPU") for shape in SHAPES for gpus in (2, 4, 8)]
    wanted += [(f"{shape} LoRA FSDP{gpus}", f"{shape} LoRA, one GPU") for shape in SHAPES for gpus in (2, 4, 8)]
    for shape in SHAPES:
        wanted.append((f"{shape} TP2+SP", f"{shape} FSDP2, layers not compiled"))
    for record in results:
        row = record["row"]
        base = f"{row['shape']} {'LoRA ' if row['lora'] else ''}FSDP{ranks_of(row)}"
        if ranks_of(row) > 1 and record["name"] != base and not row["shape"].endswith("/2"):
            wanted.append((record["name"], base))
    return [f"{a} / {b}: {rate[a] / rate[b]:.1%}" for a, b in wanted if a in rate and b in rate]


def ranks_of(row: Record) -> int:
    """GPUs of a row, as it stands in the results."""
    parallel = row["parallel"]
    return int(parallel["tensor"] * parallel["pipeline"] * (parallel["data"] or 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--min-ranks", type=int, default=1)
    parser.add_argument("--max-ranks", type=int, help="as many as there are GPUs (two on the CPU) unless given")
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
    most = options.max_ranks or visible(setup)
    rows = [row for row in all_rows() if options.min_ranks <= row.ranks <= most and re.search(options.only, row.name)]
    if not rows:
        parser.error(f"no row of {options.min_ranks} to {most} ranks matches {options.only!r}")
    if options.no_compile:
        rows = [replace(row, compile=False) for row in rows]
    # One GPU first: a change of the number of ranks starts processes anew.
    rows.sort(key=lambda row: row.ranks)
    results = run_rows(rows, setup, options)
    print(HEAD, *map(table_line, results), "", *ratios(results), sep="\n")
    return int(all("error" in record for record in results))


if __name__ == "__main__":
    sys.exit(main())
