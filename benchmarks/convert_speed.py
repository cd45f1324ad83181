"""How fast the whole pipeline is: clean, deduplicate, tokenize and write, on one core and on two.

    python benchmarks/convert_speed.py ../shared/bench/mixed.jsonl.zst ../shared/tokenizers/qwen3 --workers 1,2

Runs `mmdata convert` as a process of its own for each number of workers, with the default recipe and MinHash, pinned
to as many cores. `whole` is MB of text file for each second from start to exit; `rate` leaves out what happens before
the first record (loading the tokenizer, its self-check, kernels; a worker that still loads when another begins counts
by its share); `cpu rate` divides by the processor seconds of all stages, deciding among them. The outputs must be the
same bytes for every number of workers. No peer does all of this: each stage stands beside its own in encode_speed.py,
clean_speed.py and dedup_speed.py. Needs Linux.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from encode_speed import take, tree_pss


def run(source: Path, tokenizer: Path, prefix: Path, workers: int, extra: list[str]) -> dict[str, Any]:
    """One conversion: seconds, peak PSS of the process tree in MiB, and the report's `run`."""
    command = [
        sys.executable, "-m", "mmdata", "convert", str(source), "-o", str(prefix), "--tokenizer", str(tokenizer),
        "--workers", str(workers), "--quiet", "--overwrite", *extra,
    ]  # fmt: skip
    cores = sorted(os.sched_getaffinity(0))[:workers]
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    peak = 0.0
    done = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(1.0):  # reading the maps of a process takes its memory lock: more often slows it
            peak = max(peak, tree_pss(process.pid))

    sampler = threading.Thread(target=sample)
    sampler.start()
    code = process.wait()
    seconds = time.monotonic() - begun
    done.set()
    sampler.join()
    if code != 0:
        raise SystemExit(f"mmdata convert ended with {code}")
    report = json.loads(Path(f"{prefix}_report.json").read_text(encoding="utf-8"))
    return {"workers": workers, "seconds": seconds, "pss": peak, "run": report["run"], "records": report["records"]}


def digest(prefix: Path) -> str:
    """One hash of every shard file of a run."""
    state = hashlib.sha256()
    for path in sorted(prefix.parent.glob(f"{prefix.name}_text_document*")):
        state.update(path.read_bytes())
    return state.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--limit-mb", type=float, default=95.1)
    parser.add_argument("--convert-options", default="", help="passed on, such as '--dedup none'")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source.jsonl"
        megabytes = take(options.source, options.limit_mb, source)
        hashes = set()
        for number, workers in enumerate(int(item) for item in options.workers.split(",")):
            prefix = Path(scratch) / str(number) / "out"  # to replace an output is to free the pages of the old one
            row = run(source, options.tokenizer, prefix, workers, options.convert_options.split())
            working = row["run"]["seconds"] - row["run"]["setup_seconds"]
            stages = {name: value for name, value in row["run"]["stage_seconds"].items() if "." not in name}
            row |= {
                "whole": megabytes / row["seconds"], "rate": megabytes / working,
                "cpu_rate": megabytes / sum(stages.values()), "stages": stages,
            }  # fmt: skip
            hashes.add(digest(prefix))
            rows.append(row)
    if options.json:
        print(json.dumps(rows))
    print(f"{megabytes:.1f} MB, {rows[0]['records']['read']:,} records")
    head = f"{'workers':>7} {'seconds':>8} {'whole MB/s':>11} {'rate MB/s':>10} {'cpu MB/s':>9} {'PSS MiB':>8}"
    print(f"{head}  stages (s)")
    for row in rows:
        stages = ", ".join(f"{name} {value:.2f}" for name, value in row["stages"].items())
        print(
            f"{row['workers']:>7} {row['seconds']:>8.2f} {row['whole']:>11.1f} {row['rate']:>10.1f} "
            f"{row['cpu_rate']:>9.1f} {row['pss']:>8.0f}  {stages}"
        )
    print("outputs equal" if len(hashes) == 1 else "OUTPUTS DIFFER")
    return 0 if len(hashes) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
