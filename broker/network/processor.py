"""Connections of clients: turns bytes into requests, and answers into bytes (NET-1, NET-2, BAD-1..5).

All connections of a processor receive into one buffer. Frames that are whole in it are copied out, many per read. The rest of a read
waits in a small buffer of the connection; an incomplete large frame gets its own buffer, into which the rest is received. That is one of
an earlier frame (`kept_buffers.py`), or a new one, which grows as bytes arrive, never by the announced size (BAD-4).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import NamedTuple

from broker.network.connection_state import HELD_BYTES_MAX, AnswerOrder, ConnectionState, Hold
from broker.network.file_sender import FileSender
from broker.network.request_channel import LARGE_STEP_MAX, MODEST_FRAME_MAX, Request, RequestChannel
from broker.process.clock import Clock
from protocol.errors import KafkaError
from protocol.kafka.framing import (
    Buffer,
    MalformedRequest,
    Part,
    RequestHeader,
    StoredBytes,
    in_memory,
    parse_request_header,
)

log = logging.getLogger(__name__)

RECEIVE_BUFFER_SIZE = 256 * 1024
"""Bytes that one read may have."""

SMALL_FRAME_MAX = 64 * 1024
"""A frame with more bytes, its length included, is *large*. A read has at most so many bytes while there is no room for large frames."""

LONG_READ = 16 * 1024
"""A connection that sends so many bytes at once gets all of the receive buffer for its next read, unless it is paused."""

SHORT_READ = 4 * 1024
"""Bytes of the read after a frame that is larger than the receive buffer: the next frame probably is, and needs a buffer of its own."""

REST_SIZE_MIN = 8 * 1024
"""Minimum size of a connection's own buffer, in which an incomplete frame waits for its rest."""

REST_KEPT_S = 10.0
"""Seconds after which an empty buffer is released."""

WRITE_BUFFER_HIGH = 1024 * 1024
"""When the unread answers of one client have more bytes, its next requests wait."""

COUNTED_FROM = 64 * 1024
"""Unsent answers of a connection count towards those of all connections once they have more bytes, and then until all are sent."""

WRITTEN_AT_ONCE = 256 * 1024
"""When the answers of a connection have more bytes, they are written before the other requests of this turn are handled."""

SLOW_BYTES = 64 * 1024
"""A client that reads fewer bytes in each of SLOW_SWEEPS sweeps is disconnected if all unread answers exceed their limit."""
SLOW_SWEEPS = 2

LONG_FETCH = 512
"""A Fetch request with more bytes is *long*. It lists more than about twenty partitions."""

HEAVY_S = 2.0
"""How long a connection counts as heavy after a large answer or a long fetch."""

LARGE_FRAME_S = 5.0
"""Time limit for a large frame while others wait for room."""

CLOSINGS_LOGGED_MAX = 20
"""Limit of log lines about closed connections between two sweeps."""

JOINED_MAX = 64 * 1024
"""Bytes: answers that are sent together are joined up to this size; larger ones are sent as they are."""

SWEEP_S = 1.0

NO_FETCH = -1

NOTHING = memoryview(bytearray())

_LENGTH = Struct(">i")
_ZEROS = memoryview(bytes(LARGE_STEP_MAX))


class Limits(NamedTuple):
    """Limits of every connection. `idle_timeout_s` None: no limit. `answer_timeout_s`: for a client that reads nothing of its answers."""

    frame_bytes_max: int
    in_flight_max: int
    frame_timeout_s: float
    idle_timeout_s: float | None
    answer_timeout_s: float = 60.0


