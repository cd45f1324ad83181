"""One process trains and resumes on a GPU with the code that trains on the CPU: near its loss, resumed to the bit.

    python benchmarks/gpu_training.py --out out/gpu_training.json
    python benchmarks/gpu_training.py --tiny --device cpu --out out/gpu_training.json

Shards of seeded documents are written here, and `mmdata_train.finetune` trains on them: two shapes (stories260K's, and
one of about 50 million weights) for 30 steps in fp32, bf16 and fp16. Each step's loss is compared with the same run in
fp32 on the CPU; TOLERANCES says how near it must be. Then, in deterministic mode and every precision, half of the
steps, another process that continues from the checkpoint, and the other half must give the losses, norms, weights and
moments of the straight run, bit for bit. Exit code 1 if anything does not hold. Needs no tokenizer and no download. A
few minutes, most of them the 50M shape on the CPU.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

import mmdata
from mmdata_train.config import OutputConfig, TrainConfig, TrainingConfig
from mmdata_train.data_config import DataConfig, DataEntry, LoadingConfig
from mmdata_train.errors import RankError
from mmdata_train.launch import DeviceType, RankPool
from mmdata_train.model.config import ModelConfig

Record = dict[str, Any]
Precision = Literal["fp32", "bf16", "fp16"]
TOLERANCES: dict[Precision, float] = {"fp32": 1e-3, "bf16": 2e-2, "fp16": 5e-3}
"""Largest relative difference of a step's loss from fp32 on the CPU. Rounding differs in the first step by a unit of
the format (2^-24, 2^-8, 2^-11 relative) averaged over tokens, and grows with the updates, which Adam takes by sign
while its moments are young.
"""


@dataclass(frozen=True, slots=True)
class Job:
    """One shape and its batch. tokens: of the corpus."""

    name: str
    model: ModelConfig
    seq_length: int
    micro_batch: int
    global_batch: int
    lr: float
    tokens: int = 200_000


STORIES = ModelConfig(
    vocab_size=512, hidden_size=64, num_layers=5, num_heads=8, num_kv_heads=4, intermediate_size=172,
    max_positions=512, tie_embeddings=True,
)  # fmt: skip
FIFTY = ModelConfig(
    vocab_size=32000, hidden_size=512, num_layers=10, num_heads=8, num_kv_heads=4, intermediate_size=1408,
    max_positions=512, tie_embeddings=True,
)  # fmt: skip
TINY = replace(STORIES, hidden_size=32, num_layers=2, vocab_size=128)
JOBS = (
    Job("stories260K", STORIES, 256, 4, 16, 3e-3),
    Job("50M", FIFTY, 256, 2, 4, 3e-4),
)
TINY_JOBS = (Job("tiny", TINY, 32, 2, 4, 3e-3, 20_000),)


def write_shard(folder: Path, job: Job) -> str:
    """Documents of walks through the vocabulary, so that there is something to learn; the prefix."""
    generator = np.random.default_rng(5)
    prefix, vocab = folder / f"{job.name}_text_document", job.model.vocab_size
    with mmdata.ShardWriter(prefix, vocab_size=vocab) as writer:
        while writer.tokens < job.tokens:
            length, stride = int(generator.integers(20, 400)), int(generator.integers(1, 8))
            noise = generator.integers(0, 2, length).cumsum()
            start = int(generator.integers(1, vocab))
            writer.add_document((start + stride * np.arange(length) + noise) % (vocab - 1) + 1)
    return str(prefix)


def train(config: TrainConfig) -> Record:
    """Run one training in this process's group: its curve and the digest of its last checkpoint."""
    import torch

    from mmdata_train import finetune

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    finetune(config)
    seconds = time.perf_counter() - began
    gc.collect()  # an engine is full of cycles; until they are gone its groups' threads wake 100 times a second
    folder = Path(config.output.dir)
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
    steps = [record for line in lines if (record := json.loads(line))["kind"] == "train"]
    return {
        "losses": [record["loss"] for record in steps],
        "norms": [record["grad_norm"] for record in steps],
        "skipped": sum(bool(record["skipped"]) for record in steps),
        "tokens_per_second": steps[-1]["tokens_per_second"],
        "digest": checkpoint_digest(folder / "checkpoints"),
        "seconds": round(seconds, 1),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "torch": torch.__version__,
    }


def checkpoint_digest(folder: Path) -> str:
    """sha256 of every weight and moment of the last checkpoint, by name."""
    import torch

    from mmdata_train.checkpoint_format import load_tensors, read_index
    from mmdata_train.run_folder import latest_checkpoint

    found = latest_checkpoint(folder)
    assert found is not None, f"no checkpoint in {folder}"
    index: dict[str, Any] = dict(read_index(found).state_dict_metadata)
    tensors = {name: torch.empty(index[name].size, dtype=index[name].properties.dtype) for name in sorted(index)}
    load_tensors(dict(tensors), found, no_dist=True)
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(name.encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else repr(tensor).encode())
    return digest.hexdigest()


