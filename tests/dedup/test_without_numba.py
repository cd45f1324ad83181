"""Where numba is missing the commands give the same bytes, and say that they are slow; compiling is announced once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import mmdata.dedup
import mmdata.dedup.signer
from mmdata.dedup.signer import SLOW_NOTE

SCRIPT = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "numba" else found(name, *more)
sys.modules["numba"] = None
import mmdata.dedup
source, folder = sys.argv[1:]
said = []
report = mmdata.dedup(source, folder + "/o.jsonl", threshold=0.6, notice=said.append)
mmdata.dedup.sample(source, folder + "/t.jsonl", folder + "/r.jsonl", n=7, threshold=0.6)
mmdata.dedup.decontaminate(source, source, folder + "/d.jsonl", report_only=True)
print(report.engine, *said, sep="\\n")
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = []
    for i in range(120):
        stem = i - 1 if i % 3 == 0 and i else i
        body = f"第{stem}条 " + "".join(chr(0x4E00 + (stem * 37 + k * k) % 900) for k in range(60))
        rows.append({"text": body + f" Word{stem} and {i % 5} more", "n": i})
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def test_without_numba_the_bytes_are_the_same_and_slowness_is_said_aloud(source: Path, tmp_path: Path) -> None:
    plain, native = tmp_path / "plain", tmp_path / "native"
    plain.mkdir()
    script = [sys.executable, "-c", SCRIPT, str(source), str(plain)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300, check=True, encoding="utf-8")
    assert done.stdout.startswith("numpy\n") and SLOW_NOTE in done.stdout
    report = mmdata.dedup(source, native / "o.jsonl", threshold=0.6)
    assert report.engine == "numba" and report.dropped > 20
    mmdata.dedup.sample(source, native / "t.jsonl", native / "r.jsonl", n=7, threshold=0.6)
    mmdata.dedup.decontaminate(source, source, native / "d.jsonl", report_only=True)
    names = sorted(path.name for path in native.iterdir())
    assert names == sorted(path.name for path in plain.iterdir())
    for name in names:
        if not name.endswith("_report.json"):
            assert (plain / name).read_bytes() == (native / name).read_bytes(), name


def test_compiling_is_announced_once_and_only_where_it_takes_a_while(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    mmdata.dedup(source, tmp_path / "quick.jsonl", notice=said.append, workers=1)
    said.clear()  # this machine's first run may have compiled
    monkeypatch.setattr("mmdata.kernels.NOTICE_AFTER", 60.0)  # loading is quick, if the machine is not busy
    mmdata.dedup(source, tmp_path / "cached.jsonl", notice=said.append, workers=1)
    assert not any("kernels" in line for line in said)
    quick = mmdata.dedup.signer.Signer.sign

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(0.2)
        return quick(*args, **options)

    monkeypatch.setattr("mmdata.kernels.NOTICE_AFTER", 0.01)
    monkeypatch.setattr(mmdata.dedup.signer.Signer, "sign", slow)
    mmdata.dedup(source, tmp_path / "o.jsonl", notice=said.append, workers=1)
    assert sum("preparing the deduplication kernels" in line for line in said) == 1
