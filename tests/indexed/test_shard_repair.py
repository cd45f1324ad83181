"""Adopting and repairing prove what they write, and leave alone what cannot be proved."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from small_shards import EOD, change_manifest, file, full_shard, patch, plain_shard, random_documents, rewrite

from mmdata import errors
from mmdata.indexed import IndexedDataset, adopt_shard, check_before_training, read_manifest, repair_shard, verify_shard
from mmdata.inspection_text import verify_all


@dataclass
class StubTokenizer:
    vocab_size: int = 1000
    eod_id: int | None = EOD
    kind: str = "stub"
    fingerprint: str = "f" * 32


# Adopting.


def test_adopting_writes_a_manifest_that_verifies(tmp_path: Path) -> None:
    prefix = plain_shard(tmp_path / "my_text_document", [[1, 2, EOD], [3, EOD]])
    manifest = adopt_shard(prefix, StubTokenizer())
    assert (manifest.eod_appended, manifest.key, manifest.dtype, manifest.documents) == (True, "text", "uint16", 2)
    assert manifest == read_manifest(str(prefix)) and verify_shard(prefix, deep=True).findings == []
    assert check_before_training(IndexedDataset(prefix), StubTokenizer().fingerprint)
    with pytest.raises(errors.OutputExistsError):
        adopt_shard(prefix, StubTokenizer())


@pytest.mark.parametrize(
    ("documents", "eod_id", "appended"),
    [
        ([[1, 2], [3]], EOD, False),
        ([[1, EOD], [3]], EOD, None),
        ([[1, EOD, 2, EOD]], EOD, None),
        ([[1]], None, False),
        ([[1, EOD]], EOD, True),
    ],
)
def test_adopting_tells_whether_eod_was_appended(
    tmp_path: Path, documents: list[list[int]], eod_id: int | None, appended: bool | None
) -> None:
    prefix = plain_shard(tmp_path / "x", documents)
    assert adopt_shard(prefix, StubTokenizer(eod_id=eod_id)).eod_appended is appended


def test_adopting_refuses_a_shard_of_another_tokenizer(tmp_path: Path) -> None:
    prefix = plain_shard(tmp_path / "x", [[1], [999]])
    with pytest.raises(errors.TokenRangeError, match="999"):
        adopt_shard(prefix, StubTokenizer(vocab_size=500))
    assert not file(prefix, ".json").exists()


def test_adopting_anew_replaces_the_manifest_only_when_the_shard_is_sound(tmp_path: Path) -> None:
    prefix = plain_shard(tmp_path / "x", [[1], [999]])
    adopt_shard(prefix, StubTokenizer())
    before = file(prefix, ".json").read_bytes()
    with pytest.raises(errors.TokenRangeError):
        adopt_shard(prefix, StubTokenizer(vocab_size=500), overwrite=True)
    assert file(prefix, ".json").read_bytes() == before
    file(prefix, ".json").write_bytes(b"rubbish")
    assert adopt_shard(prefix, StubTokenizer(fingerprint="0" * 32), overwrite=True).tokenizer_fingerprint == "0" * 32
    assert verify_shard(prefix, deep=True).ok


# Repairing.


def test_repairing_rebuilds_a_lost_index_from_eods(tmp_path: Path) -> None:
    prefix = full_shard(tmp_path / "x", random_documents(50))
    before = file(prefix, ".idx").read_bytes()
    for damage in (lambda p: p.unlink(), lambda p: p.write_bytes(b"rubbish"), lambda p: p.write_bytes(before[:-3])):
        damage(file(prefix, ".idx"))
        assert "rebuilt from the EODs" in repair_shard(prefix).actions[0]
        assert file(prefix, ".idx").read_bytes() == before
    assert file(prefix, ".idx.broken").read_bytes() == before[:-3]
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


def test_repairing_rebuilds_pointers_from_lengths_with_or_without_a_manifest(tmp_path: Path) -> None:
    for name, make in (("full", full_shard), ("bare", plain_shard)):
        prefix = make(tmp_path / name, random_documents(20))
        before = file(prefix, ".idx").read_bytes()
        patch(file(prefix, ".idx"), 34 + 80 + 8 * 5, b"\x77\x77\x77")
        assert "pointers rebuilt" in repair_shard(prefix).actions[0]
        assert file(prefix, ".idx").read_bytes() == before


def test_repairing_damaged_lengths_falls_back_to_eods(tmp_path: Path) -> None:
    prefix = full_shard(tmp_path / "x", random_documents(20))
    before = file(prefix, ".idx").read_bytes()
    patch(file(prefix, ".idx"), 34 + 12, struct.pack("<i", 10_000))
    assert "rebuilt from the EODs" in repair_shard(prefix).actions[0]
    assert file(prefix, ".idx").read_bytes() == before


def test_repairing_restores_a_lost_manifest_with_the_tokenizer(tmp_path: Path) -> None:
    prefix = plain_shard(tmp_path / "x", [[1, EOD]])
    with pytest.raises(errors.RepairError, match="--tokenizer"):
        repair_shard(prefix)
    assert "restored" in repair_shard(prefix, StubTokenizer()).actions[0]
    assert verify_shard(prefix, deep=True).ok and repair_shard(prefix).actions == ()


def test_repairing_a_sound_shard_changes_nothing(shard: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert repair_shard(shard).actions == ()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda p: [file(p, e).unlink() for e in (".idx", ".json")], "no manifest"),
        (lambda p: [file(p, ".idx").unlink(), change_manifest(p, eod_appended=False)], "EOD ends every document"),
        (lambda p: [file(p, ".idx").unlink(), patch(file(p, ".bin"), 0, b"\x0c")], "not the one of the manifest"),
        (lambda p: file(p, ".bin").unlink(), "tokens are gone"),
        (lambda p: file(p, ".bin").write_bytes(file(p, ".bin").read_bytes()[:-2]), "bytes"),
        (lambda p: patch(file(p, ".bin"), 0, b"\x0c"), "this is left"),
    ],
)
def test_what_cannot_be_repaired_is_said_and_left_alone(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    prefix = full_shard(tmp_path / "x", random_documents(9))
    damage(prefix)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(errors.RepairError, match=words):
        repair_shard(prefix)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_index_that_eods_do_not_give_back_is_not_replaced(tmp_path: Path) -> None:
    prefix = full_shard(tmp_path / "x", [[1], [2]])
    rewrite(prefix, [[1, EOD], [2, 3, EOD, 4, EOD]])
    file(prefix, ".idx").unlink()
    with pytest.raises(errors.RepairError, match="several sequences"):
        repair_shard(prefix)
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name or path.name == "x.idx"]


@pytest.mark.parametrize("lost", [".bin", ".idx", ".json"])
def test_a_shard_beyond_repair_is_a_finding_and_the_next_is_still_looked_at(tmp_path: Path, lost: str) -> None:
    """So `verify --repair --json` prints its one result whatever it meets."""
    broken, sound = plain_shard(tmp_path / "a", [[1, EOD]]), full_shard(tmp_path / "b", [[11]])
    if lost == ".json":
        adopt_shard(broken, StubTokenizer())
        file(broken, ".json").write_bytes(b"no manifest")
    else:
        file(broken, lost).unlink()
    prefixes = [str(broken), str(sound)]
    data, lines, ok = verify_all(prefixes, deep=False, repair=True, tokenizer=None, multimodal=False)
    first, second = data["shards"]
    assert not ok and not first["ok"] and second["ok"] and second["repaired"] == []
    wanted = "ManifestError" if lost == ".json" else "RepairError"
    assert first["findings"][0]["error"] == wanted and first["findings"][0]["message"] in lines
    assert json.loads(json.dumps(data)) == data
