"""How fast JSON lines become `.bin` + `.idx`, beside Megatron's way and a whole-file gigatoken run, in one run.

    python benchmarks/encode_speed.py ../shared/bench/mixed.jsonl.zst ../shared/tokenizers/qwen3 --limit-mb 95

Every contender is a process of its own on `cores` cores. Columns: `whole` is MB of text file for each second from start
to exit, tokenizer loading included; `rate` leaves loading out; `cpu rate` divides by processor seconds of the whole
process tree instead, loading left out, and is the one to compare while other programs run. `PSS` is the largest sum
of proportional set sizes over the tree, sampled every 0.2 s. All outputs must be the same bytes: exit code 1 if not.

Contenders: `mmdata` (the library: parse, encode, write), `mmdata tokenize` (the command, whole process only),
`mmdata hf` (the same library with engine huggingface), `megatron` (tools/preprocess_data.py's way: a pool of workers,
one Hugging Face `encode` for each document, megatron-core's builder in the parent), `gigatoken`
(tools/preprocess_data_fast.py's way: the whole file in memory, then one write). Needs Linux and the `dev` extra.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

EOD = "<|endoftext|>"
BLOCK_BYTES = 4 << 20


@dataclass
class Job:
    """What one contender gets: JSON lines with `text`, a Hugging Face folder, where to write, how many workers."""

    source: Path
    tokenizer: Path
    prefix: Path
    workers: int


@dataclass
class Phase:
    """Seconds and processor seconds spent before the first document."""

    wall: float
    cpu: float


def blocks(path: Path) -> Iterator[list[bytes]]:
    with path.open("rb") as file:
        while lines := file.readlines(BLOCK_BYTES):
            yield lines


# --- mmdata ---


def encode_lines(tokenizer: Any, options: Any, lines: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    import orjson

    from mmdata.document import Document, Part
    from mmdata.encode import encode_documents

    records = [orjson.loads(line) for line in lines]
    documents = [Document("", 0, 0, None, record, (Part("text", "text", record["text"]),)) for record in records]
    text = encode_documents(documents, tokenizer, options).keys["text"]
    return text.tokens, text.lengths


def start_worker(spec: Any, options: Any) -> None:
    start_worker.state = (spec.load(), options)  # type: ignore[attr-defined]


def encode_in_worker(lines: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    return encode_lines(*start_worker.state, lines)  # type: ignore[attr-defined]


def cpu_of_worker(_: int) -> float:
    time.sleep(0.2)  # so that every worker answers once
    return time.process_time()


def run_mmdata(job: Job, engine: str = "auto") -> Phase:
    from mmdata.encode import EncodeOptions
    from mmdata.indexed import ShardWriter
    from mmdata.tokenizer import load_tokenizer

    start = time.perf_counter()
    tokenizer = load_tokenizer(job.tokenizer, engine=engine)
    options = EncodeOptions(np.dtype(np.int32), eod_id=tokenizer.eod_id)
    if job.workers == 1:
        loaded = Phase(time.perf_counter() - start, time.process_time())
        with ShardWriter(job.prefix, vocab_size=tokenizer.vocab_size) as writer:
            for lines in blocks(job.source):
                writer.add_documents(*encode_lines(tokenizer, options, lines))
        return loaded
    spec, vocab_size = tokenizer.spec, tokenizer.vocab_size
    del tokenizer
    with multiprocessing.get_context("spawn").Pool(job.workers, start_worker, (spec, options)) as pool:
        worker_cpu = sum(pool.map(cpu_of_worker, range(job.workers), chunksize=1))
        loaded = Phase(time.perf_counter() - start, time.process_time() + worker_cpu)
        with ShardWriter(job.prefix, vocab_size=vocab_size) as writer:
            for arrays in pool.imap(encode_in_worker, blocks(job.source)):
                writer.add_documents(*arrays)
        pool.close()
        pool.join()
    return loaded


def run_command(job: Job) -> Phase:
    command = [str(Path(sys.executable).with_name("mmdata")), "tokenize", str(job.source), "-o", str(job.prefix)]
    command += ["--tokenizer", str(job.tokenizer), "--workers", str(job.workers), "--quiet"]
    subprocess.run(command, check=True)
    for suffix in (".bin", ".idx"):
        os.link(f"{job.prefix}_text_document{suffix}", f"{job.prefix}{suffix}")
    return Phase(0.0, 0.0)


# --- Megatron's two ways ---


def start_megatron_worker(path: str) -> None:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(path)
    start_megatron_worker.state = (tokenizer, tokenizer.token_to_id(EOD))  # type: ignore[attr-defined]


def encode_line_megatron(line: bytes) -> tuple[list[int], int]:
    tokenizer, eod = start_megatron_worker.state  # type: ignore[attr-defined]
    ids = tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids
    if ids:
        ids.append(eod)
    return ids, len(line)


def run_megatron(job: Job) -> Phase:
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    start = time.perf_counter()
    path = str(job.tokenizer / "tokenizer.json")
    with multiprocessing.get_context("spawn").Pool(job.workers, start_megatron_worker, (path,)) as pool:
        worker_cpu = sum(pool.map(cpu_of_worker, range(job.workers), chunksize=1))
        loaded = Phase(time.perf_counter() - start, time.process_time() + worker_cpu)
        builder = IndexedDatasetBuilder(f"{job.prefix}.bin", dtype=np.int32)
        with job.source.open("rb") as file:
            for ids, _ in pool.imap(encode_line_megatron, file, 32):
                builder.add_document(ids, [len(ids)])
        builder.finalize(f"{job.prefix}.idx")
        pool.close()
        pool.join()
    return loaded


def run_gigatoken(job: Job) -> Phase:
    import awkward
    import gigatoken
    import tokenizers
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    from mmdata.encode import append_eod

    start = time.perf_counter()
    tokenizer = gigatoken.Tokenizer(job.tokenizer / "tokenizer.json")
    eod = tokenizers.Tokenizer.from_file(str(job.tokenizer / "tokenizer.json")).token_to_id(EOD)
    loaded = Phase(time.perf_counter() - start, time.process_time())
    rows = tokenizer.encode_files(gigatoken.JsonlFileSource([str(job.source)], "text"), parallel=job.workers > 1)
    lengths = np.asarray(awkward.num(rows), np.int64)
    tokens = append_eod(np.asarray(awkward.flatten(rows)), lengths, eod, np.dtype(np.int32))
    builder = IndexedDatasetBuilder(f"{job.prefix}.bin", dtype=np.int32)
    builder.data_file.write(tokens.tobytes(order="C"))
    builder.sequence_lengths.extend((lengths + 1).tolist())
    builder.document_indices.extend(range(1, len(lengths) + 1))
    builder.finalize(f"{job.prefix}.idx")
    return loaded


CONTENDERS: dict[str, Callable[[Job], Phase]] = {
    "mmdata": run_mmdata,
    "mmdata tokenize": run_command,
    "mmdata hf": lambda job: run_mmdata(job, "huggingface"),
    "megatron": run_megatron,
    "gigatoken": run_gigatoken,
}

# --- measuring ---


def child(name: str, job: Job) -> None:
    loaded = CONTENDERS[name](job)
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(part.ru_utime + part.ru_stime for part in usage)
    print(json.dumps({"load": loaded.wall, "load_cpu": loaded.cpu, "cpu": cpu}))


def tree_pss(pid: int) -> float:
    """MiB of a process and all below it; a process that has just ended counts nothing."""
    total, waiting = 0.0, [pid]
    while waiting:
        current = waiting.pop()
        try:
            rollup = Path(f"/proc/{current}/smaps_rollup").read_text(encoding="ascii")
            total += next(int(line.split()[1]) for line in rollup.split("\n") if line.startswith("Pss:")) / 1024
            for task in Path(f"/proc/{current}/task").iterdir():
                waiting += map(int, (task / "children").read_text(encoding="ascii").split())
        except (OSError, StopIteration):
            continue
    return total


def measure(name: str, cores: int, job: Job, megabytes: float) -> dict[str, Any]:
    """Run one contender on `cores` cores and read off its figures."""
    command = [sys.executable, __file__, str(job.source), str(job.tokenizer), "--child", name]
    command += ["--prefix", str(job.prefix), "--workers", str(job.workers)]
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    # One thread a worker for everybody; rayon and BLAS would otherwise count the machine's cores.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": str(cores)}
    # An installed package has its bytecode; without this a checkout would be compiled at every start.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if name == "megatron":
        environment["TOKENIZERS_PARALLELISM"] = "false"
    start, peak = time.perf_counter(), 0.0
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, chosen)
    )
    with ThreadPoolExecutor(1) as reader:
        output = reader.submit(process.communicate)
        while process.poll() is None:
            peak = max(peak, tree_pss(process.pid))
            time.sleep(0.2)
        whole = time.perf_counter() - start
        said = output.result()[0].decode().strip().split("\n")[-1]
    if process.returncode:
        raise SystemExit(f"{name} failed with exit code {process.returncode}")
    answer = json.loads(said)
    digest = hashlib.sha256(Path(f"{job.prefix}.bin").read_bytes() + Path(f"{job.prefix}.idx").read_bytes())
    timed = answer["load"] > 0
    return {
        "contender": name,
        "cores": cores,
        "seconds": round(whole, 2),
        "whole": round(megabytes / whole, 1),
        "rate": round(megabytes / (whole - answer["load"]), 1) if timed else None,
        "cpu rate": round(megabytes / (answer["cpu"] - answer["load_cpu"]), 1) if timed else None,
        "whole cpu rate": round(megabytes / answer["cpu"], 1),
        "PSS": round(peak),
        "sha256": digest.hexdigest()[:12],
    }


def take(source: Path, limit: float, target: Path) -> float:
    """Copy whole lines of the source, unpacked, up to `limit` MB; the megabytes copied."""
    import zstandard

    size = 0
    with source.open("rb") as raw, target.open("wb") as out:
        stream: Any = zstandard.ZstdDecompressor().stream_reader(raw) if source.suffix == ".zst" else raw
        rest = b""
        while size < limit * 1e6 and (block := stream.read(BLOCK_BYTES)):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            size += out.write(whole + newline)
        if size < limit * 1e6:
            size += out.write(rest)
    return size / 1e6


def show(rows: list[dict[str, Any]]) -> None:
    names = list(rows[0])
    texts = [[("-" if row[name] is None else str(row[name])) for name in names] for row in rows]
    widths = [max(len(name), *(len(row[number]) for row in texts)) for number, name in enumerate(names)]
    for line in [names, *texts]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("tokenizer", type=Path, help="a Hugging Face folder")
    parser.add_argument("--limit-mb", type=float, default=95.0)
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="separated by commas")
    parser.add_argument("--cores", default="1,2")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    parser.add_argument("--prefix", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, Job(options.source, options.tokenizer, options.prefix, options.workers))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="encode_speed_"))
    try:
        source = folder / "input.jsonl"
        megabytes = take(options.source, options.limit_mb, source)
        rows = []
        for cores in map(int, options.cores.split(",")):
            for name in options.contenders.split(","):
                job = Job(source, options.tokenizer.resolve(), folder / f"{name.replace(' ', '_')}_{cores}", cores)
                rows.append(measure(name, cores, job, megabytes))
                print(json.dumps(rows[-1]), file=sys.stderr)
    finally:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps({"megabytes": megabytes, "rows": rows}))
    else:
        show(rows)
    return int(len({row["sha256"] for row in rows}) != 1)


if __name__ == "__main__":
    sys.exit(main())
