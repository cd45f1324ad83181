"""A fast engine that is wrong anywhere is found out, and the user is told."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from mmdata.errors import TokenizerEngineError, TokenizerTextError, UsageError
from mmdata.tokenizer import load_tokenizer
from mmdata.tokenizers.adversarial import adversarial_texts
from mmdata.tokenizers.base import Encoder, TokenBatch, batch_from_lists
from mmdata.tokenizers.engine_choice import Engines, GuardedEncoder, choose, described_failure, resume, thin


class CodePoints:
    """An engine whose ids are code points, except where `twist` changes a text first."""

    def __init__(self, name: str, twist: Callable[[str], str] = str) -> None:
        self.name = name
        self._twist = twist

    def encode_batch(self, texts: Sequence[str]) -> TokenBatch:
        return batch_from_lists([[ord(character) for character in self._twist(text)] for text in texts])


class Failing(CodePoints):
    def encode_batch(self, texts: Sequence[str]) -> TokenBatch:
        raise TokenizerEngineError(f"{self.name}: match limit")


def engines(fast: Callable[[], Encoder]) -> Engines:
    return Engines(lambda: CodePoints("slow 1"), fast)


def unloadable() -> Encoder:
    raise TokenizerEngineError("unsupported model")


def test_an_equal_engine_is_taken_and_both_are_never_loaded_together() -> None:
    alive: list[str] = []

    class Counted(CodePoints):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            assert not alive, "the other engine is still in memory"
            alive.append(name)

        def __del__(self) -> None:
            alive.remove(self.name)

    encoder, verdict = choose(Engines(lambda: Counted("slow"), lambda: Counted("quick")), "auto", [], [])
    assert verdict.fast and encoder.name == "quick"
    assert verdict.description.startswith("quick (same ids as slow on ")


@pytest.mark.parametrize(
    "twist",
    [
        lambda text: text.replace("\u0378", "?"),
        lambda text: text.replace("\x00", ""),
        lambda text: text[:4999] if text.startswith(" " * 5000) else text,
        lambda text: text.replace("<|my_token|>", "X"),
        lambda text: text.replace("\U0001e5d0", "x"),
    ],
    ids=["unassigned", "NUL", "long run", "special token", "recent script"],
)
def test_a_difference_in_one_hard_text_sends_the_run_to_the_reference(
    twist: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        encoder, verdict = choose(engines(lambda: CodePoints("quick", twist)), "auto", ["<|my_token|>"], [])
    assert not verdict.fast and encoder.name == "slow 1"
    assert "quick gives other ids than the reference on hard text" in verdict.description
    assert "several times slower" in caplog.text
    with pytest.raises(TokenizerEngineError, match="gives other ids"):
        choose(engines(lambda: CodePoints("quick", twist)), "fast", ["<|my_token|>"], [])


def test_a_difference_in_a_document_of_the_run_is_found_and_its_text_not_shown() -> None:
    sample = [f"plain {number}" for number in range(63)] + ["patient 张伟 has gout"]
    _, verdict = choose(engines(lambda: CodePoints("quick", lambda t: t.replace("gout", "x"))), "auto", [], sample)
    assert not verdict.fast and verdict.description.endswith("on sampled document 63)")


def test_an_engine_that_cannot_load_is_named_with_its_reason() -> None:
    _, verdict = choose(engines(unloadable), "auto", [], [])
    assert verdict.description == "slow 1 (the fast engine was not used: unsupported model)"
    with pytest.raises(TokenizerEngineError, match="unsupported model; use engine auto"):
        choose(engines(unloadable), "fast", [], [])
    with pytest.raises(TokenizerEngineError, match="no fast engine"):
        choose(Engines(lambda: CodePoints("slow"), None), "fast", [], [])


def test_the_reference_can_be_asked_for_and_other_words_are_refused() -> None:
    encoder, verdict = choose(engines(unloadable), "huggingface", [], [])
    assert (encoder.name, verdict.description) == ("slow 1", "slow 1 (asked for)")
    with pytest.raises(UsageError, match="engine 'quick' is unknown; choose one of auto, fast, huggingface, none"):
        choose(engines(unloadable), "quick", [], [])


def test_a_verdict_is_kept_without_checking_again() -> None:
    loaded = engines(lambda: CodePoints("quick", lambda text: text[1:]))
    _, verdict = choose(engines(lambda: CodePoints("quick")), "auto", [], [])
    assert resume(loaded, verdict).name == "quick"


def test_a_batch_the_fast_engine_gives_up_on_gets_the_reference_ids(caplog: pytest.LogCaptureFixture) -> None:
    guarded = GuardedEncoder(Failing("quick"), lambda: CodePoints("slow"))
    with caplog.at_level(logging.WARNING):
        assert guarded.encode_batch(["ab"]).tokens.tolist() == [97, 98]
        guarded.encode_batch(["c"])
    assert caplog.text.count("quick: match limit; such batches go to the slower engine") == 1
    with pytest.raises(TokenizerTextError, match="lone surrogate"):
        guarded.encode_batch(["\ud800"])


def test_interrupts_and_lack_of_memory_are_not_taken_for_a_failing_engine() -> None:
    for error in (KeyboardInterrupt(), SystemExit(1), MemoryError()):
        with pytest.raises(type(error)):
            described_failure("quick", error)
    assert str(described_failure("quick", ValueError("no"))) == "quick: ValueError: no"


def test_the_sample_is_spread_over_the_documents_and_bounded() -> None:
    picked = thin([f"{number} " * 3000 for number in range(1000)])
    assert len(picked) == 64 and max(map(len, picked)) == 2048
    assert [text.split()[0] for text in picked[:3]] == ["0", "15", "30"]
    assert thin([]) == [] and thin(["a"]) == ["a"]


def test_the_hard_texts_hold_what_they_promise() -> None:
    texts = adversarial_texts(["<|special|>"])
    everything = "".join(texts)
    blocks = {ord(character) // 256 for character in everything}
    assert set(range(0x200)) - set(range(0xD8, 0xE0)) <= blocks, "every block of the first two planes"
    for needed in ("\x00", "<|special|>", "\u0301" * 300, " " * 5000, "\u0378", "\U00011bc0", "</s>", "\ufdd0"):
        assert needed in everything
    assert texts == adversarial_texts(["<|special|>"]) and len(everything.encode()) < 400_000
    everything.encode()


def test_without_fastokens_the_library_encodes_and_the_reason_is_given(
    bpe_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load_tokenizer(bpe_folder).encode_batch(["人工智能 fox"]).tokens
    monkeypatch.setitem(sys.modules, "fastokens", None)
    tokenizer = load_tokenizer(bpe_folder)
    assert "the fast engine was not used: fastokens cannot be imported" in tokenizer.engine
    assert np.array_equal(tokenizer.encode_batch(["人工智能 fox"]).tokens, expected)


def test_without_an_engine_facts_and_decoding_work_and_encoding_is_an_error(bpe_folder: Path) -> None:
    full, bare = load_tokenizer(bpe_folder, engine="huggingface"), load_tokenizer(bpe_folder, engine="none")
    assert (bare.fingerprint, bare.eod, bare.engine) == (full.fingerprint, full.eod, "none")
    assert bare.decode(full.encode_batch(["人工智能 fox"]).tokens) == "人工智能 fox"
    with pytest.raises(TokenizerEngineError, match="2 texts to encode, but the tokenizer was loaded with engine none"):
        bare.encode_batch(["a", "b"])
    assert bare.spec.load().engine == "none"
