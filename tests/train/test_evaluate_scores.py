"""Scores are the reference programs' own, and Chinese is cut into characters everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmdata_train.errors import ConfigError, EvaluationError
from mmdata_train.evaluate.cli import flags_of
from mmdata_train.evaluate.flags import Flags
from mmdata_train.evaluate.intervals import sign_test, wilson
from mmdata_train.evaluate.questions import form_of, prompt_parts, read_questions, shots_for
from mmdata_train.evaluate.scores import Pair, score_answers, token_f1
from mmdata_train.evaluate.words import language_of, units
from mmdata_train.generation.items import Keys, read_items


def by_name(pairs: list[Pair]) -> dict[str, float]:
    return {score.name: score.value for score in score_answers(pairs)}


def test_wilson_equals_scipy_and_known_values() -> None:
    stats = pytest.importorskip("scipy.stats")
    for hits, trials in [(0, 5), (5, 5), (3, 10), (250, 1000)]:
        theirs = stats.binomtest(hits, trials).proportion_ci(method="wilson")
        assert wilson(hits, trials) == pytest.approx((hits / trials, theirs.low, theirs.high))
    with pytest.raises(EvaluationError, match="a share of nothing"):
        wilson(0, 0)


def test_the_sign_test_equals_scipys_also_for_thousands() -> None:
    stats = pytest.importorskip("scipy.stats")
    for wins, losses in [(0, 0), (5, 5), (8, 2), (600, 500), (3000, 2900)]:
        expected = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
        assert sign_test(wins, losses) == pytest.approx(expected, rel=1e-9)


def test_units_are_han_characters_and_words() -> None:
    assert units("ＧＰＴ-4 在2024年，很 Good!") == ["gpt", "4", "在", "2024", "年", "很", "good"]
    assert language_of(["The court", "原告"]) == "zh"
    assert language_of(["The court of 京 and other words here"]) == "en"
    assert language_of([]) == "en"


def test_a_chinese_answer_equal_to_its_reference_scores_100_everywhere() -> None:
    scores = by_name([Pair("被告应当赔偿原告五百元。", ("被告应当赔偿原告五百元。",))])
    assert all(value == pytest.approx(100.0) for value in scores.values()), scores
    assert set(scores) == {"BLEU", "ROUGE-1", "ROUGE-2", "ROUGE-L", "exact match", "token F1"}


def test_chinese_bleu_is_sacrebleus_zh_and_rouge_counts_characters() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    answer, reference = "被告应赔偿原告五百元整", "被告应当赔偿原告五百元"
    scores = by_name([Pair(answer, (reference,))])
    assert scores["BLEU"] == pytest.approx(sacrebleu.corpus_bleu([answer], [[reference]], tokenize="zh").score)
    # 10 of 11 characters on both sides; 8 of 10 neighbouring pairs; the longest common subsequence has 10.
    assert scores["ROUGE-1"] == pytest.approx(100 * 10 / 11)
    assert scores["ROUGE-2"] == pytest.approx(100 * 8 / 10)
    assert scores["ROUGE-L"] == pytest.approx(100 * 10 / 11)
    assert scores["token F1"] == pytest.approx(100 * 10 / 11)


def test_english_scores_are_the_libraries_own() -> None:
    sacrebleu, rouge = pytest.importorskip("sacrebleu"), pytest.importorskip("rouge_score.rouge_scorer")
    answers = ["The cat sat on the mat.", "A dog ran through the long park"]
    references = ["The cat is on the mat.", "A dog ran in the long park today"]
    scores = by_name([Pair(a, (r,)) for a, r in zip(answers, references, strict=True)])
    assert scores["BLEU"] == pytest.approx(sacrebleu.corpus_bleu(answers, [references]).score)
    scorer = rouge.RougeScorer(["rougeL"])
    expected = sum(scorer.score(r, a)["rougeL"].fmeasure for a, r in zip(answers, references, strict=True)) / 2
    assert scores["ROUGE-L"] == pytest.approx(100 * expected)


def test_items_may_have_different_numbers_of_references_and_the_best_counts() -> None:
    pairs = [Pair("Paris", ("the city of Paris", "Paris")), Pair("in 1999", ("1999",))]
    scores = by_name(pairs)
    assert scores["exact match"] == 50.0
    assert scores["token F1"] == pytest.approx((100 + 100 * 2 / 3) / 2)
    assert token_f1(Pair("", ("",)), "en") == 1.0 and token_f1(Pair("", ("x",)), "en") == 0.0


def test_every_score_names_its_library_version_and_tokenization() -> None:
    for score in score_answers([Pair("答案", ("答案",))]):
        assert score.library in ("sacrebleu", "rouge-score", "mmdata") and score.version and score.tokenization
    bleu = score_answers([Pair("答案", ("答案",))], ["bleu"])[0]
    assert "tok:zh" in bleu.tokenization
    with pytest.raises(EvaluationError, match="metric 'bleurt' is unknown"):
        score_answers([Pair("a", ("a",))], ["bleurt"])
    with pytest.raises(EvaluationError, match="no answers"):
        score_answers([])
    with pytest.raises(EvaluationError, match="no reference"):
        score_answers([Pair("a", ())])


def test_items_are_read_in_the_usual_shapes(tmp_path: Path) -> None:
    file = tmp_path / "qa.jsonl"
    records = [
        {"question": "q\u2028q", "answer": "a"},
        {"instruction": "i", "input": "x", "output": "o"},
        {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "w"}], "source": "law"},
        {"conversations": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "g"}]},
        {"prompt": "p", "references": ["r1", "r2"], "prediction": ""},
        {"question": "s", "answers": {"text": ["t"], "answer_start": [1]}},
    ]
    file.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    items = read_items(file, need=("prompt", "reference"))
    assert [item.prompt for item in items] == ["q\u2028q", "i\nx", "u", "h", "p", "s"]
    assert [item.references for item in items] == [("a",), ("o",), ("w",), ("g",), ("r1", "r2"), ("t",)]
    assert items[4].answer == "" and items[0].answer is None
    assert items[2].source == "law" and [item.id for item in items] == ["1", "2", "3", "4", "5", "6"]
    with pytest.raises(EvaluationError, match=r"qa.jsonl:1: no answer: no text in prediction"):
        read_items(file, need=("answer",))
    with pytest.raises(EvaluationError, match=r"qa.jsonl:1: no reference: no text in gold; .* --reference-key"):
        read_items(file, Keys(reference="gold"), need=("reference",))
    file.write_text('{"prompt": "a"}\n{"prompt"\n', encoding="utf-8")
    with pytest.raises(EvaluationError, match=r"qa.jsonl:2: not JSON"):
        read_items(file)
    file.write_text('{"id": 1, "prompt": "a"}\n{"id": "1", "prompt": "b"}\n', encoding="utf-8")
    with pytest.raises(EvaluationError, match=r"qa.jsonl:2: the id '1' stands in line 1 already"):
        read_items(file)


@pytest.mark.parametrize(
    ("record", "need", "words"),
    [
        ({"prediction": None}, "answer", r"prediction is null; it must be a text, in quotation marks"),
        ({"prediction": 42}, "answer", r"prediction is a number \(42\); it must be a text"),
        ({"completion": True}, "answer", r"completion is true or false \(true\); it must be a text"),
        ({"generated": ["a"]}, "answer", "generated is a list; it must be a text"),
        ({"prompt": {"text": "a"}}, "prompt", "prompt is an object; it must be a text"),
        ({"references": []}, "reference", "references is an empty list; it must be a text, or a list of texts"),
        ({"predicted": "a"}, "answer", "no text in prediction, generated, completion; rename the field"),
    ],
)
def test_field_of_another_type_is_named_with_its_type(
    tmp_path: Path, record: dict[str, object], need: str, words: str
) -> None:
    (tmp_path / "qa.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    with pytest.raises(EvaluationError, match=rf"qa\.jsonl:1: no {need}: {words}"):
        read_items(tmp_path / "qa.jsonl", need=(need,))


CEVAL = 'id,question,A,B,C,D,answer,explanation\n0,"下列,哪项？",甲,乙,丙,丁,C,因为\n1,第二题,1,2,3,4,A,\n'
CMMLU = ",Question,A,B,C,D,Answer\n0,第一题,甲,乙,丙,丁,D\n"


def test_c_eval_cmmlu_and_own_layouts_are_read(tmp_path: Path) -> None:
    (tmp_path / "law_val.csv").write_text("\ufeff" + CEVAL, encoding="utf-8")
    (tmp_path / "medicine.csv").write_text(CMMLU, encoding="utf-8")
    own = [
        {"question": "Which?", "options": ["x", "y", "z"], "answer": 2, "subject": "maths"},
        {"question": "Which?", "choices": {"A": "x", "B": "y"}, "answer": "b", "subject": "maths"},
    ]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(r) + "\n" for r in own), encoding="utf-8")
    found = read_questions(tmp_path)
    assert [(q.subject, q.letters[q.answer], len(q.options)) for q in found] == [
        ("law", "C", 4), ("law", "A", 4), ("medicine", "D", 4), ("maths", "C", 3), ("maths", "B", 2),
    ]  # fmt: skip
    assert found[0].question == "下列,哪项？"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,question,A,B,answer\n0,q,x,y,\n", r"law.csv:2: the answer is ''; it must be one of A, B"),
        ("id,question,A,B,answer\n0,q,x,y,C\n", "the answer is 'C'"),
        ("id,question,A,B,answer\n0,,x,y,A\n", "the question is ''; it must be a text"),
        ("id,question,A,answer\n0,q,x,A\n", "1 options that are not empty"),
        ("id,question,A,B,C,D,answer\n0,q,x,y,,z,A\n", "option C is empty but D is not"),
        (
            "id,Question,A,B\n0,q,x,y\n",
            r"csv:2: no `answer` here; there are id, question, a, b; wanted are question",
        ),
        (
            "id,question,one,two,answer\n0,q,x,y,A\n",
            "no options here; there are id, question, one, two, answer",
        ),
        (",text,A,B,answer\n0,q,x,y,A\n", r"no `question` here; there are \(a column without a name\), text, a, b"),
        ("id,question,A,B,answer\n0,q,x,y\n", "does not have the header's columns"),
        ("id,question,A,B,answer\n", "holds no question"),
        ('id,question,A,B,answer\n0,q,x,y,A\n1,"open,x,y,A\n2,q,x,y,A\n', r"law\.csv:3: a quote .* opens in the row"),
        ('id,question,A,B,answer\n0,"open,x,y,A\n1,"q",x,y,A\n', r"law\.csv:2: a quote .* is not closed"),
        ('"id,question,A,B,answer\n0,q,x,y,A\n', r"law\.csv:1: a quote"),
        ("id,question,A,B,answer\n7,q,x,y,A\n8,r,x,y,A\n7,s,x,y,A\n", r"csv:4: the id '7' stands in line 2 already"),
        ("id,question,A,B,C,answer\n0,q,x,y, x,A\n", r"csv:2: the options A and C are the same \('x'\)"),
    ],
)
def test_broken_questions_are_named_with_their_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "law.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(EvaluationError, match=words):
        read_questions(file)


def test_ids_may_repeat_in_other_files_and_subjects(tmp_path: Path) -> None:
    (tmp_path / "law.csv").write_text(CEVAL, encoding="utf-8")
    (tmp_path / "medicine.csv").write_text(CMMLU, encoding="utf-8")
    own = [{"id": 1, "question": "?", "options": ["x", "y"], "answer": 0, "subject": name} for name in ("a", "b")]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(r) + "\n" for r in own), encoding="utf-8")
    assert [q.id for q in read_questions(tmp_path)] == ["0", "1", "0", "1", "1"]


@pytest.mark.parametrize("encoding", ["GB18030", "UTF-16"])
@pytest.mark.parametrize("name", ["law.csv", "law.jsonl"])
def test_files_in_another_encoding_are_named_with_the_command_that_converts_them(
    tmp_path: Path, name: str, encoding: str
) -> None:
    text = CEVAL if name == "law.csv" else json.dumps({"question": "第一题"}, ensure_ascii=False) + "\n"
    (tmp_path / name).write_bytes(text.encode(encoding))
    with pytest.raises(EvaluationError, match=f"not UTF-8 but, it seems, {encoding}.*iconv -f {encoding} -t UTF-8 "):
        read_questions(tmp_path / name)


def test_bytes_of_no_known_encoding_are_said_to_be_no_utf8(tmp_path: Path) -> None:
    (tmp_path / "law.csv").write_bytes(CEVAL.encode() + b"\xff\xff")
    with pytest.raises(EvaluationError, match=r"law\.csv: not UTF-8; save the file as UTF-8"):
        read_questions(tmp_path)


def test_prompts_have_header_shots_and_the_question(tmp_path: Path) -> None:
    (tmp_path / "law_val.csv").write_text(CEVAL, encoding="utf-8")
    questions = read_questions(tmp_path)
    shots = shots_for(questions[0], questions, 1)
    header, examples, text = prompt_parts(questions[0], shots, form_of(questions), {"law": "法学"})
    assert header + "".join(examples) + text == (
        "以下是中国关于法学考试的单项选择题，请选出其中的正确答案。\n\n第二题\nA. 1\nB. 2\nC. 3\nD. 4\n答案：A\n\n"
        "下列,哪项？\nA. 甲\nB. 乙\nC. 丙\nD. 丁\n答案："
    )
    with pytest.raises(EvaluationError, match="2 shots are wanted, but there are 1 questions on law"):
        shots_for(questions[0], questions, 2)


def test_zero_given_on_the_command_line_is_not_taken_for_the_default() -> None:
    for name in ("seq_length", "stride", "limit"):
        with pytest.raises(ConfigError, match=f"{name} is 0; it must be at least 1"):
            flags_of({"targets": ("m",), "perplexity": ("texts.jsonl",), name: 0}).to_suite()
    assert flags_of({"targets": ("m",), "perplexity": ("t.jsonl",), "seed": 0}).to_suite().seed == 0


def test_output_that_is_a_file_is_refused_before_scoring(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from mmdata_train.evaluate.run import evaluate

    file = tmp_path / "taken"
    file.write_text("", encoding="utf-8")
    suite = Flags(answers=("a.jsonl",), suite={"output": str(file), "overwrite": True}).to_suite()
    with pytest.raises(EvaluationError, match="taken is a file; give a folder"):
        evaluate(suite)
