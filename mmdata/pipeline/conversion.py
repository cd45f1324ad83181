"""One call of `mmdata.convert`, from checks to publication.

Order: checks that touch nothing, tokenizer, ledger, phases (`encode`, or `sign`, `decide`, `kept` with deduplication),
`publish`. Every phase goes on from the ledger after a kill.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from mmdata.chat.render import ChatOptions, thinking_note
from mmdata.chat.templates import load_template
from mmdata.encode import EncodeOptions
from mmdata.errors import (
    CheckpointError,
    InputChangedError,
    LedgerDamagedError,
    LedgerMismatchError,
    MMDataError,
    OutputError,
    RunError,
    UsageError,
)
from mmdata.indexed.durable import write_durably
from mmdata.indexed.layout import dtype_for_vocabulary
from mmdata.indexed.manifest import canonical_json
from mmdata.indexed.split import SPLIT_NAMES, split_shard
from mmdata.jsonl import LeftOut, ReadOptions, find_inputs, stat_inputs, total_bytes
from mmdata.pipeline.account import RunFacts, input_facts, version
from mmdata.pipeline.dedup_run import dedup_params, documents_in_index
from mmdata.pipeline.digests import InputDigests
from mmdata.pipeline.driver import Consumed, RejectPolicy, RunTools, Source, encode_inputs, refuse_no_documents
from mmdata.pipeline.options import ConvertOptions
from mmdata.pipeline.outputs import OutputPlan, PublishedShard
from mmdata.pipeline.pai import PaiPlan, pai_plan, write_pai
from mmdata.pipeline.places import changed_inputs, check_places, files_of, outputs_of, remove_stale
from mmdata.pipeline.stages import (
    chat_options,
    dedup_runner,
    load_kernels,
    recipe_of,
    record_options,
    warm_up,
    without_secrets,
)
from mmdata.pipeline.warm import fitting_workers, needs_of, sample_texts, warm_worker
from mmdata.pipeline.work import Stages
from mmdata.records import encoding_hint
from mmdata.report.build import RunReport
from mmdata.report.page import render_page
from mmdata.run.executor import available_cores, make_executor
from mmdata.run.ledger import Ledger
from mmdata.run.progress import Progress, SilentProgress
from mmdata.run.sizes import check_memory
from mmdata.tokenizer import LoadedTokenizer, load_tokenizer
from mmdata.tokenizers.locate import locate

if TYPE_CHECKING:
    from mmdata.clean.recipe import Recipe

_WRITTEN = ("_report.json", "_report.html", "_rejects.jsonl", "_dropped.jsonl.gz")


@dataclass(slots=True, frozen=True, kw_only=True)
class RunOptions:
    """How a run is carried out; none of it can change a byte of the result.

    workers: processes, None for one a core (one in all for a small input). memory: bytes deduplication may use for
    sorting. block_bytes and block_records: what is handed to a worker at once. commit_seconds: how much work a kill may
    cost. notice: called with what the user should know.
    """

    workers: int | None = 1
    executor: str = "local"
    shard: str | None = None
    overwrite: bool = False
    memory: int = 256 << 20
    block_bytes: int = 2 << 20
    block_records: int | None = None
    commit_seconds: float = 10.0
    progress: Progress | None = None
    notice: Callable[[str], None] = lambda text: None
    special_tokens: str | None = None
    engine: str = "auto"

    def __post_init__(self) -> None:
        """Raises UsageError."""
        check_memory(self.memory)


class Conversion:
    """Checked on construction, without touching anything; then `execute` or `describe`, once."""

    def __init__(
        self, arguments: list[Any], prefix: str, tokenizer: Any, options: ConvertOptions, run: RunOptions,
        *, dry: bool = False,
    ) -> None:  # fmt: skip
        """dry: only to be described, so no workers are started."""
        self._started = time.time()
        self._opened = False
        self._prefix, self._options, self._run = prefix, options, run
        self._work_dir = prefix + ".work"
        self._left_out: list[LeftOut] = []
        self._inputs = find_inputs(arguments, self._left_out.append)
        workers = fitting_workers(self._inputs) if run.workers is None else run.workers
        self._executor = make_executor(run.executor, workers, run.shard, caller_works=True)
        self._read = ReadOptions(
            options.encoding, options.txt_document, run.block_bytes, run.block_records, taper=workers > 1
        )  # fmt: skip
        self._records = record_options(options)
        self._recipe: Recipe | None = None
        numbered = options.split is not None or options.max_tokens_per_shard is not None
        self._check_places = partial(check_places, self._inputs, prefix, options.json_keys, numbered=numbered)
        self._check_places(overwrite=run.overwrite or self._unfinished())
        self._notices: list[str] = []
        for one in self._left_out:
            self._say(str(one))
        if run.workers is None and workers == 1 < available_cores():
            self._say("workers: 1, since an input this small is done before others have started; --workers N says else")
        try:
            if not dry:
                self._start_workers(tokenizer)
            self._recipe = recipe_of(options)
            if not dry:
                self._warm_up()
            self._load(tokenizer)
        except BaseException:
            self._executor.close()
            raise

    def _start_workers(self, tokenizer: Any) -> None:
        """They import and load their tokenizer while this process does the same."""
        locate(tokenizer)  # a mistyped path is said before anything is started
        needs = needs_of(tokenizer, self._options, self._run.special_tokens, self._run.engine)
        self._executor.prepare(partial(warm_worker, needs))

    def _warm_up(self) -> None:
        """Compiles or loads kernels, here and then in the workers."""
        params = dedup_params(self._options)
        if self._recipe is not None or params is not None:
            warm_up(self._recipe, params, self._say)
            self._executor.prepare(partial(load_kernels, self._recipe, params))

    def _load(self, tokenizer: Any) -> None:
        """What takes a while: the tokenizer, and all that follows from it."""
        options, run = self._options, self._run
        self._tokenizer = self._load_tokenizer(tokenizer)
        self._chat: ChatOptions | None = chat_options(options, self._records, self._tokenizer, self._say)
        self._pai = self._pai_plan()
        self._found = stat_inputs(self._inputs)
        names = [source.path for source in self._inputs]
        self._dedup = dedup_runner(options, Path(self._work_dir), run.memory, names, self._batch_name())
        self._facts = RunFacts(
            self._inputs, self._prefix, options, tokenizer, self._tokenizer, version(), self._executor.workers,
            run.executor, None if self._recipe is None else without_secrets(self._recipe),
            started=self._started, notices=self._notices, left_out=self._left_out,
        )  # fmt: skip

    def execute(self) -> RunReport:
        """Run to the end. Raises InputError, OutputError, RunError, DedupError, ChatError and their kin."""
        try:
            return self._execute()
        finally:
            try:
                self._executor.close()
            finally:  # also after Ctrl-C while workers end
                if self._opened and not self._unfinished():  # done, or failed in a way that no rerun can go on from
                    shutil.rmtree(self._work_dir, ignore_errors=True)

    def _execute(self) -> RunReport:
        with self._open_ledger() as ledger, InputDigests(self._inputs) as digests:
            self._opened = True
            if ledger.last() is None:
                self._check_again(ledger)
            progress = self._run.progress or SilentProgress()
            tools = RunTools.of(self._executor, ledger, progress, digests, self._run.commit_seconds)
            consumed = self._start(ledger)
            try:
                if (ledger.last() or {}).get("phase") != "publish":
                    self._work(consumed, tools)
                report = self._publish(consumed, progress, digests)
            except BaseException as error:
                consumed.suspend()
                if isinstance(error, MMDataError) and not isinstance(error, (OutputError, RunError)):
                    self._forget()  # what failed is in the inputs or options: the next run has others
                raise
            finally:
                progress.close()
            ledger.finish()
        return report

    def _check_again(self, ledger: Ledger) -> None:
        """A run that was still at work when this one began may have written its outputs since."""
        try:
            self._check_places(overwrite=self._run.overwrite)
        except MMDataError:
            ledger.finish()
            raise

    def _start(self, ledger: Ledger) -> Consumed:
        """What earlier runs wrote, or a fresh start where that is damaged and may be overwritten."""
        try:
            return Consumed.start(self._plan(), self._prefix, ledger.last())
        except (LedgerMismatchError, CheckpointError) as error:
            if not self._run.overwrite:
                error.add_note("--overwrite starts from the beginning")
                raise
        ledger.start_over()
        return Consumed.start(self._plan(), self._prefix, None)

    def describe(self) -> dict[str, Any]:
        """Inputs, outputs, options and the deduplication's plan, nothing touched."""
        output = self._plan()
        shards = [output.shard_prefix(split, 0, key) for split in output.splits() for key in output.keys]
        size = total_bytes(self._inputs)
        lines = [
            f"{len(self._inputs)} inputs" + ("" if size is None else f", {size:,} bytes on disk"),
            *(f"  {source.path} ({source.kind}, {source.compression})" for source in self._inputs),
            f"would write {', '.join(shards)} as {self._dtype().name}" + (", ..." if output.max_tokens else ""),
        ]
        if self._dedup is not None:
            lines += self._dedup.plan(size or 0).lines()
        return {
            "inputs": [source.path for source in self._inputs], "input_bytes": size, "outputs": shards,
            "options": self._options.byte_options(), "notices": self._notices, "lines": lines,
        }  # fmt: skip

    def _unfinished(self) -> bool:
        """Whether an unfinished run of this prefix exists, whose own files may be at their names already."""
        return os.path.exists(os.path.join(self._work_dir, "ledger.jsonl"))

    def _load_tokenizer(self, where: Any) -> LoadedTokenizer:
        options = self._options
        tokenizer = load_tokenizer(
            where, eod_token=options.eod_token, allow_special=options.allow_special,
            special_tokens=self._run.special_tokens, engine=self._run.engine,
            sample=sample_texts(self._inputs[0], options.encoding, self._records, options.turn_order),
        )  # fmt: skip
        self._say(f"tokenizer: {tokenizer.kind}, {tokenizer.vocab_size:,} ids; engine: {tokenizer.engine}")
        if options.append_eod and self._records.format in ("text", "auto"):
            eod_id = tokenizer.eod_id  # raises, listing candidates, where there is none
            assert tokenizer.eod is not None
            self._say(f"end of document: {tokenizer.eod.token} ({eod_id}), {tokenizer.eod.reason}")
        return tokenizer

    def _say(self, text: str) -> None:
        self._notices.append(text)
        self._run.notice(text)

    def _fingerprint(self) -> dict[str, Any]:
        """Everything that can change a byte: what the ledger compares."""
        return {
            "options": self._options.byte_options(), "inputs": self._found,
            "tokenizer": self._tokenizer.fingerprint,
            "recipe": None if self._recipe is None else self._recipe.fingerprint, "version": version(),
        }  # fmt: skip

    def _batch_name(self) -> str:
        """This run's name in a deduplication index: the same when it is resumed, another for other files."""
        return str(xxhash.xxh3_128(canonical_json(self._fingerprint())).hexdigest())

    def _open_ledger(self) -> Ledger:
        # The index decides what is dropped, but its place is no fact of the result: the ledger alone knows it.
        index = self._options.dedup_index
        fingerprint = self._fingerprint() | {"dedup_index": None if index is None else os.path.abspath(index)}
        # What came through a pipe cannot be skipped over: such a run starts from the beginning.
        start_over = any(source.path == "-" for source in self._inputs)
        try:
            return Ledger(self._work_dir, fingerprint, start_over=start_over)
        except (LedgerMismatchError, LedgerDamagedError):
            if not self._run.overwrite:
                raise
            return Ledger(self._work_dir, fingerprint, start_over=True)

    def _pai_plan(self) -> PaiPlan | None:
        options = self._options
        if options.sft_layout != "pai":
            return None
        if self._chat is None or self._by_order:
            raise UsageError("--sft-layout pai needs chat records (--format) and no --split-by order")
        return pai_plan(options.max_length, self._tokenizer, options.seed)

    def _plan(self) -> OutputPlan:
        options = self._options
        # Contiguous ranges and packed rows need all documents first: they are made of whole shards at the end.
        prefix = self._whole if self._by_order or self._pai else self._prefix
        return OutputPlan(
            prefix=prefix, work_dir=self._work_dir, keys=options.json_keys, dtype=self._dtype(),
            vocab_size=self._tokenizer.vocab_size, split=None if self._by_order else options.split,
            seed=options.seed, max_tokens=options.max_tokens_per_shard, overwrite=True,
            sidecars=("origin",) if self._records.format == "text" else ("origin", "loss_spans"),
        )  # fmt: skip

    @property
    def _whole(self) -> str:
        return os.path.join(self._work_dir, "whole", os.path.basename(self._prefix))

    @property
    def _by_order(self) -> bool:
        return self._options.split is not None and self._options.split_by == "order"

    def _dtype(self) -> np.dtype[Any]:
        if self._options.dtype == "auto":
            return dtype_for_vocabulary(self._tokenizer.vocab_size)
        return np.dtype(f"<{'u2' if self._options.dtype == 'uint16' else 'i4'}")

    def _work(self, consumed: Consumed, tools: RunTools) -> None:
        """Every phase before publication."""
        options = self._options
        eod_id = self._tokenizer.eod_id if options.append_eod and self._tokenizer.eod is not None else None
        encode = EncodeOptions(self._dtype(), options.json_keys, eod_id is not None, eod_id)
        stages = Stages(self._records, encode, self._tokenizer, self._recipe, self._chat, options.turn_order)
        source = Source(self._inputs, self._read, RejectPolicy(options.on_error == "fail", options.max_rejects))
        self._facts.setup_seconds = time.time() - self._facts.started
        if self._dedup is None:
            encode_inputs(source, stages, consumed, tools)
        else:
            self._dedup.work(source, stages, consumed, tools)
        self._facts.count_loading(self._executor.loaded)
        hint = encoding_hint(consumed.tally.records, consumed.gb18030)
        if hint:
            self._say(hint)
        known = documents_in_index(consumed.dedup)
        refuse_no_documents(consumed.tally, consumed.logs.first_reject, self._inputs, hint, known)
        if not consumed.tally.kept:
            self._say(f"nothing new: the index holds all {known:,} documents that were compared; shards are empty")
        self._refuse_changed()
        tools.ledger.commit(consumed.checkpoint("publish"))

    def _refuse_changed(self) -> None:
        changed = changed_inputs(self._found, stat_inputs(self._inputs))
        if changed:
            raise InputChangedError(f"{changed[0]}: changed while it was read; run again when it is complete")

    def _publish(self, consumed: Consumed, progress: Progress, digests: InputDigests) -> RunReport:
        progress.stage("publishing")
        chat = {name[5:]: count for name, count in consumed.tally.counters.items() if name.startswith("chat.")}
        if chat.get("conversations") and self._chat is not None:
            self._facts.chat_template = load_template(self._chat.template, self._tokenizer).source
        note = thinking_note(chat)
        if note:
            self._say(note)
        earlier = outputs_of(self._prefix, self._options.json_keys)
        facts = input_facts(self._inputs, digests.result())
        self._refuse_changed()  # else the hash may be of other bytes than were read
        consumed.logs.publish()
        shards = consumed.outputs.publish(
            lambda key: self._facts.manifest(key, consumed.tally, facts), spans=bool(chat.get("conversations"))
        )
        for shard in shards:
            if not shard.documents and consumed.tally.kept:
                self._say(f"{shard.prefix} has no documents: its share of so few documents is empty")
        if self._by_order:
            shards = [part for shard in shards for part in self._cut_in_order(shard)]
        elif self._pai is not None:
            shards = [write_pai(one, self._prefix + one.prefix[len(self._whole) :], self._pai) for one in shards]
        stages = {} if consumed.dedup is None else {"dedup": consumed.dedup}
        report = self._facts.report(consumed.tally, facts, shards, stages)
        write_durably(f"{self._prefix}_report.json", canonical_json(report.data, indent=2) + b"\n")
        write_durably(f"{self._prefix}_report.html", render_page(report.data).encode("utf-8"))
        files = files_of([shard.prefix for shard in shards], self._pai is None, bool(chat.get("conversations")))
        remove_stale(earlier, [*files, *(self._prefix + ending for ending in _WRITTEN)])
        if self._dedup is not None:
            self._dedup.add_to_index()
        return report

    def _cut_in_order(self, whole: PublishedShard) -> list[PublishedShard]:
        """Train, valid and test of one JSON key as contiguous ranges of the whole shard."""
        parts = split_shard(whole.prefix, self._prefix, self._options.split, by="order", overwrite=True)
        ends = {name: f"_{name}_{whole.key}_document" for name in SPLIT_NAMES}
        names = [name for part in parts for name, end in ends.items() if part.prefix.endswith(end)]
        return [
            PublishedShard(part.prefix, whole.key, name, part.sequences, part.documents, part.tokens)
            for part, name in zip(parts, names, strict=True)
        ]

    def _forget(self) -> None:
        """Remove what the unfinished run left."""
        for path in Path(self._work_dir).iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name not in ("lock", "owner.json"):
                with contextlib.suppress(OSError):  # an open file stays on Windows
                    path.unlink()
