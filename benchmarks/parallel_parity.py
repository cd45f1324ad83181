"""The whole matrix of layouts against one process: `make parity`, or a part of it.

    python benchmarks/parallel_parity.py --max-ranks 8 --out out/parity.jsonl
    python benchmarks/parallel_parity.py --device cuda --max-ranks 2 --precision fp32 bf16 --compiled
    python benchmarks/parallel_parity.py --table --out out/parity.jsonl

Every combination of {tp 1,2,4} x {pp 1,2,4} x {dp 1,2} x {zero 0..3} x {schedules} x {none, selective, full} up to
the given number of ranks: 3 AdamW steps with clipping and ignored tokens, loss and gradient norm against one process
of the same precision: within 1e-5 in fp32, 1e-2 in bf16. Cells that run the same code (a ZeRO stage with one data rank)
are run once. A cell that is in the output file already is not run again, so an interrupted run goes on.

Under torchrun the cells of exactly its ranks are run on them, also of several machines:

    torchrun --nproc-per-node 8 benchmarks/parallel_parity.py --device cuda --out out/parity.jsonl

--device cuda gives each rank a GPU and runs on NCCL; the default is gloo on the CPU, half an hour on two cores.
--compiled adds, in the first precision named, the probes: refused cells that were found wrong somewhere, run to see
whether they still are; and the offered cells with compiled layers. A probe's outcome is shown and never fails the run.
--lora also adds the cells with adapters: the whole matrix with LoRA on every linear layer, and without recomputation
DoRA, one adapted layer (stages that train nothing), an adapter of the head, and rows of new tokens; only: just these.
--budget ends the run after so many seconds, between two cells.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmdata_train.errors import RankError
from mmdata_train.launch import DeviceType, RankPool
from mmdata_train.parity import (
    TOLERANCES,
    Cell,
    Curve,
    Precision,
    Shape,
    all_cells,
    compiled_cells,
    difference,
    lora_cells,
    probes,
    run_cell,
    run_probe,
)

Record = dict[str, Any]


def representative(cell: Cell) -> Cell:
    """The cell whose run stands for this one: with one data rank every ZeRO stage is stage 0."""
    return cell if cell.data > 1 else dataclasses.replace(cell, zero_stage=0)


def key(cell: Cell, device: DeviceType) -> str:
    return json.dumps({"device": device, **dataclasses.asdict(cell)}, sort_keys=True)


class Joined:
    """The ranks torchrun started, used like a RankPool: every rank calls `run`, and all get what each returned."""

    def __init__(self, device: DeviceType) -> None:
        import torch.distributed as dist

        from mmdata_train.mesh import pick_device, start_process_group

        start_process_group(pick_device().type if device == "cuda" else "cpu", timeout_minutes=5.0)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def run(self, function: Any, *arguments: Any) -> list[Any]:
        """As RankPool.run. A rank that fails ends the job: the others wait for it, and torchrun ends them."""
        import torch.distributed as dist

        answers: list[Any] = [None] * self.size
        dist.all_gather_object(answers, function(*arguments))
        return answers

    def first(self, value: Any) -> Any:
        """What the first rank has."""
        import torch.distributed as dist

        held = [value]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def close(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()


@dataclass
class Matrix:
    """Runs cells in pools of ranks, a pool a world size, or on torchrun's ranks; references in a pool of one."""

    device: DeviceType
    deadline_s: float
    joined: Joined | None = None
    pools: dict[int, RankPool] = field(default_factory=dict)
    references: dict[tuple[Shape, Cell], Curve] = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        """Whether this process writes and prints."""
        return self.joined is None or self.joined.rank == 0

    def pool(self, size: int) -> RankPool | Joined:
        if self.joined is not None and size == self.joined.size:
            return self.joined
        if size not in self.pools:
            for other in [n for n in self.pools if n > 1]:
                self.pools.pop(other).close()
            self.pools[size] = RankPool(size, self.deadline_s, self.device)
        return self.pools[size]

    def reference(self, cell: Cell) -> Curve:
        """One process, plain layers, the cell's precision and adapters."""
        wanted = cell.shape, cell.plain
        if wanted not in self.references:
            curve = self.pool(1).run(run_cell, cell.plain, cell.shape, 7, self.device)[0] if self.leads else None
            self.references[wanted] = curve if self.joined is None else self.joined.first(curve)
        return self.references[wanted]

    def run(self, cell: Cell) -> Record:
        began = time.monotonic()
        try:
            curves = self.pool(cell.world_size).run(run_probe, cell, self.device)
            reference = self.reference(cell)
        except RankError as error:
            return {"outcome": "failed", "reason": str(error)[-600:]}
        found = max(difference(curve, reference) for curve in curves)
        return {
            "outcome": "equal" if found < TOLERANCES[cell.precision] else "WRONG",
            "difference": found,
            "loss_and_norm": curves[0],
            "reference": reference,
            "seconds": round(time.monotonic() - began, 1),
        }

    def close(self) -> None:
        for pool in self.pools.values():
            pool.close()
        if self.joined is not None:
            self.joined.close()


