"""Verification finds each fault with its own error, its place and its remedy."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from small_shards import EOD, change_manifest, file, full_shard, patch, random_documents, rewrite, write_example

from mmdata import errors
from mmdata.indexed import IndexedDataset, ShardWriter, read_manifest, verify_shard


def found(prefix: Path, deep: bool = True) -> list[str]:
    return [finding.error for finding in verify_shard(prefix, deep).findings]


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
