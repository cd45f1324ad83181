"""Opt-in steps, rules that read the text again, languages, and inputs made to be slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmdata.clean.language import LANGUAGES, detect, script
from mmdata.clean.measure import measure
from mmdata.clean.pdf import remove_page_furniture, unwrap_lines
from mmdata.clean.pipeline import Cleaner
from mmdata.clean.recipe import parse_recipe
from mmdata.clean.text_rules import bad_word_share, compression_ratio
from mmdata.document import Document, Part
from mmdata.errors import BoilerplateListError, MissingPackageError, RecipeError


def run(steps: str, texts: list[str]) -> tuple[list[str], list[str]]:
    """Texts kept and reasons of drops."""
    documents = [Document("a", 0, i, None, {}, (Part("text", "text", text),)) for i, text in enumerate(texts)]
    result = Cleaner(parse_recipe(f"name: t\nsteps:\n{steps}")).clean_documents(documents)
    return [document.text for document in result.kept], [drop.reason for drop in result.drops]


WRAPPED = (
    "患者男性四十五岁因反复上腹部疼痛三年加重一周入院疼\n痛多于餐后半小时出现持续一至两小时后自行缓解伴有反\n"
    "酸和嗳气。\n第二章 既往史\n"
)


def test_hard_wrapped_chinese_is_joined_and_headings_stay() -> None:
    joined = WRAPPED.replace("疼\n痛", "疼痛").replace("反\n酸", "反酸")
    assert unwrap_lines(WRAPPED) == joined
    assert run("  - unwrap_lines", [WRAPPED])[0] == [joined]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("an exam-\nple of text", "an example of text"),
        ("Anglo-\nSaxon", "Anglo-\nSaxon"),
        ("床前明月光\n疑是地上霜\n举头望明月\n低头思故乡", "床前明月光\n疑是地上霜\n举头望明月\n低头思故乡"),
        ("- one\n- two", "- one\n- two"),
    ],
)
def test_hyphens_are_closed_and_verse_and_lists_stay(text: str, right: str) -> None:
    assert unwrap_lines(text) == right


def test_page_numbers_and_running_headers_go_and_other_numbers_stay() -> None:
    pages = "".join(f"临床诊疗指南\n第{n}页\n\n这是第{n}页的正文内容，讲的是第{n}个问题。\n" for n in range(1, 6))
    kept = remove_page_furniture(pages)
    assert "临床诊疗指南" not in kept and "\n第3页\n" not in kept
    assert all(f"这是第{n}页的正文内容" in kept for n in range(1, 6))
    table = "年份\n2019\n\n数量\n7\n"
    assert remove_page_furniture(table) == table


def test_traditional_chinese_is_converted_phrase_by_phrase() -> None:
    pytest.importorskip("opencc")
    assert run("  - convert_chinese", ["頭髮長了，發現問題"])[0] == ["头发长了，发现问题"]
    assert run("  - convert_chinese: {conversion: s2t}", ["头发长了，发现问题"])[0] == ["頭髮長了，發現問題"]


def test_bad_words_are_whole_words_in_latin_and_substrings_of_two_in_han(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_text("# list\nass\nvery bad\n赌博\n性\n", encoding="utf-8")
    assert bad_word_share("A classic assessment of sex 性质", str(path)) == 0
    assert bad_word_share("an ass here", str(path)) == pytest.approx(1 / 3)
    assert bad_word_share("That is VERY bad", str(path)) == pytest.approx(1 / 4)
    assert bad_word_share("网上赌博网站", str(path)) == pytest.approx(1 / 6)
    kept, reasons = run(f"  - bad_words: {{path: '{path.as_posix()}'}}", ["an ass", "a class"])
    assert (kept, reasons) == (["a class"], ["bad_words"])
    with pytest.raises(BoilerplateListError, match="cannot read"):
        bad_word_share("x", str(tmp_path / "none.txt"))


def test_compression_ratio_tells_repetition_from_prose() -> None:
    prose = "The court of appeal held that the contract had been performed in good faith by both of the parties to it."
    assert 1.0 <= compression_ratio(prose) < 1.5
    assert compression_ratio(prose * 50) > 20
    assert compression_ratio("") == 0
    assert run("  - compression_ratio: {max: 5}", [prose, prose * 50]) == ([prose], ["compression_ratio"])


def test_a_language_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = (tmp_path / "lid.bin").as_posix()
    with pytest.raises((RecipeError, MissingPackageError), match=r"lid\.bin"):
        run(f"  - language: {{model: '{path}'}}", ["text"])


LANGUAGE_SAMPLES = [
    ("zh", "simplified", "患者因反复上腹部疼痛入院，医生认为应当继续观察。"),
    ("zh", "traditional", "患者因反覆上腹部疼痛入院，醫生認為應當繼續觀察。"),
    ("en", None, "The patient was admitted with pain, and the doctors decided to wait for the results of the tests."),
    ("ja", None, "患者は腹痛のため入院し、医師は経過を観察することにしました。"),
    ("ko", None, "환자는 복통으로 입원하였고 의사는 경과를 관찰하기로 했다."),
    ("other", None, "Der Patient wurde wegen starker Schmerzen aufgenommen, und die Ärzte wollten weiter beobachten."),
    ("other", None, "Пациент поступил с болью в животе, и врачи решили наблюдать за его состоянием."),
    (
        "other",
        None,
        "Le patient a été admis pour des douleurs et les médecins ont décidé de poursuivre son observation.",
    ),
    ("und", None, "12 + 30 = 42 …… 7,8"),
]


@pytest.mark.parametrize(("name", "variant", "text"), LANGUAGE_SAMPLES)
def test_languages_and_scripts_are_told_apart(name: str, variant: str | None, text: str) -> None:
    rows = measure([text])
    assert LANGUAGES[detect(rows)[0]] == name
    if name == "zh":
        assert script(rows[0]) == variant

