"""The fingerprint follows what decides ids and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from mmdata.tokenizers.base import TokenizerOptions
from mmdata.tokenizers.fingerprint import fingerprint, without_defaults
from mmdata.tokenizers.huggingface import HuggingFaceKind
from mmdata.tokenizers.locate import Source, locate
from mmdata.tokenizers.vocabulary import Vocabulary, plain_bytes


def of(path: Path) -> str:
    return HuggingFaceKind(locate(path), TokenizerOptions()).fingerprint


def test_a_small_vocabulary_has_the_fingerprint_of_its_canonical_text() -> None:
    """Literal value: xxh3-128 of the text below; a change of the format must be seen here first."""
    import xxhash

    vocabulary = Vocabulary(["a", None, "b"], plain_bytes, set())
    text = b'{"added":[],"format":1,"header":{"kind":"BPE"}}[[0,"61"],[2,"62"]][["a","b"]]'
    assert fingerprint({"kind": "BPE"}, (), vocabulary, [("a", "b")]) == xxhash.xxh3_128_hexdigest(text)
    assert xxhash.xxh3_128_hexdigest(text) == "21fcfea09fcc2fec1ca2d0094976cac3"


def test_defaults_count_as_absent_at_every_depth() -> None:
    spelled = {"type": "ByteLevel", "use_regex": True, "trim_offsets": False, "inner": [{"dropout": None}]}
    assert without_defaults(spelled) == {"type": "ByteLevel", "inner": [{}]}
    assert without_defaults({"use_regex": False, "add_prefix_space": False}) == {
        "use_regex": False,
        "add_prefix_space": False,
    }


def test_a_pair_of_files_and_the_tokenizer_json_the_library_saves_from_it_agree(
    pair_folder: Path, tmp_path: Path
) -> None:
    model = tokenizers.models.BPE.from_file(str(pair_folder / "vocab.json"), str(pair_folder / "merges.txt"))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=True)
    tokenizer.add_special_tokens([tokenizers.AddedToken("<|endoftext|>", normalized=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert of(pair_folder) == of(tmp_path)


Change = Callable[[dict[str, Any]], object]
SAME: dict[str, Change] = {
    "post-processor": lambda d: d.update(post_processor=None),
    "truncation": lambda d: d.update(truncation=None),
    "padding": lambda d: d.update(padding=None),
    "merges as strings": lambda d: d["model"].update(merges=[" ".join(pair) for pair in d["model"]["merges"]]),
    "order of the vocabulary": lambda d: d["model"].update(vocab=dict(sorted(d["model"]["vocab"].items()))),
    "empty prefix": lambda d: d["model"].update(continuing_subword_prefix=""),
}
OTHER: dict[str, Change] = {
    "normaliser": lambda d: d.update(normalizer=None),
    "split pattern": lambda d: d["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex="x"),
    "two merges swapped": lambda d: d["model"]["merges"].insert(0, d["model"]["merges"].pop(1)),
    "an added token": lambda d: d["added_tokens"].pop(),
    "a token no longer special": lambda d: d["added_tokens"][0].update(special=False),
    "two ids swapped": lambda d: d["model"]["vocab"].update(a=d["model"]["vocab"]["b"], b=d["model"]["vocab"]["a"]),
    "prefix space": lambda d: d["pre_tokenizer"]["pretokenizers"][1].update(add_prefix_space=True),
}


@pytest.mark.parametrize(
    ("name", "change", "same"), [(n, c, True) for n, c in SAME.items()] + [(n, c, False) for n, c in OTHER.items()]
)
def test_only_what_decides_ids_changes_the_fingerprint(
    bpe_folder: Path, tmp_path: Path, name: str, change: Change, same: bool
) -> None:
    document = json.loads((bpe_folder / "tokenizer.json").read_text(encoding="utf-8"))
    change(document)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document, ensure_ascii=True, indent=1), encoding="utf-8")
    assert (of(path) == of(bpe_folder)) is same, name


@pytest.mark.peer
def test_gpt2_as_two_files_and_as_transformers_saves_it_agree(shared: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = shared / "tokenizers" / "gpt2"
    theirs = transformers.GPT2TokenizerFast(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))
    theirs.save_pretrained(tmp_path)
    pair = Source("pair", (folder / "vocab.json", folder / "merges.txt"))
    assert HuggingFaceKind(pair, TokenizerOptions()).fingerprint == of(tmp_path / "tokenizer.json")
