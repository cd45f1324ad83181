"""The inputs' hashes: taken once, by a thread that ends with the run."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
import xxhash

import mmdata
from mmdata.errors import InputChangedError
from mmdata.indexed.durable import digest_file
from mmdata.jsonl import find_inputs
from mmdata.pipeline import conversion
from mmdata.pipeline.digests import InputDigests
from mmdata.run import LocalExecutor


def test_each_file_is_hashed_once_however_often_it_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"a.jsonl": b'{"text": "one"}\n', "b.jsonl": '{"text": "二"}\n'.encode()}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)
    asked: list[str] = []

    def counted(path: str, **options: Any) -> Any:
        asked.append(path)
        return digest_file(path, **options)

    monkeypatch.setattr("mmdata.pipeline.digests.digest_file", counted)
    with InputDigests(find_inputs([tmp_path])) as found:
        found.begin()
        found.begin()
        assert found.result() == [xxhash.xxh3_128_hexdigest(text) for text in texts.values()]
        assert found.result() == found.result()
    assert len(asked) == 2


def test_an_error_stops_the_thread_and_a_run_that_never_began_it_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}\n")
    inputs = find_inputs([tmp_path])
    before = threading.active_count()

    def endless(path: str, *, stop: threading.Event) -> Any:
        assert stop.wait(60), "nobody stopped it"
        raise CancelledError

    monkeypatch.setattr("mmdata.pipeline.digests.digest_file", endless)
    with pytest.raises(KeyError), InputDigests(inputs) as found:
        found.begin()
        raise KeyError
    with pytest.raises(KeyError), InputDigests(inputs):
        raise KeyError
    assert threading.active_count() == before


def test_an_input_that_changes_before_its_hash_is_taken_is_refused_and_nothing_is_published(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_to_the_end = threading.Event()
    copy = tmp_path / "in.jsonl"
    copy.write_bytes(b"".join(path.read_bytes() for path in sorted(corpus.glob("*.jsonl"))))
    checked = conversion.changed_inputs

    def check(before: Any, after: Any) -> list[str]:
        found = checked(before, after)
        if not read_to_the_end.is_set():
            read_to_the_end.set()
            with copy.open("ab") as file:
                file.write(b'{"text": "appended"}\n')
        return found

    def late(path: str, **options: Any) -> Any:
        assert read_to_the_end.wait(120)
        return digest_file(path, **options)

    monkeypatch.setattr("mmdata.pipeline.digests.digest_file", late)
    monkeypatch.setattr(conversion, "changed_inputs", check)
    with pytest.raises(InputChangedError, match=r"in\.jsonl: changed while it was read"):
        mmdata.convert(copy, tmp_path / "out", tokenizer_folder, recipe="none")
    assert not list(tmp_path.glob("out*"))


def test_an_interrupt_while_workers_end_leaves_no_work_folder(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = LocalExecutor.close

    def interrupted(self: LocalExecutor) -> None:
        close(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalExecutor, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mmdata.convert(corpus, tmp_path / "out", tokenizer_folder, recipe="none")
    assert (tmp_path / "out_report.json").exists() and not (tmp_path / "out.work").exists()
