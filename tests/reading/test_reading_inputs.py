"""Which files are read, and in which order."""

from __future__ import annotations

import errno
import gzip
import json
import logging
import os
from pathlib import Path

import pytest

from mmdata.errors import InputError, UsageError
from mmdata.jsonl import InputFile, ReadOptions, describe_place, find_inputs, read_blocks, stat_inputs, total_bytes

LINE = b'{"text": "a"}\n'


def make(folder: Path, *names: str, data: bytes = LINE) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def test_a_folder_is_searched_below_in_natural_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "d/part-10.jsonl", "d/part-2.jsonl.gz", "d/part-1.jsonl", "d/b/x.txt", "d/B.jsonl")
    make(tmp_path, "d/.hidden.jsonl", "d/.cache/x.jsonl")
    monkeypatch.chdir(tmp_path)
    assert find_inputs(["d"]) == [
        InputFile(0, "d/B.jsonl", "jsonl", "none"),
        InputFile(1, "d/b/x.txt", "txt", "none"),
        InputFile(2, "d/part-1.jsonl", "jsonl", "none"),
        InputFile(3, "d/part-2.jsonl.gz", "jsonl", "gzip"),
        InputFile(4, "d/part-10.jsonl", "jsonl", "none"),
    ]


def test_arguments_keep_their_order_and_patterns_are_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "z.jsonl", "a9.jsonl", "a10.jsonl", "s/t/u.jsonl")
    monkeypatch.chdir(tmp_path)
    paths = [source.path for source in find_inputs(["z.jsonl", "a*.jsonl", "s/**/*.jsonl"])]
    assert paths == ["z.jsonl", "a9.jsonl", "a10.jsonl", "s/t/u.jsonl"]


def test_a_pattern_may_match_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "d2/b.jsonl", "d10/a.jsonl", "d3.jsonl", "other/c.jsonl")
    monkeypatch.chdir(tmp_path)
    assert [source.path for source in find_inputs(["d*"])] == ["d2/b.jsonl", "d3.jsonl", "d10/a.jsonl"]


def test_linked_folders_are_followed_and_loops_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "elsewhere/b.jsonl", "d/a.jsonl")
    try:
        os.symlink(tmp_path / "elsewhere", tmp_path / "d" / "linked")
        os.symlink(tmp_path / "d", tmp_path / "d" / "loop")
    except OSError:
        pytest.skip("no symbolic links here")
    monkeypatch.chdir(tmp_path)
    assert [source.path for source in find_inputs(["d"])] == ["d/a.jsonl", "d/linked/b.jsonl"]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "d/a.jsonl", "d/locked/b.jsonl")
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(InputError, match=r"the folder .*locked cannot be read: Permission denied"):
        find_inputs([tmp_path / "d"])


def test_a_file_whose_name_holds_pattern_characters_is_itself(tmp_path: Path) -> None:
    make(tmp_path, "a[1].jsonl", "a1.jsonl")
    assert [Path(source.path).name for source in find_inputs([tmp_path / "a[1].jsonl"])] == ["a[1].jsonl"]


@pytest.mark.parametrize("again", ["a.jsonl", "./a.jsonl", ".", "*.jsonl", "link.jsonl"])
def test_a_file_named_twice_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str) -> None:
    make(tmp_path, "a.jsonl")
    if again == "link.jsonl":
        try:
            os.symlink("a.jsonl", tmp_path / "link.jsonl")
        except OSError:
            pytest.skip("no symbolic links here")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is named twice"):
        find_inputs(["a.jsonl", again])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("absent.jsonl", "there is no file or folder absent.jsonl"),
        ("absent*.jsonl", "the pattern absent*.jsonl matches no file"),
        ("empty", "the folder empty holds no file that can be read"),
        ("data.csv", "data.csv: the name does not say what it holds; read are .jsonl, .json, .txt"),
        ("s3://bucket/a.jsonl", "inputs are read from local files"),
        ("plain.jsonl.gz", "is named as gzip but its first bytes are 7b 22 74 65"),
        ("void.jsonl.zst", "is named as zstd but its first bytes are nothing"),
        ("pretty.json", "pretty.json holds one JSON object spread over several lines"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str, message: str
) -> None:
    make(tmp_path, "data.csv")
    (tmp_path / "empty").mkdir()
    (tmp_path / "plain.jsonl.gz").write_bytes(LINE)
    (tmp_path / "void.jsonl.zst").write_bytes(b"")
    (tmp_path / "pretty.json").write_text(json.dumps({"text": "a"}, indent=1), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises((InputError, UsageError)) as caught:
        find_inputs([argument])
    assert message in str(caught.value)


def test_no_argument_is_an_error() -> None:
    with pytest.raises(UsageError, match="no input"):
        find_inputs([])


def test_files_left_out_of_a_folder_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(tmp_path, "a.jsonl", "b.csv", "c.jsonl.bz2")
    with caplog.at_level(logging.WARNING):
        assert len(find_inputs([tmp_path])) == 1
    assert "2 files left out, such as" in caplog.text and "b.csv" in caplog.text


def test_compression_goes_by_the_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(LINE))
    source = find_inputs([tmp_path / "a.jsonl"])[0]
    assert (source.kind, source.compression) == ("jsonl", "gzip")
    assert b"".join(block.data for block in read_blocks([source], ReadOptions())) == LINE


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"[]", "json"),
        (b'\xef\xbb\xbf \n\t[{"text": "a"}]', "json"),
        ('[{"text": "a"}]'.encode("utf-16"), "json"),
        (LINE * 2, "jsonl"),
        (b"", "jsonl"),
        (b"{\n", "error"),
    ],
)
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_json_file_is_an_array_or_lines_by_its_first_character(
    tmp_path: Path, data: bytes, kind: str, suffix: str
) -> None:
    make(tmp_path, f"a{suffix}", data=data)
    if kind == "error":
        with pytest.raises(InputError, match="one JSON object spread over several lines"):
            find_inputs([tmp_path / f"a{suffix}"])
    else:
        assert find_inputs([tmp_path / f"a{suffix}"])[0].kind == kind


def test_places_are_lines_or_indices() -> None:
    assert describe_place(InputFile(0, "a.jsonl", "jsonl", "none"), 12) == "a.jsonl:12"
    assert describe_place(InputFile(0, "a.json", "json", "none"), 0) == "a.json[0]"


def test_facts_for_resume_and_progress(tmp_path: Path) -> None:
    make(tmp_path, "a.jsonl", "b.jsonl")
    inputs = find_inputs([tmp_path])
    facts = stat_inputs(inputs)
    assert [fact["size"] for fact in facts.values()] == [len(LINE), len(LINE)]
    assert all(isinstance(fact["mtime_ns"], int) for fact in facts.values())
    assert total_bytes(inputs) == 2 * len(LINE)
    assert total_bytes([*inputs, InputFile(2, "-", "jsonl", "none")]) is None
    consumed = [block.consumed for block in read_blocks(inputs, ReadOptions())]
    assert consumed == [len(LINE), len(LINE)]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are a POSIX thing")
def test_a_named_pipe_is_read_as_lines(tmp_path: Path) -> None:
    import threading

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    inputs = find_inputs([pipe])
    writer = threading.Thread(target=lambda: pipe.write_bytes(gzip.compress(LINE * 3)))
    writer.start()
    assert b"".join(block.data for block in read_blocks(inputs, ReadOptions())) == LINE * 3
    writer.join(10)
