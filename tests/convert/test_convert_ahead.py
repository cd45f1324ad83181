"""Encoding that begins while duplicates are still decided gives what one after the other gives, and ends with it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdata
from mmdata.dedup.barrier import Barrier, sign_documents
from mmdata.dedup.keeper import KeeperPolicy
from mmdata.dedup.params import DedupParams
from mmdata.dedup.signer import Signer
from mmdata.document import Document, Part
from mmdata.encode import EncodeOptions
from mmdata.pipeline import ahead
from mmdata.pipeline import frames as frames_of_spool
from mmdata.pipeline.ahead import DecisionAhead
from mmdata.pipeline.driver import RunTools
from mmdata.pipeline.frames import DedupSetup, FrameEncoder, FrameTask, decided_tasks, joined
from mmdata.pipeline.options import ConvertOptions
from mmdata.pipeline.work import BlockResult, Stages
from mmdata.records import RecordOptions
from mmdata.run.ledger import Ledger
from mmdata.tokenizer import load_tokenizer

DEADLINE_S = 60.0


def frames() -> list[list[Document]]:
    """Twenty frames of nine documents, one empty; every third document repeats another, every seventh has no text."""
    made: list[list[Document]] = []
    number = 0
    for frame in range(20):
        documents = []
        for _ in range(0 if frame == 3 else 9):
            stem = number // 2 if number % 3 == 2 else number
            text = "" if number % 7 == 6 else " ".join(f"w{stem}x{i}" for i in range(30)) + f" {number}"
            part = (Part("text", "text", text),)
            documents.append(Document("in.jsonl", 0, number + 1, None, {"text": text}, part))
            number += 1
        made.append(documents)
    return made


@pytest.fixture
def barrier(tmp_path: Path) -> Iterator[Barrier]:
    params = DedupParams()
    made = Barrier(tmp_path / "dedup", params)
    for documents in frames():
        made.take(sign_documents(documents, Signer(params), KeeperPolicy(), with_records=False))
    yield made
    made.suspend()


@pytest.fixture
def setup(tmp_path: Path) -> DedupSetup:
    return DedupSetup(tmp_path / "dedup", DedupParams(), 64 << 20, ("in.jsonl",))


def encoder(setup: DedupSetup, tokenizer_folder: Path) -> FrameEncoder:
    tokenizer = load_tokenizer(tokenizer_folder)
    options = EncodeOptions(np.dtype("<u2"), ("text",), True, tokenizer.eod_id)
    return FrameEncoder(Stages(RecordOptions(("text",), "text", ()), options, tokenizer), setup)


def content(result: BlockResult) -> tuple[Any, ...]:
    rows, tally = result.rows, result.tally.to_json()
    del tally["seconds"]
    arrays = rows.keys["text"].tokens, rows.keys["text"].lengths, rows.input_numbers, rows.lines, rows.parts
    return [array.tolist() for array in arrays], result.drops, tally


def held_back(gate: threading.Event) -> Callable[..., None]:
    """write_decisions, whose candidates are compared when the gate opens."""
    decide = frames_of_spool.write_decisions

    def waiting(setup: DedupSetup, barrier: Barrier, watch: Any) -> None:
        known = watch.candidates_known

        def told() -> None:
            known()
            assert gate.wait(DEADLINE_S)
            watch.working()

        watch.candidates_known = told
        decide(setup, barrier, watch)

    return waiting


def test_halves_of_frames_join_to_what_whole_frames_give(
    barrier: Barrier, setup: DedupSetup, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, asked = threading.Event(), []
    monkeypatch.setattr(ahead, "write_decisions", held_back(gate))
    with DecisionAhead(setup, barrier, 2) as decision:
        encode = encoder(setup, tokenizer_folder)

        def results() -> Any:
            for task in decision.tasks():
                asked.append(task)
                if len(asked) == 2 * ahead.FRAMES_AHEAD:
                    gate.set()
                yield encode(task)

        found = list(map(content, decision.whole_frames(results())))
    wanted = [content(encode(task)) for task in decided_tasks(setup, 0)]
    encode.close()
    assert found == wanted and len(found) == 20
    early = asked[: 2 * ahead.FRAMES_AHEAD]
    assert [task.number for task in early] == list(range(16)) and not any(task.dropped for task in early)
    certain = sum(int(task.only.sum()) for task in early if task.only is not None)
    assert 60 < certain < 16 * 9, "documents that share no key, and only these"
    assert sum(len(drops) for _, drops, _ in found) > 30


def test_a_run_that_fails_meanwhile_ends_the_decision(
    barrier: Barrier, setup: DedupSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, threads = threading.Event(), threading.active_count()
    monkeypatch.setattr(ahead, "write_decisions", held_back(gate))
    with pytest.raises(KeyError), DecisionAhead(setup, barrier, 2) as decision:
        next(decision.tasks())
        decision._candidates.stop.set()  # as leaving does, before the gate opens here
        gate.set()
        raise KeyError
    assert not setup.decisions.exists() and threading.active_count() == threads


def test_what_deciding_raises_reaches_the_run(
    barrier: Barrier, setup: DedupSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ahead, "write_decisions", failing)
    with DecisionAhead(setup, barrier, 2) as decision, pytest.raises(MemoryError):
        list(decision.tasks())


def test_two_halves_are_put_together_by_place(barrier: Barrier, setup: DedupSetup, tokenizer_folder: Path) -> None:
    barrier.reader().close()
    encode = encoder(setup, tokenizer_folder)
    odd = np.arange(9) % 2 == 1
    halves = [encode(FrameTask(0, [], only)) for only in (odd, ~odd)]
    whole = content(encode(FrameTask(0, [])))
    encode.close()
    assert content(joined(*halves)) == whole == content(joined(*reversed(halves)))


class KilledError(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("last", [1, 2, 5, 9, 13])
def test_two_workers_go_on_from_every_commit_to_the_bytes_of_one(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    from test_convert import digests

    gate = threading.Event()
    gate.set()
    options: dict[str, Any] = {"block_records": 40, "recipe": "none", "dedup_threshold": 0.5}
    whole = mmdata.convert(corpus, tmp_path / "whole" / "out", tokenizer_folder, **options)
    commit, seen = Ledger.commit, 0

    def dying_commit(self: Ledger, state: Any) -> None:
        nonlocal seen
        commit(self, state)
        seen += 1
        if seen == last:
            raise KilledError

    prefix = tmp_path / "killed" / "out"
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(Ledger, "commit", dying_commit)
        patch.setattr(ahead, "write_decisions", held_back(gate))
        mmdata.convert(corpus, prefix, tokenizer_folder, **options, workers=2, commit_seconds=0.0)
    report = mmdata.convert(corpus, prefix, tokenizer_folder, **options, workers=2)
    assert digests(prefix) == digests(tmp_path / "whole" / "out")
    for part in ("records", "stages"):
        assert json.dumps(report.data[part]) == json.dumps(whole.data[part])


def test_the_clock_of_commits_runs_on_from_phase_to_phase(tmp_path: Path) -> None:
    with Ledger(str(tmp_path / "work"), {}) as ledger:
        tools = RunTools.of(None, ledger, None, 3600.0)  # type: ignore[arg-type]  # of no use here
        tools.clock.commit_if_due(lambda: pytest.fail("a commit before its time makes the run wait for the disk"))
        RunTools.of(None, ledger, None, 0.0).clock.commit_if_due(lambda: {"phase": "sign"})  # type: ignore[arg-type]
        assert ledger.last() == {"phase": "sign"}


def test_a_worker_that_loads_while_others_work_counts_by_its_share_as_setup(tmp_path: Path) -> None:
    from mmdata.pipeline.account import RunFacts

    facts = RunFacts([], "out", ConvertOptions(), "tokenizer", None, "1", 4, "local", started=1000.0)  # type: ignore[arg-type]
    facts.setup_seconds = 2.0
    facts.count_loading([])
    facts.count_loading([1001.0, 1002.0, 1004.0, 1003.0])
    assert facts.setup_seconds == 2.0 + (2.0 + 1.0) / 4


def test_two_workers_say_when_the_other_process_had_loaded(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    begun = time.time()
    report = mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, workers=2, recipe="none")
    run = report.data["run"]
    assert 0.0 < run["setup_seconds"] <= run["seconds"] <= time.time() - begun + 0.001
