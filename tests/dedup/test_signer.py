"""Signatures equal datasketch's; compiled and plain kernels give the same bits; words are what the issue says."""

from __future__ import annotations

import json
import unicodedata
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.dedup import plain
from mmdata.dedup.params import DedupParams, catch_probability, choose_bands
from mmdata.dedup.signer import ShingleSets, Signer
from mmdata.dedup.sketch import from_datasketch, to_datasketch
from mmdata.dedup.word_table import RUN, SEPARATOR, SINGLE, char_table, word_table
from mmdata.errors import DedupParameterError

GOLDEN = {
    "affine32": [68549428, 111438172, 213642546, 510677946],
    "affine64": [5261723935934836667, 4628802686264867150, 2243319353959866510, 11179484019510920795],
    "legacy": [260005299, 569828820, 2680221758, 1070110363],
}
TEXT = st.text(
    alphabet=st.one_of(st.characters(), st.sampled_from("ab1 .中文法第１条，。\n\t\x85　カ한ไ𠮷é")), max_size=80
)


@pytest.mark.parametrize("scheme", sorted(GOLDEN))
@pytest.mark.parametrize("native", [True, False])
def test_sha1_signatures_are_the_golden_datasketch_vectors(scheme: str, native: bool) -> None:
    params = DedupParams(scheme=scheme, item_hash="sha1", num_perm=4, bands=1, rows=1, ngram=1)
    tokens = np.concatenate([plain.sha1_shingles(word, chars=False, size=2) for word in ("law",)])
    chinese = plain.sha1_shingles("中文", chars=True, size=2)
    sets = ShingleSets(np.concatenate([chinese, tokens]), np.array([0, 2], dtype=np.int64))
    assert Signer(params, native).signatures_of_hashes(sets)[0].tolist() == GOLDEN[scheme]


@pytest.mark.peer
@pytest.mark.parametrize("scheme", sorted(GOLDEN))
def test_signatures_equal_datasketch_for_random_token_sets(scheme: str) -> None:
    datasketch = pytest.importorskip("datasketch")
    rng = np.random.default_rng(5)
    params = DedupParams(scheme=scheme, seed=7)
    width = 64 if scheme == "affine64" else 32
    for size in (1, 2, 31, 5000):
        values = rng.integers(0, 2**width, size, dtype=np.uint64)
        peer = datasketch.MinHash(num_perm=128, seed=7, scheme=scheme, hashfunc=int)
        peer.update_batch(values.tolist())
        for native in (True, False):
            ours = Signer(params, native).signatures_of_hashes(ShingleSets(values, np.array([0, size])))
            assert ours.dtype == peer.hashvalues.dtype
            assert np.array_equal(ours[0], peer.hashvalues)


@pytest.mark.peer
def test_sketches_travel_to_datasketch_and_back() -> None:
    datasketch = pytest.importorskip("datasketch")
    params = DedupParams(item_hash="sha1", ngram=2)
    texts = ["the quick brown fox jumps over", "the quick brown fox jumps under", "合同自成立时生效"]
    signatures = Signer(params).signatures(texts)
    sketches = [to_datasketch(row, params) for row in signatures]
    lean = [to_datasketch(row, params, lean=True) for row in signatures]
    assert np.array_equal(from_datasketch(sketches, params), signatures)
    assert np.array_equal(from_datasketch(lean, params), signatures)
    words = texts[0].split()
    peer = datasketch.MinHash(num_perm=128)
    peer.update_batch([f"{a} {b}".encode() for a, b in pairwise(words)])
    assert np.array_equal(peer.hashvalues, signatures[0])
    lsh = datasketch.MinHashLSH(threshold=0.4, num_perm=128)
    for number, sketch in enumerate(sketches):
        lsh.insert(number, sketch)
    assert sorted(lsh.query(sketches[0])) == [0, 1]
    with pytest.raises(DedupParameterError, match="sketch 0"):
        from_datasketch(sketches, DedupParams(seed=2))


@settings(max_examples=150, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=4), st.sampled_from(["word", "char"]), st.integers(1, 6))
def test_compiled_and_plain_kernels_give_the_same_bits(texts: list[str], unit: str, ngram: int) -> None:
    params = DedupParams(unit=unit, ngram=ngram, num_perm=16, bands=4, rows=4)
    native, simple = Signer(params, native=True), Signer(params, native=False)
    assert np.array_equal(native.sign(texts).keys, simple.sign(texts).keys)
    assert np.array_equal(native.sign(texts).counted, simple.sign(texts).counted)
    assert np.array_equal(native.signatures(texts), simple.signatures(texts))
    ours, theirs = native.sets(texts), simple.sets(texts)
    assert np.array_equal(ours.values, theirs.values)
    assert np.array_equal(ours.starts, theirs.starts)


RUNS = ["a", "Z9", "seven77", "eight888", "x" * 31, "x" * 32, "y" * 33, "k" * 70, "é", "中", " ", "-"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.sampled_from(RUNS), max_size=8).map("".join), max_size=5))
def test_words_of_any_length_and_mixture_are_hashed_alike_with_and_without_the_kernel(texts: list[str]) -> None:
    plain_sets, fast = Signer(DedupParams(ngram=1), False).sets(texts), Signer(DedupParams(ngram=1), True)
    encoded = [text.encode() for text in texts]
    for found in (fast.sets(texts), fast.sets_of_utf8(encoded)):
        assert np.array_equal(found.values, plain_sets.values)
        assert np.array_equal(found.starts, plain_sets.starts)
    assert np.array_equal(fast.sign(texts, encoded).keys, Signer(DedupParams(ngram=1), False).sign(texts).keys)


