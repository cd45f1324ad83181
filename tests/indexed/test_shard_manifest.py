"""A manifest is canonical, lies in it are refused, and a training run proves once what only it can tell."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash
from small_shards import change_manifest, file, write_example

from mmdata import errors
from mmdata.indexed import IndexedDataset, check_before_training, read_manifest, verify_shard


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.replace(b'"format_version": 1', b'"format_version": 2'), "format_version 2"),
        (lambda m: m.replace(b'"format_version": 1', b'"format_version": true'), "format_version True"),
        (lambda m: m.replace(b'"loss": "spans"', b'"loss": "none"'), "'none'"),
        (lambda m: m.replace(b'"documents": 40', b'"documents": "40"'), "str at 'documents'"),
        (lambda m: m.replace(b'"documents": 40', b'"documents": -40'), "cannot be negative"),
        (lambda m: m.replace(b'"documents": 40', b'"documents": true'), "bool at 'documents'"),
        (lambda m: m.replace(b'"documents"', b'"dokuments"'), "lacks keys"),
        (lambda m: m.replace(b'"dtype"', b'"x": 1, "dtype"'), "unknown keys"),
        (lambda m: m.replace(b'"append_eod": true', b'"append_eod": false'), "options_hash"),
        (lambda m: m.replace(b'"path": "a.jsonl"', b'"path": "b.jsonl"'), "altered after it was written"),
        (lambda m: m.replace(b'"layout": "plain"', b'"layout": "pai"'), "altered after it was written"),
        (lambda m: m.replace(b'"manifest_hash": "', b'"manifest_hash": "0'), "altered after it was written"),
        (lambda m: m.replace(b'"read": 40', b'"read": NaN'), "NaN is no JSON number"),
        (lambda m: m.replace(b'"path": "a.jsonl"', b'"path": 1'), "inputs[0]"),
        (lambda m: m.replace(b'"size": 100', b'"size": "100"'), "inputs[0]"),
        (lambda m: m.replace(b'"xxh3_128"', b'"md5"'), "files.bin"),
        (lambda m: m[:-3], "UTF-8 JSON"),
        (lambda m: b"\xff" + m, "UTF-8 JSON"),
        (lambda m: b"[" * 100_000, "nested"),
        (lambda m: b"[]", "list"),
    ],
)
def test_manifest_that_lies_about_its_form_is_refused(
    shard: Path, change: Callable[[bytes], bytes], words: str
) -> None:
    before = file(shard, ".json").read_bytes()
    file(shard, ".json").write_bytes(change(before))
    with pytest.raises(errors.ManifestError) as caught:
        _ = IndexedDataset(shard).manifest
    assert words in str(caught.value) and str(file(shard, ".json")) in str(caught.value)


def test_manifest_altered_by_hand_is_found_by_verify(shard: Path) -> None:
    content = file(shard, ".json").read_bytes()
    file(shard, ".json").write_bytes(content.replace(b'"path": "a.jsonl"', b'"path": "b.jsonl"'))
    (finding,) = verify_shard(shard).findings
    assert finding.error == "ManifestError" and finding.path == str(file(shard, ".json"))
    assert "manifest_hash" in finding.message


def test_manifest_hash_is_that_of_all_other_keys_and_may_be_missing(shard: Path) -> None:
    plain = json.loads(file(shard, ".json").read_text(encoding="utf-8"))
    own = plain.pop("manifest_hash")
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert own == xxhash.xxh3_128_hexdigest(text.encode())
    file(shard, ".json").write_text(text, encoding="utf-8")
    assert verify_shard(shard, True).ok


def test_manifest_is_canonical_and_survives_reading(shard: Path) -> None:
    content = file(shard, ".json").read_bytes()
    manifest = read_manifest(str(shard))
    assert manifest is not None and manifest.to_json() == content
    assert content.endswith(b"}\n") and b"\r" not in content
    keys = [line.split(b'"')[1] for line in content.split(b"\n") if line.startswith(b'  "')]
    assert keys == sorted(keys)
    change_manifest(shard, inputs=(replace(manifest.inputs[0], path="语料/\udcff.jsonl"),))
    again = read_manifest(str(shard))
    assert again is not None and again.inputs[0].path == "语料/\udcff.jsonl"
    assert "语料/\\udcff".encode() in file(shard, ".json").read_bytes()


# What a training run proves once.


def test_training_is_refused_for_what_only_the_manifest_can_tell(shard: Path) -> None:
    assert check_before_training(IndexedDataset(shard), "f" * 32) is True
    with pytest.raises(errors.TokenizerMismatchError, match="0000"):
        check_before_training(IndexedDataset(shard), "0" * 32)
    index = bytearray(file(shard, ".idx").read_bytes())
    # Two documents swap their lengths: everything an O(1) check sees still agrees.
    lengths = np.frombuffer(index, "<i4", 40, 34)
    i = int(np.flatnonzero(np.diff(lengths[:-1]))[0])
    lengths[i], lengths[i + 1] = int(lengths[i + 1]), int(lengths[i])
    pointers = np.frombuffer(index, "<i8", 40, 34 + 160)
    pointers[i + 1] = pointers[i] + 2 * int(lengths[i])
    file(shard, ".idx").write_bytes(bytes(index))
    ds = IndexedDataset(shard)
    assert len(ds[i]) == int(lengths[i])
    with pytest.raises(errors.ChecksumError, match=r"x\.idx"):
        check_before_training(ds, "f" * 32)


def test_training_needs_the_sidecars_the_manifest_lists(shard: Path) -> None:
    for ending in (".bin", ".idx"):
        file(shard, "_loss_spans" + ending).unlink()
    with pytest.raises(errors.SidecarMissingError, match="_loss_spans"):
        check_before_training(IndexedDataset(shard), None)


def test_training_on_a_bare_shard_is_told_apart(tmp_path: Path) -> None:
    assert check_before_training(IndexedDataset(write_example(tmp_path / "ex")), "f" * 32) is False
