"""Several workers: from every commit to the bytes of one, and what counts as loading."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import mmdata
from mmdata.pipeline.driver import RunTools
from mmdata.pipeline.options import ConvertOptions
from mmdata.run.ledger import Ledger


class KilledError(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("last", [1, 2, 5, 9, 13])
def test_two_workers_go_on_from_every_commit_to_the_bytes_of_one(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    from test_convert import digests

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
        mmdata.convert(corpus, prefix, tokenizer_folder, **options, workers=2, commit_seconds=0.0)
    report = mmdata.convert(corpus, prefix, tokenizer_folder, **options, workers=2)
    assert digests(prefix) == digests(tmp_path / "whole" / "out")
    for part in ("records", "stages"):
        assert json.dumps(report.data[part]) == json.dumps(whole.data[part])


def test_the_clock_of_commits_runs_on_from_phase_to_phase(tmp_path: Path) -> None:
    with Ledger(str(tmp_path / "work"), {}) as ledger:
        tools = RunTools.of(None, ledger, None, None, 3600.0)  # type: ignore[arg-type]  # of no use here
        tools.clock.commit_if_due(lambda: pytest.fail("a commit before its time makes the run wait for the disk"))
        RunTools.of(None, ledger, None, None, 0.0).clock.commit_if_due(lambda: {"phase": "sign"})  # type: ignore[arg-type]
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
