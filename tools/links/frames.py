"""Frames in a stream of bytes. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from protocol.kafka.framing import MalformedRequest

LENGTH = struct.Struct(">i")
REQUEST_BYTES_MAX = 100 * 1024 * 1024
"""`socket.request.max.bytes`, unless a broker has another one."""
ANSWER_BYTES_MAX = 1024 * 1024 * 1024
WHOLE_FROM = 1024 * 1024
Frame = bytes | bytearray
"""Nobody changes it."""


class Frames:
    """Takes bytes as they come, and gives frames, each with its length before it. `bytes_max`: of one.

    What is longer than `whole_from` is joined as it comes: at its end, it would be copied in one long turn of the loop.
    """

    def __init__(self, bytes_max: int, whole_from: int = WHOLE_FROM) -> None:
        self._bytes_max = bytes_max
        self._whole_from = whole_from
        self._parts: list[bytes] = []
        self._have = 0
        self._need = LENGTH.size
        self._whole: bytearray | None = None

    @property
    def is_between(self) -> bool:
        """Whether no part of a frame has come."""
        return not self._have

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Raises MalformedRequest for an impossible length."""
        if self._whole is not None:
            took = min(self._need - self._have, len(data))
            self._whole += data if took == len(data) else data[:took]
            self._have += took
            if self._have < self._need:
                return
            whole, data = self._whole, data[took:]
            self._whole, self._have, self._need = None, 0, LENGTH.size
            yield whole
            if not data:
                return
        self._parts.append(data)
        self._have += len(data)
        while self._have >= self._need:
            joined = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            at = 0
            while True:
                left = len(joined) - at
                self._need = LENGTH.size
                if left < LENGTH.size:
                    break
                (size,) = LENGTH.unpack_from(joined, at)
                if not 0 <= size <= self._bytes_max:
                    raise MalformedRequest(f"a frame of {size} bytes; the limit is {self._bytes_max}")
                self._need = LENGTH.size + size
                if left < self._need:
                    break
                yield joined[at : at + self._need]
                at += self._need
            rest = joined[at:]
            self._parts, self._have = [rest] if rest else [], len(rest)
            if self._need > max(self._whole_from, LENGTH.size):
                self._whole, self._parts = bytearray(rest), []


def framed(*parts: Frame) -> bytes:
    """The parts as one frame."""
    return LENGTH.pack(sum(map(len, parts))) + b"".join(parts)
