"""Machine code of kernels never outlives what it was made from."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import mmdata
from mmdata import kernels as declared
from mmdata.kernel_cache import StampedIndex, reached_hash, refresh_with_callees

KERNEL = """
import numpy as np
from mmdata.kernels import kernel
from made import part as at
from made.part import TABLE, step

@kernel
def total(values):
    number = 0
    for value in values:
        number += later(value) + at.LIMIT + TABLE[0]
    return number

@kernel
def later(value):
    return step(value)
"""
PART = """
import numpy as np
from mmdata.kernels import inlined
LIMIT = {limit}
TABLE = np.array([{entry}])

@inlined
def step(value):
    return value {sign} 1
"""
MAIN = """
import numpy as np
from made.whole import total
print(total(np.array([10])), sum(total.stats.cache_hits.values()))
"""


def run_with(folder: Path, limit: int, entry: int, sign: str) -> list[int]:
    """The kernel's result, and how many of its compiled forms came from the cache."""
    (folder / "made" / "part.py").write_text(PART.format(limit=limit, entry=entry, sign=sign), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-B", "-c", MAIN], cwd=folder, capture_output=True, encoding="utf-8", timeout=240,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{Path(mmdata.__file__).parent.parent}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_kernel_is_compiled_anew_when_a_number_table_or_part_of_another_file_changes(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "__init__.py").touch()
    (tmp_path / "made" / "whole.py").write_text(KERNEL, encoding="utf-8")
    assert run_with(tmp_path, 0, 0, "+") == [11, 0]
    assert run_with(tmp_path, 0, 0, "+") == [11, 1]
    assert run_with(tmp_path, 100, 0, "+") == [111, 0]
    assert run_with(tmp_path, 100, 1000, "+") == [1111, 0]
    assert run_with(tmp_path, 100, 1000, "-") == [1109, 0]
    assert run_with(tmp_path, 100, 1000, "-") == [1109, 1]


def test_numba_with_another_cache_compiles_at_every_start_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(value: int) -> int:
        return value + 1

    monkeypatch.setattr(declared, "refresh_with_callees", lambda dispatcher: False)
    with pytest.warns(UserWarning, match="compiled at every start"):
        compiled = declared.kernel(plain)
    assert compiled(1) == 2
    assert type(compiled._cache).__name__ == "NullCache"  # type: ignore[attr-defined]
    assert not refresh_with_callees(compiled)


def kernels() -> list[object]:
    found = []
    for item in pkgutil.walk_packages(mmdata.__path__, "mmdata."):
        if item.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(item.name)
        except ModuleNotFoundError:  # an extra that is not installed
            continue
        found += [value for value in vars(module).values() if hasattr(value, "py_func")]
    return found


def test_all_cached_kernels_are_stamped_and_use_no_variables_of_a_function_around_them() -> None:
    pytest.importorskip("numba")
    found = kernels()
    assert len(found) > 40
    for one in found:
        function = one.py_func  # type: ignore[attr-defined]
        assert not function.__code__.co_freevars, f"{function.__qualname__} reads variables of a function around it"
        index = getattr(one._cache, "_cache_file", None)  # type: ignore[attr-defined]
        assert index is None or isinstance(index, StampedIndex)
        assert len(reached_hash(function)) == 32
