"""The inputs' hashes: taken once, by a thread that ends with the run."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
import xxhash

from mmdata.indexed.durable import digest_file
from mmdata.jsonl import find_inputs
from mmdata.pipeline.digests import InputDigests


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
