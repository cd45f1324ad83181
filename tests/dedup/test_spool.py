"""What is spooled comes back equal, one by one or by frame, and a killed run continues from its checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmdata.dedup.params import DedupParams
from mmdata.dedup.signer import Signer
from mmdata.dedup.spool import SpoolReader, SpoolSource, SpoolWriter, pack_frame
from mmdata.document import Document, Part
from mmdata.errors import DedupStateError

VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=9))


def document(number: int, texts: list[str], extra: dict[str, object] | None = None) -> Document:
    names = ["text", *(f"messages[{i}].content" for i in range(1, len(texts)))]
    parts = tuple(Part(name, "text", text) for name, text in zip(names, texts, strict=True))
    record = {"text": texts[0], "n": 2**70 if number % 3 == 0 else number, **(extra or {})}
    return Document("in.jsonl", 0, number + 1, f"id{number}", record, parts, "zh", {"k": [number]})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.text(max_size=30), min_size=1, max_size=3), max_size=6),
    st.dictionaries(st.text(min_size=1, max_size=5), VALUES, max_size=3),
)
def test_documents_come_back_equal(tmp_path: Path, texts: list[list[str]], extra: dict[str, object]) -> None:
    extra.pop("text", None)
    documents = [document(number, parts, extra) for number, parts in enumerate(texts)]
    writer = SpoolWriter(tmp_path / "spool")
    writer.append(pack_frame(documents))
    writer.append(pack_frame([]))
    writer.append(pack_frame(documents[:1]))
    writer.close()
    reader = SpoolReader(tmp_path / "spool")
    assert len(reader) == 3
    assert reader.documents(0) == documents
    assert [list(d.record) for d in reader.documents(0)] == [list(d.record) for d in documents]
    assert reader.documents(1) == [] and reader.documents(2) == documents[:1]
    assert reader.first_document(1) == len(documents)
    assert [reader.document(i) for i in range(len(documents))] == documents
    reader.close()


def test_a_text_that_cleaning_changed_does_not_overwrite_the_record(tmp_path: Path) -> None:
    before = document(1, ["clean"])
    changed = Document(**{name: getattr(before, name) for name in before.__slots__} | {"record": {"text": "dirty"}})
    writer = SpoolWriter(tmp_path / "spool")
    writer.append(pack_frame([changed]))
    writer.close()
    with SpoolReader(tmp_path / "spool") as reader:
        found = reader.document(0)
    assert found.record == {"text": "dirty"} and found.text == "clean"


def test_long_texts_cross_pieces_and_are_found_by_number(tmp_path: Path) -> None:
    texts = [f"{i} " * (1 + i * 37 % 40_000) for i in range(60)]
    writer = SpoolWriter(tmp_path / "spool")
    for low in range(0, 60, 20):
        writer.append(pack_frame([document(i, [texts[i]]) for i in range(low, low + 20)]))
    writer.close()
    order = [59, 0, 33, 34, 2, 2]
    signer = Signer(DedupParams())
    with SpoolReader(tmp_path / "spool") as reader:
        assert reader.texts(order) == [texts[i] for i in order]
        sizes = [len(texts[i].encode("utf-8", "surrogatepass")) for i in order]
        assert reader.sizes(np.array(order)).tolist() == sizes
        sets = SpoolSource(reader, signer).load(np.array(order), 0)
    assert np.array_equal(sets.values, signer.sets([texts[i] for i in order]).values)


def test_a_slot_keeps_the_memory_of_many_texts_but_not_of_a_huge_one(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path / "spool")
    writer.append(pack_frame([document(i, [f"{i} a b c d e f g " * (1 if i else 9000)]) for i in range(5)]))
    writer.close()
    with SpoolReader(tmp_path / "spool") as reader:
        source = SpoolSource(reader, Signer(DedupParams()))
        source.load(np.array([0]), 0)
        assert len(source._slots[0][1]) == 0
        many = source.load(np.array([1, 2, 3, 4]), 0)
        again = source.load(np.array([4, 3]), 0)
    assert np.shares_memory(many.values, again.values)


def test_a_spool_continues_from_its_checkpoint_and_refuses_a_shorter_file(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    frames = [pack_frame([document(i, [f"text {i}"])]) for i in range(4)]
    writer = SpoolWriter(path)
    writer.append(frames[0])
    state = writer.checkpoint()
    writer.append(frames[1])
    writer.close()
    second = SpoolWriter(path, state)
    for frame in frames[2:]:
        second.append(frame)
    assert second.checkpoint()["documents"] == 3
    second.close()
    assert path.read_bytes() == frames[0] + frames[2] + frames[3]
    with pytest.raises(DedupStateError, match="checkpoint recorded"):
        SpoolWriter(path, {"bytes": 10**6, "documents": 9})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DedupStateError, match="torn"):
        SpoolReader(path)
