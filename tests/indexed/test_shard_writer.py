"""Writing: ranges and sums are checked, bulk and single adding give the same bytes, pointers do not overflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_shards import EXAMPLE_BIN, EXAMPLE_IDX, contents, names

from mmdata import errors
from mmdata.indexed import IndexedDataset, ShardWriter
from mmdata.indexed.spool import IndexSpool


@pytest.mark.parametrize("token", [70000, 65536, -100, -1, 1000])
@pytest.mark.parametrize("kind", ["list", "int64", "int32", "torch"])
def test_token_outside_the_vocabulary_is_refused_and_never_wraps(tmp_path: Path, token: int, kind: str) -> None:
    tokens: Any = [1, token, 2]
    if kind == "torch":
        tokens = pytest.importorskip("torch").tensor(tokens)
    elif kind != "list":
        tokens = np.array(tokens, kind)
    with ShardWriter(tmp_path / "x", vocab_size=1000) as writer:
        writer.add_document([5])
        with pytest.raises(errors.TokenRangeError, match=f"token 1 of this call is {token}"):
            writer.add_document(tokens)
        with pytest.raises(errors.TokenRangeError):
            writer.add_documents(tokens, [3])
        writer.add_document([6])
    assert contents(tmp_path / "x") == [[5], [6]]


@pytest.mark.parametrize("source", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", ">i4"])
def test_every_integer_dtype_is_taken_and_checked(tmp_path: Path, source: str) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        writer.add_document(np.array([0, 99], source))
        with pytest.raises(errors.TokenRangeError):
            writer.add_document(np.array([100], source))
        if np.dtype(source).kind == "i":
            with pytest.raises(errors.TokenRangeError):
                writer.add_document(np.array([-1], source))
    assert contents(tmp_path / "x") == [[0, 99]]


def test_a_small_signed_dtype_is_not_mistaken_for_a_large_token(tmp_path: Path) -> None:
    with (
        ShardWriter(tmp_path / "x", vocab_size=65499) as writer,
        pytest.raises(errors.TokenRangeError, match="is -100"),
    ):
        writer.add_document(np.array([-100], np.int16))


def test_tokens_that_are_no_integers_are_refused(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        for tokens in ([1.5], [True], ["a"], [2**70], [None]):
            with pytest.raises(errors.TokenRangeError, match="not integers"):
                writer.add_document(tokens)
        with pytest.raises(errors.LengthMismatchError, match="shape"):
            writer.add_document([[1, 2], [3, 4]])


def test_without_a_vocabulary_the_dtype_is_the_limit(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x") as writer:
        writer.add_document([-(2**31), 2**31 - 1])
        with pytest.raises(errors.TokenRangeError):
            writer.add_document([2**31])
    assert contents(tmp_path / "x") == [[-(2**31), 2**31 - 1]]


def test_vocabulary_that_does_not_fit_the_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="65535"):
        ShardWriter(tmp_path / "x", vocab_size=65537, dtype="uint16")
    with pytest.raises(errors.UsageError):
        ShardWriter(tmp_path / "x", vocab_size=10, dtype="float32")
    with pytest.raises(errors.UsageError):
        ShardWriter(tmp_path / "x", vocab_size=0)
    assert names(tmp_path) == set()
    with ShardWriter(tmp_path / "x", vocab_size=65536, dtype=np.uint16) as writer:
        writer.add_document([65535])
    assert contents(tmp_path / "x") == [[65535]]


@pytest.mark.parametrize(
    "lengths", [[2], [2, 2], [], [4, -1], [1.5, 1.5], [[3]], [2**31 + 3]], ids=lambda value: str(value)
)
def test_lengths_must_add_up_to_the_tokens(tmp_path: Path, lengths: Any) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        for add in (writer.add_document, writer.add_documents):
            with pytest.raises((errors.LengthMismatchError, errors.SequenceTooLongError)):
                add([1, 2, 3], lengths)
        writer.add_document([7, 8])
    assert contents(tmp_path / "x") == [[7, 8]]


@pytest.mark.parametrize("documents", [[1], [3], [1, 2], [2, -1, 1], []])
def test_documents_must_add_up_to_the_sequences(tmp_path: Path, documents: list[int]) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer, pytest.raises(errors.LengthMismatchError):
        writer.add_documents([1, 2, 3], [1, 2], documents)


def test_bulk_and_single_adding_give_the_same_bytes(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    lengths = generator.integers(0, 9, 500)
    tokens = generator.integers(0, 60000, lengths.sum())
    with ShardWriter(tmp_path / "bulk", vocab_size=60000) as bulk:
        bulk.add_documents(tokens, lengths)
    with ShardWriter(tmp_path / "single", vocab_size=60000) as single:
        for part in np.split(tokens, np.cumsum(lengths)[:-1]):
            single.add_document(part)
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"bulk{ending}").read_bytes() == (tmp_path / f"single{ending}").read_bytes()


def test_bulk_documents_of_several_sequences_make_the_worked_example(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "ex", vocab_size=1000) as writer:
        writer.add_documents(np.arange(1, 6, dtype=np.int32), [3, 1, 1], documents=[1, 0, 2])
    assert (tmp_path / "ex.bin").read_bytes() == EXAMPLE_BIN
    assert (tmp_path / "ex.idx").read_bytes() == EXAMPLE_IDX


def test_counts_are_right_at_any_time_and_arrays_may_be_reused(tmp_path: Path) -> None:
    scratch = np.zeros(3, np.uint16)
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        for number in range(5000):
            scratch[:] = number % 90
            writer.add_document(scratch[: number % 4])
            if number % 1000 == 0:
                full, rest = divmod(number + 1, 4)
                tokens = full * 6 + sum(range(rest))
                assert (writer.documents, writer.tokens) == (number + 1, tokens)
                assert writer.sequences == number + 1 - full - (rest > 0)
    assert contents(tmp_path / "x") == [[n % 90] * (n % 4) for n in range(5000) if n % 4]


def test_strided_and_read_only_arrays_are_taken(tmp_path: Path) -> None:
    source = np.arange(20, dtype=np.int32)
    source.flags.writeable = False
    with ShardWriter(tmp_path / "x", vocab_size=100) as writer:
        writer.add_document(source[::2])
        writer.add_document(source[::-1])
    assert contents(tmp_path / "x") == [list(range(0, 20, 2)), list(range(19, -1, -1))]


def test_mode_bytes_are_kept_and_refused_where_there_are_none(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x", vocab_size=100, multimodal=True) as writer:
        writer.add_document([1, 2, 3], lengths=[1, 2], modes=[0, 1])
        writer.add_document([4])
        writer.add_documents([5, 6], [1, 0, 1], modes=[-1, 7, 2])
        with pytest.raises(errors.LengthMismatchError):
            writer.add_document([1], modes=[1, 2])
        with pytest.raises(errors.TokenRangeError):
            writer.add_document([1], modes=[200])
    ds = IndexedDataset(tmp_path / "x", multimodal=True)
    assert ds.sequence_modes is not None and ds.sequence_modes.tolist() == [0, 1, 0, -1, 2]
    with ShardWriter(tmp_path / "y") as plain, pytest.raises(errors.LengthMismatchError, match="multimodal=True"):
        plain.add_document([1], modes=[1])


def test_pointers_are_right_past_two_to_the_31_bytes(tmp_path: Path) -> None:
    lengths = np.full(7, 2**29 + 1, np.int32)
    spool = IndexSpool(str(tmp_path / "x"), multimodal=False)
    spool.add_sequences(lengths)
    spool.add_ends(np.arange(1, 8))
    spool.seal()
    spool.write_index(str(tmp_path / "x.idx"), np.dtype("<i4"))
    spool.discard()
    with open(tmp_path / "x.bin", "wb") as sparse:
        sparse.truncate(int(lengths.sum(dtype=np.int64)) * 4)
        sparse.seek((2**29 + 1) * 6 * 4)
        sparse.write(np.arange(5, dtype="<i4").tobytes())
    ds = IndexedDataset(tmp_path / "x")
    assert ds.sequence_pointers.tolist() == [i * (2**29 + 1) * 4 for i in range(7)]
    assert ds.sequence_pointers[-1] > 2**33
    assert ds.get(6, 0, 5).tolist() == [0, 1, 2, 3, 4]
    assert ds[6][:5].tolist() == [0, 1, 2, 3, 4] and ds[5][-1] == 0
