"""Verification finds each fault with its own error; adopting and repairing prove what they write."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import xxhash
from small_shards import EOD, contents, file, full_shard, patch, plain_shard, random_documents, write_example

from mmdata import errors
from mmdata.indexed import (
    IndexedDataset,
    ShardWriter,
    adopt_shard,
    check_before_training,
    read_manifest,
    repair_shard,
    verify_shard,
    write_manifest,
)


@dataclass
class StubTokenizer:
    vocab_size: int = 1000
    eod_id: int | None = EOD
    kind: str = "stub"
    fingerprint: str = "f" * 32


def change_manifest(prefix: Path, **changes: object) -> None:
    manifest = read_manifest(str(prefix))
    assert manifest is not None
    write_manifest(str(prefix), replace(manifest, **changes))  # type: ignore[arg-type]


def found(prefix: Path, deep: bool = True) -> list[str]:
    return [finding.error for finding in verify_shard(prefix, deep).findings]


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return full_shard(tmp_path / "x", random_documents(40), spans=[[]] * 40)


def test_a_sound_shard_has_no_finding(shard: Path) -> None:
    for deep in (False, True):
        result = verify_shard(shard, deep)
        assert result.ok and result.findings == [] and result.notes == []
        assert (result.sequences, result.documents, result.tokens) == (40, 40, IndexedDataset(shard).token_count)


def test_a_bare_shard_is_sound_with_a_note(tmp_path: Path) -> None:
    result = verify_shard(write_example(tmp_path / "ex"), deep=True)
    assert result.ok and "mmdata adopt" in result.notes[0] and "vocabulary" in result.notes[1]


# Faults of the pair. Each row: what is damaged, and the error that verification must name.

FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no bin": (lambda p: file(p, ".bin").unlink(), "ShardNotFoundError"),
    "no idx": (lambda p: file(p, ".idx").unlink(), "ShardNotFoundError"),
    "magic": (lambda p: patch(file(p, ".idx"), 0, b"X"), "BadMagicError"),
    "version": (lambda p: patch(file(p, ".idx"), 9, b"\x07"), "UnsupportedVersionError"),
    "dtype": (lambda p: patch(file(p, ".idx"), 17, b"\x00"), "UnknownDtypeError"),
    "idx cut": (lambda p: file(p, ".idx").write_bytes(file(p, ".idx").read_bytes()[:-8]), "IndexSizeError"),
    "pointer": (lambda p: patch(file(p, ".idx"), 34 + 160 + 8 * 20, b"\xff\xff"), "PointerError"),
    "length": (lambda p: patch(file(p, ".idx"), 34 + 4 * 20, struct.pack("<i", -5)), "SequenceLengthError"),
    "document": (lambda p: patch(file(p, ".idx"), 34 + 480 + 8 * 9, struct.pack("<q", 2)), "DocumentIndexError"),
    "first document": (lambda p: patch(file(p, ".idx"), 34 + 480, b"\x01"), "DocumentIndexError"),
    "bin cut": (lambda p: file(p, ".bin").write_bytes(file(p, ".bin").read_bytes()[:-2]), "BinSizeError"),
    "bin longer": (lambda p: file(p, ".bin").write_bytes(file(p, ".bin").read_bytes() + b"\0\0"), "BinSizeError"),
    "token": (lambda p: patch(file(p, ".bin"), 0, b"\x0c"), "ChecksumError"),
    "manifest": (lambda p: file(p, ".json").write_bytes(b"{}"), "ManifestError"),
    "counts": (lambda p: change_manifest(p, documents=39), "ManifestMismatchError"),
    "sidecar gone": (
        lambda p: [file(p, "_origin" + e).unlink() for e in (".bin", ".idx")] and None,
        "SidecarMissingError",
    ),
    "half a sidecar": (lambda p: file(p, "_origin.bin").unlink(), "ShardNotFoundError"),
    "origin input": (lambda p: patch(file(p, "_origin.bin"), 16 * 3, b"\x05"), "SidecarMismatchError"),
    "origin bytes": (lambda p: patch(file(p, "_origin.bin"), 16 * 3 + 4, b"\x63"), "ChecksumError"),
    "sidecar index": (lambda p: patch(file(p, "_origin.idx"), 34, struct.pack("<i", 3)), "PointerError"),
    "stale sidecar": (lambda p: change_manifest(p, loss="all", files=without_spans(p)), "SidecarMismatchError"),
}


def without_spans(prefix: Path) -> dict[str, object]:
    manifest = read_manifest(str(prefix))
    assert manifest is not None
    return {name: digest for name, digest in manifest.files.items() if "spans" not in name}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_and_named_with_place_and_remedy(shard: Path, name: str) -> None:
    damage, error = FAULTS[name]
    damage(shard)
    result = verify_shard(shard)
    assert error in [finding.error for finding in result.findings]
    assert all(finding.path and finding.remedy and finding.path in finding.message for finding in result.findings)


def test_every_fault_is_listed_not_only_the_first(shard: Path) -> None:
    patch(file(shard, ".bin"), 0, b"\x0c")
    patch(file(shard, "_origin.bin"), 16 * 3, b"\x05")
    change_manifest(shard, documents=39)
    assert set(found(shard)) == {"ChecksumError", "SidecarMismatchError", "ManifestMismatchError"}


def test_where_a_token_leaves_the_vocabulary(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x", dtype="int32") as writer:
        writer.add_documents([1, 2, 3, 4, -7, 6, 500], [2, 3, 2])
    (finding,) = verify_shard(tmp_path / "x", True, vocab_size=100).findings
    assert (finding.error, finding.where) == ("TokenRangeError", "sequence 1")
    assert "token 2 is -7" in finding.message and "2 such" in finding.message


def test_pai_layout_may_hold_labels_and_negative_end_marks(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x", dtype="int32") as writer:
        writer.add_document([5, 6, -8, -100, 6, 7])
    adopt_like = full_shard(tmp_path / "y", [[1]], dtype="int32")
    for ending in (".bin", ".idx"):
        file(adopt_like, ending).write_bytes(file(tmp_path / "x", ending).read_bytes())
    assert "TokenRangeError" in found(adopt_like)
    change_manifest(adopt_like, layout="pai")
    assert "TokenRangeError" not in found(adopt_like) and "EodPlacementError" not in found(adopt_like)
    patch(file(adopt_like, ".bin"), 0, struct.pack("<i", -1001))
    assert "TokenRangeError" in found(adopt_like)


def rewrite(prefix: Path, documents: list[list[int]]) -> None:
    """Other documents under an unchanged claim that EOD was appended."""
    manifest = read_manifest(str(prefix))
    assert manifest is not None
    with ShardWriter(prefix, vocab_size=1000, overwrite=True) as writer:
        for tokens in documents:
            writer.add_document(tokens, lengths=[len(tokens)])
        sealed = writer.close()
    facts = {"sequences": sealed.sequences, "documents": sealed.documents, "tokens": sealed.tokens}
    changed = replace(manifest, files={"bin": sealed.bin, "idx": sealed.idx}, loss="all", **facts)  # type: ignore[arg-type]
    write_manifest(str(prefix), changed)


def test_missing_eod_is_found_with_its_document(shard: Path) -> None:
    rewrite(shard, [[1, EOD], [2, 3], [4]])
    assert found(shard, deep=False) == []
    (finding,) = verify_shard(shard, True).findings
    assert (finding.error, finding.where) == ("EodPlacementError", "document 1") and "token 3" in finding.message


def test_eod_inside_a_document_is_found_with_its_place(shard: Path) -> None:
    rewrite(shard, [[1, EOD], [2, 7, EOD, 3, EOD], [EOD, EOD]])
    (finding,) = verify_shard(shard, True).findings
    assert (finding.error, finding.where) == ("EodPlacementError", "document 1")
    assert "at token 2" in finding.message and "2 EODs" in finding.message


def test_eod_inside_is_allowed_where_text_may_hold_special_tokens(shard: Path) -> None:
    rewrite(shard, [[1, EOD], [2, EOD, 3, EOD]])
    change_manifest(shard, options={"allow_special": True})
    assert found(shard) == []


def test_empty_sequences_are_found(shard: Path) -> None:
    rewrite(shard, [[1, EOD], [], [2, EOD], []])
    (finding,) = verify_shard(shard, True).findings
    assert (finding.error, finding.where) == ("EmptySequenceError", "sequence 1") and "2 sequences" in finding.message


@pytest.mark.parametrize(
    ("spans", "sequence"),
    [([[1, 3], [0, 2]], 1), ([[1, 9], []], 0), ([[1], []], 0), ([[], [1, 2, 1, 3]], 1), ([[2, 2], []], 0)],
)
def test_spans_that_lie_are_found(tmp_path: Path, spans: list[list[int]], sequence: int) -> None:
    prefix = full_shard(tmp_path / "x", [[11, 12], [13, 14]], spans=spans)
    (finding,) = verify_shard(prefix).findings
    assert (finding.error, finding.where) == ("SidecarMismatchError", f"sequence {sequence}")


def test_faults_are_found_in_any_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmdata.indexed import checks

    documents = random_documents(50)
    clean = full_shard(tmp_path / "x", documents, spans=[[]] * 50)
    monkeypatch.setattr(checks, "BLOCK_TOKENS", 7)
    monkeypatch.setattr(checks.blocks, "__defaults__", (3,))
    monkeypatch.setattr(checks.sequence_blocks, "__defaults__", (7, 3))
    assert found(clean) == []
    rewrite(clean, [[*tokens, EOD] for tokens in documents[:44]] + [[5, EOD, 6, EOD], [5]])
    assert verify_shard(clean, True).findings[0].where == "document 45"
    rewrite(clean, [[*tokens, EOD] for tokens in documents[:44]] + [[5, EOD, 6, EOD]])
    assert verify_shard(clean, True).findings[0].where == "document 44"
    patch(file(clean, ".idx"), 34 + 4 * 45 + 8 * 31, b"\xff\xff")
    assert verify_shard(clean).findings[0].where == "sequence 31"


def test_remote_addresses_are_not_verified() -> None:
    with pytest.raises(errors.UsageError, match="copy it here"):
        verify_shard("s3://bucket/x")


# Manifests.


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
    assert contents(tmp_path / "x") if file(prefix, ".idx").exists() else True