@pytest.mark.parametrize("options", [{}, {"unit": "char", "ngram": 3}, {"method": "exact"}, {"item_hash": "sha1"},
                                     {"normalize": ("case",)}])  # fmt: skip
def test_sets_of_utf8_are_the_sets_of_the_texts(options: dict[str, object]) -> None:
    texts = ["", "Law 第12条", "b\ud800c d e f g", "word " * 60_000, "x y z " * 300_000]
    signer = Signer(DedupParams(**options))
    found = signer.sets_of_utf8([text.encode("utf-8", "surrogatepass") for text in texts])
    wanted = signer.sets(texts)
    assert np.array_equal(found.values, wanted.values) and np.array_equal(found.starts, wanted.starts)


def test_sets_are_put_into_the_memory_given() -> None:
    signer, texts = Signer(DedupParams(), native=True), [b"a b c d e f", b"", b"g h i j k l m"]
    room = np.zeros(signer.room_of(texts), dtype=np.uint64)
    found, wanted = signer.sets_of_utf8(texts, room), signer.sets_of_utf8(texts)
    assert np.shares_memory(found.values, room) and not np.shares_memory(wanted.values, room)
    assert found.values.tolist() == wanted.values.tolist() and found.starts.tolist() == [0, 2, 2, 5]


def test_results_do_not_depend_on_how_texts_are_batched() -> None:
    texts = [f"段落 {i} " + "word " * (i % 7) * 3 + str(i) for i in range(300)]
    signer = Signer(DedupParams())
    whole = signer.sign(texts).keys
    parts = np.concatenate([signer.sign(texts[low : low + 7]).keys for low in range(0, 300, 7)])
    assert np.array_equal(whole, parts)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("第12条 罚款500元", ["第", "12", "条", "罚", "款", "500", "元"]),
        ("Don't panic, naïve Straße!", ["Don", "t", "panic", "naïve", "Straße"]),
        ("mg/dL 5.8mmol", ["mg", "dL", "5", "8mmol"]),
        ("カタ한국어 ไทย 𠮷野", ["カ", "タ", "한국어", "ไ", "ท", "ย", "𠮷", "野"]),
        ("e\u0301te\u0301 x²", ["e\u0301te\u0301", "x²"]),
        ("，。！…— \u3000\u2028", []),
    ],
)
def test_a_word_is_one_han_character_or_one_run_of_letters_and_digits(text: str, words: list[str]) -> None:
    assert plain.split_words(text) == words


def test_numbers_keep_documents_apart_and_short_documents_are_one_shingle() -> None:
    signer = Signer(DedupParams())
    sets = signer.sets(["第12条", "第13条", "第 12 条！", "", "……"])
    assert [len(sets[i]) for i in range(5)] == [1, 1, 1, 0, 0]
    assert sets[0][0] == sets[2][0] != sets[1][0]
    assert signer.sign(["第12条", "", "……"]).counted.tolist() == [True, False, False]


def test_word_table_agrees_with_the_unicode_database_it_was_made_from() -> None:
    if unicodedata.unidata_version != "14.0.0":
        pytest.skip("this Python has another Unicode version")
    table = word_table()
    for point in range(0x20000):
        is_word = unicodedata.category(chr(point))[0] in "LMN"
        assert (table[point] != SEPARATOR) == is_word, hex(point)
    assert table[ord("中")] == SINGLE and table[ord("a")] == RUN and table[0x2EBF0] == SINGLE


def test_character_unit_treats_white_space_as_split_does() -> None:
    space = [point for point in range(0x110000) if chr(point).isspace()]
    assert np.flatnonzero(char_table() == SEPARATOR).tolist() == space


def test_character_shingles_reproduce_the_similarities_of_the_shared_truth(shared: Path) -> None:
    import gzip

    with gzip.open(shared / "data" / "neardup_docs.jsonl.gz", "rt", encoding="utf-8", newline="\n") as file:
        texts = {record["id"]: record["text"] for record in map(json.loads, file)}
    with (shared / "data" / "neardup_pairs.jsonl").open(encoding="utf-8", newline="\n") as file:
        pairs = [json.loads(line) for line in file]
    signer = Signer(DedupParams(unit="char", normalize=("case",)))
    names = list(texts)
    sets = signer.sets([texts[name] for name in names])
    hashes = {name: set(sets[i].tolist()) for i, name in enumerate(names)}
    for pair in pairs:
        a, b = hashes[pair["a"]], hashes[pair["b"]]
        assert len(a & b) / len(a | b) == pytest.approx(pair["jaccard_char5"], abs=6e-5)


def test_default_bands_are_20_by_6_and_catch_998_of_a_thousand_pairs_at_the_threshold() -> None:
    params = DedupParams()
    assert (params.bands, params.rows) == (20, 6)
    assert catch_probability(0.8, 20, 6) == pytest.approx(0.9977, abs=1e-4)
    assert choose_bands(0.9, 128) == (12, 10)
    assert choose_bands(1.0, 128) == (1, 128)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 0.0}, "threshold 0.0"),
        ({"threshold": 1.5}, "threshold 1.5"),
        ({"ngram": 0}, "ngram 0"),
        ({"bands": 20}, "go together"),
        ({"bands": 20, "rows": 7}, "140 permutations"),
        ({"bands": 64, "rows": 2}, "64 bands"),
        ({"scheme": "md5"}, "affine32"),
        ({"unit": "token"}, "word, char"),
        ({"normalize": ("digits",)}, "case, space, punctuation"),
    ],
)
def test_wrong_parameters_name_the_value_and_what_works(options: dict[str, object], message: str) -> None:
    with pytest.raises(DedupParameterError, match=message):
        DedupParams(**options)  # type: ignore[arg-type]
