"""Evaluation counts every token once, agrees with transformers in any layout, and refuses contaminated items."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmdata
from mmdata_train.errors import ConfigError, ContaminationError, EvaluationError
from mmdata_train.evaluate.contamination import EvaluatedText, find_overlap, refuse
from mmdata_train.evaluate.suite import ModelEntry, SetEntry, Suite

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402

from mmdata_train.cli import main  # noqa: E402
from mmdata_train.evaluate.opened import OpenedModel, open_entry  # noqa: E402
from mmdata_train.evaluate.perplexity import ShardTexts, make_row, pack_windows, windows  # noqa: E402
from mmdata_train.evaluate.run import evaluate  # noqa: E402
from mmdata_train.evaluate.suite import Ranks  # noqa: E402
from mmdata_train.evaluate.tasks import run_answers, run_choices, run_perplexity  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.loss import IGNORED  # noqa: E402

STORY = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
LAW = "The defendant shall pay the plaintiff the sum of 500 yuan within ten days of this judgment."
TRUTH = {"story": (31, 0.18036), "law": (49, 5.23977)}


@pytest.fixture(scope="module")
def model_folder(shared: Path) -> str:
    return str(shared / "models" / "stories260K")


@pytest.fixture(scope="module")
def opened(model_folder: str) -> OpenedModel:
    return open_entry(ModelEntry(model=model_folder), Ranks(), 64, 4)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    """Texts, a shard of uneven documents, a chat-like shard with spans, questions."""
    folder = tmp_path_factory.mktemp("evaluation")
    lines = [{"text": STORY, "source": "story"}, {"text": LAW, "source": "law"}]
    (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    rng = np.random.default_rng(0)
    documents = [rng.integers(3, 512, size=n) for n in (5, 200, 1, 64, 65, 66, 2, 31)]
    with mmdata.ShardWriter(str(folder / "plain"), vocab_size=512) as writer:
        for ids in documents:
            writer.add_document(ids.tolist())
    rows = [
        {"question": f"What did {name} see?", "options": ["a big dog", "a car", "the sun"], "answer": n % 3,
         "subject": "stories" if n < 4 else "dogs"}
        for n, name in enumerate(("Lily", "Tom", "Mum", "Ben", "Sue", "Tim"))
    ]  # fmt: skip
    (folder / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    asked = [{"question": f"{name} went to the park", "answer": "to play"} for name in ("Lily", "Tom", "Ben", "Sue")]
    asked += [{"question": text, "answer": "x"} for text in ("Once", "The dog", "One day, she saw a big")]
    (folder / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked), encoding="utf-8")
    return folder


def test_windows_count_every_token_but_the_first_once_with_context() -> None:
    lengths = np.array([1, 2, 9, 10, 40, 0])
    for length, stride in [(8, 4), (8, 8), (8, 1), (50, 25)]:
        counted: dict[int, list[int]] = {}
        for window in windows(lengths, length, stride):
            assert window.size <= length
            stop = window.start + window.size
            counted.setdefault(window.text, []).extend(range(window.counted, stop + 1))
            if window.counted > 1:
                assert window.counted - window.start >= length - stride + 1
        expected = {text: list(range(1, n)) for text, n in enumerate(lengths.tolist()) if n > 1}
        assert counted == expected


def test_rows_of_several_texts_keep_them_apart_and_loss_spans_decide_what_counts(tmp_path: Path) -> None:
    class Spanned:
        def lengths(self) -> Any:
            return np.array([4, 3])

        def read(self, text: int) -> tuple[Any, Any]:
            return np.arange(10 * text, 10 * text + 4 - text), np.array([False, True, False, True][: 4 - text])

    rows = list(pack_windows(windows(Spanned().lengths(), 8, 4), 8))
    assert len(rows) == 1
    row = make_row(Spanned(), rows[0])
    assert row.tokens.tolist() == [0, 1, 2, 10, 11]
    assert row.labels.tolist() == [1, IGNORED, 3, 11, IGNORED]
    assert row.positions.tolist() == [0, 1, 2, 0, 1]
    assert row.documents.tolist() == [0, 0, 0, 1, 1]


def test_the_known_cross_entropies_are_reproduced(opened: OpenedModel, files: Path) -> None:
    entry = SetEntry(kind="perplexity", path=str(files / "texts.jsonl"), begin="always", seq_length=64)
    outcome = run_perplexity(opened, entry)
    for record in outcome.records:
        tokens, loss = TRUTH[record["source"]]
        assert record["tokens"] == tokens
        assert record["nll"] / tokens == pytest.approx(loss, abs=1e-4)
    total = sum(tokens * loss for tokens, loss in TRUTH.values()) / sum(tokens for tokens, _ in TRUTH.values())
    assert outcome.result.main.name == "perplexity"
    assert outcome.result.main.value == pytest.approx(math.exp(total), rel=1e-4)
    assert outcome.result.by_part["law"].value == pytest.approx(math.exp(5.23977), rel=1e-3)


def their_loss(folder: str, documents: Any, length: int, stride: int) -> tuple[float, int]:
    """The same sum by transformers, window by window."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    total, tokens = 0.0, 0
    for ids in documents:
        for window in windows(np.array([len(ids)]), length, stride):
            part = torch.tensor(ids[window.start : window.start + window.size + 1].astype(np.int64))[None]
            with torch.no_grad():
                chances = model(part[:, :-1]).logits[0].double().log_softmax(-1)
            nll = -chances.gather(1, part[0, 1:, None]).squeeze(1)
            total += float(nll[window.counted - window.start - 1 :].sum())
        tokens += max(0, len(ids) - 1)
    return total, tokens


