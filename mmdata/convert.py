"""The one-command pipeline: files of records in, verified Megatron shards and a full account out.

    report = mmdata.convert(["corpus/"], "out/corpus", "tokenizers/qwen3", recipe="auto", workers=8)

The stages are described in docs/architecture.md; this file only puts them in order. The work folder `PREFIX.work`
holds everything unfinished: after a kill, the same call goes on from there to the same bytes.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from mmdata._callable import make_callable
from mmdata.encode import EncodeOptions
from mmdata.errors import (
    InputChangedError,
    InputError,
    LedgerDamagedError,
    LedgerMismatchError,
    NotOfferedError,
    UsageError,
)
from mmdata.indexed.durable import digest_file, write_durably
from mmdata.indexed.layout import dtype_for_vocabulary
from mmdata.indexed.manifest import InputFacts, Manifest, canonical_json
from mmdata.indexed.split import SPLIT_NAMES, split_shard
from mmdata.jsonl import InputFile, ReadOptions, find_inputs, read_blocks, stat_inputs, total_bytes
from mmdata.pipeline.driver import Consumed, RejectPolicy, RunTools, Source, encode_inputs, refuse_nothing
from mmdata.pipeline.options import ConvertOptions
from mmdata.pipeline.outputs import OutputPlan, PublishedShard
from mmdata.pipeline.places import changed_inputs, check_places, input_names, outputs_of, remove_stale
from mmdata.pipeline.work import Stages
from mmdata.records import RecordOptions, encoding_hint, parse_block
from mmdata.report.build import ReportParts, RunReport, build_report
from mmdata.run.executor import make_executor
from mmdata.run.ledger import Ledger
from mmdata.run.progress import Progress, SilentProgress
from mmdata.tokenizer import LoadedTokenizer, load_tokenizer

SAMPLE_BYTES = 1 << 18  # of the first input, for the tokenizer's self-check


@dataclass(slots=True, frozen=True, kw_only=True)
class RunOptions:
    """How a run is carried out; none of it can change a byte of the result.

    workers: processes, None for one a core. block_bytes and block_records: what is handed to a worker at once.
    commit_seconds: how much work a kill may cost. notice: called with what the user should know.
    """

    workers: int | None = 1
    executor: str = "local"
    shard: str | None = None
    overwrite: bool = False
    block_bytes: int = 4 << 20
    block_records: int | None = None
    commit_seconds: float = 10.0
    progress: Progress | None = None
    notice: Callable[[str], None] = lambda text: None
    special_tokens: str | None = None
    engine: str = "auto"


_RUN_FIELDS = set(RunOptions.__dataclass_fields__)


def convert(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output_prefix: str | os.PathLike[str],
    tokenizer: Any,
    **options: Any,
) -> RunReport:
    """Turn files of records into Megatron shards at `output_prefix`.

    inputs: files, folders, patterns or `-`. tokenizer: what load_tokenizer takes. options: the fields of
    ConvertOptions (what is made) and RunOptions (how). Returns the report that is also written beside the shards.
    Raises UsageError, InputError, OutputError, TokenizerError, RunError and their kin; nothing is left at the final
    names then.
    """
    return _prepare(inputs, output_prefix, tokenizer, options).execute()


def plan(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output_prefix: str | os.PathLike[str],
    tokenizer: Any,
    **options: Any,
) -> dict[str, Any]:
    """What `convert` would do with the same arguments, after all its checks: JSON values, `lines` for a person.

    Writes nothing. Raises as `convert` does before its first record.
    """
    return _prepare(inputs, output_prefix, tokenizer, options).describe()


def _prepare(inputs: Any, output_prefix: Any, tokenizer: Any, options: dict[str, Any]) -> _Conversion:
    known = _RUN_FIELDS | set(ConvertOptions.__dataclass_fields__)
    unknown = sorted(options.keys() - known)
    if unknown:
        near = get_close_matches(unknown[0], sorted(known), n=1, cutoff=0.0)[0]
        raise UsageError(f"convert has no option {unknown[0]!r}; did you mean {near!r}?")
    run = RunOptions(**{name: value for name, value in options.items() if name in _RUN_FIELDS})
    made = ConvertOptions(**{name: value for name, value in options.items() if name not in _RUN_FIELDS})
    arguments = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
    return _Conversion(arguments, os.fspath(output_prefix), tokenizer, made, run)


class _Conversion:
    """One call of convert, in the order of its methods."""

    def __init__(
        self, arguments: list[Any], prefix: str, tokenizer: Any, options: ConvertOptions, run: RunOptions
    ) -> None:
        self._started = time.time()
        _refuse_not_offered(options)
        self._prefix, self._options, self._run = prefix, options, run
        self._work_dir = prefix + ".work"
        self._executor = make_executor(run.executor, run.workers, run.shard)
        self._inputs = find_inputs(arguments)
        check_places(self._inputs, prefix, options.json_keys, run.overwrite or self._was_publishing())
        self._read = ReadOptions(options.encoding, options.txt_document, run.block_bytes, run.block_records)
        self._records = RecordOptions(options.json_keys)
        self._notices: list[str] = []
        self._where = tokenizer
        self._tokenizer = self._load_tokenizer(tokenizer)

    def execute(self) -> RunReport:
        facts = stat_inputs(self._inputs)
        with self._open_ledger(facts) as ledger, ThreadPoolExecutor(1) as background:
            hashes = background.submit(_hash_inputs, self._inputs)
            progress = self._run.progress or SilentProgress()
            tools = RunTools(self._executor, ledger, progress, self._run.commit_seconds)
            consumed = Consumed.start(self._plan(), self._prefix, ledger.last())
            try:
                if (ledger.last() or {}).get("phase") != "publish":
                    self._encode(consumed, tools, facts)
                report = self._publish(consumed, progress, hashes)
            except BaseException as error:
                consumed.suspend()
                if isinstance(error, (InputError, UsageError)):
                    self._forget()
                raise
            finally:
                progress.close()
            ledger.finish()
        shutil.rmtree(self._work_dir, ignore_errors=True)
        return report

    def describe(self) -> dict[str, Any]:
        """Inputs, outputs and options, nothing touched."""
        output = self._plan()
        shards = [output.shard_prefix(split, 0, key) for split in output.splits() for key in output.keys]
        size = total_bytes(self._inputs)
        lines = [
            f"{len(self._inputs)} inputs" + ("" if size is None else f", {size:,} bytes on disk"),
            *(f"  {source.path} ({source.kind}, {source.compression})" for source in self._inputs),
            f"would write {', '.join(shards)} as {self._dtype().name}" + (", ..." if output.max_tokens else ""),
        ]
        return {
            "inputs": [source.path for source in self._inputs], "input_bytes": size, "outputs": shards,
            "options": self._options.byte_options(), "notices": self._notices, "lines": lines,
        }  # fmt: skip

    def _was_publishing(self) -> bool:
        """Whether an unfinished run of this prefix exists, whose own files may be at their names already."""
        return os.path.exists(os.path.join(self._work_dir, "ledger.jsonl"))

    def _load_tokenizer(self, where: Any) -> LoadedTokenizer:
        options = self._options
        tokenizer = load_tokenizer(
            where, eod_token=options.eod_token, allow_special=options.allow_special,
            special_tokens=self._run.special_tokens, engine=self._run.engine, sample=self._sample(),
        )  # fmt: skip
        self._say(f"tokenizer: {tokenizer.kind}, {tokenizer.vocab_size:,} ids; engine: {tokenizer.engine}")
        if options.append_eod:
            eod_id = tokenizer.eod_id  # raises, listing candidates, where there is none
            assert tokenizer.eod is not None
            self._say(f"end of document: {tokenizer.eod.token} ({eod_id}), {tokenizer.eod.reason}")
        return tokenizer

    def _sample(self) -> list[str]:
        """Texts from the start of the first input; standard input and pipes are not touched."""
        first = self._inputs[0]
        if not os.path.isfile(first.path) or first.kind in ("parquet", "txt"):
            return []
        read = ReadOptions(self._options.encoding, block_bytes=SAMPLE_BYTES)
        for block in read_blocks([first], read):
            return [document.text for document in parse_block(block, self._records).documents[:200]]
        return []

    def _say(self, text: str) -> None:
        self._notices.append(text)
        self._run.notice(text)

    def _open_ledger(self, facts: dict[str, Any]) -> Ledger:
        fingerprint = {
            "options": self._options.byte_options(), "inputs": facts, "tokenizer": self._tokenizer.fingerprint,
            "version": _version(),
        }  # fmt: skip
        # What came through a pipe cannot be skipped over: such a run starts from the beginning.
        start_over = any(source.path == "-" for source in self._inputs)
        try:
            return Ledger(self._work_dir, fingerprint, start_over=start_over)
        except (LedgerMismatchError, LedgerDamagedError):
            if not self._run.overwrite:
                raise
            return Ledger(self._work_dir, fingerprint, start_over=True)

    def _plan(self) -> OutputPlan:
        options = self._options
        # Contiguous ranges need the number of documents, so that split is cut from one whole shard at the end.
        whole = os.path.join(self._work_dir, "whole", os.path.basename(self._prefix))
        prefix = whole if self._by_order else self._prefix
        return OutputPlan(
            prefix=prefix, work_dir=self._work_dir, keys=options.json_keys, dtype=self._dtype(),
            vocab_size=self._tokenizer.vocab_size, split=None if self._by_order else options.split,
            seed=options.seed, max_tokens=options.max_tokens_per_shard, overwrite=True,
        )  # fmt: skip

    @property
    def _by_order(self) -> bool:
        return self._options.split is not None and self._options.split_by == "order"

    def _dtype(self) -> np.dtype[Any]:
        if self._options.dtype == "auto":
            return dtype_for_vocabulary(self._tokenizer.vocab_size)
        return np.dtype(f"<{'u2' if self._options.dtype == 'uint16' else 'i4'}")

    def _encode(self, consumed: Consumed, tools: RunTools, facts: dict[str, Any]) -> None:
        options = self._options
        eod_id = self._tokenizer.eod_id if options.append_eod else None
        encode = EncodeOptions(self._dtype(), options.json_keys, options.append_eod, eod_id)
        policy = RejectPolicy(options.on_error == "fail", options.max_rejects)
        source = Source(self._inputs, self._read, policy)
        encode_inputs(source, Stages(self._records, encode, self._tokenizer), consumed, tools)
        hint = encoding_hint(consumed.tally.records, consumed.gb18030)
        if hint:
            self._say(hint)
        refuse_nothing(consumed.tally, hint)
        changed = changed_inputs(facts, stat_inputs(self._inputs))
        if changed:
            raise InputChangedError(f"{changed[0]}: changed while it was read; run again when it is complete")
        tools.ledger.commit(consumed.checkpoint("publish"))

    def _publish(
        self, consumed: Consumed, progress: Progress, hashes: Future[list[str | None]]
    ) -> RunReport:
        progress.stage("publishing")
        earlier = outputs_of(self._prefix, self._options.json_keys)
        names = input_names(self._inputs)
        facts = [
            InputFacts(name, None if source.path == "-" else os.path.getsize(source.path), digest)
            for source, name, digest in zip(self._inputs, names, hashes.result(), strict=True)
        ]
        consumed.logs.publish()
        shards = consumed.outputs.publish(lambda key: self._manifest(key, consumed, facts), spans=False)
        if self._by_order:
            shards = [part for shard in shards for part in self._cut_in_order(shard)]
        report = self._report(consumed, facts, shards)
        write_durably(f"{self._prefix}_report.json", canonical_json(report.data, indent=2) + b"\n")
        remove_stale(earlier, [*_files_of(shards), *(self._prefix + ending for ending in _WRITTEN)])
        return report

    def _cut_in_order(self, whole: PublishedShard) -> list[PublishedShard]:
        """Train, valid and test of one JSON key as contiguous ranges of the whole shard."""
        ratio = self._options.split
        parts = split_shard(whole.prefix, self._prefix, ratio, by="order", overwrite=True)
        names = [name for name in SPLIT_NAMES for part in parts if f"_{name}_{whole.key}_" in part.prefix]
        return [
            PublishedShard(part.prefix, whole.key, name, part.sequences, part.documents, part.tokens)
            for part, name in zip(parts, names, strict=True)
        ]

    def _manifest(self, key: str, consumed: Consumed, inputs: list[InputFacts]) -> Manifest:
        tokenizer, options = self._tokenizer, self._options
        counts = consumed.tally.to_json()
        del counts["seconds"]
        return Manifest(
            tokenizer_kind=tokenizer.kind, tokenizer_fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size, eod_id=tokenizer.eod_id if tokenizer.eod is not None else None,
            eod_appended=options.append_eod, key=key, inputs=tuple(inputs), recipe=options.recipe,
            options=options.byte_options(), counts=counts,
        )  # fmt: skip

    def _report(self, consumed: Consumed, facts: list[InputFacts], shards: list[PublishedShard]) -> RunReport:
        seconds = time.time() - self._started
        tally, tokenizer = consumed.tally, self._tokenizer
        parts = ReportParts(
            tally=tally,
            inputs=[
                {"number": number, "path": fact.path, "size": fact.size, "xxh3_128": fact.xxh3_128}
                for number, fact in enumerate(facts)
            ],
            outputs=[_shard_record(shard) for shard in shards],
            options=self._options.byte_options(),
            tokenizer={
                "kind": tokenizer.kind, "fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size,
                "eod": None if tokenizer.eod is None else {"id": tokenizer.eod.id, "token": tokenizer.eod.token},
            },
            run={
                "version": _version(), "workers": self._executor.workers, "executor": self._run.executor,
                "engine": tokenizer.engine, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started)),
                "seconds": round(seconds, 3), "mb_per_second": round(tally.text_bytes / 1e6 / max(seconds, 1e-9), 2),
                "tokenizer": _absolute(self._where), "input_bytes": total_bytes(self._inputs),
                "output_prefix": os.path.abspath(self._prefix),
                "inputs": [os.path.abspath(source.path) for source in self._inputs], "notices": self._notices,
            },
        )  # fmt: skip
        return RunReport(build_report(parts), tuple(self._notices))

    def _forget(self) -> None:
        """Remove what an input's fault made useless: the next run has other inputs or options."""
        for path in Path(self._work_dir).iterdir():
            if path.name not in ("lock", "owner.json"):
                path.unlink(missing_ok=True)


