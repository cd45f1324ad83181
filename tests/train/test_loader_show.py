"""`mmdata-train data`: the batches of any rank as training reads them, and the documents of any step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import yaml  # noqa: E402
from click.testing import CliRunner  # noqa: E402
from loader_shards import VOCAB, write_corpus  # noqa: E402

from mmdata.indexed.reader import IndexedDataset  # noqa: E402
from mmdata.indexed.writer import ShardWriter  # noqa: E402
from mmdata_train.config import load_config  # noqa: E402
from mmdata_train.data.cli import data_command  # noqa: E402
from mmdata_train.data.open import open_training  # noqa: E402
from mmdata_train.data.show import marked_text, open_run, trace_step  # noqa: E402
from mmdata_train.errors import ConfigError  # noqa: E402

MODEL = {"vocab_size": VOCAB, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("show")
    corpus = write_corpus(folder / "corpus")
    config = {
        "model": MODEL,
        "data": {
            "train": [{"path": corpus["plain"], "weight": 0.7}, {"path": corpus["chat"], "weight": 0.3}],
            "seq_length": 32,
        },
        "parallel": {"tensor": 1, "pipeline": 3, "data": 2},
        "train": {"micro_batch_size": 2, "global_batch_size": 8, "steps": 5},
        "output": {"dir": str(folder / "out")},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def run(settings: Path, *options: str) -> Any:
    result = CliRunner().invoke(data_command, [str(settings), *options], catch_exceptions=False)
    assert result.exit_code == 0
    return result


def test_the_first_batches_of_a_rank_are_printed_with_the_shares_before_them(settings: Path) -> None:
    result = run(settings, "--steps", "2", "--rank", "1")
    assert "rank 1 of 6: Coordinates(tensor=0, context=0, data=1, pipeline=0)" in result.stdout
    assert result.stdout.count("step ") == 2 and result.stdout.count("  row ") == 8
    share_lines = [line for line in result.stderr.split("\n") if line.endswith(("plain", "chat"))]
    assert len(share_lines) == 2 and "70.00%" in share_lines[0]
    first = next(line for line in result.stdout.split("\n") if line.startswith("    "))
    data = open_run(load_config(settings)).data
    assert first.split() == [str(token) for token in data.samples[2].tolist()[:32]]


def test_a_middle_stage_shows_no_tokens(settings: Path) -> None:
    assert run(settings, "--rank", "2").stdout.count("a middle pipeline stage: no tokens") == 4


def test_a_step_is_traced_to_file_and_line(settings: Path) -> None:
    traced = json.loads(run(settings, "--trace", "3", "--json").stdout)
    assert [sample["sample"] for sample in traced] == list(range(24, 32))
    assert [(sample["data_rank"], sample["micro_batch"]) for sample in traced[::2]] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    data = open_run(load_config(settings)).data
    for sample in traced:
        tokens = []
        for piece in sample["pieces"]:
            assert piece["origin"]["path"] == "corpus.jsonl"
            assert piece["origin"]["line"] == 10 * (piece["document"] + 1)
            tokens += IndexedDataset(piece["shard"]).get(piece["sequence"], piece["offset"], piece["length"]).tolist()
        assert tokens == data.samples[sample["sample"]].tolist()
    text = run(settings, "--trace", "3").stdout
    assert "sample 24 (data rank 0, micro-batch 0)" in text and "corpus.jsonl:" in text


def test_a_step_that_does_not_exist_names_those_that_do(settings: Path) -> None:
    with pytest.raises(ConfigError, match="step 5 does not exist: the run has steps 0 to 4"):
        trace_step(open_run(load_config(settings)), 5)


def test_a_trace_follows_the_phases_of_the_checkpoint(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_run(load_config(settings)).data
    changed = load_config(settings)
    entries = tuple(replace(entry, weight=1.0 - entry.weight) for entry in changed.data.train)
    later = replace(changed, data=replace(changed.data, train=entries))
    resumed = open_training(later.data, 40, None, state=first.state(16))
    monkeypatch.setattr("mmdata_train.data.show.latest_checkpoint", lambda folder: folder)
    state = {"step": 3, "consumed": 24, "data": resumed.state(24)}
    monkeypatch.setattr("mmdata_train.data.show.read_state", lambda path: state)
    run_seen = open_run(later, as_run=True)
    assert [phase.start for phase in run_seen.data.mix.phases] == [0, 16]
    for step, data in ((0, first), (1, first), (2, resumed), (4, resumed)):
        for sample in trace_step(run_seen, step):
            pieces = [tuple(piece[:5]) for piece in data.samples.pieces(sample.sample)]
            assert [tuple(list(piece.values())[:5]) for piece in sample.pieces] == pieces


def test_the_tokens_that_count_are_marked() -> None:
    class Decoder:
        def decode(self, ids: Any) -> str:
            return "".join("abcdefgh"[i] for i in ids)

    labels = np.array([-100, 2, 3, -100, -100, 6])
    assert marked_text(np.arange(6), labels, Decoder()) == "ab«cd»ef"
    assert marked_text(np.arange(3), np.array([1, 2, -100]), Decoder()) == "a«bc»"


def test_epochs_decide_the_samples_and_an_unknown_key_is_named(settings: Path) -> None:
    config = load_config(
        settings, ["train.steps=null", "train.epochs=2", f"data.train=[{settings.parent}/corpus/plain]"]
    )
    data = open_run(config).data
    one = open_run(
        load_config(settings, ["train.steps=null", "train.epochs=1", f"data.train=[{settings.parent}/corpus/plain]"])
    )
    assert len(data.samples) == 2 * len(one.data.samples)
    with pytest.raises(ConfigError, match=r"data\.seq_lenght is unknown; did you mean seq_length"):
        open_run(load_config(settings, ["data.seq_lenght=3"]))


def test_text_is_decoded_with_the_runs_tokenizer(shared: Path, tmp_path: Path) -> None:
    import mmdata

    folder = shared / "tokenizers" / "gpt2"
    tokenizer = mmdata.load_tokenizer(folder, engine="huggingface")
    tokens = tokenizer.encode_batch(["The patient was given 5 mg.", "第二段文字。"])
    with ShardWriter(str(tmp_path / "text"), vocab_size=tokenizer.vocab_size) as writer:
        writer.add_documents(tokens.tokens, tokens.lengths)
    config = {
        "model": MODEL | {"vocab_size": tokenizer.vocab_size}, "tokenizer": str(folder),
        "data": {"train": [str(tmp_path / "text")], "seq_length": 32, "mode": "packed"},
        "train": {"steps": 1}, "output": {"dir": str(tmp_path / "out")},
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    shown = run(tmp_path / "run.yaml", "--decode")
    assert "The« patient was given 5 mg.»" in shown.stdout
    assert "have no manifest" in shown.stderr


def test_a_model_folder_without_tokenizer_warns_and_a_named_one_must_be_there(
    settings: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from mmdata.errors import TokenizerNotFoundError
    from mmdata_train.data.show import open_tokenizer

    config = load_config(settings)
    assert open_tokenizer(config) is None and not caplog.messages
    assert open_tokenizer(replace(config, model=str(tmp_path))) is None
    assert "holds no tokenizer" in caplog.messages[0]
    with pytest.raises(TokenizerNotFoundError):
        open_tokenizer(replace(config, tokenizer=str(tmp_path)))
