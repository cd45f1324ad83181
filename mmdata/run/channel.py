"""Messages between the caller and a worker: pickles with the memory of large arrays sent beside them.

Pickle protocol 5 gives out numpy arrays of 16 KiB and more (and a Block's bytes) as raw buffers, which are not copied
into a pickle first. A large message lies in the memory that both sides share (run/area.py); any other crosses the pipe,
for 0.3 ms for each MiB on either side. Received arrays are writable and the receiver's own. Only processes this program
started itself are at the other end, so unpickling is safe.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from mmdata.run.area import Area, Side

_OUT_OF_BAND_BYTES = 16 << 10
_RAW = hasattr(os, "readv")  # POSIX: reads and writes on the descriptor itself, without multiprocessing's copies
_PIPE_BYTES = 1 << 20  # the most that Linux grants without privileges (proc/sys/fs/pipe-max-size)


@dataclass(frozen=True, slots=True)
class Message:
    """A pickled object. lent: it lies in an area, and is good until its slot is given to another item."""

    data: bytes | memoryview
    buffers: tuple[bytearray | memoryview, ...]
    lent: bool = False

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.data) + sum(len(buffer) for buffer in self.buffers)

    def __reduce__(self) -> tuple[type[Message], tuple[bytes, tuple[bytearray, ...]]]:
        """For the start of a process, which pickles what it is given: copies in place of views, writable as ever."""
        return Message, (bytes(self.data), tuple(bytearray(buffer) for buffer in self.buffers))

    def owned(self) -> Message:
        """The message in memory of its own: a copy where it was lent (0.1 ms for each MiB)."""
        return Message(_copy(self.data), tuple(map(_copy, self.buffers))) if self.lent else self

    def load(self) -> Any:
        """The object, whose arrays are this message's memory; of a lent message an object that shares none with it.

        Unpickling errors pass through.
        """
        return _load_apart(self.data, self.buffers) if self.lent else pickle.loads(self.data, buffers=self.buffers)


def _copy(part: bytes | bytearray | memoryview) -> memoryview:
    copy: memoryview = np.frombuffer(part, np.uint8).copy().data
    return copy


def _load_apart(data: bytes | memoryview, buffers: Sequence[bytearray | memoryview]) -> Any:
    """Unpickle from lent memory without copying it first, and make sure that nothing of it is still used.

    What a Block is made from is copied when it is rebuilt. An array stays where it is: then it would change with the
    next item, so the object is made anew from copies. Whatever uses a buffer keeps the array it came from alive.
    """
    sources = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
    alive = [weakref.ref(source) for source in sources]
    value = pickle.loads(data, buffers=[source.data for source in sources])
    del sources
    if all(source() is None for source in alive):
        return value
    del value
    return pickle.loads(data, buffers=[_copy(buffer) for buffer in buffers])


def pack(value: object) -> Message:
    """Pickle `value`; errors of pickling pass through. The message refers to the arrays of `value`, not to copies."""
    buffers: list[memoryview] = []

    def keep_inside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _OUT_OF_BAND_BYTES:
            return True
        buffers.append(raw)
        return False

    data = pickle.dumps(value, protocol=5, buffer_callback=keep_inside)
    return Message(data, tuple(buffers))


def widen(pipe: Connection) -> None:
    """Let a pipe hold more where the system allows it (Linux), for messages that do not fit the area.

    Each time a pipe of the usual 64 KiB is full, both ends wait for the other's thread to get its interpreter lock.
    """
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):  # the user's pipes hold as much as they may: this one stays as it is
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


@dataclass(frozen=True, slots=True)
class Line:
    """One way between the caller and a worker. side: what travels on it. area: None where there is none."""

    pipe: Connection
    area: Area | None
    side: Side

    def send(self, message: Message, slot: int | None = None) -> None:
        """slot: of the item this is, or is the answer to; None for any other message, which crosses the pipe.

        Raises OSError when the other end is gone.
        """
        parts = (message.data, *message.buffers)
        in_area = self.area is not None and slot is not None and self.area.put(slot, self.side, parts)
        self.pipe.send((slot, in_area, [len(part) for part in parts]))
        if not in_area:
            for part in parts:
                _send_part(self.pipe, part)

    def receive(self) -> tuple[Message, int | None]:
        """The message, lent where it lies in the area, and its slot. Raises EOFError or OSError when the other end is
        gone.
        """
        slot, in_area, sizes = self.pipe.recv()
        if in_area:
            assert self.area is not None
            data, *buffers = self.area.views(slot, self.side, sizes)
        else:
            data, *buffers = [_receive_part(self.pipe, size) for size in sizes]
        return Message(data, tuple(buffers), lent=in_area), slot

    def close(self) -> None:
        """Close the pipe, and the area on this side: for both ways."""
        self.pipe.close()
        if self.area is not None:
            self.area.close()


def _send_part(connection: Connection, part: bytes | bytearray | memoryview) -> None:
    if not _RAW:
        connection.send_bytes(part)
        return
    rest = memoryview(part)
    while rest:
        rest = rest[os.write(connection.fileno(), rest) :]


def _receive_part(connection: Connection, size: int) -> memoryview:
    part: memoryview = np.empty(size, np.uint8).data
    if not _RAW:
        connection.recv_bytes_into(part)
        return part
    done = 0
    while done < size:
        count = os.readv(connection.fileno(), [part[done:]])
        if count == 0:
            raise EOFError
        done += count
    return part
