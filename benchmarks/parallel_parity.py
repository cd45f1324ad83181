"""The whole matrix of layouts against one process: `make parity`, or a part of it.

    python benchmarks/parallel_parity.py --max-ranks 8 --out out/parity.jsonl
    python benchmarks/parallel_parity.py --table --out out/parity.jsonl

Every combination of {tp 1,2,4} x {pp 1,2,4} x {dp 1,2} x {zero 0..3} x {schedules} x {none, selective, full} up to
the given number of ranks: 3 AdamW steps with clipping and ignored tokens, loss and gradient norm within 1e-5 of one
process. Cells that run the same code (a ZeRO stage with one data rank) are run once. A cell that is in the output
file already is not run again, so an interrupted run goes on. About an hour on two cores; needs no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from mmdata_train.errors import RankError
from mmdata_train.launch import RankPool
from mmdata_train.parity import TOLERANCE, Cell, Curve, Shape, all_cells, difference, run_cell

Record = dict[str, Any]


def representative(cell: Cell) -> Cell:
    """The cell whose run stands for this one: with one data rank every ZeRO stage is stage 0."""
    return cell if cell.data > 1 else dataclasses.replace(cell, zero_stage=0)


def key(cell: Cell) -> str:
    return json.dumps(dataclasses.asdict(cell), sort_keys=True)


class Matrix:
    """Runs cells in pools of ranks, a pool a world size, references in a pool of one."""

    def __init__(self, deadline_s: float) -> None:
        self.pools: dict[int, RankPool] = {}
        self.deadline_s = deadline_s
        self.references: dict[Shape, Curve] = {}

    def pool(self, size: int) -> RankPool:
        if size not in self.pools:
            for other in [n for n in self.pools if n > 1]:
                self.pools.pop(other).close()
            self.pools[size] = RankPool(size, self.deadline_s)
        return self.pools[size]

    def reference(self, shape: Shape) -> Curve:
        if shape not in self.references:
            self.references[shape] = self.pool(1).run(run_cell, Cell(model=shape.model), shape)[0]
        return self.references[shape]

    def run(self, cell: Cell) -> Record:
        began = time.monotonic()
        try:
            curves = self.pool(cell.world_size).run(run_cell, cell)
        except RankError as error:
            return {"outcome": "failed", "reason": str(error)[-600:]}
        found = max(difference(curve, self.reference(cell.shape)) for curve in curves)
        outcome = "equal" if found < TOLERANCE else "WRONG"
        return {"outcome": outcome, "difference": found, "seconds": round(time.monotonic() - began, 1)}

    def close(self) -> None:
        for pool in self.pools.values():
            pool.close()


def read(path: Path) -> dict[str, Record]:
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    return {key(Cell(**record["cell"])): record for line in lines if line for record in [json.loads(line)]}


def run_matrix(max_ranks: int, min_ranks: int, out: Path, deadline_s: float) -> None:
    done, matrix = read(out), Matrix(deadline_s)
    cells = sorted(all_cells(max_ranks), key=lambda cell: (cell.world_size, cell.tensor, cell.pipeline))
    with out.open("a", encoding="utf-8") as file:
        for cell in cells:
            chosen = representative(cell)
            if cell.world_size < min_ranks or chosen != cell or key(cell) in done or cell.refusal() is not None:
                continue
            record = matrix.run(cell)
            file.write(json.dumps({"cell": dataclasses.asdict(cell), **record}) + "\n")
            file.flush()
            print(record["outcome"], record.get("difference"), record.get("seconds"), cell, flush=True)
    matrix.close()


def table(out: Path, max_ranks: int) -> str:
    """Markdown: a row a layout, with cells by outcome and the largest difference, and the reasons of refusals."""
    done = read(out)
    counts: dict[tuple[int, int, int], Counter[str]] = defaultdict(Counter)
    worst: dict[tuple[int, int, int], float] = defaultdict(float)
    reasons: Counter[str] = Counter()
    for cell in all_cells(max_ranks):
        layout = (cell.tensor, cell.pipeline, cell.data)
        why = cell.refusal()
        if why is not None:
            counts[layout]["refused"] += 1
            reasons[why] += 1
            continue
        record = done.get(key(representative(cell)), {"outcome": "not run"})
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
        f"{total.total()} cells, {total['equal']} equal to one process, {total['refused']} refused"
        f" ({total['refused'] / total.total():.1%}), {total['not run']} not run."
    )
    lines += ["", *(f"- {count} cells: {why}" for why, count in sorted(reasons.items()))]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-ranks", type=int, default=8)
    parser.add_argument("--min-ranks", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/parity.jsonl"))
    parser.add_argument("--deadline", type=float, default=300.0, help="seconds a cell may take")
    parser.add_argument("--table", action="store_true", help="print the table of the results so far")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if not options.table:
        run_matrix(options.max_ranks, options.min_ranks, options.out, options.deadline)
    print(table(options.out, options.max_ranks))
    return int(any(record["outcome"] in ("WRONG", "failed") for record in read(options.out).values()))


if __name__ == "__main__":
    sys.exit(main())
