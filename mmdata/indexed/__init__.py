"""The shard format: writing, reading, merging, splitting and verifying `.bin` + `.idx` pairs (docs/shard-format.md)."""

from mmdata.indexed.adopt import adopt_shard
from mmdata.indexed.cutter import SplitPart
from mmdata.indexed.durable import FileDigest
from mmdata.indexed.manifest import InputFacts, Manifest, read_manifest, write_manifest
from mmdata.indexed.merge import MergeResult, merge_shards
from mmdata.indexed.publish import SealedShard, publish_shard
from mmdata.indexed.reader import IndexedDataset
from mmdata.indexed.repair import RepairResult, repair_shard
from mmdata.indexed.shardset import ShardSet
from mmdata.indexed.sidecars import Origin, encode_origins
from mmdata.indexed.split import split_of, split_shard
from mmdata.indexed.verify import Finding, VerifyResult, check_before_training, verify_shard
from mmdata.indexed.writer import ShardWriter

__all__ = [
    "FileDigest",
    "Finding",
    "IndexedDataset",
    "InputFacts",
    "Manifest",
    "MergeResult",
    "Origin",
    "RepairResult",
    "SealedShard",
    "ShardSet",
    "ShardWriter",
    "SplitPart",
    "VerifyResult",
    "adopt_shard",
    "check_before_training",
    "encode_origins",
    "merge_shards",
    "publish_shard",
    "read_manifest",
    "repair_shard",
    "split_of",
    "split_shard",
    "verify_shard",
    "write_manifest",
]
