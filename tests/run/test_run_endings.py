"""How runs end: Ctrl-C, kill -9 of the parent, leaving early. No worker may stay behind."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import run_tasks

from mmdata.run import LocalExecutor

POSIX = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
HERE = Path(__file__).parent

SCRIPT = """
import functools, signal, sys
import run_tasks
from mmdata.run import LocalExecutor
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # what nohup starts ignores it
    build = functools.partial(run_tasks.sleeping, sys.argv[1])
    list(LocalExecutor(3).map(build, range(9), describe=run_tasks.name))
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z")


def wait_until(happened: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if happened():
            return True
        time.sleep(0.02)
    return happened()


def start(folder: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A parent in its own process group whose three workers are all busy, and the workers' ids."""
    script = folder / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    marks = folder / "marks"
    marks.mkdir()
    paths = os.pathsep.join([str(HERE), str(HERE.parent.parent)])
    parent = subprocess.Popen(
        [sys.executable, str(script), str(marks)],
        env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert wait_until(lambda: len(os.listdir(marks)) == 3, 200), "the workers did not start"
    return parent, [int(name) for name in os.listdir(marks)]


@POSIX
def test_ctrl_c_ends_parent_and_busy_workers_quietly(tmp_path: Path) -> None:
    parent, workers = start(tmp_path)
    os.killpg(parent.pid, signal.SIGINT)  # a terminal signals the whole group
    _, errors = parent.communicate(timeout=30)  # each worker would go on for 60 s
    assert parent.returncode != 0
    assert not [pid for pid in workers if alive(pid)]
    assert errors.count(b"Traceback") == 1 and errors.rstrip().endswith(b"KeyboardInterrupt")


@POSIX
def test_workers_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    parent, workers = start(tmp_path)
    parent.kill()
    parent.communicate(timeout=30)
    assert wait_until(lambda: not any(alive(pid) for pid in workers), 30)


@POSIX
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGHUP])
def test_workers_end_when_the_parent_is_told_to_end(tmp_path: Path, stop: signal.Signals) -> None:
    parent, workers = start(tmp_path)
    parent.send_signal(stop)
    parent.communicate(timeout=30)
    assert wait_until(lambda: not any(alive(pid) for pid in workers), 30)


@POSIX
def test_leaving_early_ends_the_workers_at_once(tmp_path: Path) -> None:
    build = functools.partial(run_tasks.counted_build, str(tmp_path))
    with closing(LocalExecutor(2).map(build, range(1000), describe=run_tasks.name)) as results:
        pid = next(results)
        assert alive(pid)
    assert wait_until(lambda: not alive(pid), 3)


@POSIX
def test_a_run_that_ends_well_leaves_no_process() -> None:
    pids = set(LocalExecutor(3).map(run_tasks.process_of, range(50), describe=run_tasks.name))
    assert wait_until(lambda: not any(alive(pid) for pid in pids), 3)
