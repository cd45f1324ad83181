"""Packs ten million seeded log-normal lengths, then the lengths of a real chat set, and prints seconds and fill.

    python benchmarks/pack_speed.py [--sequences N] [--capacity C] [--lengths FILE.npy]

CPU seconds of this process (one core), compilation excluded and printed apart. FILE.npy holds the lengths of a shard:
`numpy.save("lengths.npy", mmdata.IndexedDataset(PREFIX).sequence_lengths)`.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from mmdata.samples.pack import pack


def log_normal_lengths(count: int, seed: int = 20) -> np.ndarray:
    """Log-normal, median 300, sigma 1, clipped to 16..4096."""
    rng = np.random.Generator(np.random.PCG64(seed))
    return np.clip(np.exp(rng.normal(np.log(300), 1.0, count)), 16, 4096).astype(np.int64)


def measure(name: str, lengths: np.ndarray, capacity: int) -> None:
    """Pack once and print one row."""
    start = time.process_time()
    bins = pack(lengths, capacity)
    seconds = time.process_time() - start
    print(f"{name:<28} {len(lengths):>12,} {len(bins):>10,} {seconds:>9.2f} {bins.fill:>8.4%}")


def main() -> None:
    """Parse, warm up, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=10_000_000)
    parser.add_argument("--capacity", type=int, default=4096)
    parser.add_argument("--lengths", help="a .npy file of real lengths")
    options = parser.parse_args()
    start = time.process_time()
    pack([1, 2, 3], 8)
    print(f"compilation or cache load: {time.process_time() - start:.1f} s")
    print(f"{'lengths':<28} {'sequences':>12} {'bins':>10} {'CPU s':>9} {'fill':>8}")
    measure("log-normal, median 300", log_normal_lengths(options.sequences), options.capacity)
    if options.lengths:
        measure(options.lengths, np.load(options.lengths), options.capacity)
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
