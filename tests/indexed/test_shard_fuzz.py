"""Any single wrong byte, and random shards: nothing but our own errors, and verification misses none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_shards import file, full_shard

from mmdata import errors
from mmdata.indexed import IndexedDataset, ShardWriter, verify_shard

ENDINGS = (".idx", ".bin", "_origin.idx", "_origin.bin", "_loss_spans.idx", "_loss_spans.bin")


def touch_everything(prefix: Path) -> None:
    """Read all there is; every error but ShardError is a fault of ours."""
    try:
        ds = IndexedDataset(prefix)
    except errors.ShardError:
        return
    reads = [lambda: ds[:], lambda: ds[::2]]
    for i in range(min(len(ds), 50)):
        reads += [lambda i=i: ds[i], lambda i=i: ds.get(i, 0), lambda i=i: ds.loss_spans(i)]
    for i in range(min(ds.document_count, 50)):
        reads += [lambda i=i: ds.document(i), lambda i=i: ds.origin(i)]
    for read in reads:
        try:
            read()
        except errors.ShardError:
            continue


@pytest.mark.parametrize("ending", ENDINGS)
def test_any_single_wrong_byte_is_found_and_never_crashes(tmp_path: Path, ending: str) -> None:
    prefix = full_shard(tmp_path / "x", [[11, 12, 13], [14], [15, 16]], spans=[[1, 3], [1, 2], [2, 3]])
    path = file(prefix, ending)
    good = path.read_bytes()
    for at in range(len(good)):
        for wrong in {good[at] ^ 1, good[at] ^ 0x80, 0xFF, 0} - {good[at]}:
            bad = bytearray(good)
            bad[at] = wrong
            path.write_bytes(bad)
            assert not verify_shard(prefix, deep=True).ok, f"byte {at} of {ending} as {wrong:#x}"
            touch_everything(prefix)
    path.write_bytes(good)
    assert verify_shard(prefix, deep=True).ok


@pytest.mark.parametrize("ending", ENDINGS)
def test_any_truncation_is_found_and_never_crashes(tmp_path: Path, ending: str) -> None:
    prefix = full_shard(tmp_path / "x", [[11, 12, 13], [14]], spans=[[1, 3], [1, 2]])
    path = file(prefix, ending)
    good = path.read_bytes()
    for size in range(len(good)):
        path.write_bytes(good[:size])
        assert not verify_shard(prefix).ok
        touch_everything(prefix)


documents_of_sequences = st.lists(st.lists(st.lists(st.integers(0, 65_499), max_size=5), max_size=4), max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=documents_of_sequences, data=st.data())
def test_what_is_written_is_read(tmp_path: Path, documents: list[list[list[int]]], data: st.DataObject) -> None:
    flat = [token for document in documents for sequence in document for token in sequence]
    lengths = [len(sequence) for document in documents for sequence in document]
    with ShardWriter(tmp_path / "x", vocab_size=65_500, dtype="uint16", overwrite=True) as writer:
        cut = data.draw(st.integers(0, len(documents)))
        for document in documents[:cut]:
            writer.add_document([t for s in document for t in s], [len(s) for s in document])
        rest = documents[cut:]
        writer.add_documents(
            np.array([t for d in rest for s in d for t in s], np.int64),
            np.array([len(s) for d in rest for s in d], np.int64),
            np.array([len(d) for d in rest], np.int64),
        )
    ds = IndexedDataset(tmp_path / "x")
    assert ds.tokens.tolist() == flat and ds.sequence_lengths.tolist() == lengths
    assert [s.tolist() for s in ds] == [sequence for document in documents for sequence in document]
    assert [ds.document(i).tolist() for i in range(len(documents))] == [[t for s in d for t in s] for d in documents]
    assert verify_shard(tmp_path / "x").ok


def test_every_error_of_the_specification_exists_and_every_shard_error_is_specified() -> None:
    text = (Path(__file__).parents[2] / "docs" / "shard-format.md").read_text(encoding="utf-8")
    named = {word for word in text.split("`") if word.endswith("Error") and word.isidentifier()} - {"IndexError"}
    defined = {name for name in dir(errors) if name.endswith("Error")}
    assert named <= defined
    shard_errors = {n for n in defined if issubclass(getattr(errors, n), errors.ShardError)} - {"ShardError"}
    assert shard_errors - {n for n in shard_errors if getattr(errors, n).__module__ != "mmdata.errors"} <= named
