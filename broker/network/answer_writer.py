"""Writes the answers of one connection: joined, past the transport where the kernel can send them from a file, and counted (NET-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from broker.network.file_sender import FileSender
from broker.network.sender import Sender
from broker.network.unsent_answers import UnsentAnswers
from protocol.kafka.framing import Part, in_memory
from protocol.types import Buffer

WRITE_BUFFER_HIGH: Final = 1024 * 1024
"""When the unread answers of one client have more bytes, its next requests wait."""

COUNTED_FROM: Final = 64 * 1024
"""Unsent answers of a connection count towards those of all connections once they have more bytes, and then until all are sent."""

WRITTEN_AT_ONCE: Final = 256 * 1024
"""When the answers of a connection have more bytes, they are written before the other requests of this turn are handled."""

JOINED_MAX: Final = 64 * 1024
"""Bytes: answers that are sent together are joined up to this size; larger ones are sent as they are."""

SLOW_BYTES: Final = 64 * 1024
"""A client that reads fewer bytes in each of SLOW_SWEEPS sweeps is disconnected if all unread answers exceed their limit."""
SLOW_SWEEPS: Final = 2


def _nothing() -> None:
    pass


class AnswerWriter:
    """What is ready to be sent, in order. Until `begin` and after `end` there is nobody to send to."""

    def __init__(
        self, budget: UnsentAnswers, monotonic: Callable[[], float], timeout_s: float, flushed: Callable[[], None]
    ) -> None:
        """`timeout_s`: how long a client may read nothing of its answers. `flushed` is called after a `flush` while `unsent` is not 0."""
        self.unsent = 0
        """Bytes in the transport's buffer that are counted."""
        self.early = 0
        """Counted bytes of answers that wait for an earlier one."""
        self.ready_size = 0
        """Bytes that `flush` will write."""
        self._budget = budget
        self._monotonic = monotonic
        self._timeout_s = timeout_s
        self._flushed = flushed
        self._transport: asyncio.Transport | None = None
        self._sender: Sender | None = None
        self._ready: list[Buffer] = []
        self._written = 0  # bytes given to the transport so far
        self._taken_before = 0
        self._took_at = 0.0
        self._slow_sweeps = 0

    @property
    def is_behind(self) -> bool:
        """Whether the client must read more before its next request is handled."""
        return self.unsent > WRITE_BUFFER_HIGH or (self.unsent > 0 and self._budget.is_short)

    def begin(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=COUNTED_FROM, low=0)

    def end(self) -> int:
        """The connection has ended. Returns the change of the counted bytes."""
        self._flushed = _nothing  # a cycle with the connection would keep both until a garbage collection
        counted = self.unsent + self.early
        self.unsent = self.early = self.ready_size = 0
        self._ready.clear()
        self._transport = None
        if self._sender is not None:
            self._sender.end()
            self._sender = None
        return -counted

    def add(self, ready: Sequence[Buffer]) -> bool:
        """Adds answers whose turn has come; there is at least one buffer. Returns True for the first ones since the last `flush`."""
        is_first = not self._ready
        self._ready += ready
        self.ready_size += len(ready[0]) if len(ready) == 1 else sum(map(len, ready))
        return is_first

    def send_from_file(self, parts: Sequence[Part], *, is_next: bool) -> tuple[list[Buffer], bool]:
        """Sends parts of an answer, as far as the socket takes them now, if it `is_next` and nothing else waits to be sent.

        Returns the rest, in memory, and whether much was sent. Raises KafkaError if the rest cannot be read.
        """
        sent = 0
        transport = self._transport
        assert transport is not None
        if is_next and not (self._ready or transport.get_write_buffer_size() or transport.is_closing()):
            if self._sender is None:
                self._sender = FileSender.of(transport)
            if self._sender is not None:
                sent = self._sender.send(parts)
                self._written += sent
        return in_memory(parts, sent), sent > WRITTEN_AT_ONCE

    def flush(self) -> None:
        """Writes the answers that are ready, in one call."""
        parts, self._ready = self._ready, []
        size, self.ready_size = self.ready_size, 0
        transport = self._transport
        if transport is None or not parts:
            return
        self._written += size
        if len(parts) == 1:
            transport.write(parts[0])
        elif size <= JOINED_MAX:
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)
        if self.unsent:
            self._flushed()

    def count(self) -> int:
        """Counts the bytes in the transport's buffer again. Returns the change."""
        if self._transport is None:
            return 0
        before, self.unsent = self.unsent, self._transport.get_write_buffer_size()
        if self.unsent and not before:
            self._took_at = self._monotonic()
            self._taken_before = self._written - self.unsent
        return self.unsent - before

    def stalled(self, now: float) -> str:
        """The reason to disconnect the client because of unread answers, or "". Called once per sweep, after `count`."""
        if not (self.unsent or self.early):
            self._slow_sweeps = 0
            return ""
        taken = self._written - self.unsent
        if taken > self._taken_before or not self.unsent:
            self._took_at = now
        self._slow_sweeps = self._slow_sweeps + 1 if taken - self._taken_before < SLOW_BYTES else 0
        self._taken_before = taken
        if now - self._took_at > self._timeout_s:
            return f"it read nothing of its answers for {self._timeout_s:g} s"
        if self._slow_sweeps >= SLOW_SWEEPS and self._budget.is_short:
            return f"it hardly reads its {self.unsent + self.early} bytes of answers (queued.max.response.bytes)"
        return ""
