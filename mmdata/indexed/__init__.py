"""The shard format: writing, reading, merging, splitting and verifying `.bin` + `.idx` pairs (docs/shard-format.md)."""

from mmdata.indexed.durable import FileDigest
from mmdata.indexed.manifest import InputFacts, Manifest, read_manifest, write_manifest
from mmdata.indexed.publish import SealedShard, publish_shard
from mmdata.indexed.reader import IndexedDataset
from mmdata.indexed.sidecars import Origin, encode_origins
from mmdata.indexed.writer import ShardWriter

__all__ = [
    "FileDigest",
    "IndexedDataset",
    "InputFacts",
    "Manifest",
    "Origin",
    "SealedShard",
    "ShardWriter",
    "encode_origins",
    "publish_shard",
    "read_manifest",
    "write_manifest",
]
