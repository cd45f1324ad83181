"""Joined texts and grouped conversations give the ids of texts and conversations taken one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmdata.chat.formats import chat_parser
from mmdata.chat.joined import LED_SEAM, SEAM, JoinedEncoder, seam_before
from mmdata.chat.render import ChatOptions, ChatRenderer
from mmdata.document import Document
from mmdata.tokenizer import LoadedTokenizer, load_tokenizer
from mmdata.tokenizers.rank_encodings import ENCODINGS

PATTERNS = sorted({encoding.pattern for encoding in ENCODINGS.values()})
PIECES = [
    "a", "B", "user", "中", "。", "1", "22", " ", "  ", "\n", "\r", "\t", "\x0b", "\x1c", "\x85", "\u00a0", "\u2028",
    "\u3000", "'s", "'", "(", "/", "<|im_end|>", "\u0301", "e", "é", "\u200b", "\ufeff", "😀", "Q", SEAM, LED_SEAM,
    " \n", "\t\n", "...", "\u0338", "<", "ﬁ", "ß", "ǅ", "१", "'LL",
]  # fmt: skip


@pytest.fixture(scope="module", params=range(len(PATTERNS)), ids=[f"pattern {i}" for i in range(len(PATTERNS))])
def split(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedTokenizer]:
    """A small byte-level BPE with each split pattern in use."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    pattern = Regex(PATTERNS[request.param])
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"), byte_level])
    made.decoder = decoders.ByteLevel()
    rng = random.Random(1)
    corpus = ["".join(rng.choices(PIECES, k=40)) for _ in range(400)] + ["  \t\n", " \t\n\n", "user\nhello  \n\n"] * 50
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    )
    path = tmp_path_factory.mktemp("split") / "tokenizer.json"
    made.save(str(path))
    yield load_tokenizer(path)


def assert_same(joined: JoinedEncoder, tokenizer: LoadedTokenizer, texts: list[str], seams: list[str]) -> None:
    expected, found = tokenizer.encode_batch(texts), joined.encode(texts, seams)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    assert (found.tokens.dtype, found.lengths.dtype) == (np.int32, np.int64)


def test_joined_texts_have_the_ids_of_single_texts_with_every_split_pattern(split: LoadedTokenizer) -> None:
    joined, rng = JoinedEncoder(split), random.Random(2)
    assert joined.joins
    for count in [2, 3, 64, 65, 130, 300] * 12:
        wild = ["".join(rng.choices(PIECES, k=rng.randint(1, 6))) for _ in range(count)]
        tame = [text.replace(SEAM, "_").strip() or "x" for text in wild]
        assert_same(joined, split, wild, [seam_before(text) for text in wild])
        assert_same(joined, split, tame, [""] * count)
        assert_same(joined, split, ["\n\n" + text for text in tame], [LED_SEAM] * count)


def test_long_texts_between_short_ones_have_the_ids_of_single_texts(split: LoadedTokenizer) -> None:
    joined, rng = JoinedEncoder(split), random.Random(3)
    wild = ["".join(rng.choices(PIECES, k=rng.choice([1, 4, 600]))) for _ in range(200)]
    long = [text for text in wild if len(text) >= 512]
    assert 20 < len(long) < 180
    for texts in (wild, long, [*long[:2], "x", "y", long[2]], ["x", "y", long[0]], [long[0], "x", "y "]):
        assert_same(joined, split, texts, [""] * len(texts))


def test_a_text_that_holds_the_seam_leaves_its_neighbours_joined(
    split: LoadedTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, calls = JoinedEncoder(split), []
    texts = [f"user\ntext {i}" for i in range(200)]
    texts[70] = f"a{SEAM}b"
    encode = split.encode_batch

    def counted(given: Any) -> Any:
        calls.append(len(given))
        return encode(given)

    monkeypatch.setattr(split, "encode_batch", counted)
    found = joined.encode(texts, [SEAM] * 200)
    assert calls == [4, 64]  # four runs, then the texts of the second one by one
    monkeypatch.undo()
    expected = encode(texts)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.lengths, expected.lengths)


def test_no_texts_one_text_and_empty_texts_are_given_as_they_are(split: LoadedTokenizer) -> None:
    joined = JoinedEncoder(split)
    for texts in ([], ["a"], [""], ["", "a", ""], [" ", " "]):
        assert_same(joined, split, texts, [""] * len(texts))


def test_tokenizers_that_take_control_tokens_in_text_are_not_joined(folder: Path) -> None:
    assert JoinedEncoder(load_tokenizer(folder)).joins
    assert not JoinedEncoder(load_tokenizer(folder, allow_special=True)).joins


def _conversations(count: int) -> Iterator[dict[str, Any]]:
    """Shapes of every kind, in no order: exchanges, many turns, thinking blocks, white space, tools, plain text."""
    rng = random.Random(3)
    texts = [
        "Hi.",
        "你好 ",
        "\n\nanswer",
        f"a{SEAM}b",
        "<think>\nwhy\n</think>\n\nso",
        "<|im_end|>",
        "x" * 300,
        "<think>",
    ]
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    for number in range(count):
        turns = [{"role": role, "content": rng.choice(texts)} for role in ["user", "assistant"] * rng.randint(1, 4)]
        if number % 7 == 0:
            turns.insert(0, {"role": "system", "content": rng.choice(texts)})
        if number % 11 == 0:
            turns[-1] = {"role": "assistant", "content": "", "tool_calls": [call]}
        yield {"text": rng.choice(texts)} if number % 13 == 0 else {"messages": turns}


@pytest.mark.parametrize("template", ["chatml", "llama3", "deepseek", "plain"])
def test_a_batch_of_mixed_conversations_is_what_each_of_them_is_alone(
    tokenizer: LoadedTokenizer, template: str
) -> None:
    parse = chat_parser("auto")
    documents = [parse(record, "in.jsonl", 0, line) for line, record in enumerate(_conversations(160), 1)]
    assert all(isinstance(document, Document) for document in documents)
    together, alone = (ChatRenderer(tokenizer, ChatOptions(template=template)) for _ in range(2))
    for _ in range(2):  # with programs still to be made, and with all at hand
        batch = together.render_documents(documents)
        singles = [alone.render_documents([document]) for document in documents]
        for name in ("tokens", "lengths", "spans", "span_lengths"):
            expected = np.concatenate([getattr(single, name) for single in singles])
            np.testing.assert_array_equal(getattr(batch, name), expected)
        assert batch.kept.tolist() == [i for i, single in enumerate(singles) for _ in single.kept]
        assert batch.drops == [drop for single in singles for drop in single.drops]
        assert {name: sum(single.counters[name] for single in singles) for name in batch.counters} == batch.counters
