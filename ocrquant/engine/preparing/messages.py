"""Objects through a pipe between two processes of this program.

A message is a pickle and the buffers of its arrays beside it, so that a page's pixels are copied into the
pipe and out of it and nowhere else.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

__all__ = ["receive", "send"]

_LENGTH = struct.Struct("<Q")


def send(pipe: io.RawIOBase, message: object) -> None:
    """Writes a message.

    Raises:
        OSError: Nobody reads any more.
    """
    buffers: list[pickle.PickleBuffer] = []
    parts: list[bytes | memoryview] = [pickle.dumps(message, protocol=5, buffer_callback=buffers.append)]
    parts += [buffer.raw() for buffer in buffers]
    lengths = b"".join(_LENGTH.pack(len(part)) for part in parts)
    for part in (_LENGTH.pack(len(parts)) + lengths, *parts):
        _write(pipe, part)


def receive(pipe: io.RawIOBase) -> Any:
    """Reads a message.

    Raises:
        EOFError: The other side is gone, before a message or in the middle of one.
    """
    (count,) = _LENGTH.unpack(_read(pipe, _LENGTH.size))
    lengths = [length for (length,) in _LENGTH.iter_unpack(_read(pipe, _LENGTH.size * count))]
    head, *buffers = [_read(pipe, length) for length in lengths]
    return pickle.loads(head, buffers=buffers)


def _write(pipe: io.RawIOBase, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[pipe.write(view) or 0 :]


def _read(pipe: io.RawIOBase, num_bytes: int) -> bytearray:
    data = bytearray(num_bytes)
    view = memoryview(data)
    while view:
        got = pipe.readinto(view)
        if not got:
            raise EOFError("the other side of the pipe is gone")
        view = view[got:]
    return data
