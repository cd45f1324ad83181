"""Jobs of several threads: in order, within a limit in bytes, a slot given again when its result is done with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from mmdata.dedup.loading import loaded_in_order

DEADLINE_S = 60.0


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("most", [1, 40, 10**6])
def test_results_come_in_order_and_slots_are_free_when_they_are_given(threads: int, most: int) -> None:
    alive: set[int] = set()
    sizes: dict[int, int] = {}
    lock = threading.Lock()

    def jobs() -> Iterator[tuple[int, Callable[[int], tuple[int, int]]]]:
        for number in range(60):
            size = 7 + number % 3 * 20

            def job(slot: int, number: int = number, size: int = size) -> tuple[int, int]:
                with lock:
                    assert slot not in alive, "its last result is still in use"
                    alive.add(slot)
                    sizes[number] = size
                    assert sum(sizes.values()) <= most or len(sizes) == 1
                return number, slot

            yield size, job

    seen = []
    for number, slot in loaded_in_order(jobs(), threads, most if threads > 1 else 10**6):
        seen.append(number)
        with lock:
            assert 0 <= slot <= threads
            alive.remove(slot)
            del sizes[number]
    assert seen == list(range(60))


def test_others_are_made_while_one_is_in_use() -> None:
    made = [threading.Event() for _ in range(4)]
    jobs = [(1, lambda slot, number=number: made[number].set()) for number in range(4)]
    results = loaded_in_order(jobs, 2, 100)
    next(results)
    assert all(event.wait(DEADLINE_S) for event in made[:3]) and not made[3].is_set()
    results.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_fault_comes_where_its_result_would_have(threads: int) -> None:
    def failing(slot: int) -> int:
        raise OSError("gone")

    results = loaded_in_order([(1, lambda slot: 1), (1, failing), (1, lambda slot: 3)], threads, 100)
    assert next(results) == 1
    with pytest.raises(OSError, match="gone"):
        next(results)
