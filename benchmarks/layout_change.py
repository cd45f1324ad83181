"""Saved in one layout, continued in others, exported: the losses of a run that never stopped, and the logits of one.

    python benchmarks/layout_change.py --out out/layout_change.json
    python benchmarks/layout_change.py --device cpu --tiny --ranks 8 --out out/layout_change.json

A few steps from random weights, exported, give the model folder everything starts from. For full fine-tuning and for
LoRA: 2N steps on one rank are the reference; N steps in each layout of the given number of ranks, continued for N more
on one rank and in every other layout, must give its losses and gradient norms. With `--ranks 8` each layout of eight
ranks is continued on four, two and one and in the next layout of eight, and those of one, two and four on eight. In
fp32 the order of sums differs between layouts and nothing else does: TOLERANCE relative. Then the last checkpoint of
each layout is exported as a Hugging Face folder (with LoRA: merged) and, where transformers is installed, the exported
model's logits are compared with those of the first layout's export. Exit code 1 if anything does not hold. About a
minute on GPUs; a quarter of an hour with eight ranks on two cores. Needs no tokenizer and no download.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpu_training import STORIES, TINY, Job, train, write_shard

from mmdata_train.config import OutputConfig, ParallelConfig, TrainConfig, TrainingConfig
from mmdata_train.data_config import DataConfig, DataEntry, LoadingConfig
from mmdata_train.errors import TrainError
from mmdata_train.export.command import export_checkpoint
from mmdata_train.export.options import ExportOptions
from mmdata_train.launch import DeviceType, RankPool

Record = dict[str, Any]
TOLERANCE = 1e-4
"""Largest relative difference of a loss or norm over all steps: fp32 sums in another order, grown by the updates."""
LOGITS_TOLERANCE = 1e-3
"""Largest difference of a logit between exports of two layouts, whose weights went through 2N such steps."""


def ranks_of(layout: ParallelConfig) -> int:
    return layout.tensor * layout.pipeline * (layout.data or 1)


def layouts(ranks: int) -> dict[str, ParallelConfig]:
    """By name: one rank, layouts of that many, and for eight those of four and two that they are continued on."""
    found = {"one rank": ParallelConfig(data=1)}
    if ranks == 8:
        found |= {
            "TP2": ParallelConfig(tensor=2, data=1),
            "FSDP2": ParallelConfig(data=2, zero_stage=3),
            "TP2 PP2": ParallelConfig(tensor=2, pipeline=2, data=1),
            "FSDP4": ParallelConfig(data=4, zero_stage=3),
            "TP2 PP2 DP2": ParallelConfig(tensor=2, pipeline=2, data=2, zero_stage=1),
            "TP4 FSDP2": ParallelConfig(tensor=4, data=2, zero_stage=3),
            "PP4 DP2": ParallelConfig(pipeline=4, data=2, zero_stage=1),
        }
    else:
        found |= {
            f"TP{ranks}": ParallelConfig(tensor=ranks, data=1),
            f"PP{ranks}": ParallelConfig(pipeline=ranks, data=1),
            f"FSDP{ranks}": ParallelConfig(data=ranks, zero_stage=3),
        }
    if ranks == 4:
        found["TP2 PP2"] = ParallelConfig(tensor=2, pipeline=2, data=1)
        found["TP2 FSDP2"] = ParallelConfig(tensor=2, data=2, zero_stage=3)
    return {name: replace(layout, parity_check=False) for name, layout in found.items()}


def changes(kinds: dict[str, ParallelConfig], ranks: int) -> list[tuple[str, str]]:
    """Which layout is continued in which: all pairs; of eight ranks, those the module's text names."""
    if ranks < 8:
        return [(a, b) for a in kinds for b in kinds if a != b]
    eight = [name for name, layout in kinds.items() if ranks_of(layout) == 8]
    fewer = [name for name in kinds if name not in eight]
    turned = list(zip(eight, eight[1:] + eight[:1], strict=True))
    return [(a, b) for a in eight for b in fewer] + turned + [(b, eight[0]) for b in fewer]


