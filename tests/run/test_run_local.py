"""The local executor: order, laziness, bounds, errors as themselves, dead workers, threads."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import run_tasks

from mmdata.errors import InputError, NotOfferedError, RunError, UsageError, WorkerDiedError
from mmdata.run import LocalExecutor, make_executor
from mmdata.run import executor as executor_module
from mmdata.run.executor import available_cores


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_order(workers: int) -> None:
    results = LocalExecutor(workers).map(run_tasks.double, range(300), describe=run_tasks.name)
    assert list(results) == [2 * number for number in range(300)]


@pytest.mark.parametrize("workers", [1, 3])
def test_no_items_give_no_results_and_no_process(workers: int) -> None:
    assert list(LocalExecutor(workers).map(run_tasks.dying_build if workers > 1 else run_tasks.double, [],
                                           describe=run_tasks.name)) == []  # fmt: skip


def test_a_slow_item_keeps_its_place() -> None:
    results = LocalExecutor(2).map(run_tasks.slow_first, range(20), describe=run_tasks.name)
    assert list(results) == list(range(20))


def test_one_worker_is_this_process_and_more_are_others() -> None:
    assert set(LocalExecutor(1).map(run_tasks.process_of, range(3), describe=run_tasks.name)) == {os.getpid()}
    others = set(LocalExecutor(2).map(run_tasks.process_of, range(40), describe=run_tasks.name))
    assert os.getpid() not in others and 1 <= len(others) <= 2


def test_the_function_is_built_once_in_each_worker(tmp_path: Path) -> None:
    build = functools.partial(run_tasks.counted_build, str(tmp_path))
    used = set(LocalExecutor(2).map(build, range(50), describe=run_tasks.name))
    assert used <= {int(name.split("-")[0]) for name in os.listdir(tmp_path)}
    assert len(os.listdir(tmp_path)) == len({name.split("-")[0] for name in os.listdir(tmp_path)}) <= 2


@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_may_be_built_with_a_large_array_and_write_to_it(workers: int) -> None:
    build = functools.partial(run_tasks.add_from, np.arange(100_000))
    results = LocalExecutor(workers).map(build, [5, 99_999, 70_000], describe=run_tasks.name)
    assert list(results) == [6, 100_000, 70_001]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_that_can_be_closed_is_closed_once_in_each_process(tmp_path: Path, workers: int) -> None:
    build = functools.partial(run_tasks.Closing, str(tmp_path))
    assert list(LocalExecutor(workers).map(build, [0, 1, 2, 4], describe=run_tasks.name)) == [0, 1, 2, 4]
    closed = [name.split("-")[0] for name in os.listdir(tmp_path)]
    assert 1 <= len(closed) == len(set(closed)) <= workers


def test_a_function_in_this_process_is_closed_after_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        list(LocalExecutor(1).map(functools.partial(run_tasks.Closing, str(tmp_path)), [3], describe=run_tasks.name))
    assert len(os.listdir(tmp_path)) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_items_are_pulled_lazily_and_few_are_in_flight(workers: int) -> None:
    pulled = 0

    def items() -> Iterator[int]:
        nonlocal pulled
        for number in range(1000):
            pulled += 1
            yield number

    with closing(LocalExecutor(workers).map(run_tasks.double, items(), describe=run_tasks.name)) as results:
        for taken in range(1, 30):
            next(results)
            assert pulled <= taken + 3 * workers


def test_large_items_are_bounded_in_bytes() -> None:
    pulled = 0

    def items() -> Iterator[bytes]:
        nonlocal pulled
        for _ in range(20):
            pulled += 1
            yield bytes(1 << 20)

    executor = LocalExecutor(4, bytes_in_flight=3 << 20)
    with closing(executor.map(run_tasks.same, items(), describe=lambda item: "a block")) as results:
        next(results)
        assert pulled <= 5
        assert len(list(results)) == 19


def test_arrays_travel_whole_and_writable() -> None:
    sizes = [0, 10, 5000, 1_000_000]
    for size, result in zip(sizes, LocalExecutor(2).map(run_tasks.arrays, sizes, describe=run_tasks.name), strict=True):
        assert result["name"] == str(size)
        np.testing.assert_array_equal(result["tokens"], np.arange(size, dtype=np.int32))
        result["tokens"] += 1
        result["small"] += 1
    sent = [np.zeros(100_000, np.int64), np.zeros(10, np.int64)]
    back = list(LocalExecutor(2).map(run_tasks.change_array, sent, describe=lambda item: "an array"))
    assert [int(array.min()) for array in back] == [1, 1] and int(sent[0].max()) == 0


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("bad", "kind", "message"), [(3, InputError, "a.jsonl:17: no good"), (30, KeyError, "no such thing")]
)
def test_an_error_arrives_as_itself_with_its_item_after_what_came_before(
    workers: int, bad: int, kind: type[Exception], message: str
) -> None:
    got = []
    with pytest.raises(kind, match=message) as caught:
        for result in LocalExecutor(workers).map(run_tasks.failing, [0, 1, 2, bad, 4, 5], describe=run_tasks.name):
            got.append(result)
    assert got == [0, 1, 2]
    assert caught.value.__notes__[-1] == f"while working on item {bad}"


def test_a_foreign_error_brings_its_traceback() -> None:
    with pytest.raises(KeyError) as caught:
        list(LocalExecutor(2).map(run_tasks.failing, [30], describe=run_tasks.name))
    assert "raised in a worker process" in caught.value.__notes__[0]
    assert 'raise KeyError("no such thing")' in caught.value.__notes__[0]


@pytest.mark.parametrize(("bad", "message"), [(300, "OddError: odd 1"), (3000, "SystemExit: 5")])
def test_an_error_that_cannot_travel_is_named(bad: int, message: str) -> None:
    with pytest.raises(RunError, match=message) as caught:
        list(LocalExecutor(2).map(run_tasks.failing, [bad], describe=run_tasks.name))
    assert caught.value.__notes__[-1] == f"while working on item {bad}"


def test_a_result_that_cannot_travel_is_an_error_with_its_item() -> None:
    with pytest.raises(TypeError, match="pickle") as caught:
        list(LocalExecutor(2).map(run_tasks.unpicklable, range(3), describe=run_tasks.name))
    assert caught.value.__notes__[-1] == "while working on item 1"


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_the_items_comes_after_all_results(workers: int) -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise InputError("truncated")

    got = []
    with pytest.raises(InputError, match="truncated"):
        for result in LocalExecutor(workers).map(run_tasks.double, items(), describe=run_tasks.name):
            got.append(result)
    assert got == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_that_cannot_be_built_says_why(workers: int) -> None:
    with pytest.raises(InputError, match="the tokenizer is gone"):
        list(LocalExecutor(workers).map(run_tasks.failing_build, range(3), describe=run_tasks.name))


def test_a_worker_that_dies_once_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    build = functools.partial(run_tasks.dying, str(tmp_path), 1)
    assert list(LocalExecutor(2).map(build, range(60), describe=run_tasks.name)) == list(range(60))
    assert len(os.listdir(tmp_path)) == 1


def test_an_item_whose_worker_dies_twice_is_named_after_what_came_before(tmp_path: Path) -> None:
    build = functools.partial(run_tasks.dying, str(tmp_path), 9)
    got = []
    with pytest.raises(WorkerDiedError, match=r"the worker on item 5 died twice \((SIGKILL|exit code)"):
        for result in LocalExecutor(2).map(build, range(60), describe=run_tasks.name):
            got.append(result)
    assert got == [0, 1, 2, 3, 4]
    assert len(os.listdir(tmp_path)) == 2


def test_workers_that_die_at_the_start_give_the_remedy() -> None:
    with pytest.raises(WorkerDiedError, match=r"end before they start to work \(exit code 3\).*__main__"):
        list(LocalExecutor(2).map(run_tasks.dying_build, range(3), describe=run_tasks.name))


def test_libraries_in_workers_get_one_thread_and_the_caller_keeps_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("RAYON_NUM_THREADS", raising=False)
    names = ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "NUMBA_NUM_THREADS"]
    assert list(LocalExecutor(2).map(run_tasks.environment, names, describe=run_tasks.name)) == ["1", "1", "false", "1"]
    assert os.environ["OMP_NUM_THREADS"] == "7" and "RAYON_NUM_THREADS" not in os.environ


def test_cores_follow_affinity_and_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for text, cores in (("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("", 8), ("1600000 100000", 8)):
        (tmp_path / "cpu.max").write_text(text, encoding="ascii")
        monkeypatch.setattr(executor_module, "_CPU_MAX", tmp_path / "cpu.max")
        assert available_cores() == cores
    monkeypatch.setattr(executor_module, "_CPU_MAX", tmp_path / "absent")
    assert available_cores() == 8


def test_executors_are_made_by_name() -> None:
    assert make_executor("local", 3).workers == 3
    assert make_executor().workers == available_cores()
    with pytest.raises(NotOfferedError, match="--executor ray is not offered yet"):
        make_executor("ray", 2)
    with pytest.raises(NotOfferedError, match="--shard 1/4 is not offered yet"):
        make_executor("local", 2, shard="1/4")
    with pytest.raises(UsageError, match="did you mean local"):
        make_executor("locale")
    for workers in (0, -1, 5000):
        with pytest.raises(UsageError, match="at least 1 and at most 1024"):
            make_executor("local", workers)
