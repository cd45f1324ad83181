"""Evaluations lose no answer unseen, replace nothing of others, and no rank waits for one that failed."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner
from evaluation_sets import qa_file

from mmdata_train.cli import main
from mmdata_train.console import shown_logging
from mmdata_train.errors import ConfigError, EvaluationError
from mmdata_train.evaluate.cli import flags_of
from mmdata_train.evaluate.run import evaluate
from mmdata_train.evaluate.suite import ModelEntry, SetEntry, Suite

pytest.importorskip("torch")

from mmdata_train.launch import RankPool


def test_answers_that_belong_to_no_question_are_counted_and_refused(tmp_path: Path) -> None:
    questions, answers = qa_file(tmp_path), tmp_path / "mine.jsonl"
    lines = [{"id": name, "prediction": "无"} for name in ("1", "2", "3", "q-9")]
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    entry = SetEntry(kind="answers", path=str(questions), metrics=("f1",), limit=1)
    suite = Suite(
        models={"mine": ModelEntry(answers={"qa": str(answers)})}, sets={"qa": entry}, output=tmp_path / "out"
    )
    words = r"mine.jsonl:3: 2 of 4 answers belong to no item of .*qa.jsonl, the first has the id '3'"
    with pytest.raises(EvaluationError, match=words):
        evaluate(suite)
    assert not (tmp_path / "out").exists()
    # Those of questions beyond the limit have a question.
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines[:2]), encoding="utf-8")
    assert evaluate(suite).results["qa"]["mine"].main.items == 1
    answers.write_text((json.dumps(lines[0]) + "\n") * 2, encoding="utf-8")
    with pytest.raises(EvaluationError, match=r"mine.jsonl:2: the id '1' stands in line 1 already"):
        evaluate(dataclasses.replace(suite, output=tmp_path / "b"))


@pytest.mark.parametrize("output", ["", ".", ".."])
def test_an_output_that_is_no_folder_of_its_own_is_wrong_usage(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    answers = tmp_path / "a.jsonl"
    answers.write_text('{"reference": "x", "prediction": "x"}\n', encoding="utf-8")
    refused = CliRunner().invoke(main, ["evaluate", "--answers", str(answers), "-o", output, "--overwrite"])
    assert refused.exit_code == 2 and "names no folder of its own" in refused.stderr
    assert not any((tmp_path / "here").iterdir())


def test_only_an_evaluation_is_replaced_and_as_a_whole(tmp_path: Path) -> None:
    answers, out = tmp_path / "a.jsonl", tmp_path / "out"
    answers.write_text('{"reference": "x", "prediction": "x"}\n', encoding="utf-8")
    command = ["evaluate", "--answers", f"mine={answers}", "-o", str(out), "--overwrite"]
    out.mkdir()
    (out / "results.json").write_text('{"schema": "another.tool"}', encoding="utf-8")
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 1 and "was not written by this command" in refused.stderr
    (out / "results.json").unlink()
    assert CliRunner().invoke(main, command).exit_code == 0
    again = [*command[:2], f"yours={answers}", *command[3:]]
    assert CliRunner().invoke(main, again).exit_code == 0
    # Nothing of the former one is left between the new files.
    assert sorted(p.name for p in out.iterdir()) == ["answers.yours.jsonl", "page.html", "results.json"]
    own = CliRunner().invoke(main, [*command[:2], str(out / "answers.yours.jsonl"), *command[3:]])
    assert own.exit_code == 1 and "which the evaluation reads, lie in one another" in own.stderr
    (out / "ratings.json").write_text("{}", encoding="utf-8")
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 1 and "holds ratings.json (1 files in all)" in refused.stderr


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ("{kind: perplexity, path: none.jsonl}", "none.jsonl: cannot be read: No such file"),
        ("{kind: perplexity, path: none/shard}", "none/shard"),
        ("{kind: perplexity, path: empty.jsonl}", "empty.jsonl: holds no record"),
        ("{kind: choices, path: none.csv}", "none.csv: no such file, or a folder without"),
        ("{kind: answers, path: texts.jsonl}", "texts.jsonl:1: no prompt"),
        ("{kind: answers, path: qa.jsonl, shots: 1, shots_from: none.jsonl}", "none.jsonl: cannot be read"),
    ],
)
def test_what_the_last_set_names_is_looked_at_before_the_first_model_is_opened(
    sets: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mmdata_train.evaluate.opened.open_model", lambda *_, **__: pytest.fail("a model was opened"))
    qa_file(tmp_path)
    Path("texts.jsonl").write_text('{"text": "x"}\n', encoding="utf-8")
    Path("empty.jsonl").write_text("\n", encoding="utf-8")
    Path("model").mkdir()
    shape = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = {"model_type": "llama", **shape, "intermediate_size": 48}
    Path("model/config.json").write_text(json.dumps(config), encoding="utf-8")
    suite = f"models: {{a: {{model: model}}}}\nsets: {{first: {{kind: perplexity, path: texts.jsonl}}, last: {sets}}}\n"
    Path("suite.yaml").write_text(suite, encoding="utf-8")
    monkeypatch.setattr("mmdata_train.ranks.start_ranks", lambda *_: pytest.fail("ranks were started"))
    for ranks in ([], ["--set", "parallel.data=2"]):
        refused = CliRunner().invoke(main, ["evaluate", "suite.yaml", "-o", "out", *ranks])
        assert refused.exit_code == 1 and words in refused.stderr and not Path("out").exists(), refused.output


def fails_on_first_rank(kind: str) -> str:
    from mmdata_train.evaluate.ranks import on_first_rank

    def work() -> None:
        raise {"ours": EvaluationError("bad item"), "foreign": KeyError("left"), "end": SystemExit(3)}[kind]

    try:
        on_first_rank(work)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_whatever_ends_the_first_rank_reaches_the_others_at_once(two: RankPool) -> None:
    assert two.run(fails_on_first_rank, "ours") == ["EvaluationError: bad item"] * 2
    assert two.run(fails_on_first_rank, "foreign") == ["KeyError: 'left'", "RankError: rank 0 failed: KeyError: 'left'"]
    assert two.run(fails_on_first_rank, "end") == ["SystemExit: 3", "RankError: rank 0 failed: SystemExit: 3"]


def test_each_line_is_shown_once_whatever_a_library_hangs_on_the_root_logger(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger, other = logging.getLogger("mmdata_train"), logging.StreamHandler()
    before = logger.level, logger.propagate, list(logger.handlers)
    for _ in range(2):
        with shown_logging():
            logging.getLogger().addHandler(other)
            try:
                logging.getLogger("mmdata_train.evaluate").info("law: 3 of 7")
            finally:
                logging.getLogger().removeHandler(other)
        assert capsys.readouterr().err == "law: 3 of 7\n"
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


@pytest.mark.parametrize("metrics", ["bleu,bleu", "f1,bleu, f1"])
def test_metrics_named_twice_are_refused(metrics: str) -> None:
    given = {"answers": ("a.jsonl",), "metrics": metrics}
    with pytest.raises(ConfigError, match=r"metrics is .*; name each wanted one once, of bleu, rouge, exact, f1"):
        flags_of(given).to_suite()
    with pytest.raises(ConfigError, match="metrics is empty"):
        SetEntry(kind="answers", path="a.jsonl", metrics=())