@pytest.mark.peer
def test_perplexity_of_a_shard_equals_transformers_to_the_last_token(
    opened: OpenedModel, model_folder: str, files: Path
) -> None:
    shard = mmdata.IndexedDataset(str(files / "plain"))
    entry = SetEntry(kind="perplexity", path=str(files / "plain"), seq_length=64, stride=16)
    outcome = run_perplexity(opened, entry)
    total, tokens = their_loss(model_folder, [shard[i] for i in range(len(shard))], 64, 16)
    assert outcome.records[0]["tokens"] == tokens == 426
    assert outcome.records[0]["nll"] == pytest.approx(total, rel=1e-6)
    assert any("no manifest" in note for note in outcome.result.notes)


def test_the_spans_of_a_chat_shard_are_respected(opened: OpenedModel, shared: Path, tmp_path: Path) -> None:
    records = [{"messages": [{"role": "user", "content": "Hi there"}, {"role": "assistant", "content": "One day"}]}] * 3
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    mmdata.convert(
        [str(tmp_path / "chat.jsonl")], str(tmp_path / "chat"), str(shared / "models" / "stories260K"),
        chat_template="plain", recipe="none", dedup="none", workers=1,
    )  # fmt: skip
    shard = mmdata.IndexedDataset(str(tmp_path / "chat_text_document"))
    assert shard.has_loss_spans
    counted = sum(int((shard.loss_spans(i)[:, 1] - shard.loss_spans(i)[:, 0]).sum()) for i in range(len(shard)))
    outcome = run_perplexity(opened, SetEntry(kind="perplexity", path=shard.prefix, seq_length=64))
    assert outcome.records[0]["tokens"] == counted < shard.token_count - 3
    ids, mask = ShardTexts(shard, (1,)).read(0)
    assert ids[0] == 1 and int(mask.sum()) == counted // 3