def read(path: Path) -> dict[str, Record]:
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    records = [json.loads(line) for line in lines if line]
    return {key(Cell(**record["cell"]), record.get("device", "cpu")): record for record in records}


def chosen_cells(options: argparse.Namespace) -> list[tuple[Cell, bool]]:
    """(cell, whether it is a probe) to run, in order: cheap layouts first, compiled ones last."""
    plain = sorted(all_cells(options.max_ranks), key=lambda cell: (cell.world_size, cell.tensor, cell.pipeline))
    if options.lora:
        adapted = lora_cells(options.max_ranks)
        plain = [] if options.lora == "only" else plain
        plain += sorted(adapted, key=lambda cell: (cell.world_size, cell.tensor, cell.pipeline))
    cells = [(cell, False) for cell in plain if representative(cell) == cell and cell.refusal() is None]
    made = [(dataclasses.replace(cell, precision=name), probe) for name in options.precision for cell, probe in cells]
    if options.compiled:
        extra = probes(options.max_ranks) + compiled_cells(options.max_ranks)
        first = [dataclasses.replace(cell, precision=options.precision[0]) for cell in extra]
        made += [(cell, cell.refusal() is not None) for cell in first]
    return [(cell, probe) for cell, probe in made if cell.world_size >= options.min_ranks]


def run_matrix(options: argparse.Namespace) -> None:
    began, joined = time.monotonic(), Joined(options.device) if "RANK" in os.environ else None
    matrix = Matrix(options.device, options.deadline, joined)
    done = read(options.out) if joined is None else joined.first(read(options.out))
    facts = machine(options.device)
    cells = [one for one in chosen_cells(options) if joined is None or one[0].world_size == joined.size]
    # Only the leading process writes; the others hold the file open and leave it as it is.
    with options.out.open("a", encoding="utf-8", newline="\n") as file:
        for cell, probe in cells:
            if key(cell, options.device) in done:
                continue
            late = bool(options.budget) and time.monotonic() - began > options.budget
            if late if joined is None else joined.first(late):
                if matrix.leads:
                    print(f"the budget of {options.budget:g} s is used up; the rest is not run")
                break
            record = {**matrix.run(cell), "probe": probe, "device": options.device, **facts}
            if not matrix.leads:
                continue
            file.write(json.dumps({"cell": dataclasses.asdict(cell), **record}) + "\n")
            file.flush()
            shown = ("probe " if probe else "") + record["outcome"]
            print(shown, record.get("difference"), record.get("seconds"), cell, flush=True)
    matrix.close()


def machine(device: DeviceType) -> Record:
    import torch

    return {"torch": torch.__version__, "gpu": torch.cuda.get_device_name() if device == "cuda" else None}


