"""The measuring pass counts what a plain reading of the text counts, whatever stands beside a document in its batch."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from math import log2

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.clean import columns as c
from mmdata.clean import tables as t
from mmdata.clean.hashing_kernel import EN_STOPS
from mmdata.clean.measure import EXACT, NO_STARTS, measure

PIECES = [
    "the", "and", "word", "Word", "x" * 7, "y" * 8, "z" * 9, "q" * 16, "v" * 17, "a1" * 16, "b" * 33, "ab" * 40, "7",
    "2024", "rhythm", "naïve", "é", "Ünï", "русский", "한글", "中", "文文文", "的了", "國", "国", "カ", "、", "，",
    "。", "…", "...", "-", "---", ".", "!", "#", "{", "@", " ", "  ", "\t", "\n", "\n\n", "　", "\xa0", "😀", "𠀀",
    "\ufffd",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
HAN_OR_KANA = re.compile("[\u3005\u3007\u3041-\u30ff\u3400-\u9fff]")


def plain_words(text: str) -> list[str]:
    """One Han or kana character of the basic plane, or a run of other letters, digits and marks."""
    found, run = [], ""
    for char in text + "\n":
        letter = unicodedata.category(char)[0] in "LNM" and char < "\U00010000"
        if letter and not HAN_OR_KANA.match(char):
            run += char
            continue
        if run:
            found.append(run)
        run = ""
        if HAN_OR_KANA.match(char):
            found.append(char)
    return found


def folded(word: str) -> str:
    """As the pass compares words: ASCII letters before the first character beyond ASCII are folded."""
    head = re.match("[\x00-\x7f]*", word)
    return word[: head.end()].lower() + word[head.end() :] if head else word


@settings(max_examples=400, deadline=None, derandomize=True)
@given(TEXTS)
def test_words_lines_and_characters_are_those_of_a_plain_reading(text: str) -> None:
    row = measure([text])[0]
    words = plain_words(text)
    latin = [word for word in words if not HAN_OR_KANA.match(word)]
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    assert row[c.CHARS] == len(text) and row[c.BYTES] == len(text.encode())
    assert row[c.WORDS] == len(words) and row[c.WORD_CHARS] == sum(map(len, words))
    assert row[c.LATIN_WORDS] == len(latin) and row[c.LATIN_WORD_CHARS] == sum(map(len, latin))
    assert row[c.DIGIT_WORDS] == sum(word.isascii() and word.isdigit() for word in latin)
    assert row[c.LONGEST_WORD] == max((len(word) for word in latin if len(word) > 20), default=0)
    assert row[c.EN_STOPS] == sum(word.lower() in EN_STOPS for word in latin)
    assert row[c.LINES] == len(lines) and row[c.LINE_CHARS] == sum(map(len, lines))
    assert row[c.CONSONANT_WORDS] == sum(bool(re.fullmatch("[b-df-hj-np-tv-xzB-DF-HJ-NP-TV-XZ]{4,}", w)) for w in latin)
    assert row[t.DIGIT] == len(re.findall("[0-9]", text)) and row[t.LATIN] == len(re.findall("[A-Za-z]", text))
    assert row[t.HAN] == len(re.findall("[\u3400-\u9fff𠀀]", text)) and row[t.KANA] == text.count("カ")
    assert row[c.HASHES] == text.count("#") and row[c.CURLY] == text.count("{")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(TEXTS)
def test_distinct_words_entropy_and_the_top_word_are_exact_where_asked(text: str) -> None:
    row, counts = measure([text], NO_STARTS, EXACT)[0], Counter(folded(word) for word in plain_words(text))
    total = sum(counts.values())
    assert row[c.UNIQUE_WORDS] == len(counts)
    assert row[c.TOP_WORD_CHARS] == max((n * len(word) for word, n in counts.items()), default=0)
    entropy = sum(n / total * log2(total / n) for n in counts.values())
    assert abs(row[c.ENTROPY] - 1e6 * entropy) <= 2


def test_a_row_depends_on_its_text_alone() -> None:
    texts = ["", "中文，" * 50, "a b c " * 3000, "\n", "word " * 100_000, "é" * 40, "@", "1"] * 3
    alone = np.concatenate([measure([text]) for text in texts])
    assert (measure(texts) == alone).all()
    assert (measure(texts[::-1]) == alone[::-1]).all()
    assert (measure(texts) == alone).all(), "arrays kept from batch to batch carry nothing over"


def test_threads_measure_beside_each_other_without_disturbing_one_another() -> None:
    texts = ["中文，" * 50, "a b c " * 300, "word " * 1000, "é" * 40] * 30
    alone = measure(texts)
    with ThreadPoolExecutor(4) as pool:
        assert all((rows == alone).all() for rows in pool.map(measure, [texts] * 8))


def test_runs_longer_than_one_packed_counter_are_counted_whole() -> None:
    row = measure(["国" * 100_000])[0]
    assert (row[t.HAN], row[c.SIMPLIFIED], row[c.LONGEST_RUN], row[c.WORDS]) == (100_000, 100_000, 100_000, 100_000)


def test_a_sequence_that_comes_back_is_covered_by_sequences_seen_before() -> None:
    words = [f"w{i}" for i in range(500)]
    once, twice = measure([" ".join(words), " ".join(words + words)])
    assert once[c.DUPLICATE_GRAM_CHARS] == 0
    assert 0.97 * once[c.WORD_CHARS] <= twice[c.DUPLICATE_GRAM_CHARS] <= once[c.WORD_CHARS]
