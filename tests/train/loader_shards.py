"""A small corpus on disk for loader tests: two plain shards and a chat shard, with manifests and origins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from mmdata.indexed.durable import digest_file
from mmdata.indexed.manifest import InputFacts, Manifest, write_manifest
from mmdata.indexed.sidecars import encode_origins
from mmdata.indexed.writer import ShardWriter

VOCAB = 1000


def write_shard(prefix: Path, lengths: list[int], *, seed: int = 0, spans: bool = False, **changes: object) -> str:
    """Random tokens in documents of these lengths, with origin sidecar and manifest (`changes` replace its fields)."""
    rng = np.random.RandomState(seed)
    count = len(lengths)
    with ShardWriter(str(prefix), vocab_size=VOCAB) as writer:
        writer.add_documents(rng.randint(1, VOCAB, size=sum(lengths)), np.array(lengths))
    with ShardWriter(f"{prefix}_origin", dtype=np.int32) as writer:
        rows = encode_origins(np.zeros(count, int), np.arange(1, count + 1) * 10, np.zeros(count, int))
        writer.add_documents(rows.ravel(), np.full(count, 4))
    if spans:
        with ShardWriter(f"{prefix}_loss_spans", dtype=np.int32) as writer:
            flat = [value for length in lengths for value in (length // 2, length)]
            writer.add_documents(np.array(flat, np.int32), np.full(count, 2))
    files = {end: digest_file(f"{prefix}.{end}") for end in ("bin", "idx")}
    manifest = Manifest(
        tokenizer_kind="test", tokenizer_fingerprint="f" * 32, vocab_size=VOCAB, dtype="uint16", sequences=count,
        documents=count, tokens=sum(lengths), loss="spans" if spans else "all", files=files,
        inputs=(InputFacts("corpus.jsonl"),),
    )  # fmt: skip
    write_manifest(str(prefix), replace(manifest, **changes))  # type: ignore[arg-type]
    return str(prefix)


def write_corpus(folder: Path) -> dict[str, str]:
    """Prefixes by name: plain, more, chat."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(1)
    return {
        "plain": write_shard(folder / "plain", rng.randint(5, 60, size=80).tolist(), seed=1),
        "more": write_shard(folder / "more", rng.randint(5, 60, size=60).tolist(), seed=2),
        "chat": write_shard(folder / "chat", rng.randint(4, 30, size=90).tolist(), seed=3, spans=True),
    }
