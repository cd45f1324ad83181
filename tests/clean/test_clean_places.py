"""What `mmdata clean` refuses before it touches anything, and what its dropped file never shows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mmdata.clean.cli import clean_command
from mmdata.clean.files import clean
from mmdata.errors import StepParameterError, UsageError


@pytest.mark.parametrize("name", ["in.jsonl", "x_rejects.jsonl", "x_dropped.jsonl.gz"])
def test_no_output_replaces_an_input_even_with_overwrite(tmp_path: Path, name: str) -> None:
    source = tmp_path / name
    text = b'{"text": "words of a record"}\n{broken\n'
    source.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    before = source.read_bytes()
    output = source if name == "in.jsonl" else tmp_path / "x.jsonl"
    with pytest.raises(UsageError, match="is an input too"):
        clean([source], output, overwrite=True)
    assert source.read_bytes() == before and list(tmp_path.iterdir()) == [source]


def test_identities_of_dropped_records_are_masked(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(f'{{"id": "{own}", "text": ""}}\n' for own in ("bob@example.com", "a-7")), "utf-8")
    clean([source], tmp_path / "out.jsonl")
    drops = gzip.decompress((tmp_path / "out_dropped.jsonl.gz").read_bytes()).decode()
    assert [json.loads(line)["id"] for line in drops.split("\n") if line] == ["<email>", "a-7"]


def test_a_hash_without_key_and_a_key_without_hash_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    output = tmp_path / "out" / "out.jsonl"
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "请拨打 13800138000 联系"}\n', "utf-8")
    for key in (None, ""):
        with pytest.raises(StepParameterError, match="a secret"):
            clean([source], output, pii="hash", pii_key=key)
    for recipe in ("auto", "none"):
        with pytest.raises(UsageError, match="would do nothing"):
            clean([source], output, recipe=recipe, pii_key="k")
    assert not output.parent.exists()


def test_a_recipe_without_personal_data_takes_action_and_key_from_the_options(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "请拨打 13800138000 联系"}\n', "utf-8")
    clean([source], tmp_path / "out.jsonl", recipe="none", pii="hash", pii_key="k")
    text = (tmp_path / "out.jsonl").read_text("utf-8")
    assert "13800138000" not in text and "请拨打" in text


def test_a_key_in_the_environment_is_left_where_nothing_is_hashed(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "words of a record"}\n', "utf-8")
    arguments = [str(source), "-o", str(tmp_path / "out.jsonl"), "--quiet"]
    result = CliRunner().invoke(clean_command, arguments, env={"MMDATA_PII_KEY": "k"}, catch_exceptions=False)
    assert result.exit_code == 0
