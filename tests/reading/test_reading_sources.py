"""Compressed inputs: members, frames, and every way they can end early; standard input."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from reading_samples import lines_of

from mmdata.errors import InputCorruptError, InputTruncatedError
from mmdata.jsonl import ReadOptions, find_inputs, read_blocks
from mmdata.reading.sources import ByteSource, Compression

TEXT = lines_of(20_000)


def everything(path: Path, compression: Compression, start: int = 0) -> list[bytes]:
    with ByteSource(str(path), compression) as source:
        return list(source.chunks(start))


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(data)


COMPRESS = {".gz": gzip.compress, ".zst": zst}
NAMES = {".gz": "gzip", ".zst": "zstd"}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_members_and_frames_follow_one_another(tmp_path: Path, suffix: str) -> None:
    compress = COMPRESS[suffix]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(compress(TEXT[:777]) + compress(b"") + compress(TEXT[777:90_000]) + compress(TEXT[90_000:]))
    blocks = list(read_blocks(find_inputs([path]), ReadOptions(block_bytes=10_000)))
    assert b"".join(block.data for block in blocks) == TEXT
    assert blocks[-1].stop == len(TEXT)


def test_gzip_may_be_padded_with_zero_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(TEXT) + b"\0" * 1000)
    assert b"".join(everything(path, "gzip")) == TEXT


def test_zstd_frames_without_sizes_and_skippable_frames_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    stream = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(stream, closefd=False) as writer:
        writer.write(TEXT)
    path.write_bytes(b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc" + stream.getvalue() + zst(b"tail\n"))
    assert b"".join(everything(path, "zstd")) == TEXT + b"tail\n"


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_a_truncated_file_names_itself_and_the_last_whole_line(tmp_path: Path, suffix: str, share: float) -> None:
    data = COMPRESS[suffix](TEXT)
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(data[: max(10, int(len(data) * share) - 1)])
    got = b""
    with pytest.raises(InputTruncatedError) as caught:
        for block in read_blocks(find_inputs([path]), ReadOptions(block_bytes=5000)):
            got += block.data
    assert TEXT.startswith(got) and (not got or got.endswith(b"\n"))
    if got:
        last = got.count(b"\n")
        assert str(caught.value).startswith(f"{path}: the {NAMES[suffix]} data end in the middle; ")
        assert f"the last whole record is {path}:{last}, up to byte {len(got)}" in str(caught.value)
    else:
        assert "no record is whole" in str(caught.value)
    if share == 0.7:
        assert len(got) > len(TEXT) // 3


def test_truncation_in_a_later_member_keeps_the_lines_of_the_earlier(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"1\n2\n3") + gzip.compress(b"\n4\n5\n")[:-9])
    with pytest.raises(InputTruncatedError, match=r"the last whole record is .*a.jsonl.gz:\d, up to byte"):
        list(read_blocks(find_inputs([path]), ReadOptions()))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_damaged_data_name_the_last_whole_line(tmp_path: Path, suffix: str) -> None:
    data = bytearray(COMPRESS[suffix](TEXT[:50_000]) + COMPRESS[suffix](TEXT[50_000:]))
    data[-3] ^= 0x55  # the checksum or length of the last member, or the last block of the last frame
    data[len(data) * 4 // 5] ^= 0xFF
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(data)
    got = b""
    with pytest.raises((InputCorruptError, InputTruncatedError), match=r"the last whole record is .*, up to byte \d+"):
        for block in read_blocks(find_inputs([path]), ReadOptions()):
            got += block.data
    assert got.endswith(b"\n") and got.startswith(TEXT[:40_000])


@pytest.mark.parametrize("suffix", COMPRESS)
def test_something_else_behind_the_data_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(COMPRESS[suffix](TEXT) + b"<html>not found</html>")
    with pytest.raises(InputCorruptError, match=r"(gzip|zstd) data"):
        list(read_blocks(find_inputs([path]), ReadOptions()))


def test_very_compressible_data_come_in_bounded_chunks(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zst(b"a" * 60_000_000))
    sizes = [len(chunk) for chunk in everything(path, "zstd")]
    assert sum(sizes) == 60_000_000
    assert max(sizes) <= 20_000_000
    path.write_bytes(gzip.compress(b"a" * 10_000_000))
    assert max(len(chunk) for chunk in everything(path, "gzip")) <= 1 << 20


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("start", [0, 1, 4999, 600_000])
def test_reading_from_an_offset_gives_the_rest(tmp_path: Path, suffix: str, start: int) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(COMPRESS[suffix](TEXT) if suffix else TEXT)
    source = find_inputs([path])[0]
    assert b"".join(everything(path, source.compression, start)) == TEXT[start:]


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zst])
def test_standard_input_is_read_whatever_its_compression(
    monkeypatch: pytest.MonkeyPatch, compress: Callable[[bytes], bytes]
) -> None:
    class Stdin:
        buffer = io.BytesIO(compress(TEXT))

    Stdin.buffer.seekable = lambda: False  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", Stdin)
    blocks = list(read_blocks(find_inputs(["-"]), ReadOptions(block_bytes=1 << 14)))
    assert b"".join(block.data for block in blocks) == TEXT
    assert {block.path for block in blocks} == {"-"}
    assert blocks[1].first_line == blocks[0].data.count(b"\n") + 1
