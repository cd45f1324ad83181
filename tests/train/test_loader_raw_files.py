"""Raw files as training data: converted once, again when anything that matters changed, by one process of many."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from rank_start import START

import mmdata
from mmdata.errors import ShardNotFoundError
from mmdata_train.data.open import open_training
from mmdata_train.data.prepare import prepare_data, raw_inputs
from mmdata_train.data_config import DataConfig
from mmdata_train.errors import ConfigError

OPTIONS = {"workers": 1, "recipe": "none", "dedup": "none"}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    lines = (json.dumps({"text": f"Document {number} speaks of nothing in particular."}) for number in range(50))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def tokenizer(shared: Path) -> Path:
    return shared / "tokenizers" / "gpt2"


def config_of(path: Path, **changes: Any) -> DataConfig:
    return DataConfig(**({"train": (str(path),), "seq_length": 32, "convert": OPTIONS} | changes))


def test_what_names_raw_files_and_what_names_shards(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.json.gz", "c.parquet", "d.md", "s.idx"):
        (tmp_path / ("shards" if name == "s.idx" else "raw")).mkdir(exist_ok=True)
        (tmp_path / ("shards" if name == "s.idx" else "raw") / name).write_bytes(b"")
    raw = tmp_path / "raw"
    assert raw_inputs(str(raw / "a.jsonl")) == [str(raw / "a.jsonl")]
    assert raw_inputs(str(raw)) == [str(raw / name) for name in ("a.jsonl", "b.json.gz", "c.parquet")]
    assert raw_inputs(str(raw / "*.jsonl")) == [str(raw / "a.jsonl")]
    assert raw_inputs(str(tmp_path / "shards")) == raw_inputs(str(tmp_path / "my_text_document")) == []


def test_a_raw_file_is_converted_once_and_trained_on(
    text: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = prepare_data(config_of(text), tmp_path / "cache", tokenizer)
    data = open_training(config, 20, None)
    assert data.samples.pieces(0)[0].origin.path.endswith("corpus.jsonl")
    tokens = mmdata.load_tokenizer(tokenizer, engine="huggingface")
    assert "speaks of nothing in particular" in tokens.decode(data.samples[0].tolist())
    calls: list[Any] = []
    monkeypatch.setattr("mmdata.convert", lambda *arguments, **options: calls.append(arguments), raising=False)
    assert prepare_data(config_of(text), tmp_path / "cache", tokenizer) == config
    assert calls == []
    prepare_data(config_of(text, convert=OPTIONS | {"workers": 4}), tmp_path / "cache", tokenizer)
    assert calls == [], "how many work changes nothing"
    prepare_data(config_of(text, convert=OPTIONS | {"append_eod": False}), tmp_path / "cache", tokenizer)
    assert len(calls) == 1, "another option converts again"
    template = tmp_path / "template.jinja"
    for content in ("{{ 1 }}", "{{ 2 }}"):
        template.write_text(content, encoding="utf-8")
        options = OPTIONS | {"chat_template": str(template)}
        prepare_data(config_of(text, convert=options), tmp_path / "cache", tokenizer)
    assert len(calls) == 3, "a changed template converts again"
    with open(text, "a", encoding="utf-8") as file:
        file.write('{"text": "One more."}\n')
    prepare_data(config_of(text), tmp_path / "cache", tokenizer)
    assert len(calls) == 4, "a changed input converts again"


def prepare(path: str, cache: str, tokenizer: str, results: Any) -> None:
    config = prepare_data(config_of(Path(path)), Path(cache), tokenizer)
    results.put((os.getpid(), config.entries))


def test_ranks_of_one_machine_convert_once_between_them(text: Path, tokenizer: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context(START)
    results = context.Queue()
    arguments = (str(text), str(tmp_path / "cache"), str(tokenizer), results)
    workers = [context.Process(target=prepare, args=arguments) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        answers = [results.get(timeout=240) for _ in workers]
        for worker in workers:
            worker.join(30)
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.kill()
    assert len({str(entries) for _, entries in answers}) == 1
    assert len(list((tmp_path / "cache" / "converted").iterdir())) == 1


def test_what_makes_no_training_shard_is_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs `tokenizer`"):
        prepare_data(config_of(text), tmp_path, None)
    with pytest.raises(ConfigError, match=r"data\.convert\.split cannot be given here"):
        prepare_data(config_of(text, convert={"split": "9,1"}), tmp_path, "none")


def test_a_missing_raw_file_is_named(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(ShardNotFoundError, match=r"gone\.jsonl"):
        prepare_data(config_of(tmp_path / "gone.jsonl"), tmp_path, tokenizer)


def test_shards_are_left_as_they_are(tmp_path: Path) -> None:
    config = DataConfig(train=("shards/a", "shards/b"), valid={"x": "shards/c"})
    assert prepare_data(config, tmp_path, None) == config
    assert replace(config) == config