@dataclass
class Bench:
    """Runs jobs; a process for each purpose, since determinism is a switch of the process."""

    device: DeviceType
    steps: int
    folder: Path
    threads: int
    deadline_s: float
    pools: dict[str, RankPool] = field(default_factory=dict)

    def config(self, job: Job, prefix: str, precision: Precision, name: str) -> TrainConfig:
        return TrainConfig(
            model=job.model,
            data=DataConfig(
                train=(DataEntry(path=prefix),), seq_length=job.seq_length, reset_attention=True,
                loading=LoadingConfig(workers=0), cache_dir=self.folder / "cache",
            ),
            train=TrainingConfig(
                micro_batch_size=job.micro_batch, global_batch_size=job.global_batch, steps=self.steps, lr=job.lr,
                lr_schedule="constant", warmup_steps=self.steps // 6, precision=precision, initial_loss_scale=4096.0,
                deterministic=name in ("straight", "resumed"),
            ),
            output=OutputConfig(dir=self.folder / f"{job.name}-{precision}-{name}"),
        )  # fmt: skip

    def run(self, purpose: str, config: TrainConfig, device: DeviceType | None = None) -> Record:
        """A training in the process that serves the purpose."""
        if purpose not in self.pools:
            self.pools[purpose] = RankPool(1, self.deadline_s, device or self.device, threads=self.threads)
        record: Record = self.pools[purpose].run(train, config)[0]
        return record

    def close(self) -> None:
        for pool in self.pools.values():
            pool.close()

    def compare(self, job: Job, precision: Precision, prefix: str, reference: Record) -> Record:
        """One row: the device's run against the CPU's."""
        plain = self.run("plain", self.config(job, prefix, precision, "plain"))
        pairs = list(zip(plain["losses"], reference["losses"], strict=True))
        apart = [abs(ours - theirs) / theirs for ours, theirs in pairs]
        # fp16 may skip steps while it searches for its scale; the curve is another one then.
        near = max(apart) <= TOLERANCES[precision] and not plain["skipped"]
        return {
            "job": job.name, "precision": precision, "first_loss": plain["losses"][0], "last_loss": plain["losses"][-1],
            "cpu_last_loss": reference["losses"][-1], "difference": max(apart), "difference_first": apart[0],
            "tolerance": TOLERANCES[precision], "near": near, "falls": plain["losses"][-1] < plain["losses"][0],
            "run": plain,
        }  # fmt: skip

    def resume(self, job: Job, precision: Precision, prefix: str) -> Record:
        """N + resume + N against 2N, in deterministic mode; another process continues."""
        straight = self.run("straight", self.config(job, prefix, precision, "straight"))
        config = self.config(job, prefix, precision, "resumed")
        first = replace(config, train=replace(config.train, steps=self.steps // 2))
        self.run("straight", first)
        resumed = self.run("resumed", config)
        return {
            "same_curve": straight["losses"] == resumed["losses"] and straight["norms"] == resumed["norms"],
            "same_state": straight["digest"] == resumed["digest"],
            "straight": straight,
            "resumed": resumed,
        }


def measure(bench: Bench, jobs: tuple[Job, ...], precisions: list[Precision]) -> list[Record]:
    rows = []
    for job in jobs:
        prefix = write_shard(bench.folder, job)
        reference = bench.run("reference", bench.config(job, prefix, "fp32", "reference"), "cpu")
        print(f"{job.name}: fp32 on the CPU, {reference['seconds']} s", flush=True)
        for precision in precisions:
            try:
                row = {**bench.compare(job, precision, prefix, reference), **bench.resume(job, precision, prefix)}
            except RankError as error:
                row = {"job": job.name, "precision": precision, "error": str(error)[-2000:]}
            row["reference"] = reference
            rows.append(row)
            print(table_row(row), flush=True)
    return rows


def holds(row: Record) -> bool:
    return "error" not in row and all(row[name] for name in ("near", "falls", "same_curve", "same_state"))


HEAD = (
    "| shape | precision | first loss | last loss | last loss, CPU fp32 | largest difference | tolerance"
    " | N + N = 2N: curve, state | tokens/s |\n" + "|" + "---|" * 9
)


def table_row(row: Record) -> str:
    if "error" in row:
        return f"| {row['job']} | {row['precision']} | failed: {row['error'].rstrip().split(chr(10))[-1][:150]} |"
    same = f"{'equal' if row['same_curve'] else 'DIFFERS'}, {'equal' if row['same_state'] else 'DIFFERS'}"
    values = [
        row["job"], row["precision"], f"{row['first_loss']:.5f}", f"{row['last_loss']:.5f}",
        f"{row['cpu_last_loss']:.5f}", f"{row['difference']:.1e}" + ("" if row["near"] else " TOO FAR"),
        f"{row['tolerance']:.0e}", same, f"{row['run']['tokens_per_second']:,.0f}",
    ]  # fmt: skip
    return "| " + " | ".join(values) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--precision", choices=tuple(TOLERANCES), nargs="+", default=list(TOLERANCES))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=8, help="of the CPU")
    parser.add_argument("--deadline", type=float, default=240.0, help="seconds a training may take")
    parser.add_argument("--tiny", action="store_true", help="one very small shape, to try the script")
    parser.add_argument("--out", type=Path, default=Path("out/gpu_training.json"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-training-") as folder:
        bench = Bench(options.device, options.steps, Path(folder), options.threads, options.deadline)
        try:
            rows = measure(bench, TINY_JOBS if options.tiny else JOBS, options.precision)
        finally:
            bench.close()
    options.out.write_text(json.dumps({"steps": options.steps, "rows": rows}, indent=1), encoding="utf-8")
    print(HEAD, *map(table_row, rows), sep="\n")
    return int(not all(holds(row) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
