"""Small shards for the tests of the format: literal bytes, builders, and ways to damage a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from mmdata.indexed import (
    IndexedDataset,
    InputFacts,
    Manifest,
    ShardSet,
    ShardWriter,
    encode_origins,
    read_manifest,
    write_manifest,
)

# The worked example of docs/shard-format.md: documents [1, 2, 3], [], [4 | 5] as uint16.
EXAMPLE_BIN = bytes.fromhex("0100 0200 0300 0400 0500")
EXAMPLE_IDX = bytes.fromhex(
    "4d4d49444944580000"
    + "0100000000000000"
    + "08"
    + "0300000000000000"
    + "0400000000000000"
    + "030000000100000001000000"
    + "000000000000000006000000000000000800000000000000"
    + "0000000000000000010000000000000001000000000000000300000000000000"
)
EOD = 9


def write_example(prefix: Path) -> Path:
    prefix.with_name(prefix.name + ".bin").write_bytes(EXAMPLE_BIN)
    prefix.with_name(prefix.name + ".idx").write_bytes(EXAMPLE_IDX)
    return prefix


def file(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)


def patch(path: Path, at: int, content: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + len(content)] = content
    path.write_bytes(bytes(data))


def contents(prefix: Path) -> list[list[int]]:
    return [sequence.tolist() for sequence in IndexedDataset(prefix)]


def plain_shard(prefix: Path, documents: list[list[int]], vocab_size: int = 1000) -> Path:
    with ShardWriter(prefix, vocab_size=vocab_size) as writer:
        for tokens in documents:
            writer.add_document(tokens)
    return prefix


def full_shard(
    prefix: Path,
    documents: list[list[int]],
    *,
    spans: list[list[int]] | None = None,
    path: str = "a.jsonl",
    fingerprint: str = "f" * 32,
    vocab_size: int = 1000,
    dtype: str | None = None,
) -> Path:
    """A shard as `convert` writes it: EOD at the end of each document, origins, manifest, and spans if given."""
    names = ["origin"] + (["loss_spans"] if spans is not None else [])
    with ShardSet(prefix, sidecars=names, vocab_size=vocab_size, dtype=dtype) as shard_set:
        for number, tokens in enumerate(documents):
            shard_set.main.add_document([*tokens, EOD])
            row = encode_origins([0], [number + 1], [0])
            shard_set.sidecars["origin"].add_document(row.ravel())
            if spans is not None:
                shard_set.sidecars["loss_spans"].add_document(spans[number], lengths=[len(spans[number])])
        shard_set.publish(
            Manifest(
                tokenizer_kind="test",
                tokenizer_fingerprint=fingerprint,
                vocab_size=vocab_size,
                eod_id=EOD,
                eod_appended=True,
                key="text",
                inputs=(InputFacts(path, 100, path.encode().hex().ljust(32, "0")[:32]),),
                recipe="none",
                options={"append_eod": True},
                counts={"read": len(documents)},
            )
        )
    return prefix


def random_documents(count: int, seed: int = 1, high: int = 900) -> list[list[int]]:
    """Documents of 1 to 40 tokens, none of them EOD."""
    generator = np.random.default_rng(seed)
    return [(generator.integers(EOD + 1, high, generator.integers(1, 40))).tolist() for _ in range(count)]


def change_manifest(prefix: Path, **changes: object) -> None:
    manifest = read_manifest(str(prefix))
    assert manifest is not None
    write_manifest(str(prefix), replace(manifest, **changes))  # type: ignore[arg-type]


def rewrite(prefix: Path, documents: list[list[int]]) -> None:
    """Other documents under an unchanged claim that EOD was appended."""
    manifest = read_manifest(str(prefix))
    assert manifest is not None
    with ShardWriter(prefix, vocab_size=1000, overwrite=True) as writer:
        for tokens in documents:
            writer.add_document(tokens, lengths=[len(tokens)])
        sealed = writer.close()
    facts = {"sequences": sealed.sequences, "documents": sealed.documents, "tokens": sealed.tokens}
    changed = replace(manifest, files={"bin": sealed.bin, "idx": sealed.idx}, loss="all", **facts)  # type: ignore[arg-type]
    write_manifest(str(prefix), changed)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
