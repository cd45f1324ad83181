"""Evaluation counts every token once and agrees with transformers in any layout, to the last token."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluation_sets import write_sets

import mmdata
from mmdata_train.errors import EvaluationError
from mmdata_train.evaluate.suite import ModelEntry, SetEntry, Suite

torch = pytest.importorskip("torch")

from mmdata_train.evaluate.opened import OpenedModel, open_entry  # noqa: E402
from mmdata_train.evaluate.perplexity import ShardTexts, make_row, pack_windows, windows  # noqa: E402
from mmdata_train.evaluate.run import evaluate  # noqa: E402
from mmdata_train.evaluate.suite import Ranks  # noqa: E402
from mmdata_train.evaluate.tasks import run_answers, run_choices, run_perplexity  # noqa: E402
from mmdata_train.launch import RankPool  # noqa: E402
from mmdata_train.loss import IGNORED  # noqa: E402

TRUTH = {"story": (31, 0.18036), "law": (49, 5.23977)}


@pytest.fixture(scope="module")
def model_folder(shared: Path) -> str:
    return str(shared / "models" / "stories260K")


@pytest.fixture(scope="module")
def opened(model_folder: str) -> OpenedModel:
    return open_entry(ModelEntry(model=model_folder), Ranks(), 64, 4)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sets(tmp_path_factory.mktemp("evaluation"))


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


def models_one_after_another(folder: str, texts: str, output: str) -> tuple[list[float], int]:
    """Perplexities of three equal models in parts, and how many groups are open afterwards."""
    from torch.distributed.distributed_c10d import _world

    suite = Suite(
        models={name: ModelEntry(model=folder) for name in ("a", "b", "c")},
        sets={"texts": SetEntry(kind="perplexity", path=texts, begin="always", seq_length=64)},
        parallel=Ranks(tensor=2),
        output=Path(output),
    )
    results = evaluate(suite).results["texts"]
    return [result.main.value for result in results.values()], len(_world.pg_map)


def test_models_in_parts_leave_no_groups_behind(two: RankPool, model_folder: str, files: Path, tmp_path: Path) -> None:
    for values, groups in two.run(models_one_after_another, model_folder, str(files / "texts.jsonl"), str(tmp_path)):
        assert values[0] == values[1] == values[2] > 1
        assert groups == 1
