"""Nothing depends on where blocks are cut: the same documents, rejects and lines for any size, from any block on."""

from __future__ import annotations

import copy
import gzip
import json
import pickle
from dataclasses import asdict
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reading_samples import lines_of, parse_all

from mmdata.errors import UsageError
from mmdata.jsonl import Block, Position, ReadOptions, find_inputs, read_blocks
from mmdata.records import RecordOptions, parse_block

TEXTS = st.text(alphabet=st.sampled_from('ab头痛\u2028\x85\n\r\t"\\{}[],: \U0001f600'), max_size=12)
GOOD = st.builds(lambda text, plain: json.dumps({"text": text}, ensure_ascii=plain).encode(), TEXTS, st.booleans())
LINE = st.one_of(
    GOOD, st.sampled_from([b"", b"  ", b"\r", b'{"text": 1}', b"[", b'{"text": "\xff"}', b"x" * 70, b"\xe5"])
)
COMPRESSORS = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def blocks_of(path: Path, **options: object) -> list[Block]:
    return list(read_blocks(find_inputs([path]), ReadOptions(**options)))  # type: ignore[arg-type]


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(COMPRESSORS.get(path.suffix, bytes)(data))
    return path


@SETTINGS
@given(
    lines=st.lists(LINE, max_size=12),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    closed=st.booleans(),
    mark=st.booleans(),
    suffix=st.sampled_from(["", ".gz", ".zst"]),
    block_bytes=st.integers(1, 120),
    block_records=st.none() | st.integers(1, 5),
    taper=st.booleans(),
)
def test_lines_do_not_depend_on_blocks(
    tmp_path: Path, lines: list[bytes], ending: bytes, closed: bool, mark: bool, suffix: str,
    block_bytes: int, block_records: int | None, taper: bool,
) -> None:  # fmt: skip
    data = b"\xef\xbb\xbf" * mark + ending.join(lines) + ending * closed
    path = write(tmp_path, f"a.jsonl{suffix}", data)
    cut = blocks_of(path, block_bytes=block_bytes, block_records=block_records, taper=taper)
    assert parse_all(cut) == parse_all(blocks_of(path))
    assert b"".join(block.data for block in cut) == data[3 * mark :]
    assert all(block.data.endswith(b"\n") for block in cut[:-1])
    check_offsets(cut, data)
    check_resume(path, cut, ReadOptions(block_bytes=block_bytes, block_records=block_records, taper=taper))


@SETTINGS
@given(
    values=st.lists(
        st.one_of(st.dictionaries(TEXTS, TEXTS | st.lists(st.integers()), max_size=3), st.integers()), max_size=6
    ),
    indent=st.none() | st.integers(0, 2),
    plain=st.booleans(),
    suffix=st.sampled_from(["", ".gz"]),
    block_bytes=st.integers(1, 120),
    block_records=st.none() | st.integers(1, 3),
)
def test_arrays_do_not_depend_on_blocks(
    tmp_path: Path, values: list[object], indent: int | None, plain: bool, suffix: str,
    block_bytes: int, block_records: int | None,
) -> None:  # fmt: skip
    path = write(tmp_path, f"a.json{suffix}", json.dumps(values, indent=indent, ensure_ascii=plain).encode())
    cut = blocks_of(path, block_bytes=block_bytes, block_records=block_records)
    whole = parse_all(blocks_of(path))
    assert parse_all(cut) == whole
    assert whole.records == len(values)
    assert [document.record for document in whole.documents] == [
        value for value in values if isinstance(value, dict) and isinstance(value.get("text"), str)
    ]
    check_resume(path, cut, ReadOptions(block_bytes=block_bytes, block_records=block_records))


@SETTINGS
@given(
    lines=st.lists(st.sampled_from(["", " ", "头", "ab", "\t", "x" * 40]), max_size=12),
    ending=st.sampled_from(["\n", "\r\n"]),
    closed=st.booleans(),
    mode=st.sampled_from(["line", "blank-line", "file"]),
    encoding=st.sampled_from(["utf-8", "gb18030", "utf-16"]),
    block_bytes=st.integers(1, 60),
)
def test_texts_do_not_depend_on_blocks(
    tmp_path: Path, lines: list[str], ending: str, closed: bool, mode: str, encoding: str, block_bytes: int
) -> None:
    text = ending.join(lines) + ending * closed
    path = write(tmp_path, "a.txt", text.encode(encoding))
    cut = blocks_of(path, txt_document=mode, encoding=encoding, block_bytes=block_bytes)
    whole = parse_all(blocks_of(path, txt_document=mode, encoding=encoding))
    assert parse_all(cut) == whole
    if mode == "line":
        kept = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        assert [(document.line, document.text) for document in whole.documents] == kept
    options = ReadOptions(txt_document=mode, encoding=encoding, block_bytes=block_bytes)  # type: ignore[arg-type]
    check_resume(path, cut, options)


