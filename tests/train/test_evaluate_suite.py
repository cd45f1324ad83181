"""Suites: answers made elsewhere, models side by side, contaminated sets and mistakes are refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evaluation_sets import LAW, STORY, TRAINED, qa_file, write_sets

import mmdata
from mmdata_train.errors import ConfigError, ContaminationError, EvaluationError
from mmdata_train.evaluate.contamination import EvaluatedText, find_overlap, refuse
from mmdata_train.evaluate.suite import ModelEntry, SetEntry, Suite

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402

from mmdata_train.cli import main  # noqa: E402
from mmdata_train.evaluate.run import evaluate  # noqa: E402
from mmdata_train.evaluate.suite import Ranks  # noqa: E402


@pytest.fixture(scope="module")
def model_folder(shared: Path) -> str:
    return str(shared / "models" / "stories260K")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sets(tmp_path_factory.mktemp("evaluation"))


LONG = "，这一约定对双方当事人都有约束力，任何一方不得擅自变更或者解除它的全部内容。"


def test_items_that_stand_in_the_training_text_are_found_by_their_share() -> None:
    items = [
        EvaluatedText("q.jsonl", 1, (TRAINED[:40],)),
        EvaluatedText("q.jsonl", 2, ("本案的争议焦点是合同是否已经解除以及双方责任如何划分，原告主张被告赔偿损失。",)),
        EvaluatedText("q.jsonl", 3, ("太短",)),
        EvaluatedText(
            "q.jsonl",
            4,
            ("一、" + TRAINED[20:40] + LONG,),
        ),
    ]
    report = find_overlap(items, [("train", [TRAINED, "别的文本"])], 0.2)
    assert (report.items, report.unchecked, report.touched) == (3, 1, 2)
    assert report.contaminated == (("q.jsonl", 1, 1.0),)
    with pytest.raises(ContaminationError, match=r"1 of 3 evaluation items .* q.jsonl:1 100%"):
        refuse(report)
    refuse(find_overlap(items[1:3], [("train", [TRAINED])], 0.2))


def test_answers_made_elsewhere_are_scored_without_torch(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    records = [{"reference": "赔偿五百元", "prediction": "赔偿五百元"}, {"reference": "驳回", "prediction": "支持"}]
    file.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    code = (
        "import sys; from mmdata_train.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: code = end.code\n"
        "sys.exit(code or ('torch' in sys.modules))"
    )
    command = [sys.executable, "-c", code, "evaluate", "--answers", str(file), "-o", str(tmp_path / "out"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)["results"]["answers"]["answers"]["scores"]
    found = {score["name"]: score["value"] for score in scores}
    assert found["exact match"] == 50.0 and found["token F1"] == 50.0 and found["ROUGE-1"] == 50.0
    assert all(score["library"] and score["version"] and score["tokenization"] for score in scores)
    page = (tmp_path / "out" / "page.html").read_text(encoding="utf-8")
    assert "contamination was not checked" in page
    again = CliRunner().invoke(main, command[3:])
    assert again.exit_code == 1 and "out exists; choose another folder" in again.stderr


def test_answers_are_matched_to_questions_by_id_and_missing_ones_are_named(tmp_path: Path) -> None:
    questions = qa_file(tmp_path)
    answers = tmp_path / "mine.jsonl"
    answers.write_text('{"id": "2", "prediction": "无"}\n{"id": "1", "prediction": "十日"}\n', encoding="utf-8")
    suite = Suite(
        models={"mine": ModelEntry(answers={"qa": str(answers)})},
        sets={"qa": SetEntry(kind="answers", path=str(questions), metrics=("f1",))},
        output=tmp_path / "out",
    )
    result = evaluate(suite).results["qa"]["mine"]
    assert result.main.value == pytest.approx((100 + 80) / 2)
    assert result.by_part["law"].value == pytest.approx(80) and result.by_part["web"].value == 100
    answers.write_text('{"id": "2", "prediction": "无"}\n', encoding="utf-8")
    with pytest.raises(EvaluationError, match="1 of 2 items have no answer here, the first has the id '1'"):
        evaluate(Suite(**{name: getattr(suite, name) for name in ("models", "sets")}, output=tmp_path / "b"))


def test_a_suite_compares_models_side_by_side_and_refuses_contaminated_sets(
    model_folder: str, files: Path, tmp_path: Path
) -> None:
    questions = qa_file(tmp_path, TRAINED)
    training = tmp_path / "train.jsonl"
    training.write_text(json.dumps({"text": "前言。" + TRAINED}, ensure_ascii=False) + "\n", encoding="utf-8")
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        f"""
models:
  before: {{model: {model_folder}}}
  prompt-only: {{model: {model_folder}, system: "Answer in one word.", shots: 1, shots_from: {questions}}}
sets:
  qa: {{kind: answers, path: {questions}, group: domain, max_new_tokens: 6, metrics: [exact, f1]}}
  quiz: {{kind: choices, path: {files}/quiz.jsonl, group: general, seq_length: 256}}
  texts: {{kind: perplexity, path: {files}/texts.jsonl, begin: always, group: general}}