class ClientConnection(asyncio.BufferedProtocol):
    """One client. The loop calls it with bytes; handlers answer through it."""

    def __init__(self, processor: Processor, listener: str) -> None:
        self.listener = listener
        self.hold = 0
        self.waiting: deque[Request] = deque()
        self.state = ConnectionState.OPEN
        self.remote_address = ""
        self.last_heard = 0.0
        self._processor = processor
        self._channel = processor.channel
        self._limits = processor.limits
        self._monotonic = processor.clock.monotonic
        self._transport: asyncio.Transport | None = None
        self._sender: FileSender | None = None
        self._order = AnswerOrder()
        self._outgoing: list[Buffer] = []
        self._outgoing_size = 0
        self._written = 0  # bytes given to the transport so far
        self._unsent = 0  # bytes in the transport's buffer that are counted
        self._early = 0  # bytes of answers held behind an earlier one
        self._reserved = 0  # bytes reserved for the answer of the current fetch
        self._taken_before = 0
        self._took_at = 0.0
        self._slow_sweeps = 0
        self.fetch_under_way = NO_FETCH
        self.is_heavy = False
        self._is_consumer = False
        self._large_at = 0.0
        self._at_end: dict[int, Callable[[], object]] = {}  # by number: `at_end`; by its complement: `when_answered`
        self._when_ended: list[Callable[[], object]] = []
        self._first_request = processor.first_request
        self._is_paused = False
        self._is_reading = True  # the last state given to the transport
        self._waits_for_room = False  # for room in the queue; the channel then calls `read_again`
        self._views = processor.receive_views
        self._shared = self._views.usual
        self._rest = NOTHING  # the connection's own buffer
        self._held = 0  # bytes at its start that were not submitted yet
        self._ahead = 0  # bytes of that buffer that count as those of large frames
        self._frame: bytearray | memoryview | None = None  # the large frame that arrives; a memoryview: a kept buffer
        self._frame_size = 0
        self._filled = 0
        self.frame_began: float | None = None
        self._large_began = 0.0

    @property
    def is_open(self) -> bool:
        return self.state is ConnectionState.OPEN

    @property
    def peer(self) -> str:
        """The client's name for the log."""
        return f"{self.remote_address or 'a client'} on {self.listener}"

    # -- what the loop calls ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = transport  # type: ignore[assignment]
        name = transport.get_extra_info("peername")
        self.remote_address = str(name[0]) if name else ""
        self.last_heard = self._monotonic()
        if not self._processor.admit(self):
            self.state = ConnectionState.CLOSED
            transport.abort()  # type: ignore[attr-defined]
            return
        transport.set_write_buffer_limits(high=COUNTED_FROM, low=0)  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        self.state = ConnectionState.CLOSED
        self._processor.forget(self)
        self._channel.large_ended(self)
        for request in self.waiting:
            self._channel.large_handled(request.large_size)
        self.waiting.clear()
        self._outgoing.clear()
        self._channel.gone(self)
        self._channel.unsent_changed(-self._unsent - self._early - self._reserved)
        self._unsent = self._early = self._reserved = 0
        self._frame = None
        self._replace_rest(NOTHING)
        callbacks, self._at_end = self._at_end, {}
        for number, callback in callbacks.items():
            if number >= 0:
                callback()
        ended, self._when_ended = self._when_ended, []
        for callback in ended:
            callback()
        self._transport = None
        if self._sender is not None:
            self._sender.end()
            self._sender = None

    def get_buffer(self, sizehint: int) -> memoryview:
        frame = self._frame
        if frame is None:
            if self._held:
                return self._rest[self._held :]
            views = self._views
            return views.usual if self._shared is views.long and self._channel.is_short_of_room else self._shared
        if isinstance(frame, bytearray) and self._filled == len(frame):
            # The buffer grows here and not in `buffer_updated`, where the loop still holds a view of it.
            room = min(self._frame_size - self._filled, max(self._filled, SMALL_FRAME_MAX), self._channel.large_step())
            frame += _ZEROS[:room]
        return memoryview(frame)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.last_heard = self._monotonic()
        if self.state is not ConnectionState.OPEN:
            return
        if self._frame is None:
            if self._held:
                self._cut_frames(self._rest, self._held + nbytes)
            else:
                self._cut_frames(self._shared, nbytes)
                self._shared = self._views.long if nbytes >= LONG_READ and not self._is_paused else self._views.usual
            return
        self._filled += nbytes
        self._channel.large_grew(self, nbytes)
        if self._filled == self._frame_size:
            frame = self._frame
            if isinstance(frame, bytearray):
                self._channel.kept.keep(frame)
            if self._frame_size > RECEIVE_BUFFER_SIZE:
                self._shared = self._views.short
            self._frame = self.frame_began = None
            self._submit(memoryview(frame), self._channel.finish_large(self))
        elif not self._channel.may_read_large(self):
            self._pause()
        elif self._channel.wait_for_next_large_turn(self):
            self._stop_reading()

    def eof_received(self) -> bool:
        """The client sends no more. It still gets the answers that are already written."""
        return False

    def pause_writing(self) -> None:
        self._count_unsent()

    def resume_writing(self) -> None:
        """The client has read everything."""
        self._count_unsent()

    # -- what handlers call -------------------------------------------------------------------------------------------

    def answer(self, number: int, parts: Sequence[Buffer]) -> None:
        """Sends the answer of request `number` when the answers before it have been sent."""
        if self.state is ConnectionState.OPEN:
            self._answered(number, self._order.answer(number, parts))

    def answer_records(self, number: int, parts: Sequence[Part]) -> None:
        """Like `answer`. StoredBytes are sent at once, as far as the socket takes them; the rest is read before this returns."""
        plain = [part for part in parts if not isinstance(part, StoredBytes)]
        if len(plain) == len(parts):
            self.answer(number, plain)
            return
        transport = self._transport
        if transport is None or self.state is not ConnectionState.OPEN:
            return
        sent = 0
        if number == self._order.answered and not (
            self._outgoing or transport.get_write_buffer_size() or transport.is_closing()
        ):
            if self._sender is None:
                self._sender = FileSender.of(transport)
            if self._sender is not None:
                sent = self._sender.send(parts)
                self._written += sent
        try:
            rest = in_memory(parts, sent)
        except KafkaError as error:
            self.close(f"the records of an answer could not be read: {error}")
            return
        if sent > WRITTEN_AT_ONCE:
            self._had_large_answer()
        self._answered(number, self._order.answer(number, rest))

    def answer_in_turn(self, number: int, make: Callable[[], Sequence[Buffer]]) -> None:
        """Like `answer`; `make` creates the answer when it can be sent at once."""
        if self.state is ConnectionState.OPEN:
            self._answered(number, self._order.answer_in_turn(number, make))

    def _answered(self, number: int, ready: Sequence[Buffer]) -> None:
        if self._at_end:
            self._at_end.pop(number, None)
            answered = self._at_end.pop(~number, None)
            if answered is not None:
                answered()
        order = self._order
        if ready:
            if not self._outgoing:
                self._channel.flush_soon(self)
            self._outgoing += ready
            self._outgoing_size += len(ready[0]) if len(ready) == 1 else sum(map(len, ready))
            if self._outgoing_size > WRITTEN_AT_ONCE:
                self.flush()
                self._had_large_answer()
        if number == self.fetch_under_way:
            self._fetch_ended()
        if order.held_bytes != self._early:
            self._channel.unsent_changed(order.held_bytes - self._early)
            self._early = order.held_bytes
        if order.held_bytes > HELD_BYTES_MAX:
            self.hold |= Hold.EARLY_ANSWERS
        elif self.hold & Hold.EARLY_ANSWERS:
            self.hold &= ~Hold.EARLY_ANSWERS
            self.requeue_waiting()
        if (
            self._is_paused
            and not self.hold
            and not self._waits_for_room
            and order.in_flight <= self._limits.in_flight_max // 2
        ):
            self.read_again()

    def _had_large_answer(self) -> None:
        """Others come first for the rest of this turn."""
        self._large_at = self.last_heard
        self._had_its_share()
        if self._is_consumer and not self.is_heavy:
            self._becomes_heavy()

    def wait_with(self, request: Request) -> None:
        """Keeps the request until no reason to hold is left. Meanwhile reading stops, so that waiting requests are bounded."""
        self.waiting.append(request)
        self._pause()

    def begin_fetch(self, request: Request, *, needs_room: bool) -> bool:
        """Returns False if the fetch must wait for the previous fetch or for room for its answer; it is then handled again.

        A long fetch of a consumer waits in the queue of the heavy connections, so that hundreds of them delay nobody else. Kafka handles
        one request of a connection at a time. Here only fetches wait for each other, because their answers are large.
        """
        if self.fetch_under_way != NO_FETCH:
            self.hold |= Hold.ANOTHER_FETCH
        elif needs_room and not self.is_heavy and len(request.frame) > LONG_FETCH:
            request.keeps_frame = True
            self.wait_with(request)
            self._becomes_heavy()
            return False
        elif needs_room and self._channel.unsent.is_exhausted:
            self.hold |= Hold.NO_ROOM
            self._channel.when_answers_are_taken(self)
        else:
            self.fetch_under_way = request.number
            self._is_consumer = needs_room
            request.keeps_frame = False
            return True
        request.keeps_frame = True
        self.wait_with(request)
        return False

    def reserve(self, size: int) -> None:
        """Reserves bytes for the answer of the current fetch."""
        if self.fetch_under_way != NO_FETCH and self.state is ConnectionState.OPEN:
            self._channel.unsent_changed(size - self._reserved)
            self._reserved = size

    def answer_room(self) -> int:
        """Bytes that the answer to a fetch may have; 0: as few as possible."""
        return self._channel.answer_room(self)

    def retry_fetch(self) -> None:
        """Requeues a fetch that waited for room for its answer, if no other reason to hold is left."""
        self.hold &= ~Hold.NO_ROOM
        self.requeue_waiting()

    def renew_share(self) -> None:
        """Called in the turn after the connection used up its share. Requeues its waiting requests behind those of others."""
        self.hold &= ~Hold.HAD_ITS_SHARE
        if self.waiting and not self.hold and self.state is ConnectionState.OPEN:
            waiting, self.waiting = self.waiting, deque()
            self._channel.put_last(waiting)
        self.requeue_waiting()

    def frame_handled(self, request: Request) -> None:
        """Releases the room of the request's frame, which is no longer needed."""
        size, request.large_size = request.large_size, 0
        self._channel.large_handled(size)

    def _becomes_heavy(self) -> None:
        """From the next turn on, the connection's requests, including those that wait, are in the heavy queue."""
        self._large_at = self.last_heard
        self._had_its_share()
        self.is_heavy = True
        self._channel.becomes_heavy(self)

    def _had_its_share(self) -> None:
        if not self.hold & Hold.HAD_ITS_SHARE:
            self.hold |= Hold.HAD_ITS_SHARE
            self._channel.in_the_next_turn(self)

    def _fetch_ended(self) -> None:
        self.fetch_under_way = NO_FETCH
        if self._reserved:
            self._channel.unsent_changed(-self._reserved)
            self._reserved = 0
        if self.hold & Hold.ANOTHER_FETCH:
            self.hold &= ~Hold.ANOTHER_FETCH
            self.requeue_waiting()

    def _count_unsent(self) -> None:
        """Counts the bytes in the transport after a change, and delays the next requests while they are too many."""
        if self._transport is None:
            return
        unsent = self._transport.get_write_buffer_size()
        before, self._unsent = self._unsent, unsent
        if unsent and not before:
            self._took_at = self._monotonic()
            self._taken_before = self._written - unsent
        self._channel.unsent_changed(unsent - before)
        if unsent > WRITE_BUFFER_HIGH or (unsent and self._channel.unsent.is_short):
            self.hold |= Hold.SLOW_CLIENT
        elif not unsent and self.hold & Hold.SLOW_CLIENT:
            self.hold &= ~Hold.SLOW_CLIENT
            self.requeue_waiting()

    def at_end(self, number: int, callback: Callable[[], object]) -> None:
        """Calls `callback` if the connection ends before request `number` is answered."""
        if self.state is ConnectionState.CLOSED:
            callback()
        elif number >= self._order.answered:
            self._at_end[number] = callback

    def when_ended(self, callback: Callable[[], object]) -> None:
        """Calls `callback` when the connection ends. The connection must be open."""
        self._when_ended.append(callback)

    def when_answered(self, number: int, callback: Callable[[], object]) -> None:
        """Calls `callback` when request `number` is answered, unless the connection ends before."""
        self._at_end[~number] = callback

    def close(self, reason: str) -> None:
        """Closes only this connection; answers that were written before are still sent."""
        if self.state is not ConnectionState.OPEN:
            return
        self._processor.log_closing("closing the connection of %s: %s", self.peer, reason)
        self.flush()
        self.state = ConnectionState.CLOSING
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection at once. Answers that are not sent yet are dropped."""
        if self.state is ConnectionState.OPEN:
            self.state = ConnectionState.CLOSING
        if self._transport is not None:
            self._transport.abort()

    def requeue_waiting(self) -> None:
        """Requeues the waiting requests and continues to read, if no reason to hold is left."""
        if self.waiting and not self.hold and self.state is ConnectionState.OPEN:
            waiting, self.waiting = self.waiting, deque()
            self._channel.put_back(waiting)
        if self._is_paused and not self.hold:
            self.read_again()

    def read_again(self) -> None:
        """Continues paused reading, if there is room; starts with the bytes that are in the buffer."""
        self._waits_for_room = False
        if not self._is_paused or self.state is not ConnectionState.OPEN:
            return
        self._is_paused = False
        self.last_heard = self._monotonic()
        if self.frame_began is not None:
            self.frame_began = self._large_began = self.last_heard
        if self._frame is None:
            self._cut_frames(self._rest, self._held)
        elif not self._channel.may_read_large(self):
            self._is_paused = True
        self._start_reading()

    def resume_large(self) -> None:
        """Continues to read a large frame: the turn of the loop in which large frames had their share is over."""
        self._start_reading()

    # -- internals --------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Writes the answers that are ready, in one call."""
        parts, self._outgoing = self._outgoing, []
        size, self._outgoing_size = self._outgoing_size, 0
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
        if self._unsent:
            self._count_unsent()

    def _pause(self) -> None:
        self._is_paused = True
        self._stop_reading()

    def _stop_reading(self) -> None:
        if self._is_reading and self._transport is not None:
            self._is_reading = False
            self._transport.pause_reading()

    def _start_reading(self) -> None:
        """Resumes reading, unless it is paused."""
        if not self._is_paused and not self._is_reading and self._transport is not None and self.is_open:
            self._is_reading = True
            self._transport.resume_reading()

    def _pause_if_full(self) -> bool:
        """Pauses reading if no more requests are accepted from this connection now. Returns True if it did."""
        in_flight = self._order.received - self._order.answered
        if in_flight >= self._limits.in_flight_max:
            self._pause()
            return True
        if not self._channel.has_room(self, in_flight):
            self._pause()
            self._waits_for_room = True
            self._channel.when_there_is_room(self)
            return True
        return False

    def _cut_frames(self, buffer: memoryview, end: int) -> None:
        """Submits the whole frames in the first `end` bytes. The rest waits for more input, or becomes the start of a large frame."""
        at = needed = 0
        while end - at >= 4:
            (size,) = _LENGTH.unpack_from(buffer, at)
            if not 0 < size <= self._limits.frame_bytes_max:
                size_max = self._limits.frame_bytes_max
                self.close(f"a frame of {size} bytes: allowed are 1 to {size_max} (socket.request.max.bytes)")
                return
            begin, stop = at + 4, at + 4 + size
            if stop > end:
                if size + 4 > SMALL_FRAME_MAX and not self._begin_large(buffer, begin, end, size):
                    break
                if self._frame is not None:
                    at = end
                else:
                    needed = size + 4
                break
            if self._pause_if_full():
                break
            large_size = 0
            if size + 4 > SMALL_FRAME_MAX:
                if self.hold:
                    self._pause()
                    break
                large_size = size
                self._channel.large_arrived(size)
                if self._channel.wait_for_next_large_turn(self):
                    self._stop_reading()
            at = stop
            if not self._submit(memoryview(bytes(buffer[begin:stop])), large_size):
                return
        held = end - at
        if held and (at or buffer is not self._rest):
            self._hold_rest(buffer[at:end], max(needed, held + 1, REST_SIZE_MIN))
        elif needed > len(buffer):
            self._hold_rest(buffer[:end], needed)
        self._held = held
        if self._ahead and not held:
            self._replace_rest(NOTHING)
        if held == 0 and self._frame is None:
            self.frame_began = None
        elif self.frame_began is None or at:
            self.frame_began = self.last_heard

    def _hold_rest(self, data: memoryview, size: int) -> None:
        """Copies the data to the start of the connection's own buffer, which has at least `size` bytes."""
        if len(self._rest) < size:
            rest = memoryview(bytearray(size))
            rest[: len(data)] = data
            self._replace_rest(rest)
        else:
            self._rest[: len(data)] = data

    def _replace_rest(self, rest: memoryview) -> None:
        """Sets the connection's own buffer. What it has above the size of a small frame counts as bytes of large frames."""
        self._rest = rest
        before, self._ahead = self._ahead, max(len(rest) - SMALL_FRAME_MAX, 0)
        if self._ahead != before:
            self._channel.read_ahead(self._ahead - before)

    def _begin_large(self, buffer: memoryview, begin: int, end: int, size: int) -> bool:
        """Moves a large frame's first bytes to its own buffer. Returns False, with reading paused, if the frame must wait."""
        if self._pause_if_full():
            return False
        if self.hold:
            self._pause()
            return False
        self._channel.large_began(self, size)
        self._frame_size = size
        self._filled = end - begin
        self._frame = kept = self._channel.kept.take(size)
        if kept is None:
            self._frame = bytearray(buffer[begin:end])
        else:
            kept[: self._filled] = buffer[begin:end]
        self._large_began = self.last_heard
        self._channel.large_grew(self, self._filled)
        if not self._channel.may_read_large(self):
            self._pause()
        return True

    def _submit(self, frame: memoryview, large_size: int) -> bool:
        """Submits a request. Returns False, and closes the connection, if the header is invalid or refused (BAD-3, BAD-34)."""
        try:
            header = parse_request_header(frame)
        except MalformedRequest as error:
            self._channel.large_handled(large_size)
            self.close(str(error))
            return False
        judge, self._first_request = self._first_request, None
        refusal = judge(self, header, frame) if judge is not None else ""
        if refusal:
            self._channel.large_handled(large_size)
            self.close(refusal)
            return False
        self._channel.put(Request(self, self._order.next_number(), header, frame, self.last_heard, large_size))
        return True

    def overdue(self, now: float) -> str:
        """The reason to close the connection now, or ""."""
        limits = self._limits
        if self.is_heavy and not self._order.in_flight and now - self._large_at > HEAVY_S:
            self.is_heavy = False  # none of its requests is in the heavy queue
        if not self._held and now - self.last_heard > REST_KEPT_S:
            self._rest = NOTHING
        is_late = self._frame is not None and now - self._large_began > LARGE_FRAME_S
        # A frame of the size of a producer's may be late because the broker has no room for it.
        if (
            is_late
            and self._channel.is_short_of_room
            and not (self._is_paused and self._frame_size <= MODEST_FRAME_MAX)
        ):
            return f"a frame did not arrive within {LARGE_FRAME_S:g} s while others waited (queued.max.request.bytes)"
        if self._is_paused or self.hold & Hold.ASYNC_API:
            return ""
        if self.frame_began is not None and now - self.frame_began > limits.frame_timeout_s:
            return f"a frame did not arrive within {limits.frame_timeout_s:g} s"
        if limits.idle_timeout_s is not None and now - self.last_heard > limits.idle_timeout_s:
            # A client that reads an answer, however slowly, is not idle; `stalled` checks it.
            return f"idle for {limits.idle_timeout_s:g} s" if not self._order.in_flight and not self._unsent else ""
        return ""

    def stalled(self, now: float) -> str:
        """The reason to disconnect the client because of unread answers, or "". Called once per sweep."""
        if not (self._unsent or self._early) or self._transport is None:
            self._slow_sweeps = 0
            return ""
        self._count_unsent()
        taken = self._written - self._unsent
        if taken > self._taken_before or not self._unsent:
            self._took_at = now
        self._slow_sweeps = self._slow_sweeps + 1 if taken - self._taken_before < SLOW_BYTES else 0
        self._taken_before = taken
        if now - self._took_at > self._limits.answer_timeout_s:
            return f"it read nothing of its answers for {self._limits.answer_timeout_s:g} s"
        if self._slow_sweeps >= SLOW_SWEEPS and self._channel.unsent.is_short:
            return f"it hardly reads its {self._unsent + self._early} bytes of answers (queued.max.response.bytes)"
        return ""