def check_offsets(blocks: list[Block], data: bytes) -> None:
    for block in blocks:
        assert data[block.start : block.stop] == block.data
        assert block.first_line == data.count(b"\n", 0, block.start) + 1


def check_resume(path: Path, blocks: list[Block], options: ReadOptions) -> None:
    inputs = find_inputs([path])
    for number, block in enumerate(blocks, 1):
        position = Position.from_json(json.loads(json.dumps(block.end.to_json())))
        rest = list(read_blocks(inputs, options, position))
        assert parse_all(rest) == parse_all(blocks[number:])


def test_positions_are_json_and_blocks_are_picklable(tmp_path: Path) -> None:
    block = blocks_of(write(tmp_path, "a.jsonl", b'{"text": "a"}\n'))[0]
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(block, protocol))
        assert again == copy.deepcopy(block) == block and type(again.data) is bytes
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(block, 5, buffer_callback=buffers.append)
    again = pickle.loads(pickled, buffers=[bytearray(buffer) for buffer in buffers])
    assert (again, type(again.data), len(buffers)) == (block, bytes, 1)
    assert asdict(block.end) == block.end.to_json() == {"input_number": 0, "offset": 14, "line": 2}


def test_reading_goes_on_across_files(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl.gz", "c.json"):
        write(tmp_path, name, b'[{"text": "x"}]' if name == "c.json" else lines_of(50))
    write(tmp_path, "d.jsonl", b"")
    write(tmp_path, "e.txt", b"text")
    inputs, options = find_inputs([tmp_path]), ReadOptions(block_records=20)
    blocks = list(read_blocks(inputs, options))
    assert [(block.input_number, block.first_line) for block in blocks] == [
        (0, 1), (0, 21), (0, 41), (1, 1), (1, 21), (1, 41), (2, 0), (4, 1),
    ]  # fmt: skip
    for number, block in enumerate(blocks, 1):
        assert [rest.data for rest in read_blocks(inputs, options, block.end)] == [
            rest.data for rest in blocks[number:]
        ]
    assert {document.input_number for document in parse_all(blocks).documents} == {0, 1, 2, 4}


def test_a_line_of_200_mb_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with open(path, "wb") as stream:
        stream.write(b'{"text": "s"}\n{"text": "')
        for _ in range(200):
            stream.write(b"x" * 1_000_000)
        stream.write(b'"}\n{"text": "t"}')
    lengths = {}
    for block in read_blocks(find_inputs([path]), ReadOptions()):
        for document in parse_block(block, RecordOptions()).documents:
            lengths[document.line] = len(document.text)
    assert lengths == {1: 1, 2: 200_000_000, 3: 1}


def test_blocks_have_about_the_size_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", lines_of(20_000))
    sizes = [len(block.data) for block in blocks_of(path, block_bytes=100_000)]
    assert sum(sizes) == path.stat().st_size
    assert all(100_000 <= size <= 300_000 for size in sizes[:-1])
    assert {block.data.count(b"\n") for block in blocks_of(path, block_records=1000)} == {1000}


def test_the_last_blocks_of_the_last_plain_file_taper(tmp_path: Path) -> None:
    lines = b"".join(b'{"text": "%06d%s"}\n' % (i, b"x" * 480) for i in range(4000))  # 2 MB, 500 bytes each
    one, two = write(tmp_path, "a.jsonl", lines), write(tmp_path, "b.jsonl", lines)
    inputs = find_inputs([one, two])
    blocks = list(read_blocks(inputs, ReadOptions(block_bytes=160_000, taper=True)))
    first = [len(block.data) for block in blocks if block.input_number == 0]
    last = [len(block.data) for block in blocks if block.input_number == 1]
    assert min(first[:-1]) > 159_000, "only the last file tapers"
    rest = len(lines)
    for size in last[:-1]:
        aim = min(160_000, max(rest // 4, 20_000))
        assert aim - 500 <= size < aim + 2 * aim, "a block may take what was read with it"
        rest -= size
    assert last[-1] < 3 * 20_000 + 500 and len(last) > len(first)
    assert b"".join(block.data for block in blocks) == 2 * lines
    somewhere = blocks[-4]
    again = list(read_blocks(inputs, ReadOptions(block_bytes=160_000, taper=True), somewhere.end))
    assert [block.data for block in again] == [block.data for block in blocks[-3:]]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "-gb"])
def test_where_the_end_is_not_known_all_blocks_are_alike(tmp_path: Path, name: str) -> None:
    lines = b"".join(b'{"text": "%06d%s"}\n' % (i, b"x" * 480) for i in range(2000))
    path = write(tmp_path, name.replace("-gb", "a.jsonl"), lines)
    options = {"block_bytes": 100_000, "encoding": "gb18030" if name == "-gb" else "utf-8"}
    assert blocks_of(path, taper=True, **options) == blocks_of(path, **options)


def test_blocks_need_room() -> None:
    for sizes in ({"block_bytes": 0}, {"block_records": 0}):
        with pytest.raises(UsageError, match="at least one byte and one record"):
            ReadOptions(**sizes)
