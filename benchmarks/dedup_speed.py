"""Deduplication beside datasketch 2.0 and rensa: speed, recall and precision on one core, in one run.

    python benchmarks/dedup_speed.py FILE.jsonl... [--truth DOCS.jsonl.gz] [--peer-mb 4] [--repeat 3] [--scale 0]

Speed: CPU seconds of this process from texts in memory to the list of dropped ones; languages by the field `lang`.
Every tool gets the same 5-word shingles (one Han character is one word), 128 permutations and threshold 0.8; the peers
cut words with one compiled regular expression and use their bulk calls and their own bands. Truth is exhaustive: exact
Jaccard of every pair of one language that shares a shingle. recall: of the pairs at or above 0.8 the share of which not
both are kept. false drops: dropped texts without any kept text at or above 0.8. --scale N: N synthetic documents,
scratch bytes and peak memory. Also: end to end from JSONL (bytes on disk, so that gzip files show less), a template
corpus against an all-unique one, an index.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import random
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

import mmdata.dedup
from mmdata.dedup import DedupParams, DedupRun, Signer, find_duplicates
from mmdata.dedup.plain import split_words
from mmdata.dedup.plan import Plan
from mmdata.dedup.signer import ShingleSets, Signed, compile_kernels

PARAMS = DedupParams()
Dropped = set[int]


def ours(texts: Sequence[str]) -> Dropped:
    return set(np.flatnonzero(find_duplicates(texts, PARAMS)[0] >= 0).tolist())


def shingled(text: str) -> list[str]:
    words = split_words(text)
    width = min(5, len(words))
    return list({" ".join(words[i : i + width]) for i in range(len(words) - width + 1)}) if words else []


def datasketch_lsh(texts: Sequence[str]) -> Dropped:
    from datasketch import MinHash, MinHashLSH

    tokens = ([shingle.encode("utf-8") for shingle in shingled(text)] for text in texts)
    lsh, dropped = MinHashLSH(threshold=0.8, num_perm=128), set()
    for number, sketch in enumerate(MinHash.generator(tokens, num_perm=128)):
        if lsh.query(sketch):
            dropped.add(number)
        else:
            lsh.insert(number, sketch)
    return dropped


def rensa_lsh(texts: Sequence[str]) -> Dropped:
    from rensa import RMinHash, RMinHashLSH

    dropped = set()
    lsh = RMinHashLSH(0.8, 128, 16)
    for number, text in enumerate(texts):
        sketch = RMinHash(128, 42)
        sketch.update(shingled(text))
        if lsh.query(sketch):
            dropped.add(number)
        else:
            lsh.insert(number, sketch)
    return dropped


def rensa_bulk(texts: Sequence[str]) -> Dropped:
    """Rensa's fastest: flags every member of a group, so only its speed is comparable."""
    from rensa import RMinHash, RMinHashLSH

    matrix = RMinHash.digest_matrix_from_token_sets([shingled(text) for text in texts], 128, 42)
    flags = RMinHashLSH(0.8, 128, 16).query_duplicate_flags_matrix_one_shot(matrix)
    return {number for number, flag in enumerate(flags) if flag}


TOOLS: dict[str, Callable[[Sequence[str]], Dropped]] = {
    "mmdata": ours, "datasketch": datasketch_lsh, "rensa": rensa_lsh, "rensa bulk": rensa_bulk,
}  # fmt: skip


def megabytes(texts: Sequence[str]) -> float:
    return sum(len(text.encode("utf-8")) for text in texts) / 1e6


def seconds(work: Callable[[], Any], repeat: int) -> float:
    best = float("inf")
    for _ in range(repeat):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return best


def read(path: Path) -> list[dict[str, Any]]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.split(b"\n") if line]


