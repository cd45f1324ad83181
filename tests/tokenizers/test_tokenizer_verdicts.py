"""A self-check that passed is remembered for exactly what it checked, and whatever goes wrong there means a check."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmdata import tokenizer
from mmdata.tokenizer import load_tokenizer
from mmdata.tokenizers import verdicts
from mmdata.tokenizers.base import TokenizerOptions
from mmdata.tokenizers.engine_choice import Verdict, choose
from mmdata.tokenizers.locate import Source
from mmdata.tokenizers.verdicts import VerdictMemory, memory_of

pytest.importorskip("fastokens")


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The engines that self-checks ended with, in a cache folder of its own."""
    made: list[str] = []

    def counted(*arguments: Any) -> Any:
        encoder, verdict = choose(*arguments)
        made.append(verdict.description)
        return encoder, verdict

    monkeypatch.setenv("MMDATA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tokenizer, "choose", counted)
    yield made


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "self-checks").iterdir())


def test_a_second_load_recalls_the_first_check_in_its_words(
    bpe_folder: Path, tmp_path: Path, checks: list[str]
) -> None:
    first, second = (load_tokenizer(bpe_folder, sample=["a fox", "人工智能"]) for _ in range(2))
    assert len(checks) == 1 and first.engine == second.engine == checks[0]
    assert first.engine.startswith("fastokens ") and "same ids as tokenizers" in first.engine
    texts = ["人工智能 fox\n\n", "\u0301x"]
    assert second.encode_batch(texts).tokens.tolist() == first.encode_batch(texts).tokens.tolist()
    assert [path.suffix for path in kept(tmp_path)] == [".json"], "no partial file is left"


def test_other_documents_options_files_or_engines_are_checked_anew(
    bpe_folder: Path, tmp_path: Path, checks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_tokenizer(bpe_folder, sample=["a fox"])
    load_tokenizer(bpe_folder, sample=["a f", "ox"])
    load_tokenizer(bpe_folder, sample=["a fox"], allow_special=True)
    copied = tmp_path / "copied"
    shutil.copytree(bpe_folder, copied)
    document = json.loads((copied / "tokenizer.json").read_text(encoding="utf-8"))
    document["model"]["merges"].pop()
    (copied / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    load_tokenizer(copied, sample=["a fox"])
    installed = verdicts._installed
    with monkeypatch.context() as patch:
        patch.setattr(verdicts, "_installed", lambda name: [*installed(name), "rebuilt"])
        load_tokenizer(bpe_folder, sample=["a fox"])
    assert len(checks) == 5 == len(kept(tmp_path))
    load_tokenizer(bpe_folder, sample=["a fox"])
    assert len(checks) == 5


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"passed": 1}', b"\xff", b'{"passed": "other 9 (same)"}'])
def test_a_damaged_memory_or_one_of_another_engine_means_a_check(
    bpe_folder: Path, tmp_path: Path, checks: list[str], content: bytes
) -> None:
    load_tokenizer(bpe_folder)
    kept(tmp_path)[0].write_bytes(content)
    assert load_tokenizer(bpe_folder).engine.startswith("fastokens ") and len(checks) == 2
    load_tokenizer(bpe_folder)
    assert len(checks) == 2, "it is mended"


def test_a_folder_that_cannot_be_written_means_a_check_each_time(
    bpe_folder: Path, tmp_path: Path, checks: list[str]
) -> None:
    (tmp_path / "cache").write_text("a file in the way", encoding="utf-8")
    for _ in range(2):
        assert load_tokenizer(bpe_folder).engine.startswith("fastokens ")
    assert len(checks) == 2


def test_the_reference_asked_for_is_neither_remembered_nor_replaced(
    bpe_folder: Path, tmp_path: Path, checks: list[str]
) -> None:
    load_tokenizer(bpe_folder)
    assert load_tokenizer(bpe_folder, engine="huggingface").engine.startswith("tokenizers ")
    assert len(checks) == 2 and len(kept(tmp_path)) == 1


def test_only_passes_are_kept_and_only_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMDATA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(verdicts, "MOST_KEPT", 3)
    VerdictMemory("failed").keep(Verdict(False, "slow"))
    assert VerdictMemory("failed").recall() is None
    for number in range(6):
        VerdictMemory(f"k{number}").keep(Verdict(True, f"quick {number}"))
    assert len(kept(tmp_path)) == 3
    assert VerdictMemory("k5").recall() == Verdict(True, "quick 5")


def test_texts_cut_elsewhere_are_another_check(bpe_folder: Path) -> None:
    source = Source("json", (bpe_folder / "tokenizer.json",))
    paths = {
        memory_of(source, TokenizerOptions(), "f", ["<s>"], sample).path for sample in (["ab"], ["a", "b"], ["ab"])
    }
    assert len(paths) == 2
