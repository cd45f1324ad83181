"""Merging: tokens, sidecars and manifests together, widening, and every refusal."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_shards import contents, file, full_shard, patch, plain_shard, random_documents

from mmdata import errors
from mmdata.indexed import (
    IndexedDataset,
    ShardWriter,
    merge_shards,
    read_manifest,
    split_shard,
    verify_shard,
    write_manifest,
)


def test_merging_two_thousand_parts_keeps_order_and_frees_descriptors(tmp_path: Path) -> None:
    parts = [plain_shard(tmp_path / f"p{n}", [[n % 900, 1], []]) for n in range(25)] * 80
    before = len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 0
    result = merge_shards(parts, tmp_path / "all")
    assert (result.parts, result.sequences, result.documents, result.tokens) == (2000, 2000, 4000, 4000)
    assert contents(tmp_path / "all") == [[n % 900, 1] for n in range(25)] * 80
    assert result.manifest is None and (len(os.listdir("/dev/fd")) if before else 0) == before


def test_uint16_parts_are_widened_when_an_int32_part_asks_for_it(tmp_path: Path) -> None:
    small = plain_shard(tmp_path / "a", [[1, 2], [65_000]], vocab_size=65_400)
    large = plain_shard(tmp_path / "b", [[70_000]], vocab_size=100_000)
    assert merge_shards([small, large, small], tmp_path / "all").dtype == "int32"
    assert contents(tmp_path / "all") == [[1, 2], [65_000], [70_000], [1, 2], [65_000]]
    assert IndexedDataset(tmp_path / "all").dtype == np.dtype("<i4")
    assert merge_shards([small, small], tmp_path / "same").dtype == "uint16"


def test_float_and_integer_parts_are_refused(tmp_path: Path) -> None:
    plain_shard(tmp_path / "a", [[1]])
    with ShardWriter(tmp_path / "b", dtype="float32") as writer:
        writer.add_document([1.5])
    with pytest.raises(errors.DtypeMergeError, match="float32"):
        merge_shards([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert not file(tmp_path / "all", ".bin").exists()


def test_mode_bytes_and_several_sequences_are_carried(tmp_path: Path) -> None:
    for name in "ab":
        with ShardWriter(tmp_path / name, vocab_size=10, multimodal=True) as writer:
            writer.add_document([1, 2, 3], lengths=[1, 2], modes=[0, 1])
            writer.add_document([])
    merge_shards([tmp_path / "a", tmp_path / "b"], tmp_path / "all", multimodal=True)
    ds = IndexedDataset(tmp_path / "all", multimodal=True)
    assert ds.sequence_modes is not None and ds.sequence_modes.tolist() == [0, 1, 0, 1]
    assert ds.document_indices.tolist() == [0, 2, 2, 4, 4]


def test_origins_are_renumbered_into_one_list_of_inputs(tmp_path: Path) -> None:
    a = full_shard(tmp_path / "a", [[11], [12]], path="a.jsonl")
    b = full_shard(tmp_path / "b", [[13]], path="b.jsonl")
    again = full_shard(tmp_path / "c", [[14]], path="a.jsonl")
    manifest = merge_shards([a, b, again], tmp_path / "all").manifest
    assert manifest is not None and [facts.path for facts in manifest.inputs] == ["a.jsonl", "b.jsonl"]
    ds = IndexedDataset(tmp_path / "all")
    origins = [ds.origin(i) for i in range(4)]
    assert [(o.path, o.input_number, o.line) for o in origins if o] == [
        ("a.jsonl", 0, 1), ("a.jsonl", 0, 2), ("b.jsonl", 1, 1), ("a.jsonl", 0, 1),
    ]  # fmt: skip
    assert manifest.counts == {"read": 4} and (manifest.sequences, manifest.tokens) == (4, 8)
    assert manifest == read_manifest(str(tmp_path / "all")) and verify_shard(tmp_path / "all", deep=True).ok


def test_counts_of_one_run_are_counted_once_and_those_of_two_runs_added(tmp_path: Path) -> None:
    sources = {"kept": 3, "lengths": [1, 2], "sources": {"0": {"kept": 3}}, "name": "x", "drop": {"a": 1}}
    others = {"kept": 5, "lengths": [4, 0], "sources": {"0": {"kept": 5}}, "name": "y", "drop": {"b": 2}}
    for name, path, counts in (("a", "a.jsonl", sources), ("b", "b.jsonl", others)):
        prefix = full_shard(tmp_path / name, random_documents(30), path=path)
        manifest = read_manifest(str(prefix))
        assert manifest is not None
        write_manifest(str(prefix), replace(manifest, counts=counts))
        split_shard(prefix, tmp_path / f"{name}_part", "1,1,1")
    parts = [tmp_path / f"{name}_part_{split}" for name in "ab" for split in ("train", "valid", "test")]
    merged = merge_shards(parts, tmp_path / "all").manifest
    assert merged is not None and merged.counts == {
        "kept": 8,
        "lengths": [5, 2],
        "sources": {"0": {"kept": 3}, "1": {"kept": 5}},
        "name": ["x", "y"],
        "drop": {"a": 1, "b": 2},
    }
    assert merged.documents == 60 and [facts.path for facts in merged.inputs] == ["a.jsonl", "b.jsonl"]


def test_inputs_without_a_hash_are_not_taken_for_the_same_file(tmp_path: Path) -> None:
    parts = [full_shard(tmp_path / name, [[11]], path="a.jsonl") for name in "ab"]
    for part in parts:
        manifest = read_manifest(str(part))
        assert manifest is not None
        write_manifest(str(part), replace(manifest, inputs=(replace(manifest.inputs[0], xxh3_128=None),)))
    merged = merge_shards(parts, tmp_path / "all").manifest
    assert merged is not None and len(merged.inputs) == 2


def test_plain_parts_get_spans_when_a_chat_part_has_them(tmp_path: Path) -> None:
    plain = full_shard(tmp_path / "a", [[11, 12], []])
    chat = full_shard(tmp_path / "b", [[13, 14, 15]], spans=[[2, 3]])
    merged = merge_shards([plain, chat, plain], tmp_path / "all").manifest
    assert merged is not None and merged.loss == "spans"
    ds = IndexedDataset(tmp_path / "all")
    assert [ds.loss_spans(i).tolist() for i in range(5)] == [[[1, 3]], [], [[2, 3]], [[1, 3]], []]
    assert verify_shard(tmp_path / "all", deep=True).ok


def test_a_part_of_unknown_origin_stays_unknown(tmp_path: Path) -> None:
    known = full_shard(tmp_path / "a", [[11]])
    bare = full_shard(tmp_path / "b", [[12], [13]])
    for ending in ("_origin.bin", "_origin.idx"):
        file(bare, ending).unlink()
    manifest = read_manifest(str(bare))
    assert manifest is not None
    files = {name: digest for name, digest in manifest.files.items() if "origin" not in name}
    write_manifest(str(bare), replace(manifest, files=files))
    merge_shards([bare, known], tmp_path / "all")
    ds = IndexedDataset(tmp_path / "all")
    assert [ds.origin(i) for i in (0, 1)] == [None, None]
    origin = ds.origin(2)
    assert origin is not None and origin.path == "a.jsonl"
    assert verify_shard(tmp_path / "all", deep=True).ok


def test_differing_options_stand_side_by_side(tmp_path: Path) -> None:
    parts = [full_shard(tmp_path / name, [[11]]) for name in "ab"]
    manifest = read_manifest(str(parts[1]))
    assert manifest is not None
    changed = replace(
        manifest, recipe="zh", eod_appended=None, chat_template="qwen", counts={"read": 1, "drop": {"short": 2}}
    )
    write_manifest(str(parts[1]), changed)
    merged = merge_shards(parts, tmp_path / "all").manifest
    assert merged is not None
    assert (merged.recipe, merged.eod_appended, merged.chat_template) == ("merged", None, "qwen")
    assert merged.options == {"merged": [{"options": {"append_eod": True}, "recipe": r} for r in ("none", "zh")]}
    assert merged.counts == {"drop": {"short": 2}, "read": 2}


def test_two_templates_asked_for_by_the_same_word_are_told_apart(tmp_path: Path) -> None:
    parts = [full_shard(tmp_path / name, [[11]]) for name in "ab"]
    for part, template in zip(
        parts, ("{{ same beginning of " + "a" * 60 + end for end in ("x }}", "y }}")), strict=True
    ):
        manifest = read_manifest(str(part))
        assert manifest is not None
        write_manifest(str(part), replace(manifest, chat_template=template, options={"chat_template": "auto"}))
    with pytest.raises(errors.ManifestMismatchError) as caught:
        merge_shards(parts, tmp_path / "both")
    hashes = re.findall(r"--chat-template auto, xxh3 ([0-9a-f]{8}), '\{\{ same beginning", str(caught.value))
    assert len(hashes) == 2 and hashes[0] != hashes[1]


def test_plain_text_joins_conversations_of_one_template_and_two_templates_are_refused(tmp_path: Path) -> None:
    parts = [full_shard(tmp_path / name, [[11]]) for name in "abcd"]
    for part, template in zip(parts, (None, "{{ qwen }}", "{{ qwen }}", "{{ llama }}"), strict=True):
        manifest = read_manifest(str(part))
        assert manifest is not None
        options = {**manifest.options, "chat_template": template and template.strip("{} ")}
        write_manifest(str(part), replace(manifest, chat_template=template, options=options))
    merged = merge_shards(parts[:3], tmp_path / "all").manifest
    assert merged is not None and merged.chat_template == "{{ qwen }}"
    with pytest.raises(errors.ManifestMismatchError) as caught:
        merge_shards(parts, tmp_path / "both")
    said = str(caught.value)
    assert f"{parts[3]}: " in said and f" than those of {parts[1]} (--chat-template qwen, xxh3 " in said
    assert "(--chat-template llama, xxh3 " in said and "'{{ qwen }}'" in said and "'{{ llama }}'" in said
    assert not any(path.name.startswith("both") for path in tmp_path.iterdir())


@pytest.mark.parametrize("change", [{"tokenizer_fingerprint": "0" * 32}, {"vocab_size": 999}, {"eod_id": 8}])
def test_parts_of_different_tokenizers_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    parts = [full_shard(tmp_path / name, [[11]]) for name in "ab"]
    manifest = read_manifest(str(parts[1]))
    assert manifest is not None
    write_manifest(str(parts[1]), replace(manifest, **change))  # type: ignore[arg-type]
    with pytest.raises(errors.TokenizerMismatchError, match=next(iter(change))):
        merge_shards(parts, tmp_path / "all")
    assert not any(path.name.startswith("all") for path in tmp_path.iterdir())


def test_manifested_and_bare_parts_are_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(errors.TokenizerMismatchError, match="mmdata adopt"):
        merge_shards([full_shard(tmp_path / "a", [[11]]), plain_shard(tmp_path / "b", [[1]])], tmp_path / "all")


def test_layouts_are_not_mixed(tmp_path: Path) -> None:
    parts = [full_shard(tmp_path / name, [[11]]) for name in "ab"]
    manifest = read_manifest(str(parts[1]))
    assert manifest is not None
    write_manifest(str(parts[1]), replace(manifest, layout="pai"))
    with pytest.raises(errors.ManifestMismatchError, match="pai"):
        merge_shards(parts, tmp_path / "all")


def test_damaged_parts_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    good = full_shard(tmp_path / "good", random_documents(5))
    flipped = full_shard(tmp_path / "flipped", [[11, 12]])
    patch(file(flipped, ".bin"), 0, b"\x0c")
    pointer = plain_shard(tmp_path / "pointer", [[1], [2], [3]])
    patch(file(pointer, ".idx"), 34 + 12 + 8, b"\x04")
    resized = full_shard(tmp_path / "resized", [[11]])
    plain_shard(tmp_path / "other", [[1, 2, 3]])
    for ending in (".bin", ".idx"):
        file(resized, ending).write_bytes(file(tmp_path / "other", ending).read_bytes())
    for parts, error in (
        ([good, flipped], errors.ChecksumError),
        ([pointer], errors.PointerError),
        ([good, resized], errors.ManifestMismatchError),
        ([good, tmp_path / "absent"], errors.ShardNotFoundError),
    ):
        with pytest.raises(error):
            merge_shards(parts, tmp_path / "all")
        assert not any(path.name.startswith("all") for path in tmp_path.iterdir())


def test_output_that_is_a_part_or_exists_is_refused(tmp_path: Path) -> None:
    a, b = (plain_shard(tmp_path / name, [[1]]) for name in "ab")
    with pytest.raises(errors.UsageError, match="one of the parts"):
        merge_shards([a, b], tmp_path / "sub" / ".." / "a", overwrite=True)
    with pytest.raises(errors.OutputExistsError):
        merge_shards([a], b)
    with pytest.raises(errors.UsageError, match="nothing to merge"):
        merge_shards([], tmp_path / "all")
    merge_shards([a, a], b, overwrite=True)
    assert contents(b) == [[1], [1]]