class ReceiveViews:
    """The starts of the buffer into which connections receive: for a read of the usual length, a long one, a short one."""

    __slots__ = ("long", "short", "usual")

    def __init__(self, whole: memoryview) -> None:
        self.usual = whole[:SMALL_FRAME_MAX]
        self.long = whole
        self.short = whole[:SHORT_READ]


FirstRequest = Callable[[ClientConnection, RequestHeader, memoryview], str]


class Processor:
    """A part of one listener's connections: their limits, and a regular check for overdue ones."""

    def __init__(
        self,
        channel: RequestChannel,
        limits: Limits,
        clock: Clock,
        admit: Callable[[ClientConnection], bool],
        released: Callable[[ClientConnection], None],
        first_request: FirstRequest | None = None,
    ) -> None:
        """`first_request` is called once for each connection; it returns the reason to close it, or ""."""
        self.first_request = first_request
        self.channel = channel
        self.limits = limits
        self.clock = clock
        self._admit = admit
        self._released = released
        self.connections: dict[ClientConnection, None] = {}
        self.connections_made = 0
        self.connections_ended = 0
        self._closing: set[ClientConnection] = set()
        self._closings = 0
        self.receive_views = ReceiveViews(memoryview(bytearray(RECEIVE_BUFFER_SIZE)))

    def log_closing(self, text: str, *values: object) -> None:
        """Logs a line about a connection, at most CLOSINGS_LOGGED_MAX lines between two sweeps."""
        self._closings += 1
        if self._closings <= CLOSINGS_LOGGED_MAX:
            log.info(text, *values)

    def admit(self, connection: ClientConnection) -> bool:
        """Adds a new connection, unless a limit is reached (BAD-34)."""
        if not self._admit(connection):
            return False
        self.connections[connection] = None
        self.connections_made += 1
        return True

    def forget(self, connection: ClientConnection) -> None:
        if connection in self.connections:
            del self.connections[connection]
            self.connections_ended += 1
            self._closing.discard(connection)
            self._released(connection)

    def sweep(self) -> None:
        """Called every `SWEEP_S`: closes overdue connections, and aborts those that were already closing one sweep ago."""
        now = self.clock.monotonic()
        if self._closings > CLOSINGS_LOGGED_MAX:
            log.info("closed %d more connections", self._closings - CLOSINGS_LOGGED_MAX)
        self._closings = 0
        self.channel.kept.sweep(now)
        self.channel.wake_fetches()
        for connection in [c for c in self._closing if c in self.connections]:
            connection.abort()
        self._closing = set()
        for connection in list(self.connections):
            reason = connection.overdue(now) if connection.is_open else ""
            if reason:
                connection.close(reason)
            elif stall := connection.stalled(now):
                self.log_closing("disconnecting %s: %s", connection.peer, stall)
                connection.abort()
            if connection.state is ConnectionState.CLOSING:
                self._closing.add(connection)

    def abort_all(self) -> None:
        for connection in list(self.connections):
            connection.abort()
