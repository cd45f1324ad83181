"""What a run says of itself: the manifest beside each shard and the report beside them all."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mmdata.indexed.manifest import InputFacts, Manifest
from mmdata.jsonl import InputFile, LeftOut, total_bytes
from mmdata.pipeline.options import ConvertOptions
from mmdata.pipeline.outputs import PublishedShard
from mmdata.pipeline.places import input_names
from mmdata.report.build import ReportParts, RunReport, build_report
from mmdata.report.tally import Tally
from mmdata.tokenizer import LoadedTokenizer


@dataclass(slots=True)
class RunFacts:
    """What the account needs to know of a run. where: the tokenizer as the user named it. recipe: resolved, as JSON.

    left_out: what folders among the inputs hold beside them. setup_seconds: until work began, all processes averaged.
    """

    inputs: list[InputFile]
    prefix: str
    options: ConvertOptions
    where: Any
    tokenizer: LoadedTokenizer
    version: str
    workers: int
    executor: str
    recipe: Any = None
    chat_template: str | None = None
    started: float = field(default_factory=time.time)
    notices: list[str] = field(default_factory=list)
    left_out: Sequence[LeftOut] = ()
    setup_seconds: float = 0.0

    def count_loading(self, loaded: Sequence[float]) -> None:
        """Workers that were still loading when others began to work add their share of it to `setup_seconds`.

        loaded: when each worker had loaded, as time.time().
        """
        begun = self.started + self.setup_seconds
        self.setup_seconds += sum(max(at - begun, 0.0) for at in loaded) / self.workers

    def manifest(self, key: str, tally: Tally, inputs: Sequence[InputFacts]) -> Manifest:
        """The manifest of the shards of one JSON key, to be completed with what was written."""
        tokenizer = self.tokenizer
        counts = tally.to_json()
        del counts["seconds"]
        return Manifest(
            tokenizer_kind=tokenizer.kind, tokenizer_fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size, eod_id=tokenizer.eod_id if tokenizer.eod is not None else None,
            eod_appended=self.options.append_eod if self.chat_template is None else None, key=key,
            inputs=tuple(inputs), recipe=self.recipe, options=self.options.byte_options(), counts=counts,
            chat_template=self.chat_template,
        )  # fmt: skip

    def report(
        self, tally: Tally, inputs: Sequence[InputFacts], shards: Sequence[PublishedShard], stages: dict[str, Any]
    ) -> RunReport:
        """The report of the finished run."""
        parts = ReportParts(
            tally=tally,
            inputs=[
                {"number": number, "path": fact.path, "size": fact.size, "xxh3_128": fact.xxh3_128}
                for number, fact in enumerate(inputs)
            ],
            outputs=[_shard_record(shard) for shard in shards],
            options=self.options.byte_options(),
            tokenizer=self._tokenizer_record(),
            run=self._run_record(tally),
            stages=stages,
            left_out=[asdict(one) for one in self.left_out],
        )
        return RunReport(build_report(parts), tuple(self.notices))

    def _tokenizer_record(self) -> dict[str, Any]:
        tokenizer = self.tokenizer
        eod = None if tokenizer.eod is None else {"id": tokenizer.eod.id, "token": tokenizer.eod.token}
        return {
            "kind": tokenizer.kind, "fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size,
            "eod": eod,
        }  # fmt: skip

    def _run_record(self, tally: Tally) -> dict[str, Any]:
        seconds = time.time() - self.started
        return {
            "version": self.version, "workers": self.workers, "executor": self.executor,
            "engine": self.tokenizer.engine, "tokenizer": absolute_place(self.where),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
            "seconds": round(seconds, 3), "setup_seconds": round(self.setup_seconds, 3),
            "mb_per_second": round(tally.text_bytes / 1e6 / max(seconds, 1e-9), 2),
            "input_bytes": total_bytes(self.inputs), "output_prefix": os.path.abspath(self.prefix),
            "inputs": [os.path.abspath(source.path) for source in self.inputs], "notices": self.notices,
        }  # fmt: skip


def version() -> str:
    """Of this package, as manifests and ledgers hold it."""
    from mmdata import __version__

    return __version__


def input_facts(inputs: Sequence[InputFile], hashes: Sequence[str | None]) -> list[InputFacts]:
    """Name, size and hash of each input, as the manifest holds them."""
    return [
        InputFacts(name, os.path.getsize(source.path) if os.path.isfile(source.path) else None, digest)
        for source, name, digest in zip(inputs, input_names(inputs), hashes, strict=True)
    ]


def absolute_place(where: Any) -> str | list[str]:
    """The tokenizer's place, good from any folder; `NAME:FILE` keeps its name."""
    if not isinstance(where, (str, os.PathLike)):
        return [os.path.abspath(path) for path in where]
    name, colon, file = os.fspath(where).rpartition(":")
    if os.path.exists(where) or not colon or not os.path.exists(file):
        return os.path.abspath(where)
    return f"{name}:{os.path.abspath(file)}"


def _shard_record(shard: PublishedShard) -> dict[str, Any]:
    return {
        "prefix": shard.prefix, "key": shard.key, "split": shard.split, "sequences": shard.sequences,
        "documents": shard.documents, "tokens": shard.tokens,
    }  # fmt: skip