@pytest.mark.peer
def test_options_score_as_transformers_scores_them(opened: OpenedModel, model_folder: str, files: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    for score in ("letter", "text"):
        entry = SetEntry(kind="choices", path=str(files / "quiz.jsonl"), score=score, seq_length=400)
        wide = open_entry(ModelEntry(model=model_folder), Ranks(), 400, 4)
        outcome = run_choices(wide, ModelEntry(model=model_folder), entry)
        for record in outcome.records:
            assert record["prompt"].endswith("Answer:")
            endings = ["A", "B", "C"] if score == "letter" else record["options"]
            sums = []
            for ending in endings:
                alone, whole = wide.tokenizer.encode_batch([record["prompt"], f"{record['prompt']} {ending}"]).split()
                cut = len(alone)
                assert whole[:cut].tolist() == alone.tolist()
                with torch.no_grad():
                    chances = model(torch.tensor(whole.astype(np.int64))[None]).logits[0].double().log_softmax(-1)
                sums.append(sum(float(chances[at - 1, whole[at]]) for at in range(cut, len(whole))))
            assert record["log_likelihoods"] == pytest.approx(sums, abs=1e-4)
            assert record["choice"] == "ABC"[int(np.argmax(sums))]
        by_part = outcome.result.by_part
        assert set(by_part) == {"stories", "dogs"} and by_part["dogs"].items == 2
        main = outcome.result.main
        hits = sum(record["right"] for record in outcome.records)
        assert main.value == pytest.approx(100 * hits / 6) and main.low < main.value < main.high + 1e-9
        assert outcome.result.scores[0].value == pytest.approx(sum(s.value for s in by_part.values()) / 2)


def test_examples_are_left_out_until_the_prompt_fits_and_the_result_says_so(model_folder: str, files: Path) -> None:
    entry = SetEntry(
        kind="choices", path=str(files / "quiz.jsonl"), shots=1, shots_from=str(files / "quiz.jsonl"), seq_length=110
    )
    narrow = open_entry(ModelEntry(model=model_folder), Ranks(), 110, 4)
    outcome = run_choices(narrow, ModelEntry(model=model_folder), entry)
    assert {record["shots"] for record in outcome.records} == {0}
    assert "6 of 6 prompts hold fewer than 1 examples" in outcome.result.notes[0]
    tiny = open_entry(ModelEntry(model=model_folder), Ranks(), 20, 4)
    with pytest.raises(EvaluationError, match=r"quiz.jsonl:1: the question alone has"):
        run_choices(tiny, ModelEntry(model=model_folder), entry)


def test_examples_of_answers_that_do_not_fit_are_left_out_and_told(
    model_folder: str, files: Path, tmp_path: Path
) -> None:
    opened = open_entry(ModelEntry(model=model_folder), Ranks(), 64, 4)
    shots = tmp_path / "shots.jsonl"
    shots.write_text(json.dumps({"question": "word " * 150, "answer": "x"}) + "\n", encoding="utf-8")
    model = ModelEntry(model=model_folder, shots=1, shots_from=str(shots))
    questions = tmp_path / "qa.jsonl"
    long = {"question": "Once upon a time " * 30, "answer": "y"}
    short = {"question": "Once", "answer": "y"}
    questions.write_text(json.dumps(short) + "\n" + json.dumps(long) + "\n", encoding="utf-8")
    entry = SetEntry(kind="answers", path=str(questions), max_new_tokens=5, metrics=("f1",), chat=False)
    outcome = run_answers(opened, model, entry, 1, 2)
    assert "1 of 2 prompts hold fewer than 1 examples, to fit the model" in outcome.result.notes
    assert ["word word" in record["prompt"] for record in outcome.records] == [True, False]
    questions.write_text(json.dumps({"question": "Once upon a time " * 200, "answer": "y"}) + "\n", encoding="utf-8")
    with pytest.raises(EvaluationError, match=r"qa.jsonl:1: the question has [\d,]+ tokens, the model takes 512"):
        run_answers(opened, model, entry, 1, 2)


def scores_on_rank(
    folder: str, files: str, ranks: tuple[int, int, int]
) -> tuple[list[dict[str, Any]], list[Any], list[str]]:
    layout = Ranks(tensor=ranks[0], pipeline=ranks[1], data=ranks[2])
    opened = open_entry(ModelEntry(model=folder), layout, 128, 4)
    perplexity = run_perplexity(
        opened, SetEntry(kind="perplexity", path=f"{files}/texts.jsonl", begin="always", seq_length=128)
    )
    plain = run_perplexity(opened, SetEntry(kind="perplexity", path=f"{files}/plain", seq_length=64))
    quiz = run_choices(opened, ModelEntry(model=folder), SetEntry(kind="choices", path=f"{files}/quiz.jsonl"))
    answers: list[str] = []
    if opened.whole:
        asked = SetEntry(kind="answers", path=f"{files}/asked.jsonl", max_new_tokens=6, metrics=("f1",), chat=False)
        answers = [
            record["prediction"] for record in run_answers(opened, ModelEntry(model=folder), asked, 1, 4).records
        ]
    return perplexity.records + plain.records, [record["log_likelihoods"] for record in quiz.records], answers


@pytest.mark.parametrize("layout", [(2, 2, 1), (2, 1, 2), (1, 1, 4)])
def test_every_layout_gives_the_same_sums_on_every_rank(
    layout: tuple[int, int, int], ranks: RankPool, model_folder: str, files: Path
) -> None:
    expected, quiz, said = scores_on_rank(model_folder, str(files), (1, 1, 1))
    assert len(said) == 7 and len(set(said)) > 2
    for found, choices, answers in ranks.run(scores_on_rank, model_folder, str(files), layout):
        assert answers == ([] if layout[0] * layout[1] > 1 else said)
        assert [r["tokens"] for r in found] == [r["tokens"] for r in expected]
        assert [r["nll"] for r in found] == pytest.approx([r["nll"] for r in expected], rel=1e-5)
        for ours, theirs in zip(choices, quiz, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4)


LONG = "，这一约定对双方当事人都有约束力，任何一方不得擅自变更或者解除它的全部内容。"
TRAINED = "原告与被告于二〇二三年三月签订买卖合同，约定被告应当在十日内支付全部货款，被告至今没有支付。"


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


def qa_file(folder: Path, question: str = "被告应当何时付款？") -> Path:
    file = folder / "qa.jsonl"
    records = [
        {"question": question, "answer": "十日内", "source": "law"},
        {"question": "<script>alert(1)</script>", "answer": "无", "source": "web"},
    ]
    file.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return file


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)["results"]["answers"]["answers"]["scores"]
    found = {score["name"]: score["value"] for score in scores}
    assert found["exact match"] == 50.0 and found["token F1"] == 50.0 and found["ROUGE-1"] == 50.0
    assert all(score["library"] and score["version"] and score["tokenization"] for score in scores)
    page = (tmp_path / "out" / "page.html").read_text(encoding="utf-8")
    assert "contamination was not checked" in page
    again = CliRunner().invoke(main, command[3:])
    assert again.exit_code == 1 and "results.json exists" in again.stderr


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
