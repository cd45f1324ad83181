"""The bytes of the format against literal bytes, and each way a file can lie against its own error."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from small_shards import EXAMPLE_BIN, EXAMPLE_IDX, contents, file, patch, write_example

from mmdata import errors
from mmdata.indexed import IndexedDataset, ShardWriter
from mmdata.indexed.layout import Header, dtype_for_vocabulary, stored_dtype

LENGTHS_AT, POINTERS_AT, DOCUMENTS_AT = 34, 46, 70


@pytest.fixture
def example(tmp_path: Path) -> Path:
    return write_example(tmp_path / "ex")


def test_writer_makes_the_worked_example_of_the_specification(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "ex", vocab_size=1000) as writer:
        writer.add_document([1, 2, 3])
        writer.add_document([])
        writer.add_document([4, 5], lengths=[1, 1])
    assert (tmp_path / "ex.bin").read_bytes() == EXAMPLE_BIN
    assert (tmp_path / "ex.idx").read_bytes() == EXAMPLE_IDX
    assert len(EXAMPLE_IDX) == 102


def test_reader_reads_the_worked_example(example: Path) -> None:
    ds = IndexedDataset(example)
    assert contents(example) == [[1, 2, 3], [4], [5]]
    assert ds.sequence_lengths.tolist() == [3, 1, 1]
    assert ds.sequence_pointers.tolist() == [0, 6, 8]
    assert ds.document_indices.tolist() == [0, 1, 1, 3]
    assert (ds.document_count, ds.token_count, ds.dtype.name) == (3, 5, "uint16")
    assert [ds.document(i).tolist() for i in range(3)] == [[1, 2, 3], [], [4, 5]]


def test_the_specification_shows_the_same_bytes() -> None:
    text = (Path(__file__).parents[2] / "docs" / "shard-format.md").read_text(encoding="utf-8")
    block = text.split("`.idx` is 34 + 12 x 3 + 8 x 4 = 102 bytes:")[1].split("```")[1]
    shown = "".join(line.split("   ")[0] for line in block.strip().split("\n"))
    assert bytes.fromhex(shown) == EXAMPLE_IDX


@pytest.mark.parametrize(
    ("code", "name"),
    enumerate(["uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16"], start=1),
)
def test_each_dtype_has_its_code(tmp_path: Path, code: int, name: str) -> None:
    with ShardWriter(tmp_path / "x", dtype=name) as writer:
        writer.add_document([1, 2])
    assert (tmp_path / "x.idx").read_bytes()[17] == code
    assert IndexedDataset(tmp_path / "x")[0].tolist() == [1, 2]
    assert IndexedDataset(tmp_path / "x").dtype == np.dtype(name)


@pytest.mark.parametrize(
    ("vocabulary", "name"), [(1, "uint16"), (65499, "uint16"), (65500, "int32"), (65536, "int32"), (None, "int32")]
)
def test_vocabulary_decides_the_dtype(vocabulary: int | None, name: str) -> None:
    assert dtype_for_vocabulary(vocabulary).name == name


def test_index_size_is_42_and_20_bytes_a_document() -> None:
    assert Header(np.dtype("<u2"), 35_000, 35_001).size == 700_042
    assert Header(np.dtype("<u2"), 3, 4, multimodal=True).size == 105


# One lie at a time.


def expect(prefix: Path, error: type[Exception], *words: str) -> None:
    with pytest.raises(error) as caught:
        IndexedDataset(prefix)
    for word in (str(prefix), *words):
        assert word in str(caught.value)


@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_missing_file_is_named(example: Path, ending: str) -> None:
    file(example, ending).unlink()
    expect(example, errors.ShardNotFoundError, ending)


@pytest.mark.parametrize("size", [0, 8, 33])
def test_index_cut_inside_its_header_is_refused(example: Path, size: int) -> None:
    file(example, ".idx").write_bytes(EXAMPLE_IDX[:size])
    expect(example, errors.IndexTruncatedError, f"{size} bytes")


def test_wrong_magic_is_refused(example: Path) -> None:
    patch(file(example, ".idx"), 0, b"PK\x03\x04")
    expect(example, errors.BadMagicError, "50 4b 03 04")


def test_index_of_the_lazy_kind_is_named_as_such(example: Path) -> None:
    file(example, ".idx").write_bytes(b"TNTIDX\x00\x00" + bytes(60))
    expect(example, errors.BadMagicError, "lazy", "mmap")


def test_unknown_version_is_refused(example: Path) -> None:
    patch(file(example, ".idx"), 9, struct.pack("<Q", 2))
    expect(example, errors.UnsupportedVersionError, "version 2")


@pytest.mark.parametrize("code", [0, 9, 255])
def test_unknown_dtype_code_is_refused(example: Path, code: int) -> None:
    patch(file(example, ".idx"), 17, bytes([code]))
    expect(example, errors.UnknownDtypeError, f"code {code}")


@pytest.mark.parametrize("content", [EXAMPLE_IDX[:-1], EXAMPLE_IDX + b"\x00", EXAMPLE_IDX[:34]])
def test_index_of_another_size_than_its_counts_say_is_refused(example: Path, content: bytes) -> None:
    file(example, ".idx").write_bytes(content)
    expect(example, errors.IndexSizeError, f"{len(content)} bytes", "102")


def test_huge_count_in_the_header_is_refused_without_allocating(example: Path) -> None:
    patch(file(example, ".idx"), 18, struct.pack("<Q", 2**63))
    expect(example, errors.IndexSizeError)


def test_mode_bytes_without_multimodal_are_noticed_and_the_reverse(example: Path) -> None:
    expect_multimodal = pytest.raises(errors.IndexSizeError, match="multimodal=False")
    with expect_multimodal:
        IndexedDataset(example, multimodal=True)
    file(example, ".idx").write_bytes(EXAMPLE_IDX + bytes(3))
    expect(example, errors.IndexSizeError, "multimodal=True")
    modes = IndexedDataset(example, multimodal=True).sequence_modes
    assert modes is not None and modes.tolist() == [0, 0, 0]


def test_no_document_entry_is_refused(example: Path) -> None:
    header = EXAMPLE_IDX[:18] + struct.pack("<QQ", 0, 0)
    file(example, ".idx").write_bytes(header)
    expect(example, errors.DocumentIndexError, "leading 0")


@pytest.mark.parametrize(("at", "value"), [(DOCUMENTS_AT, 1), (DOCUMENTS_AT + 24, 2), (DOCUMENTS_AT + 24, 4)])
def test_document_indices_must_run_from_0_to_the_number_of_sequences(example: Path, at: int, value: int) -> None:
    patch(file(example, ".idx"), at, struct.pack("<q", value))
    expect(example, errors.DocumentIndexError, "must run from 0 to 3")


def test_first_pointer_must_be_0(example: Path) -> None:
    patch(file(example, ".idx"), POINTERS_AT, struct.pack("<q", 2))
    expect(example, errors.PointerError, "sequence 0")


@pytest.mark.parametrize(
    ("content", "words"), [(EXAMPLE_BIN[:-1], "1 bytes are missing"), (b"", "10 bytes are missing")]
)
def test_truncated_bin_is_refused_at_open(example: Path, content: bytes, words: str) -> None:
    file(example, ".bin").write_bytes(content)
    expect(example, errors.BinSizeError, words)


def test_bin_with_bytes_left_over_is_refused_at_open(example: Path) -> None:
    file(example, ".bin").write_bytes(EXAMPLE_BIN + b"\x00\x00")
    expect(example, errors.BinSizeError, "2 bytes are left over")


def test_negative_last_length_is_refused_at_open(example: Path) -> None:
    patch(file(example, ".idx"), LENGTHS_AT + 8, struct.pack("<i", -1))
    expect(example, errors.SequenceLengthError, "sequence 2", "-1")


# What only access can see.


def test_pointer_that_disagrees_with_its_neighbours_is_caught_at_access(example: Path) -> None:
    patch(file(example, ".idx"), POINTERS_AT + 8, struct.pack("<q", 4))
    ds = IndexedDataset(example)
    for access in (lambda: ds[0], lambda: ds[1], lambda: ds[0:2], lambda: ds.get(0, 1), lambda: ds.document(0)):
        with pytest.raises(errors.PointerError, match=r"ex\.idx, sequence"):
            access()
    assert ds[2].tolist() == [5]


def test_pointers_that_agree_off_the_item_grid_are_caught(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        writer.add_documents([1, 2, 3, 4, 5, 6], [3, 1, 1, 1])
    # Sequence 1 moved by one byte, with its neighbour: the pair agrees, yet tokens would be torn.
    patch(tmp_path / "x.idx", 34 + 16 + 8, struct.pack("<qq", 7, 9))
    ds = IndexedDataset(tmp_path / "x")
    for access in (lambda: ds[1], lambda: ds.get(1), lambda: ds[1:3]):
        with pytest.raises(errors.PointerError):
            access()
    assert ds[3].tolist() == [6]


def test_last_pointer_off_the_item_grid_is_refused_at_open(example: Path) -> None:
    patch(file(example, ".idx"), POINTERS_AT + 16, struct.pack("<q", 9))
    file(example, ".bin").write_bytes(EXAMPLE_BIN + b"\x00")
    expect(example, errors.PointerError, "sequence 2", "inside a token")


def test_pointers_beyond_the_file_that_agree_are_caught(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x", dtype="int32") as writer:
        writer.add_documents(list(range(40)), [10, 10, 10, 10])
    patch(tmp_path / "x.idx", 34 + 16 + 8, struct.pack("<qq", 4000, 4040))
    ds = IndexedDataset(tmp_path / "x")
    with pytest.raises(errors.PointerError):
        ds[1]
    patch(tmp_path / "x.idx", 34 + 16 + 8, struct.pack("<qq", -80, -40))
    ds = IndexedDataset(tmp_path / "x")
    for access in (lambda: ds[1], lambda: ds.get(1), lambda: ds[1:3]):
        with pytest.raises(errors.PointerError):
            access()


def test_negative_length_is_caught_at_access(example: Path) -> None:
    patch(file(example, ".idx"), LENGTHS_AT, struct.pack("<i", -3))
    ds = IndexedDataset(example)
    for access in (lambda: ds[0], lambda: ds[0:2], lambda: ds.get(0)):
        with pytest.raises(errors.SequenceLengthError, match="sequence 0: its length is -3"):
            access()


def test_decreasing_document_index_is_caught_at_access(example: Path) -> None:
    patch(file(example, ".idx"), DOCUMENTS_AT + 8, struct.pack("<qq", 2, 1))
    ds = IndexedDataset(example)
    with pytest.raises(errors.DocumentIndexError, match="document 1"):
        ds.document(1)


def test_unknown_dtype_asked_for_is_refused() -> None:
    with pytest.raises(errors.UnknownDtypeError, match="uint32"):
        stored_dtype("uint32")
    with pytest.raises(errors.UnknownDtypeError, match="token"):
        stored_dtype("token")
