"""Memory shared with a worker: every byte arrives, nothing changes afterwards, and nothing is left behind."""

from __future__ import annotations

import functools
import mmap
import multiprocessing
import os
import pickle
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_tasks
from run_tasks import noise

from mmdata.reading.blocks import Block, Position
from mmdata.run import LocalExecutor, worker
from mmdata.run.area import ALIGNED_BYTES, LEAST_BYTES, ROOM_BYTES, SLOTS, Area, Part, Side
from mmdata.run.channel import Line, Message, pack
from mmdata.run.crew import Crew, Task
from mmdata.run.worker import Answer, Build, Ready

SHARED = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memory without a name")
PROC = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of descriptors")
MIB = 1 << 20
WAIT_S = 120.0


@pytest.fixture
def area() -> Iterator[Area]:
    made = Area.create()
    assert made is not None
    with closing(made):
        yield made


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Bytes of every item the caller hands over, and whether it went through an area."""
    seen: list[tuple[int, bool]] = []
    put = Area.put

    def noted(self: Area, slot: int, side: Side, parts: Sequence[Part]) -> bool:
        done = put(self, slot, side, parts)
        seen.append((sum(map(len, parts)), done))
        return done

    monkeypatch.setattr(Area, "put", noted)
    return seen


def across(message: Message, area: Area | None, slot: int | None, side: Side = "item") -> tuple[Message, int | None]:
    """What the other end of a line receives."""
    out, into = multiprocessing.Pipe(duplex=False)
    with out, into:
        sender = threading.Thread(target=Line(into, area, side).send, args=(message, slot), daemon=True)
        sender.start()
        got = Line(out, area, side).receive()
        sender.join(WAIT_S)
    return got


def content(message: Message) -> list[bytes]:
    return [bytes(part) for part in (message.data, *message.buffers)]


@SHARED
@pytest.mark.parametrize("side", ["item", "result"])
@pytest.mark.parametrize("slot", range(SLOTS))
@pytest.mark.parametrize(
    ("sizes", "in_area"),
    [
        ([LEAST_BYTES - 1], False),
        ([LEAST_BYTES], True),
        ([100, LEAST_BYTES - 101], False),
        ([100, LEAST_BYTES - 100], True),
        ([ROOM_BYTES], True),
        ([ROOM_BYTES + 1], False),
        ([1, ROOM_BYTES - ALIGNED_BYTES], True),
        ([1, ROOM_BYTES - ALIGNED_BYTES + 1], False),
        ([65, *range(16385, 16585)], True),
    ],
)
def test_what_fits_a_room_lies_in_it_and_the_rest_crosses_the_pipe(
    area: Area, side: Side, slot: int, sizes: list[int], in_area: bool
) -> None:
    data, *buffers = [noise(size, size + slot) for size in sizes]
    sent = Message(data.tobytes(), tuple(buffer.data for buffer in buffers))
    got, place = across(sent, area, slot, side)
    assert (got.lent, place) == (in_area, slot)
    assert content(got) == content(sent) == content(got.owned())
    assert got.owned().lent is False


@SHARED
def test_the_rooms_of_an_area_lie_apart(area: Area) -> None:
    sent = {
        (slot, side): noise(ROOM_BYTES, 2 * slot + place).tobytes()
        for slot in range(SLOTS)
        for place, side in enumerate(("item", "result"))
    }
    for (slot, side), data in sent.items():
        assert area.put(slot, side, [data])  # type: ignore[arg-type]
    for (slot, side), data in sent.items():
        assert area.views(slot, side, [ROOM_BYTES])[0] == data  # type: ignore[arg-type]


@SHARED
def test_every_part_begins_where_any_dtype_may(area: Area) -> None:
    sizes = [1, 63, 64, 65, 16385, 5]
    places = [np.frombuffer(view, np.uint8).ctypes.data for view in area.views(1, "result", sizes)]
    assert [place % ALIGNED_BYTES for place in places] == [0] * len(sizes)


@SHARED
def test_a_message_without_a_slot_crosses_the_pipe(area: Area) -> None:
    sent = pack(noise(MIB, 1))
    got, slot = across(sent, area, None)
    assert (got.lent, slot, content(got)) == (False, None, content(sent))


def a_block(data: bytes) -> Block:
    return Block(0, "a.jsonl", "jsonl", 1, 0, len(data), data, Position())


@SHARED
@pytest.mark.parametrize("frozen", [False, True])
def test_a_lent_message_gives_objects_that_stay_as_they_were(area: Area, frozen: bool) -> None:
    array = noise(MIB, 2)
    array.flags.writeable = not frozen
    value = {"array": array, "again": array, "block": a_block(noise(MIB, 3).tobytes()), "bytes": bytes(20_000)}
    got, _ = across(pack(value), area, 0)
    loaded = got.load()
    assert got.lent
    for view in area.views(0, "item", [ROOM_BYTES]):
        view[:] = b"\xff" * ROOM_BYTES
    assert loaded["block"] == value["block"] and loaded["bytes"] == value["bytes"]
    assert loaded["array"].tobytes() == array.tobytes() and loaded["again"] is loaded["array"]
    assert loaded["array"].flags.writeable is not frozen


@SHARED
def test_a_lent_block_is_unpickled_once(area: Area, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data is copied where it is rebuilt, so no other copy is made."""
    block, loads, calls = a_block(noise(4 * MIB, 4).tobytes()), pickle.loads, []

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return loads(*args, **options)

    got, _ = across(pack((7, block)), area, 1)
    monkeypatch.setattr(pickle, "loads", counted)
    assert got.load() == (7, block) and len(calls) == 1


