"""Messages between the parent and a worker: pickles with the memory of large arrays sent beside them.

Pickle protocol 5 hands out numpy arrays of 16 KiB and more (and a Block's bytes) as raw buffers, so they cross the pipe
without being copied into a pickle first, and are read straight into the memory where they stay; received arrays are
writable. Costs about 0.3 ms for each MiB on either side. Only processes this program started itself are at the other
end, so unpickling is safe.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

_OUT_OF_BAND_BYTES = 16 << 10
_RAW = hasattr(os, "readv")  # POSIX: reads and writes on the descriptor itself, without multiprocessing's copies
_PIPE_BYTES = 1 << 20  # the most that Linux grants without privileges (proc/sys/fs/pipe-max-size)


@dataclass(frozen=True, slots=True)
class Message:
    """A pickled object. size: bytes that cross the pipe."""

    data: bytes | memoryview
    buffers: tuple[bytearray | memoryview, ...]

    @property
    def size(self) -> int:
        """Bytes that cross the pipe."""
        return len(self.data) + sum(len(buffer) for buffer in self.buffers)

    def __reduce__(self) -> tuple[type[Message], tuple[bytes, tuple[bytearray, ...]]]:
        """For the start of a process, which pickles what it is given: copies in place of views, writable as ever."""
        return Message, (bytes(self.data), tuple(bytearray(buffer) for buffer in self.buffers))

    def load(self) -> Any:
        """The object; unpickling errors pass through."""
        return pickle.loads(self.data, buffers=self.buffers)


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
    """Let a pipe hold a whole message where the system allows it (Linux).

    Each time a pipe of the usual 64 KiB is full, both ends wait for the other's thread to get its interpreter lock.
    """
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):  # the user's pipes hold as much as they may: this one stays as it is
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def send(connection: Connection, message: Message) -> None:
    """Raises OSError when the other end is gone."""
    parts = (message.data, *message.buffers)
    connection.send([len(part) for part in parts])
    for part in parts:
        if _RAW:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(connection.fileno(), rest) :]
        else:
            connection.send_bytes(part)


def receive(connection: Connection) -> Message:
    """Raises EOFError or OSError when the other end is gone."""
    sizes: list[int] = connection.recv()
    data, *buffers = [_receive_part(connection, size) for size in sizes]
    return Message(data, tuple(buffers))


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
