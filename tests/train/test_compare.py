"""A blind page hides who wrote what, keeps votes in a real browser, and its ratings count with intervals."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from click.testing import CliRunner

from mmdata_train.cli import main
from mmdata_train.compare.blind import draw, key_of, page_of, read_key, write_blind
from mmdata_train.compare.votes import count_votes
from mmdata_train.errors import EvaluationError
from mmdata_train.evaluate.intervals import wilson
from mmdata_train.generation.items import Item

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked=2'> \u2028 &amp; 你好\n第二行"


def items_of(count: int) -> list[Item]:
    return [
        Item("t", n, f"id-{n}", ({"role": "user", "content": f"question {n}"},), (), None, "law" if n % 2 else "web")
        for n in range(count)
    ]


def sides(count: int) -> tuple[list[str], list[str]]:
    return [f"answer alpha {n}" for n in range(count)], [f"answer beta {n} {HOSTILE}" for n in range(count)]


def ratings_file(path: Path, test: str, votes: dict[str, str], rater: str = "ann") -> Path:
    value = {"schema": "mmdata.ratings/1", "test": test, "rater": rater, "ratings": votes}
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_sides_and_order_are_drawn_from_the_seed_and_are_even() -> None:
    items, answers = items_of(1000), sides(1000)
    test = draw(items, answers, ("model-a", "model-b"), 7)
    assert test == draw(items, answers, ("model-a", "model-b"), 7)
    other = draw(items, answers, ("model-a", "model-b"), 8)
    assert other.test != test.test and [s.item.id for s in other.shown] != [s.item.id for s in test.shown]
    assert 430 < sum(one.left_is_a for one in test.shown) < 570
    assert sorted(one.item.id for one in test.shown) == sorted(item.id for item in items)
    for one in test.shown[:50]:
        assert ("alpha" in one.left) == one.left_is_a and ("alpha" in one.right) != one.left_is_a


def test_the_page_holds_neither_names_nor_key_and_nothing_from_outside() -> None:
    test = draw(items_of(20), sides(20), ("secret-model", "other-model"), 7)
    page = page_of(test, "Which <one>?")
    assert "secret-model" not in page and "other-model" not in page and "left_is_a" not in page
    assert "<title>Which &lt;one&gt;?</title>" in page
    assert not re.search(r"https?://|src=[\"']|@import|url\(", page.replace("\\u003c", ""))
    assert page.count("</script>") == 2 and "window.hacked = 1</script>" not in page
    assert set(key_of(test)["left"].values()) == {"a", "b"}


def test_equal_answers_are_left_out_and_told() -> None:
    test = draw(items_of(3), (["same", "x", "y"], ["same ", "z", "y"]), ("a", "b"), 1)
    assert [one.item.id for one in test.shown] == ["id-1"] and test.skipped == ("id-0", "id-2")
    with pytest.raises(EvaluationError, match="all 1 pairs of answers are the same text"):
        draw(items_of(1), (["x"], ["x"]), ("a", "b"), 1)


def test_votes_for_sides_are_counted_for_models_with_wilsons_intervals(tmp_path: Path) -> None:
    test = draw(items_of(10), sides(10), ("base", "tuned"), 3)
    key = key_of(test)
    # B wins six, A one, two ties, one pair of bad answers; for another rater B wins all.
    wanted = ["b"] * 6 + ["a", "tie", "tie", "bad"]
    votes = {
        n: want if want in ("tie", "bad") else ("left" if key["left"][n] == want else "right")
        for n, want in zip(key["left"], wanted, strict=True)
    }
    ann = ratings_file(tmp_path / "ann.json", test.test, votes)
    tally = count_votes(key, [ann])
    assert (tally.total.a, tally.total.b, tally.total.tie, tally.total.bad) == (1, 6, 2, 1)
    shares = tally.total.shares()
    assert shares["a"] == wilson(1, 10) and shares["b"] == wilson(6, 10) and shares["tie"] == wilson(3, 10)
    assert shares["win rate of a, ties as halves"].share == pytest.approx(0.25)
    decided = tally.total.decided()
    assert decided is not None and decided == wilson(1, 7)
    assert tally.to_json()["total"]["p_value"] == pytest.approx(0.125)
    assert tally.agreement is None and tally.missing == {"ann": 0}
    assert sum(count.votes for count in tally.by_source.values()) == 10
    bo_votes = {n: "left" if side == "b" else "right" for n, side in list(key["left"].items())[:8]}
    bo = ratings_file(tmp_path / "bo.json", test.test, bo_votes, "bo")
    both = count_votes(key, [ann, bo])
    assert both.total.b == 14 and both.missing["bo"] == 2 and both.agreement == pytest.approx(6 / 8)
    assert "notice: bo left 2 of 10 items without a vote" in list(both.lines())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"test": "0" * 16}, "rates the test '0000000000000000', the key is of"),
        ({"ratings": {"99": "left", "x": "tie"}}, "rates 2 items that the test does not have, the first is '99'"),
        ({"ratings": {"1": "best"}}, "item 1 has the vote 'best'; votes are left, right, tie, bad"),
        ({"ratings": {}}, "there is no vote"),
        ({"schema": "x"}, "its schema is 'x'"),
    ],
)
def test_ratings_that_do_not_belong_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    test = draw(items_of(3), sides(3), ("a", "b"), 1)
    value = {"schema": "mmdata.ratings/1", "test": test.test, "rater": "r", "ratings": {"1": "left"}, **change}
    file = tmp_path / "r.json"
    file.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(EvaluationError, match=re.escape(words)):
        count_votes(key_of(test), [file])
    with pytest.raises(EvaluationError, match=r"two files are of the rater|rates|vote|schema"):
        count_votes(key_of(test), [file, file])


def test_a_vote_given_twice_and_a_key_that_is_none_are_refused(tmp_path: Path) -> None:
    test = draw(items_of(3), sides(3), ("a", "b"), 1)
    file = ratings_file(tmp_path / "r.json", test.test, {"1": "left", "2": "right"})
    file.write_text(file.read_text(encoding="utf-8").replace('"2"', '"1"'), encoding="utf-8")
    with pytest.raises(EvaluationError, match="'1' stands there twice"):
        count_votes(key_of(test), [file])
    key = tmp_path / "k.json"
    for change in ({"left": {"1": "c"}}, {"left": {}}, {"left": None}, {"test": 7}):
        key.write_text(json.dumps({**key_of(test), **change}), encoding="utf-8")
        with pytest.raises(EvaluationError, match=r"k\.json: no whole key of a page"):
            read_key(key)
    with pytest.raises(EvaluationError, match="is missing; give the file"):
        read_key(tmp_path / "none.json")


def test_answers_of_no_question_are_refused_and_a_limit_leaves_the_others_out(tmp_path: Path) -> None:
    run = CliRunner().invoke
    prompts = tmp_path / "test.jsonl"
    prompts.write_text("".join(json.dumps({"id": n, "prompt": f"q{n}"}) + "\n" for n in range(4)), encoding="utf-8")
    for name, count in (("a", 4), ("b", 6)):
        lines = [json.dumps({"id": n, "prediction": f"{name}{n}"}) + "\n" for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    sides = [str(tmp_path / f"{name}.jsonl") for name in "ab"]
    command = ["compare", *sides, "--prompts", str(prompts), "-o", str(tmp_path / "p.html"), "--limit", "2", "--json"]
    refused = run(main, command)
    assert refused.exit_code == 1 and "b.jsonl:5: 2 of 6 answers belong to no item of" in refused.stderr
    made = run(main, [command[0], sides[0], sides[0], *command[3:], "--names", "x,y"])
    assert made.exit_code == 1 and "all 2 pairs of answers are the same text" in made.stderr


def test_the_command_builds_from_files_and_scores(tmp_path: Path) -> None:
    run = CliRunner().invoke
    prompts = tmp_path / "test.jsonl"
    prompts.write_text("".join(json.dumps({"id": n, "prompt": f"q{n}"}) + "\n" for n in range(4)), encoding="utf-8")
    for name in ("a", "b"):
        lines = [json.dumps({"id": n, "prediction": f"{name}{n}" if n else "same"}) for n in range(4)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    page = tmp_path / "out" / "blind.html"
    command = ["compare", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), "--prompts", str(prompts)]
    done = run(main, [*command, "-o", str(page), "--names", "base,tuned", "--json"])
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout)
    assert made["items"] == 3 and made["same"] == ["0"] and page.is_file()
    key = read_key(Path(made["key"]))
    votes = {n: "left" if side == "b" else "right" for n, side in key["left"].items()}
    ratings = ratings_file(tmp_path / "r.json", key["test"], votes)
    scored = run(main, ["compare", "--score", str(ratings), "--key", made["key"]])
    assert scored.exit_code == 0 and "A better 0.0%" in scored.stdout and "B better 100.0%" in scored.stdout
    for arguments, words, code in [
        ([*command, "-o", str(page)], "exists; choose another name", 1),
        ([*command[:2], "no-such-model", *command[3:], "-o", str(page)], "exists; choose another name", 1),
        ([*command[:2], command[1], *command[3:], "-o", str(page)], "give two different names", 2),
        ([*command, "-o", ""], "names no file; give the page's name", 2),
        (["compare", "x"], "takes two sides, A and B; 1 were given", 2),
        (["compare", "--score", str(ratings)], "takes ratings and their --key", 2),
        ([*command[:3], "--prompts", str(prompts)], "-o PAGE.html", 2),
    ]:
        refused = run(main, arguments)
        assert refused.exit_code == code and words in refused.stderr, refused.output


def test_models_are_asked_and_an_adapter_may_stand_behind_a_plus(shared: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    model = str(shared / "models" / "stories260K")
    prompts = tmp_path / "test.jsonl"
    prompts.write_text('{"prompt": "Once upon"}\n{"prompt": "Tom and Lily"}\n', encoding="utf-8")
    answers = tmp_path / "b.jsonl"
    answers.write_text('{"id": "1", "prediction": "x"}\n{"id": "2", "prediction": "y"}\n', encoding="utf-8")
    page = tmp_path / "blind.html"
    command = ["compare", model, str(answers), "--prompts", str(prompts), "-o", str(page), "--max-new-tokens", "8"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert "2 pairs in" in done.stdout
    broken = CliRunner().invoke(main, [command[0], f"{model}+{tmp_path}", *command[2:], "--overwrite"])
    assert broken.exit_code == 1 and "holds no adapter_config.json" in broken.stderr


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    running = Browser(tmp_path_factory.mktemp("browser"))
    yield running
    running.close()


def test_a_rater_votes_by_key_reloads_and_exports_in_a_real_browser(browser: Browser, tmp_path: Path) -> None:
    test = draw(items_of(1000), sides(1000), ("base", "tuned"), 5)
    page = tmp_path / "blind.html"
    write_blind(test, page, "Which answer is better?")
    browser.open(page)
    assert browser.value("document.getElementById('place').textContent") == "1 / 1000"
    assert browser.value("document.querySelector('#left .text').textContent") == test.shown[0].left
    for key in ("1", "ArrowRight", "3", "4", "j", "k", "2"):
        browser.press(key)
    # Item 5 was passed over and come back to; then voted right.
    expected = {"1": "left", "2": "right", "3": "tie", "4": "bad", "5": "right"}
    browser.open(page)
    assert browser.value("document.getElementById('place').textContent") == "6 / 1000"
    assert browser.value("document.getElementById('count').textContent") == "5 of 1000 rated"
    assert browser.value("window.hacked") is None
    browser.press("k")
    assert browser.value("document.getElementById('right').className") == "chosen"
    browser.press("0")
    assert browser.value("document.getElementById('count').textContent") == "4 of 1000 rated"
    browser.press("2")
    browser.value("document.getElementById('export').click()")
    assert "name first" in browser.value("document.getElementById('warning').textContent")
    browser.value("document.getElementById('rater').focus()")
    for letter in "bo1":
        browser.press(letter)
    browser.value("document.getElementById('rater').blur(); document.getElementById('export').click()")
    exported = browser.folder / "ratings_bo1.json"
    end = time.monotonic() + 120
    while not exported.is_file() and time.monotonic() < end:
        time.sleep(0.05)
    saved = json.loads(exported.read_text(encoding="utf-8"))
    assert saved == {
        "schema": "mmdata.ratings/1", "test": test.test, "rater": "bo1", "items": 1000, "ratings": expected,
    }  # fmt: skip
    assert count_votes(key_of(test), [exported]).total.votes == 5
    assert browser.errors == []


def test_a_thousand_items_can_be_walked_through_and_finished(browser: Browser, tmp_path: Path) -> None:
    test = draw(items_of(1000), sides(1000), ("base", "tuned"), 6)
    page = tmp_path / "blind.html"
    write_blind(test, page, "Walk")
    browser.open(page)
    walk = """
      for (let n = 0; n < 1000; n++)
        dispatchEvent(new KeyboardEvent('keydown', {key: String(1 + n % 4)}));
      document.getElementById('count').textContent
    """
    # Events sent to the window have no element as their target.
    assert browser.value(walk.replace("dispatchEvent", "document.body.dispatchEvent").replace(
        "{key:", "{bubbles: true, key:")) == "1000 of 1000 rated"  # fmt: skip
    assert browser.value("document.querySelectorAll('article').length") == 2
    browser.press("u")
    assert "Every item has a vote" in browser.value("document.getElementById('warning').textContent")
    assert browser.errors == []