def similar_pairs(texts: Sequence[str], floor: float) -> dict[tuple[int, int], float]:
    """Every pair with exact Jaccard similarity at or above floor: an inverted index over all shingles, no sampling."""
    sets = Signer(PARAMS).sets(texts)
    sizes = np.diff(sets.starts)
    order = np.argsort(sets.values, kind="stable")
    owners = np.repeat(np.arange(len(texts)), sizes)[order]
    cuts = np.flatnonzero(np.diff(sets.values[order])) + 1
    shared: dict[tuple[int, int], int] = {}
    for group in np.split(owners, cuts):
        for pair in combinations(group.tolist(), 2) if len(group) > 1 else ():
            shared[pair] = shared.get(pair, 0) + 1
    found = {pair: count / (sizes[pair[0]] + sizes[pair[1]] - count) for pair, count in shared.items()}
    return {pair: float(similarity) for pair, similarity in found.items() if similarity >= floor}


def quality(texts: Sequence[str], tool: Callable[[Sequence[str]], Dropped]) -> str:
    pairs = similar_pairs(texts, PARAMS.threshold)
    dropped = tool(texts)

    def recall(chosen: list[tuple[int, int]]) -> str:
        caught = sum(a in dropped or b in dropped for a, b in chosen)
        return f"{caught / len(chosen):.4f} of {len(chosen)}" if chosen else "none"

    kept_partners: dict[int, bool] = {}
    for a, b in pairs:
        kept_partners[a] = kept_partners.get(a, False) or b not in dropped
        kept_partners[b] = kept_partners.get(b, False) or a not in dropped
    false = sum(not kept_partners.get(number, False) for number in dropped)
    low = [pair for pair, similarity in pairs.items() if similarity < 0.85]
    precision = 1 - false / max(len(dropped), 1)
    return f"recall {recall(list(pairs))}, in [.80, .85) {recall(low)}, precision {precision:.4f} ({false} false drops)"


def compare(texts: dict[str, list[str]], peer_mb: float, repeat: int) -> None:
    for language, all_texts in texts.items():
        sample, size = [], 0.0
        for text in all_texts:
            sample.append(text)
            size += len(text.encode("utf-8")) / 1e6
            if size >= peer_mb:
                break
        rates = {}
        for name, tool in TOOLS.items():
            chosen = all_texts if name == "mmdata" else sample
            rates[name] = megabytes(chosen) / seconds(lambda t=tool, c=chosen: t(c), repeat)
            print(f"{language}  {name:11} {rates[name]:8.1f} MB/s")
        for peer in list(TOOLS)[1:]:
            print(f"{language}  mmdata is {rates['mmdata'] / rates[peer]:.1f} x {peer}")


def end_to_end(paths: Sequence[Path], repeat: int) -> None:
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "unique.jsonl"
            took = seconds(lambda p=path, o=out: mmdata.dedup([p], o, overwrite=True), repeat)
            print(f"end to end {path.name}: {path.stat().st_size / 1e6 / took:.1f} MB/s")


def verdicts(count: int, unique: int, template: Sequence[str], rng: random.Random) -> list[str]:
    """Judgments of one form: a shared template and `unique` characters of their own."""
    han = [chr(0x4E00 + i) for i in range(3000)]
    return ["".join([*template, *rng.choices(han, k=unique)]) for _ in range(count)]


def template_case(count: int, repeat: int) -> None:
    rng = random.Random(3)
    han = [chr(0x4E00 + i) for i in range(3000)]
    shared = rng.choices(han, k=600)
    alike = verdicts(count, 100, shared, rng)
    unique = verdicts(count, 700, [], rng)
    similarity = 596 / (596 + 2 * 100)
    slow, fast = seconds(lambda: ours(alike), repeat), seconds(lambda: ours(unique), repeat)
    print(
        f"{count:,} verdicts sharing a template (Jaccard {similarity:.3f}): {len(ours(alike))} dropped, {slow:.2f} s; "
        f"all unique {fast:.2f} s; ratio {slow / fast:.2f}"
    )


