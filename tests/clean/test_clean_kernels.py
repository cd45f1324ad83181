"""Kernels are compiled once, announced where that takes long, and cached where the installation cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mmdata import kernels
from mmdata.clean.hashing_kernel import repeat_batch
from mmdata.clean.measure import measure
from mmdata.clean.pii_kernel import spot_batch
from mmdata.clean.pipeline import Cleaner
from mmdata.clean.scan_kernel import scan_batch

PROGRAM = "import own_kernel; print(own_kernel.one_more(41), own_kernel.one_more.stats.cache_hits)"


def test_machine_code_goes_to_the_users_cache_where_the_installation_is_read_only(tmp_path: Path) -> None:
    source = "from mmdata.kernels import kernel\n\n\n@kernel\ndef one_more(x):\n    return x + 1\n"
    (tmp_path / "own_kernel.py").write_text(source, encoding="utf-8")
    (tmp_path / "__pycache__").write_text("a file where the folder would be: not even root can write in it")
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home), "USERPROFILE": str(home), "LOCALAPPDATA": str(home),
                    "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}  # fmt: skip
    said = [
        subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=240)
        for _ in range(2)
    ]
    assert all(one.returncode == 0 for one in said), said[0].stderr
    assert [one.stdout.split()[0] for one in said] == ["42", "42"]
    assert "1" in said[1].stdout.split(maxsplit=1)[1], "the second process loads what the first compiled"
    assert list(home.rglob("own_kernel.one_more*.nbi"))


def test_a_long_first_call_is_announced_and_a_short_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    done = threading.Event()
    monkeypatch.setattr(kernels, "NOTICE_AFTER", 0.01)
    kernels.prepare(lambda: done.wait(60), "sorting", lambda text: (heard.append(text), done.set())[0])
    assert heard == ["preparing the sorting kernels (the first run on a machine compiles them, some ten seconds)"]
    monkeypatch.setattr(kernels, "NOTICE_AFTER", 3600)
    kernels.prepare(lambda: None, "sorting", heard.append)
    assert len(heard) == 1


def test_preparing_compiles_every_kernel_once_for_all_texts() -> None:
    Cleaner("auto").prepare()
    measure(["", "é中 12 a@b.c\n"] * 3, bounds=(2.5, 0.6))
    Cleaner("zh").clean_documents([])
    assert [len(one.signatures) for one in (scan_batch, spot_batch, repeat_batch)] == [1, 1, 1]
