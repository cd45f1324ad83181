"""Times index building, blending, batch filling and cached start beside megatron-core in one run.

    python benchmarks/sample_index.py [--documents N] [--only index,blend,fill,start] [--corpora DIR --tokenizer DIR]

Times are process CPU seconds of one core; memory is growth of the peak resident set in a process of its own. The last
column is Megatron's time over ours. Builds about 300 MB of shards in a temporary folder for the last two tables.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mmdata.kernels import kernel

warnings.simplefilter("ignore")
SEQ_LENGTH = 4096


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = action()
    return time.process_time() - start, result


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def lengths_of(documents: int) -> np.ndarray:
    """Unaligned, as lengths lie in an index file."""
    raw = np.empty(2 + 4 * documents, np.uint8)
    view = raw[2:].view(np.int32)
    view[:] = np.random.RandomState(0).randint(1, 1000, size=documents)
    return view


def build_ours(documents: int, results: Any) -> None:
    from mmdata.samples.order import Cut, document_index, plan_epochs, sample_index, shuffle_index

    cut = Cut(SEQ_LENGTH)

    def build(lengths: np.ndarray) -> dict[str, float]:
        plan = plan_epochs(int(lengths.sum(dtype=np.int64)), None, cut)
        rng = np.random.RandomState(1234)
        shuffle, found = timed(lambda: document_index(range(len(lengths)), plan, rng))
        walk, samples = timed(lambda: sample_index(lengths, found, plan, cut))
        rest, order = timed(lambda: shuffle_index(plan, rng))
        checksum = int(samples.sum(dtype=np.int64)) ^ int(found[::1000].sum(dtype=np.int64)) ^ int(order[:1000].sum())
        return {"documents": shuffle, "samples": walk, "order": rest, "sum": checksum}

    lengths = lengths_of(documents)
    build(lengths[:1000])
    before = peak_mib()
    found = build(lengths)
    results.put(found | {"mib": peak_mib() - before})


def build_into_cache(documents: int, results: Any) -> None:
    """As GPTSamples with a cache_dir does: each array is written as soon as nothing needs it any more."""
    from mmdata.samples.cache import cached
    from mmdata.samples.order import Cut, index_arrays, plan_epochs

    cut = Cut(SEQ_LENGTH)

    def build(lengths: np.ndarray, folder: str) -> dict[str, Any]:
        plan = plan_epochs(int(lengths.sum(dtype=np.int64)), None, cut)
        return cached(folder, {}, lambda: index_arrays(lengths, range(len(lengths)), plan, cut, 1234))

    with tempfile.TemporaryDirectory() as small, tempfile.TemporaryDirectory() as folder:
        lengths = lengths_of(documents)
        build(lengths[:1000], small)
        before = peak_mib()
        spent, arrays = timed(lambda: build(lengths, folder))
        held = sum(array.nbytes for array in arrays.values()) / 2**20
        results.put({"mib": peak_mib() - before, "seconds": spent, "arrays": held})
        del arrays


def build_megatrons(documents: int, results: Any) -> None:
    from megatron.core.datasets import helpers
    from megatron.core.datasets.gpt_dataset import _build_document_index, _build_shuffle_index

    def build(lengths: np.ndarray) -> dict[str, float]:
        tokens = int(lengths.sum(dtype=np.int64))
        rng = np.random.RandomState(1234)
        numbers = np.arange(len(lengths), dtype=np.int32)
        shuffle, found = timed(lambda: _build_document_index(numbers, 1, rng, False))
        walk, samples = timed(
            lambda: helpers.build_sample_idx(lengths.copy(), found, SEQ_LENGTH, 1, tokens, True, True)
        )
        rest, order = timed(lambda: _build_shuffle_index(len(samples) - 1, len(samples) - 1, rng))
        checksum = int(samples.sum(dtype=np.int64)) ^ int(found[::1000].sum(dtype=np.int64)) ^ int(order[:1000].sum())
        return {"documents": shuffle, "samples": walk, "order": rest, "sum": checksum}

    lengths = lengths_of(documents)
    build(lengths[:1000])
    before = peak_mib()
    found = build(lengths)
    results.put(found | {"mib": peak_mib() - before})


def in_own_process(function: Callable[..., None], *arguments: Any) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=function, args=(*arguments, results))
    process.start()
    found: dict[str, float] = results.get(timeout=600)
    process.join()
    return found


def index_table(documents: int) -> None:
    ours = in_own_process(build_ours, documents)
    theirs = in_own_process(build_megatrons, documents)
    assert ours.pop("sum") == theirs.pop("sum"), "the indices differ"
    print(f"index of {documents:,} documents (mean 500 tokens), sequence {SEQ_LENGTH}")
    for name in ("documents", "samples", "order"):
        print(f"  {name:10} {ours[name]:8.3f} s  megatron {theirs[name]:8.3f} s  {theirs[name] / ours[name]:5.2f} x")
    total = [sum(found[name] for name in ("documents", "samples", "order")) for found in (ours, theirs)]
    print(f"  {'all':10} {total[0]:8.3f} s  megatron {total[1]:8.3f} s  {total[1] / total[0]:5.2f} x")
    kept = in_own_process(build_into_cache, documents)
    print(f"  memory     {ours['mib']:+8.1f} MiB megatron {theirs['mib']:+8.1f} MiB (arrays {kept['arrays']:.1f} MiB)")
    print(f"  with a cache folder {kept['seconds']:.3f} s and {kept['mib']:+.1f} MiB, writing and hashing included")


def blend_table(draws: int) -> None:
    from megatron.core.datasets import helpers

    from mmdata.samples.order import blend_index

    print(f"blend index of {draws:,} samples")
    for sets in (2, 3, 10, 100):
        weights = np.random.RandomState(sets).random_sample(sets)
        weights /= weights.sum()
        blend_index(weights, 10)
        ours, mine = min((timed(lambda w=weights: blend_index(w, draws)) for _ in range(3)), key=lambda pair: pair[0])
        arrays = np.zeros(draws, np.int16), np.zeros(draws, np.int64)
        theirs = min(
            timed(lambda w=weights, n=sets, a=arrays: helpers.build_blending_indices(*a, w.tolist(), n, draws, False))[
                0
            ]
            for _ in range(3)
        )
        assert np.array_equal(mine[0], arrays[0]) and np.array_equal(mine[1], arrays[1])
        print(f"  {sets:4} sets  {ours:8.3f} s  megatron {theirs:8.3f} s  {theirs / ours:5.2f} x")


@kernel
def copy_runs(places: Any, tokens: Any, size: int, out: Any) -> None:
    """Copies of `size` tokens from random places, batch after batch: what memory allows, with no index and no check."""
    for batch in range(len(places)):
        for run in range(places.shape[1]):
            source = tokens[places[batch, run] : places[batch, run] + size]
            target = out[run * size : run * size + size]
            for k in range(size):
                target[k] = source[k]


def synthetic(folder: Path) -> dict[str, list[str]]:
    """20 M random tokens in documents of about 500 or 20,000, in one shard and in 20, as uint16 and int32."""
    from mmdata.indexed.writer import ShardWriter

    made = {}
    for vocab_size, mean, shards in (
        (50_000, 500, 1), (50_000, 20_000, 1), (150_000, 500, 1), (150_000, 20_000, 1), (150_000, 100, 1),
        (150_000, 500, 20),
    ):  # fmt: skip
        rng = np.random.RandomState(0)
        prefixes = [str(folder / f"s{vocab_size}_{mean}_{shards}_{number}") for number in range(shards)]
        for prefix in prefixes:
            lengths = rng.randint(1, 2 * mean, size=20_000_000 // mean // shards)
            with ShardWriter(prefix, vocab_size=vocab_size) as writer:
                writer.add_documents(rng.randint(0, vocab_size, size=int(lengths.sum())), lengths)
        made[f"vocabulary {vocab_size:,}, {mean:,}-token documents, {shards} shards"] = prefixes
    return made


def converted(corpora: Path, tokenizer: Path, folder: Path) -> dict[str, list[str]]:
    """The corpora as shards: each file one, and all as one set."""
    from mmdata import convert

    made = {}
    for file in sorted({*corpora.glob("*prose*"), *corpora.glob("zh_*")}):
        prefix = folder / file.name.split(".")[0]
        convert(file, prefix, tokenizer, recipe="none", pii="off", dedup="none", workers=1)
        made[file.name.split(".")[0]] = [f"{prefix}_text_document"]
    return made | {"all of them": sorted({prefixes[0] for prefixes in made.values()})}


def fill_table(sets: dict[str, list[str]]) -> None:
    from mmdata.samples import GPTSamples

    print(f"samples of {SEQ_LENGTH} tokens copied into a preallocated batch of 64, warm pages")
    for name, prefixes in sets.items():
        samples = GPTSamples(prefixes, SEQ_LENGTH, None)
        out = np.zeros((64, SEQ_LENGTH + 1), samples.group.dtype)
        batches = [np.arange(start, start + 64) % len(samples) for start in range(0, max(len(samples), 640), 64)]
        tokens = np.concatenate([shard.tokens for shard in samples.group.shards])
        run = min(int(samples.group.lengths.mean()), SEQ_LENGTH)
        places = np.random.RandomState(1).randint(0, len(tokens) - run, size=(len(batches), 64 * SEQ_LENGTH // run))
        best = bound = 0.0
        for _ in range(7):
            spent, _ = timed(lambda b=batches, s=samples, o=out: [s.fill(indices, o) for indices in b])
            best = max(best, 64 * len(batches) / spent)
            spent, _ = timed(lambda p=places, t=tokens, n=run, o=out: copy_runs(p, t, n, o.reshape(-1)))
            bound = max(bound, places.size * run / SEQ_LENGTH / spent)
        facts = f"{samples.group.dtype.name}, {len(tokens) / 1e6:.1f} M tokens, {run:,} a run"
        print(f"  {name} ({facts}): {best:,.0f} samples/s a core, bare copies of such runs {bound:,.0f}")


def start_table(folder: Path, shards: int) -> None:
    from mmdata.indexed.writer import ShardWriter
    from mmdata.samples.entries import resolve
    from mmdata.samples.mix import start_mix
    from mmdata.samples.mix_plan import MixOptions

    rng = np.random.RandomState(0)
    entries = []
    for number in range(shards):
        prefix = str(folder / f"part{number:04}")
        lengths = rng.randint(1, 200, size=2000)
        with ShardWriter(prefix, vocab_size=50_000) as writer:
            writer.add_documents(rng.randint(0, 50_000, size=int(lengths.sum())), lengths)
        entries.append(resolve(prefix, 1.0 + number % 7))
    options = MixOptions(SEQ_LENGTH, cache_dir=folder / "cache")
    print(f"blend of {shards} shards of 2,000 documents, 1 M samples: open, build or map, first sample")
    for name in ("built", "cached"):
        begin = time.perf_counter()
        spent, _ = timed(lambda: start_mix(entries, 1_000_000, options).samples[0])
        print(f"  {name:7} {spent:6.2f} s CPU, {time.perf_counter() - begin:6.2f} s wall")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--draws", type=int, default=10_000_000)
    parser.add_argument("--shards", type=int, default=500)
    parser.add_argument("--only", default="index,blend,fill,start")
    parser.add_argument("--corpora", type=Path, help="a folder of text files to convert and fill batches from")
    parser.add_argument("--tokenizer", type=Path)
    options = parser.parse_args()
    chosen = options.only.split(",")
    if "index" in chosen:
        index_table(options.documents)
    if "blend" in chosen:
        blend_table(options.draws)
    with tempfile.TemporaryDirectory() as folder:
        if "fill" in chosen:
            fill_table(synthetic(Path(folder)))
            if options.corpora:
                fill_table(converted(options.corpora, options.tokenizer, Path(folder)))
        if "start" in chosen:
            start_table(Path(folder), options.shards)


if __name__ == "__main__":
    main()