def index_case(texts: Sequence[str], repeat: int) -> None:
    """Build an index of all but every hundredth text, then add those."""

    def write(path: Path, chosen: Sequence[str]) -> Path:
        path.write_bytes(b"".join(json.dumps({"text": t}, ensure_ascii=False).encode() + b"\n" for t in chosen))
        return path

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        most = write(root / "most.jsonl", [t for i, t in enumerate(texts) if i % 100])
        few = write(root / "few.jsonl", texts[::100])
        build, add = [], []
        for attempt in range(repeat):
            into = partial(mmdata.dedup, output=root / "out.jsonl", index=root / f"index{attempt}", overwrite=True)
            build.append(seconds(partial(into, [most]), 1))
            add.append(seconds(partial(into, [few]), 1))
        print(f"index: building {min(build):.2f} s, adding 1 % {min(add):.3f} s: {min(add) / min(build):.1%}")


class _NoText:
    """Shingle sets for the synthetic run: document d and d + total / 2 are equal for d below a tenth."""

    def __init__(self, total: int) -> None:
        self.half = total // 2

    def sizes(self, documents: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.full(len(documents), 8, dtype=np.int64)

    def load(self, documents: np.ndarray[Any, Any], slot: int) -> ShingleSets:
        values = np.where(documents >= self.half, documents - self.half, documents).astype(np.uint64)
        return ShingleSets(values, np.arange(len(values) + 1, dtype=np.int64))


class Watcher:
    """The most bytes a folder held at any time, looked at ten times a second: through every phase of deciding."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.most = folder, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while True:
            size = 0
            for path in self.folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    size += path.stat().st_size
            self.most = max(self.most, size)
            if self._over.wait(0.1):
                return

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._over.set()
        self._thread.join()


def scale_case(total: int) -> None:
    """Synthetic keys for `total` documents: one in ten of the second half repeats one of the first."""
    rng = np.random.default_rng(1)
    memory = 64 << 20
    plan = Plan(total, 0, PARAMS, memory)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with tempfile.TemporaryDirectory() as folder:
        run = DedupRun(PARAMS, Path(folder), memory)
        begun, batch = time.process_time(), 50_000
        for low in range(0, total, batch):
            count = min(batch, total - low)
            keys = rng.integers(0, 2**64, (count, PARAMS.bands), dtype=np.uint64)
            numbers = np.arange(low, low + count)
            twin = (numbers % (total // 2)) < total // 10
            keys[twin] = (numbers[twin, None] % (total // 2) * 64 + np.arange(PARAMS.bands)).astype(
                np.uint64
            ) * np.uint64(0x9E3779B97F4A7C15)
            run.add(Signed(keys, np.ones(count, dtype=np.bool_)))
        with Watcher(Path(folder)) as watcher:
            decisions = run.decide(_NoText(total))
        most = watcher.most
        took = time.process_time() - begun
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    print(f"{total:,} signatures: {decisions.dropped:,} dropped, {took:.0f} s CPU, scratch {most / total:.0f} bytes a "
          f"document seen (plan {plan.scratch_per_document}), memory grew {grown / 1e6:.0f} MB (plan "
          f"{plan.ram / 1e6:.0f} MB, of it {8 * total / 1e6:.0f} for documents)")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--peer-mb", type=float, default=4.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--template", type=int, default=20_000)
    parser.add_argument("--index", type=int, default=20_000, help="synthetic documents beside the files'; 0: no index")
    parser.add_argument("--scale", type=int, default=0)
    options = parser.parse_args()
    compile_kernels(PARAMS, print)
    ours(["a b c d e f", "a b c d e f"])
    if options.scale:
        scale_case(options.scale)  # before anything has made the peak that growth is counted from
    texts: dict[str, list[str]] = {}
    for path in options.files:
        for record in read(path):
            texts.setdefault(str(record.get("lang", "?"))[:2], []).append(record["text"])
    compare(texts, options.peer_mb, options.repeat)
    if options.truth:
        truth = [record["text"] for record in read(options.truth)]
        for name in ("mmdata", "datasketch", "rensa"):
            print(f"{name:11} {quality(truth, TOOLS[name])}")
    end_to_end(options.files, options.repeat)
    if options.template:
        template_case(options.template, options.repeat)
    if options.index:
        # Enough text that not the start of a run is measured.
        more = verdicts(options.index, 700, [], random.Random(4))
        index_case([*(text for group in texts.values() for text in group), *more], options.repeat)


if __name__ == "__main__":
    main()
