"""Speed of cleaning beside datatrove's filters on the same documents in the same run, in process CPU time.

    python benchmarks/clean_speed.py ../shared/data

MB are 10^6 bytes of UTF-8 text. One core. The peer runs Gopher repetition and quality, C4 and FineWeb filters.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mmdata.clean.measure import measure
from mmdata.clean.pipeline import Cleaner
from mmdata.document import Document, Part

SETS = {
    "en": ["en_prose_0.jsonl", "en_prose_1.jsonl.gz"],
    "zh": ["zh_prose_0.jsonl", "zh_prose_1.jsonl.gz", "zh_medical.jsonl", "zh_legal.jsonl.gz"],
}


def texts(folder: Path, names: list[str]) -> list[str]:
    found = []
    for name in names:
        path = folder / name
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            found += [json.loads(line)["text"] for line in lines]
    return found


def best(function: Callable[[], object], repeats: int) -> float:
    """Seconds of CPU time of the fastest of `repeats` runs."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def peer(found: list[str]) -> Callable[[], object] | None:
    try:
        from datatrove.data import Document as PeerDocument
        from datatrove.pipeline import filters
    except ImportError:
        return None
    chain = [filters.GopherRepetitionFilter(), filters.GopherQualityFilter(), filters.C4QualityFilter(),
             filters.FineWebQualityFilter()]  # fmt: skip
    return lambda: [one.filter(PeerDocument(text=text, id="x")) for one in chain for text in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    for language, names in SETS.items():
        found = texts(options.folder, names)
        size = sum(len(text.encode()) for text in found) / 1e6
        cleaner = Cleaner("auto")
        documents = [Document("a", 0, i, None, {}, (Part("text", "text", t),)) for i, t in enumerate(found)]
        measure(found[:2])
        quick = cleaner.clean_documents(documents)
        touched = {d.line for d, e in zip(documents, quick.kept, strict=False) if d.text != e.text}
        untouched = [d for d in documents if d.line not in touched]
        small = sum(len(d.text.encode()) for d in untouched) / 1e6
        print(f"{language}: {size:.1f} MB, {len(found)} documents")
        print(f"  measuring pass              {size / best(partial(measure, found), 5):7.1f} MB/s")
        whole = size / best(partial(cleaner.clean_documents, documents), 5)
        print(f"  auto                        {whole:7.1f} MB/s")
        print(f"  auto, unchanged documents   {small / best(partial(cleaner.clean_documents, untouched), 5):7.1f} MB/s")
        run = None if options.no_peer else peer(found[::8])
        if run is not None:
            run_size = sum(len(text.encode()) for text in found[::8]) / 1e6
            rate = run_size / best(run, 1)
            print(f"  datatrove, four filters     {rate:7.2f} MB/s: auto is {whole / rate:.0f} x")


if __name__ == "__main__":
    main()
