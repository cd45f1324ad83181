"""Messages between the parent and a worker: pickles with the memory of large arrays sent beside them.

Pickle protocol 5 hands out numpy arrays of 16 KiB and more as raw buffers, so they cross the pipe without being copied
into a pickle first; received arrays are writable. Only processes this program started itself are at the other end.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

_OUT_OF_BAND_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Message:
    """A pickled object. size: bytes that cross the pipe."""

    data: bytes | bytearray
    buffers: tuple[Any, ...]

    @property
    def size(self) -> int:
        return len(self.data) + sum(len(buffer) for buffer in self.buffers)

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


def send(connection: Connection, message: Message) -> None:
    """Raises OSError when the other end is gone."""
    connection.send([len(buffer) for buffer in message.buffers])
    connection.send_bytes(message.data)
    for buffer in message.buffers:
        connection.send_bytes(buffer)


def receive(connection: Connection) -> Message:
    """Raises EOFError or OSError when the other end is gone."""
    sizes: list[int] = connection.recv()
    data = connection.recv_bytes()
    buffers = []
    for size in sizes:
        buffer = bytearray(size)
        connection.recv_bytes_into(buffer)
        buffers.append(buffer)
    return Message(data, tuple(buffers))
