"""A `.json` file that holds one array: elements one by one, faults by index, memory bounded by the largest element."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from reading_samples import Read

from mmdata.errors import InputCorruptError, InputTruncatedError
from mmdata.jsonl import ReadOptions, find_inputs, read_blocks

TRICKY = [
    {"text": 'brackets ]}[{ , and "quotes" \\'},
    {"text": "", "deep": [[{"x": [1, {"y": ["]"]}]}], []]},
    {"text": '头痛\n\u2028 \\" \\\\'},
    {"text": "\\"},
]


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 17, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("plain", [True, False])
def test_elements_are_read_one_by_one(read_bytes: Read, block_bytes: int, indent: int | None, plain: bool) -> None:
    data = json.dumps(TRICKY, indent=indent, ensure_ascii=plain).encode()
    parsed = read_bytes(b"\xef\xbb\xbf \r\n" + data + b"\n \n", "a.json", block_bytes=block_bytes)
    assert [(document.line, document.record) for document in parsed.documents] == list(enumerate(TRICKY))
    assert (parsed.rejects, parsed.blank) == ([], 0)


def test_a_compressed_array_is_read(read_bytes: Read) -> None:
    parsed = read_bytes(gzip.compress(json.dumps(TRICKY).encode()), "a.json.gz")
    assert [document.record for document in parsed.documents] == TRICKY


def test_a_json_file_of_lines_is_read_as_lines(read_bytes: Read) -> None:
    parsed = read_bytes(b'{"text": "a"}\nbad\n{"text": "b"}', "a.json")
    assert [(document.line, document.text) for document in parsed.documents] == [(1, "a"), (3, "b")]
    assert [reject.line for reject in parsed.rejects] == [2]


@pytest.mark.parametrize("data", [b"[]", b"[ \n ]", b"\xef\xbb\xbf[]\n"])
def test_an_empty_array_holds_nothing(read_bytes: Read, data: bytes) -> None:
    parsed = read_bytes(data, "a.json")
    assert (parsed.records, parsed.blank) == (0, 0)


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_bad_elements_are_rejected_alone_by_their_index(read_bytes: Read, block_bytes: int) -> None:
    data = (
        b'[{"text": "a"}, 7, {"text": NaN}, {"text": "\xff"}, , {"text": "b"} {"text": "c"}, {"x": 1}, {"text": "z"},]'
    )
    parsed = read_bytes(data, "a.json", block_bytes=block_bytes)
    assert [(document.line, document.text) for document in parsed.documents] == [(0, "a"), (7, "z")]
    assert [(reject.line, reject.cause) for reject in parsed.rejects] == [
        (1, "not-an-object"),
        (2, "bad-json"),
        (3, "bad-encoding"),
        (4, "bad-json"),
        (5, "bad-json"),
        (6, "missing-key"),
        (8, "bad-json"),
    ]
    assert parsed.rejects[3].reason == "the record ends too early"


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_an_array_that_ends_in_the_middle_names_the_last_whole_element(tmp_path: Path, block_bytes: int) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'[{"text": "a"}, {"text": "b"}, {"text": "c"')
    indices = []
    with pytest.raises(InputTruncatedError) as caught:
        for block in read_blocks(find_inputs([path]), ReadOptions(block_bytes=block_bytes)):
            indices += [block.first_line + number for number in range(len(block.bounds))]
    assert indices == [0, 1]
    assert str(caught.value).startswith(
        f"{path}: the JSON array ends in the middle; the last whole record is {path}[1], up to byte 30."
    )


def test_text_behind_an_array_is_an_error_since_what_is_lost_cannot_be_told(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'[{"text": "a"}], {"text": "b"}]')
    with pytest.raises(InputCorruptError, match=r"something follows the end of the JSON array; .*a.json\[0\]"):
        list(read_blocks(find_inputs([path]), ReadOptions()))


def test_reading_goes_on_behind_any_block(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(TRICKY, indent=1), encoding="utf-8")
    inputs, options = find_inputs([path]), ReadOptions(block_records=1)
    blocks = list(read_blocks(inputs, options))
    assert len(blocks) == len(TRICKY)
    for number, block in enumerate(blocks, 1):
        assert list(read_blocks(inputs, options, block.end)) == blocks[number:]


def test_an_element_larger_than_a_block_is_a_block_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "s"}, {"text": "x" * 300_000}, {"text": "t"}]), encoding="utf-8")
    blocks = list(read_blocks(find_inputs([path]), ReadOptions(block_bytes=1 << 16)))
    assert [len(block.bounds) for block in blocks] == [2, 1]
    blocks = list(read_blocks(find_inputs([path]), ReadOptions(block_bytes=8)))
    assert [len(block.bounds) for block in blocks] == [1, 1, 1]
