"""Recipes are checked in full before anything runs, and their fingerprint follows what they do."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mmdata.clean.pipeline import Cleaner, with_pii
from mmdata.clean.recipe import BUILTIN, check_recipe, load_recipe, parse_recipe, show_recipe
from mmdata.document import Document, Part
from mmdata.errors import BoilerplateListError, RecipeError, StepParameterError, UnknownStepError
from mmdata.pipeline.options import ConvertOptions
from mmdata.pipeline.stages import recipe_of


def document(*texts: str, role: str = "text") -> Document:
    return Document("a.jsonl", 0, 7, "x", {}, tuple(Part(f"k{i}", role, text) for i, text in enumerate(texts)))


@pytest.mark.parametrize("name", BUILTIN)
def test_every_built_in_recipe_loads_and_shows_itself(name: str) -> None:
    recipe = load_recipe(name)
    assert parse_recipe(show_recipe(name)).fingerprint == recipe.fingerprint
    assert check_recipe(name)["steps"] == len(recipe.steps)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("steps: [mojibak]", UnknownStepError, "did you mean 'mojibake'"),
        ("steps: [{words: {mim: 3}}]", UnknownStepError, "did you mean 'min'"),
        ("steps: [{words: {min: many}}]", StepParameterError, "words.min must be float, not 'many'"),
        ("steps: [{words: {min: 1, action: dropp}}]", StepParameterError, "did you mean 'drop'"),
        ("steps: [{words: {min: 1, languages: [zn]}}]", StepParameterError, "did you mean 'zh'"),
        ("steps: [{space_runs: {min_run: 1}}]", StepParameterError, "at least 3"),
        ("steps: [words]", StepParameterError, "min, max or both"),
        ("stps: []", RecipeError, "did you mean 'steps'"),
        ("steps: 3", RecipeError, "list of steps"),
        ("- words", RecipeError, "a mapping"),
        ("steps: [", RecipeError, "not YAML"),
        ("steps: [{gopher_repetition: {top_ngrams: [[0, 1]]}}]", StepParameterError, r"\[n, limit\]"),
    ],
)
def test_mistakes_name_the_step_and_the_nearest_valid_one(text: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        parse_recipe(text, "mine.yaml")


def test_an_unknown_recipe_names_the_nearest_and_a_missing_file_is_named() -> None:
    with pytest.raises(RecipeError, match="did you mean 'gopher'"):
        load_recipe("gophr")
    with pytest.raises(RecipeError, match=r"nowhere\.yaml"):
        load_recipe("nowhere.yaml")


def test_the_fingerprint_is_of_the_resolved_steps_not_of_the_spelling() -> None:
    short, long = parse_recipe("steps: [space_runs]"), parse_recipe("steps: [{space_runs: {min_run: 3}}]")
    assert short.fingerprint == long.fingerprint
    assert parse_recipe("steps: [{space_runs: {min_run: 4}}]").fingerprint != short.fingerprint
    assert with_pii(load_recipe("auto"), "off").fingerprint != load_recipe("auto").fingerprint


def test_a_function_of_the_user_is_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rules.py").write_text(
        "def loud(text, mark='!'):\n    return None if text == 'bad' else text + mark\n"
        "def wrong(text):\n    return 3\n", encoding="utf-8",
    )  # fmt: skip
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = parse_recipe(yaml.safe_dump({"steps": [{"own_rules:loud": {"mark": "?"}}]}))
    result = Cleaner(recipe).clean_documents([document("good"), document("bad")])
    assert [d.text for d in result.kept] == ["good?"]
    assert [(d.stage, d.reason, d.line) for d in result.drops] == [("clean", "own_rules:loud", 7)]
    with pytest.raises(StepParameterError, match="returned int"):
        Cleaner(parse_recipe("steps: ['own_rules:wrong']")).clean_documents([document("good")])
    with pytest.raises(UnknownStepError, match="cannot import"):
        Cleaner(parse_recipe("steps: ['own_rules:nothing']")).clean_documents([document("good")])


def test_a_rule_drops_with_its_value_and_limit_or_marks_for_review() -> None:
    recipe = parse_recipe("steps: [{words: {min: 3}}, {digit_share: {max: 0.4, action: review}}]")
    result = Cleaner(recipe).clean_documents([document("one two"), document("12 345 67 a"), document("一二三四")])
    assert [(d.reason, d.value, d.limit) for d in result.drops] == [("words", 2, 3)]
    assert [d.meta.get("review") for d in result.kept] == [["digit_share"], None]
    assert result.review == {"digit_share": 1} and result.dropped == {"words": 1}


def test_length_rules_can_spare_chats() -> None:
    recipe = parse_recipe("steps: [{words: {min: 3, chat: false}}]")
    result = Cleaner(recipe).clean_documents([document("好", role="assistant"), document("好")])
    assert [d.parts[0].role for d in result.kept] == ["assistant"]


def test_results_depend_on_the_document_not_on_its_batch() -> None:
    texts = ["itâ€™s", "一段正文。" * 30, "", "ａｂｃ", "x" * 500, "手机13800138000", "第一行\r\n第二行\u200b"]
    alone = [Cleaner("auto").clean_documents([document(text)]) for text in texts]
    together = Cleaner("auto").clean_documents([document(text) for text in texts])
    assert [d.text for r in alone for d in r.kept] == [d.text for d in together.kept]
    assert [d.reason for r in alone for d in r.drops] == [d.reason for d in together.drops]


def test_a_drop_takes_the_whole_record_and_parts_are_repaired_one_by_one() -> None:
    mixed = [document("itâ€™s", "１２", role="user"), document("\ufffd\ufffd", "好的好的")]
    result = Cleaner("auto").clean_documents(mixed)
    assert [[part.text for part in d.parts] for d in result.kept] == [["it’s", "12"]]
    assert [d.reason for d in result.drops] == ["ruined"]


def test_lone_surrogates_and_empty_batches_are_no_trouble() -> None:
    assert Cleaner("auto").clean_documents([]).kept == []
    assert Cleaner("auto").clean_documents([document("好\ud800好")]).kept[0].text == "好好"



@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("steps: [{words: {min: 9, max: 3}}]", StepParameterError, r"words\.min 9 is above max 3: nothing passes"),
        ("steps: [{gopher_quality: {min_words: 9, max_words: 3}}]", StepParameterError, "min_words 9 is above max_wo"),
        ("steps: [{gopher_quality: {max_mean_word_length: 2}}]", StepParameterError, "min_mean_word_length 3 is above"),
        ("steps: [{compression_ratio: {min: 2, max: 1}}]", StepParameterError, r"compression_ratio\.min 2 is above"),
        ("steps: [{words: {min: 9}}, nfc, {words: {max: 3}}]", StepParameterError, "9 of step 1 contradicts max 3 of"),
        ("steps: [{words: {max: 3}}, {words: {min: 9}}]", StepParameterError, "9 of step 2 contradicts max 3 of"),
        ("steps: [words: {min: 1}, words: {min: 9}, words: {max: 3}]", StepParameterError, "9 of step 2 contradicts"),
        ("steps: [{words: {min: 3, min: 4}}]", RecipeError, "the key 'min' stands twice"),
        ("steps: []\nsteps: [nfc]", RecipeError, "the key 'steps' stands twice.*line 2"),
        ("steps: [{words: {min: 1}, words: {max: 2}}]", RecipeError, "the key 'words' stands twice"),
        ("steps: [{words: {max: .nan}}]", StepParameterError, "must be a finite number"),
        ("steps: [{words: {max: .inf}}]", StepParameterError, "leave it out for no limit"),
        ("steps: [{words: {min: 1, languages: []}}]", StepParameterError, "must not be empty; leave it out for all"),
        ("steps: [{language: {keep: []}}]", StepParameterError, "must not be empty"),
        ("steps: [{language: {keep: [zn]}}]", StepParameterError, "did you mean 'zh'"),
        ("steps: [{pii: {kinds: [emial]}}]", StepParameterError, "did you mean 'email'"),
        ("name: 2024-13-45\nsteps: []", RecipeError, "not YAML: month must be in"),
        ("[" * 5000, RecipeError, "not YAML: it is nested too deeply"),
    ],
)
def test_recipes_that_contradict_themselves_are_refused(text: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        parse_recipe(text, "mine.yaml")


def test_one_rule_may_stand_twice_for_different_documents_and_merges_may_be_overridden() -> None:
    assert settings("{words: {min: 9, languages: [zh]}}, {words: {max: 3, languages: [en]}}") == [
        {"min": 9.0, "languages": ["zh"]},
        {"max": 3.0, "languages": ["en"]},
    ]
    assert settings("{words: {min: 9, action: review}}, {words: {max: 3}}") == [
        {"min": 9.0, "action": "review"},
        {"max": 3.0},
    ]
    assert settings("{words: &base {min: 9, max: 50}}, {letter_share: {<<: *base, min: 0.1, max: 0.9}}") == [
        {"min": 9.0, "max": 50.0},
        {"min": 0.1, "max": 0.9},
    ]


def settings(steps: str) -> list[dict[str, object]]:
    """What each step of a recipe sets apart from its defaults."""
    usual = {"min": None, "max": None, "languages": None, "min_words": 0, "chat": True, "action": "drop"}
    found = parse_recipe(f"steps: [{steps}]").steps
    return [{key: value for key, value in step.parameters.items() if value != usual[key]} for step in found]


@pytest.mark.parametrize(
    ("step", "error", "says"),
    [
        ("no_such_module_of_anyone:rule", UnknownStepError, "ModuleNotFoundError: .*PYTHONPATH"),
        ("broken_rules:rule", UnknownStepError, "ZeroDivisionError: division by zero"),
        ("good_rules:nothing", UnknownStepError, "no attribute 'nothing'"),
        ("good_rules:LIMIT", UnknownStepError, "LIMIT is int, not a function"),
        ("good_rules:rule: {hard: 1}", StepParameterError, r"rule\(text, strict=False\): cannot be called .*'hard'"),
        ("good_rules:two", StepParameterError, r"two\(text, other\): .*missing a required argument: 'other'"),
        ("bad_words: {path: nowhere.txt}", BoilerplateListError, r"cannot read 'nowhere\.txt'"),
        ("boilerplate: {lists: [zh, nowhere.txt]}", BoilerplateListError, r"cannot read 'nowhere\.txt'.*built in"),
        ("language: {model: nowhere.bin}", RecipeError, r"no model file at nowhere\.bin"),
    ],
)
def test_what_a_step_needs_is_looked_for_before_any_record_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: type[Exception], says: str
) -> None:
    (tmp_path / "good_rules.py").write_text(
        "LIMIT = 3\ndef rule(text, strict=False):\n    return text\ndef two(text, other):\n    return text\n", "utf-8"
    )
    (tmp_path / "broken_rules.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"steps:\n  - {step}\n", encoding="utf-8")
    with pytest.raises(error, match=says):
        check_recipe(str(recipe))
    with pytest.raises(error, match=says):
        Cleaner(str(recipe))
    with pytest.raises(error, match=says):
        recipe_of(ConvertOptions(recipe=str(recipe)))


def test_a_function_that_raises_is_named_with_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raising_rules.py").write_text("def rule(text):\n    return text[99]\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(StepParameterError, match=r"raising_rules:rule failed at a\.jsonl:7: IndexError"):
        Cleaner(parse_recipe("steps: ['raising_rules:rule']")).clean_documents([document("good")])
