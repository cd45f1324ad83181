"""The five real tokenizers on every real text: ids of the libraries themselves."""

from __future__ import annotations

import base64
import functools
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
import tokenizers
import zstandard
from small_tokenizers import QWEN_SPLIT, clean_copy

from mmdata.tokenizer import LoadedTokenizer, load_tokenizer
from mmdata.tokenizers.adversarial import adversarial_texts

BENCH_RECORDS = 150
Reference = Callable[[list[str]], list[list[int]]]
Loaded = Callable[[str], LoadedTokenizer]

# name: argument of load_tokenizer below the shared folder, vocabulary size, end token, tokens of the two sentences
TABLE = {
    "qwen3": ("tokenizers/qwen3", 151669, 151643, (13, 10)),
    "gpt2": ("tokenizers/gpt2", 50257, 50256, (52, 10)),
    "mistral_sp": ("tokenizers/mistral_sp", 32000, 2, (31, 12)),
    "qwen_tiktoken": ("qwen:tokenizers/qwen_tiktoken/qwen.tiktoken", 151851, 151643, (13, 10)),
    "stories260K": ("models/stories260K/tokenizer.json", 512, 2, (73, 29)),
}
SENTENCES = ("人工智能正在改变医疗行业，患者需要更准确的诊断。", "The quick brown fox jumps over the lazy dog.")


def argument(shared: Path, name: str) -> str:
    encoding, colon, path = TABLE[name][0].rpartition(":")
    return f"{encoding}{colon}{shared / path}"


def reference(shared: Path, name: str) -> Reference:
    folder = shared / "tokenizers" / name
    if name == "mistral_sp":
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        return lambda texts: list(processor.encode(texts, out_type=int, num_threads=1))
    if name == "qwen_tiktoken":
        rows = [line.split() for line in (folder / "qwen.tiktoken").read_bytes().split(b"\n") if line]
        ranks = {base64.b64decode(token): int(rank) for token, rank in rows}
        encoding = tiktoken.Encoding("qwen", pat_str=QWEN_SPLIT, mergeable_ranks=ranks, special_tokens={})
        return lambda texts: [encoding.encode_ordinary(text) for text in texts]
    if name == "gpt2":
        model = tokenizers.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer = clean_copy(shared / TABLE[name][0].removesuffix("/tokenizer.json") / "tokenizer.json")
    return lambda texts: [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


@pytest.fixture(scope="module")
def loaded(shared: Path) -> Loaded:
    """Tokenizers of the table by name, each loaded once."""
    return functools.cache(lambda name: load_tokenizer(argument(shared, name)))


@pytest.fixture(scope="module")
def library(shared: Path) -> Callable[[str], Reference]:
    """The libraries' own encoders by name, each loaded once."""
    return functools.cache(lambda name: reference(shared, name))


def lines_of(path: Path) -> Iterator[bytes]:
    yield from (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).split(b"\n")


def strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings_in(item)


@pytest.fixture(scope="module")
def real_texts(shared: Path) -> list[str]:
    """Every string of every readable record in the data folder, once, and the first records of the bench file."""
    texts: dict[str, None] = {}
    for path in sorted((shared / "data").glob("*.jsonl*")):
        for line in lines_of(path):
            try:
                texts.update(dict.fromkeys(strings_in(json.loads(line))))
            except ValueError:
                continue  # dirty.jsonl holds lines that are not JSON, on purpose
    with (shared / "bench" / "mixed.jsonl.zst").open("rb") as file:
        bench = zstandard.ZstdDecompressor().stream_reader(file).read(4_000_000).split(b"\n")[:BENCH_RECORDS]
    texts.update((json.loads(line)["text"], None) for line in bench)
    return [text for text in texts if encodable(text)]


def encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.parametrize("name", sorted(TABLE))
def test_ids_on_all_real_texts_are_those_of_the_library(
    loaded: Loaded, library: Callable[[str], Reference], real_texts: list[str], name: str
) -> None:
    tokenizer, encode = loaded(name), library(name)
    assert len(real_texts) > 20_000
    for start in range(0, len(real_texts), 2000):
        texts = real_texts[start : start + 2000]
        found = [row.tolist() for row in tokenizer.encode_batch(texts).split()]
        assert found == encode(texts), f"texts {start} to {start + 2000}"


@pytest.mark.parametrize("name", sorted(TABLE))
def test_size_end_token_and_sentences_are_as_published(loaded: Loaded, name: str) -> None:
    vocab_size, eod_id, counts = TABLE[name][1:]
    tokenizer = loaded(name)
    assert (tokenizer.vocab_size, tokenizer.eod_id) == (vocab_size, eod_id)
    assert tuple(tokenizer.encode_batch(SENTENCES).lengths.tolist()) == counts
    assert tuple(tokenizer.decode(row) for row in tokenizer.encode_batch(SENTENCES).split()) == SENTENCES
    assert tokenizer.engine.startswith("sentencepiece" if name == "mistral_sp" else "fastokens")


@pytest.mark.parametrize("name", ["qwen3", "stories260K"])
def test_no_special_string_of_a_real_tokenizer_becomes_its_token(loaded: Loaded, name: str) -> None:
    tokenizer = loaded(name)
    names = [token.content for token in tokenizer.special_tokens]
    texts = [f"a{name}b {name}\n{name}{name}" for name in names] + ["".join(names)]
    batch = tokenizer.encode_batch(texts)
    assert not set(batch.tokens.tolist()) & {token.id for token in tokenizer.special_tokens}
    assert [tokenizer.decode(row) for row in batch.split()] == texts


@pytest.mark.parametrize("name", ["qwen3", "stories260K"])
def test_allow_special_is_the_library_default(shared: Path, name: str) -> None:
    path = shared / TABLE[name][0].removesuffix("/tokenizer.json") / "tokenizer.json"
    tokenizer = load_tokenizer(path, allow_special=True)
    theirs = clean_copy(path, keep_added=True)
    texts = adversarial_texts([token.content for token in tokenizer.special_tokens])
    rows = tokenizer.encode_batch(texts).split()
    expected = theirs.encode_batch_fast(texts, add_special_tokens=False)
    assert [row.tolist() for row in rows] == [encoding.ids for encoding in expected]


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_every_code_point_is_encoded_as_the_library_does(
    loaded: Loaded, library: Callable[[str], Reference], name: str
) -> None:
    """A fixed share of all planes a text can meet, all of the first scripts, among letters, digits, spaces, marks."""
    points = [
        p for p in (*range(0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE0200)) if p % 29 == 3 or p < 0x1000
    ]
    rows = [points[start : start + 256] for start in range(0, len(points), 256)]
    texts = ["".join(f"{chr(p)} {chr(p)}a{chr(p)}1{chr(p)}\n" for p in row) for row in rows]
    found = loaded(name).encode_batch(texts)
    assert [row.tolist() for row in found.split()] == library(name)(texts)


@pytest.mark.peer
def test_qwen3_ids_are_those_of_transformers_on_benign_text(
    shared: Path, loaded: Loaded, real_texts: list[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = shared / "tokenizers" / "qwen3"
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer = loaded("qwen3")
    names = [token.content for token in tokenizer.special_tokens]
    texts = [text for text in real_texts[::400] if not any(name in text for name in names)]
    assert tokenizer.vocab_size == len(theirs)
    assert [row.tolist() for row in tokenizer.encode_batch(texts).split()] == theirs(texts)["input_ids"]