training: [{training}]
output: {tmp_path}/out
""",
        encoding="utf-8",
    )
    run = CliRunner().invoke
    refused = run(main, ["evaluate", str(suite)])
    assert refused.exit_code == 1 and "qa.jsonl:1 100%" in refused.stderr and not (tmp_path / "out").exists()
    done = run(main, ["evaluate", str(suite), "--allow-contamination"])
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert results["schema"] == "mmdata.evaluation/1"
    assert set(results["results"]["texts"]) == {"before", "prompt-only"}
    assert results["gains"]["general"]["prompt-only"]["perplexity"] == pytest.approx(0.0)
    assert results["gains"]["domain"]["prompt-only"]["sets"] == 1
    assert results["contamination"]["contaminated"][0][:2] == [str(questions), 1]
    page = (tmp_path / "out" / "page.html").read_text(encoding="utf-8")
    assert "<script" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "http://" not in page and "https://" not in page and "default-src 'none'" in page
    lines = (tmp_path / "out" / "qa.prompt-only.jsonl").read_text(encoding="utf-8").split("\n")
    record = json.loads(lines[0])
    assert record["prompt"].count(TRAINED) == 2 and "Answer in one word." in record["prompt"]
    assert record["ended"] in ("length", "stop")


def test_documents_of_an_evaluation_shard_are_items_too(model_folder: str, files: Path, tmp_path: Path) -> None:
    tokenizer = mmdata.load_tokenizer(model_folder)
    held_out = "A small fox found seven red apples near the old wooden bridge and ate them all before night came."
    for name, texts in (("train", [STORY * 2, LAW]), ("valid", [held_out, f"{LAW} {LAW}"])):
        with mmdata.ShardWriter(str(tmp_path / name), vocab_size=512) as writer:
            for ids in tokenizer.encode_batch(texts).split():
                writer.add_document(ids.tolist())
    suite = Suite(
        models={"base": ModelEntry(model=model_folder)},
        sets={"valid": SetEntry(kind="perplexity", path=str(tmp_path / "valid"))},
        training=(str(tmp_path / "train"),),
        output=tmp_path / "out",
    )
    with pytest.raises(ContaminationError, match=r"1 of 2 evaluation items .*valid:1 "):
        evaluate(suite)
    first = SetEntry(kind="perplexity", path=str(tmp_path / "valid"), limit=1)
    notes = evaluate(dataclasses.replace(suite, sets={"valid": first})).notes
    assert notes == [f"{tmp_path}/train does not name its tokenizer: its text was read with that of the first model"]


def test_only_texts_that_are_scored_are_looked_for_in_the_training_data(model_folder: str, tmp_path: Path) -> None:
    # Another tool's config.yaml above the model is no run of this engine.
    (tmp_path / "config.yaml").write_text("unknown: true\n", encoding="utf-8")
    shutil.copytree(model_folder, tmp_path / "model")
    texts, training = tmp_path / "texts.jsonl", tmp_path / "train.jsonl"
    held_out = "A small fox found seven red apples near the old wooden bridge and ate them all before night came."
    lines = [{"text": held_out}, {"text": held_out, "source": "law"}, {"text": LAW}]
    texts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    training.write_text(json.dumps({"text": LAW}) + "\n", encoding="utf-8")
    suite = Suite(
        models={"base": ModelEntry(model=str(tmp_path / "model"))},
        sets={"t": SetEntry(kind="perplexity", path=str(texts), limit=1)},
        training=(str(training),),
        output=tmp_path / "out",
    )
    found = evaluate(suite).contamination
    assert found is not None and (found["items"], found["contaminated"]) == (2, ())
    whole = SetEntry(kind="perplexity", path=str(texts))
    with pytest.raises(ContaminationError, match=r"1 of 3 .*texts.jsonl:3 "):
        evaluate(dataclasses.replace(suite, sets={"t": whole}, output=tmp_path / "other"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sets": {}}, "sets is empty"),
        ({"models": {"a": ModelEntry(answers={"other": "x"})}}, "names the set 'other'; sets: s"),
        ({"models": {"a b": ModelEntry(model="m")}}, "no spaces or slashes"),
        ({"parallel": Ranks(tensor=2)}, "answers are generated on whole models"),
        ({"overlap": 0.0}, "a share above 0"),
    ],
)
def test_suites_that_cannot_run_are_refused_first(change: dict[str, Any], words: str) -> None:
    given = {"models": {"a": ModelEntry(model="m")}, "sets": {"s": SetEntry(kind="answers", path="p")}}
    with pytest.raises(ConfigError, match=words):
        Suite(**{**given, **change})


def test_the_command_refuses_what_names_nothing_and_unknown_keys(tmp_path: Path) -> None:
    run = CliRunner().invoke
    for arguments, words in [
        ([], "nothing to evaluate: give a suite.yaml"),
        (["model"], "nothing to evaluate on"),
        (["a=x", "a=y", "--choices", "c"], "two of model are called 'a'"),
        (["model", "--set", "seed=1", "--choices", "c"], "there is none here"),
    ]:
        refused = run(main, ["evaluate", *arguments])
        assert refused.exit_code == 2 and words in refused.stderr, refused.output
    file = tmp_path / "s.yaml"
    file.write_text(
        "models: {a: {model: m}}\nsets: {s: {kind: answers, path: p, max_new_token: 3}}\n", encoding="utf-8"
    )
    refused = run(main, ["evaluate", str(file)])
    assert refused.exit_code == 2 and "did you mean max_new_tokens" in refused.stderr
