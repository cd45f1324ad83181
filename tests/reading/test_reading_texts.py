"""`.txt` files and encodings other than UTF-8."""

from __future__ import annotations

import json

import pytest
from reading_samples import Read

from mmdata.errors import InputError, UsageError
from mmdata.jsonl import ReadOptions

POEM = "床前明月光，\n疑是地上霜。\n\n举头望明月，\n  \n\n低头思故乡。\n"


def test_a_txt_file_is_one_document_with_its_newlines(read_bytes: Read) -> None:
    parsed = read_bytes(b"\xef\xbb\xbf" + POEM.encode(), "a.txt")
    assert [(document.line, document.text, document.record) for document in parsed.documents] == [
        (1, POEM, {"text": POEM})
    ]


@pytest.mark.parametrize("block_bytes", [1, 20, 1 << 20])
def test_a_txt_file_may_be_a_document_for_each_line(read_bytes: Read, block_bytes: int) -> None:
    parsed = read_bytes(POEM.replace("\n", "\r\n").encode(), "a.txt", txt_document="line", block_bytes=block_bytes)
    assert [(document.line, document.text) for document in parsed.documents] == [
        (1, "床前明月光，"),
        (2, "疑是地上霜。"),
        (4, "举头望明月，"),
        (7, "低头思故乡。"),
    ]
    assert parsed.blank == 3


@pytest.mark.parametrize("block_bytes", [1, 20, 1 << 20])
def test_a_txt_file_may_be_documents_between_blank_lines(read_bytes: Read, block_bytes: int) -> None:
    parsed = read_bytes(("\n" + POEM).encode(), "a.txt", txt_document="blank-line", block_bytes=block_bytes)
    assert [(document.line, document.text) for document in parsed.documents] == [
        (2, "床前明月光，\n疑是地上霜。"),
        (5, "举头望明月，"),
        (8, "低头思故乡。"),
    ]
    assert parsed.blank == 0


def test_only_line_feeds_end_lines(read_bytes: Read) -> None:
    parsed = read_bytes("a\u2028b\x85c\x0cd\re\n".encode(), "a.txt", txt_document="line")
    assert [document.text for document in parsed.documents] == ["a\u2028b\x85c\x0cd\re"]


@pytest.mark.parametrize("mode", ["file", "line", "blank-line"])
def test_an_empty_text_file_holds_nothing(read_bytes: Read, mode: str) -> None:
    parsed = read_bytes(b"", "a.txt", txt_document=mode)
    assert (parsed.records, parsed.blank) == (0, 0)


def test_the_text_key_is_the_one_asked_for(read_bytes: Read) -> None:
    assert read_bytes(b"a", "a.txt", keys=("content",)).documents[0].record == {"content": "a"}
    parsed = read_bytes(b"a", "a.txt", keys=("title", "text"))
    assert parsed.rejects[0].cause == "missing-key"


def test_a_bad_byte_rejects_its_document(read_bytes: Read) -> None:
    parsed = read_bytes(b"a\nb\xff\nc", "a.txt", txt_document="line")
    assert [document.text for document in parsed.documents] == ["a", "c"]
    assert [(reject.line, reject.cause) for reject in parsed.rejects] == [(2, "bad-encoding")]


RECORDS = ["患者主诉", "mixed 中文 and ASCII", "生僻字 㐀𠀀 €", ""]
LINES = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\r\n" for text in RECORDS) + "\n"


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("block_bytes", [1, 3, 50, 1 << 20])
def test_encodings_give_the_same_documents_and_lines(read_bytes: Read, encoding: str, block_bytes: int) -> None:
    parsed = read_bytes(LINES.encode(encoding), encoding=encoding, block_bytes=block_bytes)
    assert [(document.line, document.text) for document in parsed.documents] == list(enumerate(RECORDS, 1))
    assert (parsed.rejects, parsed.blank) == ([], 1)


def test_marks_of_byte_order_are_obeyed_and_removed(read_bytes: Read) -> None:
    for data in (b"\xff\xfe" + LINES.encode("utf-16-le"), b"\xfe\xff" + LINES.encode("utf-16-be")):
        assert len(read_bytes(data, encoding="utf-16").documents) == len(RECORDS)
    for encoding in ("utf-16-le", "gb18030", "utf-8"):
        assert len(read_bytes(("\ufeff" + LINES).encode(encoding), encoding=encoding).documents) == len(RECORDS)
    assert len(read_bytes(LINES.encode("utf-16-le"), encoding="utf-16").documents) == len(RECORDS)


def test_utf_16_read_as_utf_8_is_an_error_with_the_remedy(read_bytes: Read) -> None:
    with pytest.raises(InputError, match="byte order mark of UTF-16; read it with --encoding utf-16"):
        read_bytes(LINES.encode("utf-16"))


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_what_does_not_decode_rejects_its_line_alone(read_bytes: Read, block_bytes: int) -> None:
    good = '{"text": "头痛"}\n'
    for encoding, bad in (
        ("gb18030", b'{"text": "\xff"}\n'),
        ("gb18030", b'{"text": "\x81\n'),
        ("gb18030", b'{"text": "\x81\x30\n'),
        ("utf-16-le", '{"text": "\ud800"}\n'.encode("utf-16-le", "surrogatepass")),
    ):
        data = good.encode(encoding) + bad + good.encode(encoding)
        parsed = read_bytes(data, encoding=encoding, block_bytes=block_bytes)
        assert [document.line for document in parsed.documents] == [1, 3]
        assert [(reject.line, reject.cause) for reject in parsed.rejects] == [(2, "bad-encoding")]
        assert parsed.rejects[0].reason.startswith("bytes that do not decode at character ")


@pytest.mark.parametrize(("encoding", "cut"), [("utf-16-le", 1), ("gb18030", 1)])
def test_a_file_that_ends_inside_a_character_loses_only_its_last_line(
    read_bytes: Read, encoding: str, cut: int
) -> None:
    data = '{"text": "a"}\n头'.encode(encoding)[:-cut]
    parsed = read_bytes(data, encoding=encoding)
    assert [document.line for document in parsed.documents] == [1]
    assert [(reject.line, reject.cause) for reject in parsed.rejects] == [(2, "bad-encoding")]


def test_names_of_encodings() -> None:
    for name in ("GBK", "gb2312", "UTF_8", "utf8", "UTF-16"):
        ReadOptions(encoding=name)
    with pytest.raises(UsageError, match=r"offered are utf-8, gb18030, .*; did you mean gb18030"):
        ReadOptions(encoding="gb18031")
    with pytest.raises(UsageError, match="one of file, line, blank-line"):
        ReadOptions(txt_document="page")  # type: ignore[arg-type]
