"""An output folder appears whole or not at all, loses nothing of others, and what a kill left goes with the next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mmdata.errors import OutputExistsError, UsageError
from mmdata_train.errors import ExportError
from mmdata_train.whole_folder import Kind, check_output, clear_stale, whole_folder

KIND = Kind(
    "thing", "mark", ExportError, lambda folder: frozenset({"a", "mark"}) if (folder / "mark").exists() else None
)
KILLED = """
import os, pathlib, signal, sys
from mmdata_train import whole_folder
output, when = pathlib.Path(sys.argv[1]), sys.argv[2]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
with whole_folder.whole_folder(output, 0) as folder:
    (folder / "a").write_text("new")
    if when == "inside":
        die()
    # Between the two renames: the former folder is moved away and the new one is not there yet.
    rename = pathlib.Path.rename
    pathlib.Path.rename = lambda path, to: die() if path == folder else rename(path, to)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def killed(output: Path, when: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(output), when], timeout=60, check=False)
    assert done.returncode == -9


def test_the_second_of_two_writers_of_one_folder_does_not_replace_the_first(tmp_path: Path) -> None:
    output = tmp_path / "model"
    with whole_folder(output, 0) as first:
        (first / "a").write_text("first", encoding="utf-8")
        with pytest.raises(OutputExistsError, match="appeared while"), whole_folder(output, 0) as second:
            (second / "a").write_text("second", encoding="utf-8")
            output.mkdir()
        output.rmdir()
    assert (output / "a").read_text(encoding="utf-8") == "first" and names(tmp_path) == ["model"]


@pytest.mark.skipif(sys.platform == "win32", reason="ends itself with SIGKILL")
def test_what_a_killed_command_left_is_removed_by_the_next_one_for_the_same_output(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "model"
    for target in (output, tmp_path / "model.2"):
        killed(target, "inside")
    assert len(names(tmp_path)) == 4
    check_output(output, KIND, [], overwrite=False)
    assert any(text.startswith("notice: removed") and ".model." in text for text in caplog.messages)
    # The other output's leftovers are its own next command's to remove.
    left = names(tmp_path)
    assert len(left) == 2 and all(name.startswith(".model.2.") for name in left)


@pytest.mark.skipif(sys.platform == "win32", reason="ends itself with SIGKILL")
def test_a_former_output_that_a_kill_left_moved_away_is_put_back(tmp_path: Path) -> None:
    output = tmp_path / "model"
    output.mkdir()
    (output / "a").write_text("former", encoding="utf-8")
    killed(output, "between")
    assert not output.exists()
    clear_stale(output)
    assert (output / "a").read_text(encoding="utf-8") == "former" and names(tmp_path) == ["model"]


def test_what_a_living_command_writes_is_left_alone_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    output = tmp_path / "model"
    with whole_folder(output, 0) as folder:
        (folder / "a").write_text("x", encoding="utf-8")
        clear_stale(output)
        assert (folder / "a").exists() and "another command is writing" in caplog.text
    assert names(tmp_path) == ["model"] and names(output) == ["a"]


@pytest.mark.parametrize("name", ["", ".", "..", "x/..", "/"])
def test_a_path_that_names_no_folder_of_its_own_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="names no folder of its own"):
        check_output(Path(name), KIND, [], overwrite=True)


def test_only_a_folder_this_command_wrote_all_of_is_replaced(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    check_output(output, KIND, [], overwrite=False)
    (output / "a").write_text("", encoding="utf-8")
    with pytest.raises(OutputExistsError, match="--overwrite"):
        check_output(output, KIND, [], overwrite=False)
    with pytest.raises(ExportError, match=r"was not written by this command .it has no mark"):
        check_output(output, KIND, [], overwrite=True)
    (output / "mark").write_text("", encoding="utf-8")
    check_output(output, KIND, [], overwrite=True)
    (output / "sub").mkdir()
    (output / "sub" / "thesis").write_text("", encoding="utf-8")
    with pytest.raises(ExportError, match=r"holds sub/thesis \(1 files in all\)"):
        check_output(output, KIND, [], overwrite=True)
    with pytest.raises(ExportError, match="lies below a file"):
        check_output(output / "a" / "b", KIND, [], overwrite=True)
    with pytest.raises(ExportError, match="lie in one another"):
        check_output(output, KIND, [output / "a"], overwrite=True)


def test_a_link_to_a_folder_keeps_linking_when_its_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    try:
        link.symlink_to(tmp_path / "real", target_is_directory=True)
    except OSError:
        pytest.skip("no links here")
    with whole_folder(link, 0) as folder:
        (folder / "a").write_text("new", encoding="utf-8")
    assert link.is_symlink() and (tmp_path / "real" / "a").exists() and names(tmp_path) == ["link", "real"]
