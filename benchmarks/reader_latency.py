"""Latency of reading shards beside megatron-core, in one process on one core.

    python benchmarks/reader_latency.py [--documents 1000000] [--folder DIR]

Prints a table: opening a shard, a random document (by Python and by numpy integers), a slice of 100 documents, a part
of one, copying a random sample of 4,097 tokens out of the mapped array, writing in bulk. Times are process CPU time,
the best of several rounds, so that other processes disturb them little. The second column needs megatron-core.
"""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mmdata.indexed import IndexedDataset, ShardWriter

ROUNDS = 5


def best(work: Callable[[], object], count: int) -> float:
    """Microseconds of CPU time for one of `count` items that `work` does, best of ROUNDS."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times) / count * 1e6


def loop(call: Callable[[Any], object], arguments: list[Any]) -> Callable[[], None]:
    def run() -> None:
        for argument in arguments:
            call(argument)

    return run


def megatron_dataset() -> Any:
    """megatron-core's reader, None where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("megatron.core.datasets.indexed_dataset")
        except ImportError:
            return None


def copy_samples(tokens: np.ndarray, starts: list[int]) -> Callable[[], None]:
    batch = np.empty(4097, np.int64)

    def run() -> None:
        for start in starts:
            batch[:] = tokens[start : start + 4097]

    return run


def measure(prefix: str, open_one: Callable[[], Any], documents: int) -> dict[str, float]:
    generator = np.random.default_rng(0)
    numbers = generator.integers(0, documents, 200_000)
    starts = [slice(int(n), int(n) + 100) for n in generator.integers(0, documents - 100, 2_000)]
    opened = open_one()
    return {
        "open, us": best(loop(lambda _: open_one(), [None] * 200), 200),
        "random document, us": best(loop(opened.__getitem__, numbers.tolist()), len(numbers)),
        "random document, numpy number, us": best(loop(opened.__getitem__, list(numbers)), len(numbers)),
        "slice of 100 documents, us": best(loop(opened.__getitem__, starts), len(starts)),
        "part of a document (get), us": best(loop(lambda n: opened.get(n, 0, 1), numbers[:50_000].tolist()), 50_000),
    }


def write_bulk(folder: Path, tokens: np.ndarray, lengths: np.ndarray) -> tuple[float, float]:
    """MB/s of tokens (int32, 4 bytes each) into a uint16 shard, and of `astype` plus `tofile` alone."""
    megabytes = tokens.nbytes / 1e6

    def ours() -> None:
        with ShardWriter(folder / "w", vocab_size=65_000, overwrite=True) as writer:
            writer.add_documents(tokens, lengths)

    def plain() -> None:
        tokens.astype(np.uint16).tofile(folder / "w.raw")

    return megabytes / (best(ours, 1) / 1e6), megabytes / (best(plain, 1) / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        generator = np.random.default_rng(1)
        lengths = generator.integers(1, 200, options.documents)
        tokens = generator.integers(0, 65_000, int(lengths.sum())).astype(np.int32)
        with ShardWriter(folder / "x", vocab_size=65_000) as writer:
            writer.add_documents(tokens, lengths)
        prefix = os.fspath(folder / "x")
        columns = {"mmdata": measure(prefix, lambda: IndexedDataset(prefix), options.documents)}
        theirs = megatron_dataset()
        if theirs is not None:
            columns["megatron-core"] = measure(prefix, lambda: theirs.IndexedDataset(prefix), options.documents)
        print(f"{options.documents:,} documents, {len(tokens):,} tokens, CPU time, best of {ROUNDS}")
        print(f"{'':36}" + "".join(f"{column:>16}" for column in columns))
        for row in columns["mmdata"]:
            print(f"{row:36}" + "".join(f"{column[row]:16.2f}" for column in columns.values()))
        mapped = IndexedDataset(prefix).tokens
        starts = generator.integers(0, len(mapped) - 4097, 20_000).tolist()
        print(f"{'bulk copy of 4,097 tokens, us':36}{best(copy_samples(mapped, starts), len(starts)):16.2f}")
        ours, plain = write_bulk(folder, tokens, lengths)
        print(f"{'write in bulk, MB/s of int32':36}{ours:16.0f}     (astype + tofile alone: {plain:.0f})")


if __name__ == "__main__":
    main()
