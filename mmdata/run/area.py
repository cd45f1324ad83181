"""Memory that the caller shares with one worker: large items and results lie there in place of crossing a pipe.

A pipe of 1 MiB makes the side that writes wait, several times for each message, until the other side's thread gets its
interpreter lock, and copies every byte twice. Here the sender copies once (0.1 ms for each MiB) and the pipe says where
the message lies. An area has SLOTS slots, each with a room for an item and a room for its result. Who owns a slot is
not kept here: the crew gives it to an item when it hands the item out, and takes it back when it has copied the answer.

Costs the memory of the pages that messages have touched, at most SLOTS x 2 x ROOM_BYTES (32 MiB) for each worker, and
one descriptor on either side. The memory has no name, so it is gone with the two processes however they end. Needs
memfd_create (Linux); elsewhere, where the system refuses it to the caller, and for what does not fit, messages cross
the pipe.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from typing import Literal, Protocol

import numpy as np

Side = Literal["item", "result"]
Part = bytes | bytearray | memoryview

SLOTS = 2
"""Items that a worker may have at a time: one in work, one read ahead."""
ROOM_BYTES = 8 << 20
"""The largest message that fits: four times a block of `convert`."""
LEAST_BYTES = 16 << 10
"""Smaller messages are as quick through the pipe."""
ALIGNED_BYTES = 64
"""Where each part of a message may start: good for arrays of every dtype."""
_AREA_BYTES = SLOTS * 2 * ROOM_BYTES
_ORDER: dict[Side, int] = {"item": 0, "result": 1}


class Area:
    """One worker's area, seen by the caller or, handed over as an argument of its process, by the worker."""

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor of the memory over. Raises OSError when it cannot be mapped; it is the caller's then."""
        self._memory: mmap.mmap | None = mmap.mmap(descriptor, _AREA_BYTES)  # on a descriptor of its own
        self._descriptor: int | None = descriptor

    @classmethod
    def create(cls) -> Area | None:
        """A new one, not inherited by child processes; None where there is no such memory or no more of it."""
        make: Callable[[str], int] | None = getattr(os, "memfd_create", None)
        if make is None:
            return None
        try:
            descriptor = make("mmdata-area")
        except OSError:
            return None
        try:
            os.ftruncate(descriptor, _AREA_BYTES)
            return cls(descriptor)
        except OSError:
            os.close(descriptor)
            return None

    def __reduce__(self) -> tuple[Callable[[_Duplicate], Area], tuple[_Duplicate]]:
        """For the start of the worker's process."""
        assert self._descriptor is not None, "it has been handed over"
        return _open, (reduction.DupFd(self._descriptor),)

    def handed_over(self) -> None:
        """The worker has it, or never will: close what only handing over needs. May be called again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def put(self, slot: int, side: Side, parts: Sequence[Part]) -> bool:
        """Copy a message into a room; False, and nothing is copied, when it does not fit or is smaller than LEAST_BYTES
        in all. Every part takes a multiple of ALIGNED_BYTES.
        """
        sizes = [len(part) for part in parts]
        if self._memory is None or sum(sizes) < LEAST_BYTES or sum(map(_aligned, sizes)) > ROOM_BYTES:
            return False
        for part, view in zip(parts, self.views(slot, side, sizes), strict=True):
            np.copyto(np.frombuffer(view, np.uint8), np.frombuffer(part, np.uint8))  # lets other threads run
        return True

    def views(self, slot: int, side: Side, sizes: Sequence[int]) -> list[memoryview]:
        """The parts of a message that `put` has copied into a room: the memory itself, writable, good until the slot
        is given to the next item.
        """
        assert self._memory is not None and 0 <= slot < SLOTS
        at, found, memory = (2 * slot + _ORDER[side]) * ROOM_BYTES, [], memoryview(self._memory)
        for size in sizes:
            found.append(memory[at : at + size])
            at += _aligned(size)
        return found

    def close(self) -> None:
        """Give the memory and the descriptors of this side back. May be called again."""
        self.handed_over()
        memory, self._memory = self._memory, None
        if memory is not None:
            with contextlib.suppress(BufferError):  # somebody still copies out of it: it goes with the last view
                memory.close()


class _Duplicate(Protocol):
    """A descriptor on its way to a child process (multiprocessing.reduction.DupFd)."""

    def detach(self) -> int: ...


def _open(duplicate: _Duplicate) -> Area:
    area = Area(duplicate.detach())
    area.handed_over()
    return area


def _aligned(size: int) -> int:
    return -(-size // ALIGNED_BYTES) * ALIGNED_BYTES