def table(options: argparse.Namespace, precision: Precision) -> str:
    """Markdown: a row a layout, with cells by outcome and the largest difference, and the reasons of refusals."""
    done = read(options.out)
    counts: dict[tuple[int, int, int], Counter[str]] = defaultdict(Counter)
    worst: dict[tuple[int, int, int], float] = defaultdict(float)
    reasons: Counter[str] = Counter()
    for plain in all_cells(options.max_ranks):
        cell = dataclasses.replace(plain, precision=precision)
        layout = (cell.tensor, cell.pipeline, cell.data)
        why = cell.refusal()
        if why is not None:
            counts[layout]["refused"] += 1
            reasons[why] += 1
            continue
        record = done.get(key(representative(cell), options.device), {"outcome": "not run"})
        counts[layout][record["outcome"]] += 1
        worst[layout] = max(worst[layout], record.get("difference", 0.0))
    lines = [
        "| tp | pp | dp | cells | equal | refused | wrong or failed | not run | largest difference |",
        "|" + "---|" * 9,
    ]
    for layout, count in sorted(counts.items()):
        bad = count["WRONG"] + count["failed"]
        row = [*layout, count.total(), count["equal"], count["refused"], bad, count["not run"], f"{worst[layout]:.1e}"]
        lines.append("| " + " | ".join(map(str, row)) + " |")
    total = sum(counts.values(), Counter())
    lines.append("")
    lines.append(
        f"{precision} on {options.device}: {total.total()} cells, {total['equal']} equal to one process,"
        f" {total['refused']} refused ({total['refused'] / total.total():.1%}), {total['not run']} not run."
    )
    lines += ["", *(f"- {count} cells: {why}" for why, count in sorted(reasons.items()))]
    return "\n".join(lines + lora_table(done, options, precision) + compiled_table(done, options, precision))


def lora_table(done: dict[str, Record], options: argparse.Namespace, precision: Precision) -> list[str]:
    """A row a kind of adapter: cells by outcome and the largest difference."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    worst: dict[str, float] = defaultdict(float)
    for plain in lora_cells(options.max_ranks):
        cell = representative(dataclasses.replace(plain, precision=precision))
        record = done.get(key(cell, options.device), {"outcome": "not run"})
        counts[cell.lora][record["outcome"]] += 1
        worst[cell.lora] = max(worst[cell.lora], record.get("difference", 0.0))
    if not any(count.total() > count["not run"] for count in counts.values()):
        return []
    rows = ["", "| adapters | cells | equal | wrong or failed | not run | largest difference |", "|" + "---|" * 6]
    for kind, count in counts.items():
        bad = count["WRONG"] + count["failed"]
        row = [kind, count.total(), count["equal"], bad, count["not run"], f"{worst[kind]:.1e}"]
        rows.append("| " + " | ".join(map(str, row)) + " |")
    return rows


def compiled_table(done: dict[str, Record], options: argparse.Namespace, precision: Precision) -> list[str]:
    """A row a compiled cell or probe that was run."""
    rows = []
    for plain in compiled_cells(options.max_ranks) + probes(options.max_ranks):
        cell = dataclasses.replace(plain, precision=precision)
        record = done.get(key(cell, options.device))
        if record is None:
            continue
        offered = "probe" if record["probe"] else "offered"
        layout = (cell.tensor, cell.pipeline, cell.data, cell.zero_stage, cell.schedule, cell.recompute)
        shown = f"{record['difference']:.1e}" if "difference" in record else record["reason"].split("\n")[-1][:80]
        values = [*layout, cell.compile, offered, record["outcome"], shown]
        rows.append("| " + " | ".join(map(str, values)) + " |")
    if not rows:
        return []
    head = "| tp | pp | dp | zero | schedule | recompute | compiled | | outcome | largest difference |"
    return ["", head, "|" + "---|" * 10, *rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-ranks", type=int, default=8)
    parser.add_argument("--min-ranks", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=tuple(TOLERANCES), nargs="+", default=["fp32"])
    parser.add_argument("--compiled", action="store_true", help="compiled layers and probes too")
    parser.add_argument("--lora", choices=("also", "only"), help="cells with adapters")
    parser.add_argument("--out", type=Path, default=Path("out/parity.jsonl"))
    parser.add_argument("--deadline", type=float, default=300.0, help="seconds a cell may take")
    parser.add_argument("--budget", type=float, default=0.0, help="seconds after which no cell is started (0: none)")
    parser.add_argument("--table", action="store_true", help="print the table of the results so far")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if not options.table:
        run_matrix(options)
    if int(os.environ.get("RANK", "0")):
        return 0
    for precision in options.precision:
        print(table(options, precision))
    bad = ("WRONG", "failed")
    return int(any(record["outcome"] in bad and not record.get("probe") for record in read(options.out).values()))


if __name__ == "__main__":
    sys.exit(main())