class Runs:
    """Trainings of one shape in pools of one and of many ranks."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        device: DeviceType = options.device
        shape = replace(TINY, num_layers=4) if options.tiny else replace(STORIES, num_layers=4)
        micro = (
            1 if options.ranks == 8 else 2
        )  # four stages on two data ranks need four micro-batches of the eight rows
        self.job = Job("small", shape, 32 if options.tiny else 256, micro, 8, 3e-3, 40_000)
        self.folder, self.steps = folder, options.steps
        self.prefix = write_shard(folder, self.job)
        sizes = {ranks_of(layout) for layout in layouts(options.ranks).values()}
        self.pools = {size: RankPool(size, options.deadline, device) for size in sorted(sizes)}
        self.model = ""
        seed = replace(self.config("seed", ParallelConfig(data=1), self.steps, None), model=self.job.model)
        self.run(seed)
        export_checkpoint(seed.output.dir, ExportOptions(to="hf", output=folder / "model", dtype="fp32"))
        self.model = str(folder / "model")

    def config(self, name: str, layout: ParallelConfig, steps: int, lora_rank: int | None) -> TrainConfig:
        job = self.job
        return TrainConfig(
            model=self.model, parallel=layout, lora_rank=lora_rank,
            data=DataConfig(
                train=(DataEntry(path=self.prefix),), seq_length=job.seq_length, reset_attention=True,
                loading=LoadingConfig(workers=0), cache_dir=self.folder / "cache", num_samples=self.steps * 2 * 8,
            ),
            train=TrainingConfig(
                micro_batch_size=job.micro_batch, global_batch_size=job.global_batch, steps=steps, lr=job.lr,
                lr_schedule="constant", precision="fp32",
            ),
            output=OutputConfig(dir=self.folder / name),
        )  # fmt: skip

    def run(self, config: TrainConfig) -> Record:
        record: Record = self.pools[ranks_of(config.parallel)].run(train, config)[0]
        return record

    def close(self) -> None:
        for pool in self.pools.values():
            pool.close()


def apart(ours: Record, reference: Record) -> float:
    """Largest relative difference of a loss or norm."""
    pairs = [pair for key in ("losses", "norms") for pair in zip(ours[key], reference[key], strict=True)]
    return float(max(abs(a - b) / abs(b) for a, b in pairs))


def continued(runs: Runs, ranks: int, lora_rank: int | None) -> list[Record]:
    """Every change of layout: N steps in the first, N more in the second, against 2N on one rank."""
    kind, kinds = "LoRA" if lora_rank else "full", layouts(ranks)
    straight = runs.run(runs.config(f"{kind}-straight", kinds["one rank"], 2 * runs.steps, lora_rank))
    rows = []
    for first, second in changes(kinds, ranks):
        name = f"{kind}-{first}-{second}".replace(" ", "")
        try:
            runs.run(runs.config(name, kinds[first], runs.steps, lora_rank))
            found = runs.run(runs.config(name, kinds[second], 2 * runs.steps, lora_rank))
            row = {"difference": apart(found, straight), "last_loss": found["losses"][-1]}
        except TrainError as error:
            row = {"error": str(error)[-1500:]}
        rows.append({"kind": kind, "first": first, "second": second, "folder": str(runs.folder / name), **row})
        print(show(rows[-1]), flush=True)
    return rows


def logits(folder: Path) -> Any:
    """Of the exported model on fixed tokens, by transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.arange(1, 25).reshape(2, 12)).logits


def exported(rows: list[Record], folder: Path, lora_rank: int | None) -> list[Record]:
    """An export of the last checkpoint of each second layout."""
    known = importlib.util.find_spec("transformers") is not None
    wanted = {row["second"]: row for row in rows if "error" not in row}
    found, first = [], None
    for layout, row in wanted.items():
        output = folder / f"export-{row['kind']}-{layout}".replace(" ", "")
        record: Record = {"kind": row["kind"], "export of": layout}
        try:
            how = ExportOptions(to="merged" if lora_rank else "hf", output=output, dtype="fp32")
            record["bytes"] = export_checkpoint(row["folder"], how).bytes
            if known:
                ours = logits(output)
                first = ours if first is None else first
                record["difference"] = float((ours - first).abs().max())
        except TrainError as error:
            record["error"] = str(error)[-1500:]
        found.append(record)
        print(show(record), flush=True)
    return found


def show(row: Record) -> str:
    """One line of the table."""
    what = f"{row['first']} -> {row['second']}" if "first" in row else f"export of {row['export of']}"
    value = row["error"].rstrip().split("\n")[-1][:150] if "error" in row else f"{row.get('difference', 0.0):.1e}"
    return f"| {row['kind']} | {what} | {value} |"


def holds(row: Record) -> bool:
    limit = TOLERANCE if "first" in row else LOGITS_TOLERANCE
    return "error" not in row and bool(row.get("difference", 0.0) <= limit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--ranks", type=int, choices=(2, 4, 8), default=2)
    parser.add_argument("--steps", type=int, default=5, help="N")
    parser.add_argument("--tiny", action="store_true", help="a very small shape, to try the script")
    parser.add_argument("--deadline", type=float, default=120.0, help="seconds a training may take")
    parser.add_argument("--out", type=Path, default=Path("out/layout_change.json"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Record] = []
    with tempfile.TemporaryDirectory(prefix="layout-change-") as name:
        folder = Path(name)
        runs = Runs(options, folder)
        try:
            for lora_rank in (None, 8):
                found = continued(runs, options.ranks, lora_rank)
                rows += found + exported(found, folder, lora_rank)
        finally:
            runs.close()
    facts = {"device": options.device, "ranks": options.ranks, "model": asdict(runs.job.model)}
    options.out.write_text(json.dumps({**facts, "rows": rows}, indent=1), encoding="utf-8")
    print("| training | layouts | largest difference |", "|---|---|---|", *map(show, rows), sep="\n")
    return int(not all(map(holds, rows)))


if __name__ == "__main__":
    sys.exit(main())
