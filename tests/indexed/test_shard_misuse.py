"""Shards used in ways their author did not foresee: another working folder, closed writers, edited manifests."""

from __future__ import annotations

import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_shards import file, full_shard, plain_shard

from mmdata import errors
from mmdata.errors import OutputError, UsageError
from mmdata.indexed import IndexedDataset, ShardWriter, merge_shards, read_manifest, repair_shard, verify_shard
from mmdata.indexed.split import parse_ratio, split_shard


def test_a_relative_prefix_still_reads_after_the_working_folder_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    full_shard(Path("shard"), [[1, 2, 3], [4]], spans=[[1, 2], []])
    here = IndexedDataset("shard")
    wanted = here[0].tolist(), IndexedDataset("shard").loss_spans(0).tolist(), IndexedDataset("shard").origin(0)
    monkeypatch.chdir(tmp_path / "elsewhere")
    copy = pickle.loads(pickle.dumps(here))
    for dataset in (here, copy):
        assert (dataset[0].tolist(), dataset.loss_spans(0).tolist(), dataset.origin(0)) == wanted
        assert dataset.manifest is not None
    assert here.prefix == "shard"


def test_a_closed_writer_closes_twice_and_takes_no_more(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "out", vocab_size=10)
    writer.add_document([1])
    assert writer.close() == writer.close()
    for call in (lambda: writer.add_document([2]), lambda: writer.add_documents([2], [1]), writer.checkpoint):
        with pytest.raises(OutputError, match="closed"):
            call()
    assert [sequence.tolist() for sequence in IndexedDataset(tmp_path / "out")] == [[1]]


@pytest.mark.parametrize("size", [1.5, "10"])
def test_a_vocabulary_size_that_is_no_integer_is_refused(tmp_path: Path, size: Any) -> None:
    with pytest.raises(UsageError, match="must be an integer"):
        ShardWriter(tmp_path / "out", vocab_size=size)


def test_a_numpy_integer_is_a_vocabulary_size(tmp_path: Path) -> None:
    size: Any = np.int64(10)
    with ShardWriter(tmp_path / "out", vocab_size=size) as writer:
        writer.add_document([9])
    assert IndexedDataset(tmp_path / "out").dtype == np.uint16


def test_a_negative_share_is_told_from_a_share_that_is_no_number() -> None:
    with pytest.raises(UsageError, match="at least 0"):
        parse_ratio("1,-1")
    with pytest.raises(UsageError, match="not made of numbers"):
        parse_ratio("1,x")


def test_one_prefix_is_not_taken_for_a_list_of_letters(tmp_path: Path) -> None:
    full_shard(tmp_path / "a", [[1]])
    one: Any = str(tmp_path / "a")
    with pytest.raises(UsageError, match="not a list of parts"):
        merge_shards(one, tmp_path / "all")


def edit(prefix: Path, path: tuple[Any, ...], value: Any) -> None:
    file = Path(f"{prefix}.json")
    plain = json.loads(file.read_text(encoding="utf-8"))
    place = plain
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    del plain["manifest_hash"]  # as manifests were before they had one
    file.write_text(json.dumps(plain), encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("files", "origin.bin", "size"), 1, "the manifest says 1"),
        (("files", "origin.idx", "size"), 1, "the manifest says 1"),
        (("files", "loss_spans.idx", "size"), 1, "the manifest says 1"),
        (("files", "origin.idx", "size"), -1, "no size and xxh3_128"),
        (("files", "origin.idx", "size"), True, "no size and xxh3_128"),
        (("files", "bin", "xxh3_128"), "G" * 32, "no size and xxh3_128"),
        (("files", "orjgin.bin"), {"size": 1, "xxh3_128": "0" * 32}, "unknown files"),
        (("inputs", 0, "xxh3_128"), "3f", "no hash"),
        (("inputs", 0, "size"), True, "no path, size and xxh3_128"),
    ],
)
def test_a_lie_in_the_manifest_about_any_file_is_found(
    tmp_path: Path, path: tuple[Any, ...], value: Any, said: str
) -> None:
    full_shard(tmp_path / "shard", [[1, 2, 3], [4]], spans=[[1, 2], []])
    assert verify_shard(tmp_path / "shard").ok
    edit(tmp_path / "shard", path, value)
    assert any(said in str(error) for error in verify_shard(tmp_path / "shard").errors)


def test_a_sidecar_of_which_the_manifest_lists_one_file_is_found(tmp_path: Path) -> None:
    full_shard(tmp_path / "shard", [[1, 2, 3], [4]])
    plain = json.loads((tmp_path / "shard.json").read_text(encoding="utf-8"))
    del plain["files"]["origin.bin"], plain["manifest_hash"]
    (tmp_path / "shard.json").write_text(json.dumps(plain), encoding="utf-8")
    assert [str(error) for error in verify_shard(tmp_path / "shard").errors if "lists no `origin.bin`" in str(error)]


@pytest.mark.parametrize("lost", [".idx", ".bin"])
def test_a_file_that_is_there_but_cannot_be_read_is_no_crash(tmp_path: Path, lost: str) -> None:
    prefix = plain_shard(tmp_path / "a", [[1, 2]])
    file(prefix, lost).unlink()
    file(prefix, lost).mkdir()
    for action in (IndexedDataset, lambda name: merge_shards([name], tmp_path / "m")):
        with pytest.raises(errors.ShardReadError, match=re.escape(str(file(prefix, lost)))):
            action(prefix)
    with pytest.raises((errors.ShardReadError, errors.RepairError), match=re.escape(str(file(prefix, lost)))):
        repair_shard(prefix)
    assert [finding.error for finding in verify_shard(prefix).findings] == ["ShardReadError"]


@pytest.mark.skipif(os.name != "posix", reason="folders cannot be opened as files there")
def test_a_manifest_that_is_a_folder_is_a_manifest_error(tmp_path: Path) -> None:
    prefix = plain_shard(tmp_path / "a", [[1, 2]])
    file(prefix, ".json").mkdir()
    with pytest.raises(errors.ManifestError, match="cannot be read: Is a directory"):
        read_manifest(str(prefix))


def test_a_shard_is_never_replaced_by_a_part_of_itself(tmp_path: Path) -> None:
    prefix = full_shard(tmp_path / "a_train_text_document", [[11], [12], [13]])
    before = file(prefix, ".bin").read_bytes()
    for ratio in ("1,1,0", "0,1,1"):  # the second would remove it as an earlier part
        with pytest.raises(errors.UsageError, match="replaced by a part of itself"):
            split_shard(prefix, tmp_path / "a", ratio, overwrite=True)
    rolled = full_shard(tmp_path / "b_00001_text_document", [[11], [12], [13]])
    with pytest.raises(errors.UsageError, match="replaced by a part of itself"):
        split_shard(rolled, tmp_path / "b", max_tokens=10_000, overwrite=True)
    assert file(prefix, ".bin").read_bytes() == before and verify_shard(prefix, deep=True).ok
    assert verify_shard(rolled, deep=True).ok