_WRITTEN = ("_report.json", "_rejects.jsonl", "_dropped.jsonl.gz")


def _refuse_not_offered(options: ConvertOptions) -> None:
    if options.recipe != "none":
        raise NotOfferedError(f"--recipe {options.recipe} is not offered yet; use --recipe none")
    if options.dedup != "none":
        raise NotOfferedError(f"--dedup {options.dedup} is not offered yet; use --dedup none")
    if options.format not in ("auto", "text"):
        raise NotOfferedError(f"--format {options.format} is not offered yet; use --format text")


def _hash_inputs(inputs: list[InputFile]) -> list[str | None]:
    """xxh3-128 of each file as it is on disk; None for standard input and pipes."""
    return [digest_file(source.path).xxh3_128 if os.path.isfile(source.path) else None for source in inputs]


def _shard_record(shard: PublishedShard) -> dict[str, Any]:
    return {
        "prefix": shard.prefix, "key": shard.key, "split": shard.split, "sequences": shard.sequences,
        "documents": shard.documents, "tokens": shard.tokens,
    }  # fmt: skip


def _files_of(shards: list[PublishedShard]) -> list[str]:
    endings = (".bin", ".idx", ".json", "_origin.bin", "_origin.idx", "_loss_spans.bin", "_loss_spans.idx")
    return [shard.prefix + ending for shard in shards for ending in endings]


def _absolute(where: Any) -> str | list[str]:
    """The tokenizer's place, good from any folder; `NAME:FILE` keeps its name."""
    if not isinstance(where, (str, os.PathLike)):
        return [os.path.abspath(path) for path in where]
    name, colon, file = os.fspath(where).rpartition(":")
    if os.path.exists(where) or not colon or not os.path.exists(file):
        return os.path.abspath(where)
    return f"{name}:{os.path.abspath(file)}"


def _version() -> str:
    from mmdata import __version__

    return __version__


make_callable(__name__)