SIZES = (0, 1, LEAST_BYTES - 1, LEAST_BYTES, 65_537, 4 * MIB, ROOM_BYTES - 400, ROOM_BYTES, ROOM_BYTES + 1, 20 * MIB)


@pytest.mark.parametrize(("workers", "caller_works"), [(2, False), (2, True), (4, False)])
def test_items_and_results_of_every_size_come_back_byte_for_byte(workers: int, caller_works: bool) -> None:
    items = [(noise(size, size), noise(size // 3, 5).tobytes()) for size in (*SIZES, *reversed(SIZES))]
    executor = LocalExecutor(workers, caller_works=caller_works)
    count = 0
    results = executor.map(run_tasks.backwards, items, describe=lambda item: "an item")
    for (array, data), (turned, back) in zip(items, results, strict=True):
        assert turned.tobytes() == array[::-1].tobytes() and back == data[::-1]
        turned += 1  # writable
        count += 1
    assert count == 2 * len(SIZES)


@SHARED
def test_a_side_that_does_not_fit_leaves_the_other_in_the_area(puts: list[tuple[int, bool]]) -> None:
    pairs = [(MIB, ROOM_BYTES + 1), (ROOM_BYTES + 1, MIB), (100, 3 * ROOM_BYTES), (3 * ROOM_BYTES, 0)] * 3
    items = [(noise(size, 1), wanted) for size, wanted in pairs]
    results = list(LocalExecutor(2).map(run_tasks.resized, items, describe=lambda item: "an item"))
    for item, result in zip(items, results, strict=True):
        assert result.tobytes() == run_tasks.resized()(item).tobytes()
    assert [done for size, done in sorted(puts)] == [False] * 3 + [True] * 3 + [False] * 6


def test_arrays_that_a_function_keeps_never_change() -> None:
    frozen = [noise(2 * MIB, 100 + number) for number in range(40)]
    for array in frozen:
        array.flags.writeable = False
    items = [(noise(MIB, number), frozen[number], noise(30_000, number)) for number in range(40)]
    assert list(LocalExecutor(2).map(run_tasks.keeping, items, describe=lambda item: "arrays")) == [0] * 40


def test_many_arrays_of_odd_sizes_are_aligned_on_both_sides() -> None:
    arrays = []
    for number in range(150):
        arrays.append(noise(LEAST_BYTES + number, number))
        arrays.append(np.random.default_rng(number).random(LEAST_BYTES // 8 + number))
    for back, places in LocalExecutor(2).map(run_tasks.places, [arrays] * 3, describe=lambda item: "arrays"):
        assert places == [0] * 300
        assert all(array.flags.aligned and array.ctypes.data % array.dtype.alignment == 0 for array in back)
        assert [array.tobytes() for array in back] == [array.tobytes() for array in arrays]


def test_large_items_come_through_a_small_limit_in_flight() -> None:
    items = [noise(3 * MIB, number) for number in range(9)]
    results = LocalExecutor(3, bytes_in_flight=1).map(run_tasks.same, items, describe=lambda item: "an item")
    assert [result.tobytes() for result in results] == [item.tobytes() for item in items]


def answers_of(crew: Crew, count: int) -> list[Answer]:
    """The next answers; a word that a function is ready is left out."""
    found: list[Answer] = []
    while len(found) < count:
        event = crew.event(WAIT_S)
        assert event is not None and event[1] is not None, "the worker said nothing"
        said = event[1].load()
        if not isinstance(said, Ready):
            event[0].tasks.popleft()
            found.append(said)
    return found


def test_both_slots_are_free_after_answers_and_faults_of_every_size() -> None:
    crew = Crew()
    try:
        worker = crew.start()
        worker.say(pack(Build(1, run_tasks.failing_at_thirds)))
        sizes = [10, MIB, ROOM_BYTES + 1] * 7
        for first in range(0, 20, SLOTS):
            numbers = range(first, first + SLOTS)
            items = {number: (number, noise(sizes[number], number)) for number in numbers}
            for number, item in items.items():
                worker.hand(Task(number, pack((number, item)), "", None))
            assert not worker.slots
            for number, answer in zip(numbers, answers_of(crew, SLOTS), strict=True):
                came = answer.result.tobytes() if number % 3 else answer.fault.args[0]  # type: ignore[union-attr]
                assert (answer.index, came) == (number, items[number][1].tobytes())
            assert sorted(worker.slots) == list(range(SLOTS))
    finally:
        crew.close(gently=False)


@SHARED
@pytest.mark.parametrize("caller_works", [False, True])
def test_kept_workers_have_their_slots_free_after_every_map_and_no_large_item_misses_the_area(
    puts: list[tuple[int, bool]], caller_works: bool, tmp_path: Path
) -> None:
    executor = LocalExecutor(2, caller_works=caller_works)
    with closing(executor):
        executor.prepare(run_tasks.double)
        assert executor._kept is not None
        while executor._kept._events.empty():  # the worker has loaded: a caller that works may hand it items
            time.sleep(0.01)
        for turn in range(3):
            items = [(12 * turn + number, noise(MIB + number, number)) for number in range(12)]
            build = functools.partial(run_tasks.waiting_same, os.getpid(), str(tmp_path), 3 * (turn + 1))
            for item, result in zip(items, executor.map(build, items, describe=lambda item: "an item"), strict=True):
                assert result[0] == item[0] and result[1].tobytes() == item[1].tobytes()
            assert [sorted(worker.slots) for worker in executor._kept.workers] == [[0, 1]] * (2 - caller_works)
    assert len(puts) >= 9 and all(done for _, done in puts)


@SHARED
def test_a_result_that_was_half_written_when_its_worker_was_killed_is_made_again(tmp_path: Path) -> None:
    items = [noise(2 * MIB, number) for number in range(12)]
    build = functools.partial(run_tasks.killed_while_it_writes, str(tmp_path))
    executor = LocalExecutor(2)
    with closing(executor):
        executor.prepare(run_tasks.double)
        for _ in range(2):
            results = executor.map(build, items, describe=lambda item: "an item")
            assert [result.tobytes() for result in results] == [item.tobytes() for item in items]
    assert len(os.listdir(tmp_path)) == 1


@SHARED
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_result_for_which_the_caller_has_no_memory_at_first_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that receives it ends, which must not leave the map waiting."""
    owned, refused = Message.owned, threading.Event()

    def scarce(self: Message) -> Message:
        if self.size > MIB and not refused.is_set():
            refused.set()
            raise MemoryError
        return owned(self)

    monkeypatch.setattr(Message, "owned", scarce)
    items = [noise(2 * MIB, number) for number in range(6)]
    results = LocalExecutor(2).map(run_tasks.same, items, describe=lambda item: "an item")
    assert [result.tobytes() for result in results] == [item.tobytes() for item in items]
    assert refused.is_set()


@SHARED
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_item_for_which_the_sender_has_no_memory_at_first_is_handed_out_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that sends it ends, which must not leave the worker and the map waiting."""
    put, refused = Area.put, threading.Event()

    def scarce(self: Area, slot: int, side: Any, parts: Any) -> bool:
        if not refused.is_set():
            refused.set()
            raise MemoryError
        return put(self, slot, side, parts)

    monkeypatch.setattr(Area, "put", scarce)
    items = [noise(MIB, number) for number in range(6)]
    results = LocalExecutor(2).map(run_tasks.same, items, describe=lambda item: "an item")
    assert [result.tobytes() for result in results] == [item.tobytes() for item in items]
    assert refused.is_set()


def test_a_worker_ends_when_it_has_no_memory_for_an_item_to_come() -> None:
    class Scarce:
        def receive(self) -> Any:
            raise MemoryError

    inbox: queue.Queue[Any] = queue.Queue()
    with pytest.raises(MemoryError):
        worker._read_ahead(Scarce(), inbox)  # type: ignore[arg-type]
    assert inbox.get_nowait() is None


def areas_mapped() -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("mmdata-area")


@SHARED
@PROC
def test_workers_that_end_or_die_leave_no_descriptor_and_no_memory(tmp_path: Path) -> None:
    list(LocalExecutor(2).map(run_tasks.double, [1], describe=run_tasks.name))  # what is opened once for all
    before = len(run_tasks.targets())
    for number in range(20):
        deaths = tmp_path / str(number)
        deaths.mkdir()
        build = functools.partial(run_tasks.dying, str(deaths), number % 2)
        with closing(LocalExecutor(2).map(build, [5, 6, 7], describe=run_tasks.name)) as results:
            assert next(results) == 5
    assert (len(run_tasks.targets()), areas_mapped()) == (before, 0)


@SHARED
@PROC
def test_a_worker_has_one_area_that_no_other_program_inherits() -> None:
    crew = Crew()
    try:
        workers = [crew.start() for _ in range(2)]
        assert "mmdata-area" not in run_tasks.children_targets()
        for worker in workers:
            worker.say(pack(Build(1, run_tasks.open_files)))
            worker.hand(Task(0, pack((0, noise(MIB, 1))), "", None))
            (answer,) = answers_of(crew, 1)
            mine, inherited = answer.result
            assert sum("mmdata-area" in target for target in mine) == 1 and "mmdata-area" not in inherited
        assert sum("mmdata-area" in target for target in run_tasks.targets()) == 2 == areas_mapped()
    finally:
        crew.close(gently=False)


def refuse(*args: object) -> Any:
    raise OSError(12, "Cannot allocate memory")


@pytest.mark.parametrize("refused", ["memfd_create", "ftruncate", "mmap", None])
def test_where_there_is_no_such_memory_pipes_do(monkeypatch: pytest.MonkeyPatch, refused: str | None) -> None:
    if refused is None:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif refused == "mmap":
        monkeypatch.setattr(mmap, "mmap", refuse)
    else:
        monkeypatch.setattr(os, refused, refuse, raising=False)
    open_before = len(run_tasks.targets()) if os.path.isdir("/proc/self/fd") else 0
    assert Area.create() is None
    assert open_before in (0, len(run_tasks.targets()))
    items = [(noise(size, size), noise(size, 5).tobytes()) for size in SIZES]
    results = LocalExecutor(2).map(run_tasks.backwards, items, describe=lambda item: "an item")
    for (array, data), (turned, back) in zip(items, results, strict=True):
        assert turned.tobytes() == array[::-1].tobytes() and back == data[::-1]
