"""Workers started ahead and kept from map to map, and the caller as one of two workers."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import run_tasks

from mmdata.errors import InputError
from mmdata.run import LocalExecutor


def loaded(folder: Path, count: int) -> bool:
    """Whether `count` processes have left their marks, within a deadline."""
    end = time.monotonic() + 240
    while len(os.listdir(folder)) < count and time.monotonic() < end:
        time.sleep(0.02)
    return len(os.listdir(folder)) == count


def test_prepared_workers_load_once_and_serve_map_after_map(tmp_path: Path) -> None:
    executor = LocalExecutor(3)
    with closing(executor):
        executor.prepare(functools.partial(run_tasks.mark, str(tmp_path)))
        assert loaded(tmp_path, 3)
        first = set(executor.map(run_tasks.slow_process_of, range(12), describe=run_tasks.name))
        assert list(executor.map(run_tasks.double, range(50), describe=run_tasks.name)) == [2 * n for n in range(50)]
        again = set(executor.map(run_tasks.slow_process_of, range(12), describe=run_tasks.name))
    workers = {int(name.split("-")[0]) for name in os.listdir(tmp_path)}
    assert first | again <= workers and len(os.listdir(tmp_path)) == 3


def test_prepared_workers_let_each_function_go_and_end_with_the_executor(tmp_path: Path) -> None:
    executor = LocalExecutor(2)
    executor.prepare(functools.partial(run_tasks.double))
    for _ in range(2):
        build = functools.partial(run_tasks.Closing, str(tmp_path))
        assert list(executor.map(build, [0, 1, 2, 4], describe=run_tasks.name)) == [0, 1, 2, 4]
    executor.close()
    assert 2 <= len(os.listdir(tmp_path)) <= 4


def test_what_cannot_be_loaded_ahead_is_left_to_the_function() -> None:
    executor = LocalExecutor(2)
    with closing(executor):
        executor.prepare(run_tasks.cannot_load)
        assert list(executor.map(run_tasks.double, range(5), describe=run_tasks.name)) == [0, 2, 4, 6, 8]
        with pytest.raises(InputError, match="the tokenizer is gone"):
            list(executor.map(run_tasks.failing_build, range(3), describe=run_tasks.name))
        assert list(executor.map(run_tasks.double, range(3), describe=run_tasks.name)) == [0, 2, 4]


def test_of_two_workers_the_caller_may_be_one(tmp_path: Path) -> None:
    executor = LocalExecutor(2, caller_works=True)
    with closing(executor):
        executor.prepare(functools.partial(run_tasks.mark, str(tmp_path)))
        assert loaded(tmp_path, 1)
        pids = list(executor.map(run_tasks.slow_process_of, range(20), describe=run_tasks.name))
    other = int(os.listdir(tmp_path)[0].split("-")[0])
    assert set(pids) == {os.getpid(), other}


def test_a_worker_goes_on_while_the_caller_is_at_work(tmp_path: Path) -> None:
    """It had two items; the others that wait are handed to it by the thread that receives its answers."""
    executor = LocalExecutor(2, caller_works=True)
    marks = tmp_path / "marks"
    marks.mkdir()
    build = functools.partial(run_tasks.waiting_for_others, os.getpid(), str(marks), 3)
    (tmp_path / "loaded").mkdir()
    with closing(executor):
        executor.prepare(functools.partial(run_tasks.mark, str(tmp_path / "loaded")))
        assert loaded(tmp_path / "loaded", 1)
        seen = list(executor.map(build, range(12), describe=run_tasks.name))
    assert seen == list(range(12))


def test_the_caller_stays_clear_of_the_items_where_there_are_more() -> None:
    executor = LocalExecutor(3, caller_works=True)
    assert os.getpid() not in set(executor.map(run_tasks.process_of, range(20), describe=run_tasks.name))


def test_a_caller_that_works_keeps_order_and_bounds() -> None:
    pulled = 0

    def items() -> Iterator[int]:
        nonlocal pulled
        for number in range(300):
            pulled += 1
            yield number

    with closing(LocalExecutor(2, caller_works=True).map(run_tasks.double, items(), describe=run_tasks.name)) as found:
        for number, result in enumerate(found):
            assert result == 2 * number and pulled <= number + 1 + 16
    assert pulled == 300


@pytest.mark.parametrize("bad", [0, 3, 11])
def test_an_error_in_the_caller_comes_after_what_came_before(bad: int) -> None:
    numbers = [7] * 12
    numbers[bad] = 3
    got = []
    with pytest.raises(InputError, match=r"a\.jsonl:17: no good") as caught:
        for result in LocalExecutor(2, caller_works=True).map(run_tasks.failing, numbers, describe=run_tasks.name):
            got.append(result)
    assert got == [7] * bad
    assert caught.value.__notes__[-1] == "while working on item 3"


def test_the_items_own_error_reaches_a_caller_that_works() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise InputError("truncated")

    got = []
    with pytest.raises(InputError, match="truncated"):
        for result in LocalExecutor(2, caller_works=True).map(run_tasks.double, items(), describe=run_tasks.name):
            got.append(result)
    assert got == [0, 2, 4, 6, 8]


def test_a_dead_worker_beside_a_caller_that_works_loses_nothing(tmp_path: Path) -> None:
    build = functools.partial(run_tasks.dying_once_away_from, os.getpid(), str(tmp_path))
    executor = LocalExecutor(2, caller_works=True)
    with closing(executor):
        executor.prepare(run_tasks.double)
        assert list(executor.map(build, range(200), describe=run_tasks.name)) == list(range(200))
    assert len(os.listdir(tmp_path)) == 1
