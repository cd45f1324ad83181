"""mmdata: JSONL in, clean deduplicated tokenized Megatron shards out.

Public names load on first use, so `import mmdata` stays far below 0.3 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmdata._lazy import exporter

if TYPE_CHECKING:
    from mmdata.chat.render import render_chat as render_chat
    from mmdata.clean import clean as clean
    from mmdata.convert import convert as convert
    from mmdata.dedup import decontaminate as decontaminate
    from mmdata.dedup import dedup as dedup
    from mmdata.dedup import sample as sample
    from mmdata.errors import MMDataError as MMDataError
    from mmdata.indexed.adopt import adopt_shard as adopt_shard
    from mmdata.indexed.manifest import Manifest as Manifest
    from mmdata.indexed.merge import merge_shards as merge_shards
    from mmdata.indexed.reader import IndexedDataset as IndexedDataset
    from mmdata.indexed.repair import repair_shard as repair_shard
    from mmdata.indexed.split import split_shard as split_shard
    from mmdata.indexed.verify import verify_shard as verify_shard
    from mmdata.indexed.writer import ShardWriter as ShardWriter
    from mmdata.report.build import RunReport as RunReport
    from mmdata.tokenizer import load_tokenizer as load_tokenizer

__version__ = "0.1.0"

_HOMES = {
    "IndexedDataset": "mmdata.indexed.reader",
    "Manifest": "mmdata.indexed.manifest",
    "ShardWriter": "mmdata.indexed.writer",
    "adopt_shard": "mmdata.indexed.adopt",
    "merge_shards": "mmdata.indexed.merge",
    "repair_shard": "mmdata.indexed.repair",
    "split_shard": "mmdata.indexed.split",
    "verify_shard": "mmdata.indexed.verify",
    "MMDataError": "mmdata.errors",
    "RunReport": "mmdata.report.build",
    "clean": "mmdata.clean",
    "convert": "mmdata.convert",
    "decontaminate": "mmdata.dedup",
    "dedup": "mmdata.dedup",
    "load_tokenizer": "mmdata.tokenizer",
    "render_chat": "mmdata.chat.render",
    "sample": "mmdata.dedup",
}

__all__ = sorted(_HOMES)

__getattr__ = exporter(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
