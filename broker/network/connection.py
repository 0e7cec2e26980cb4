"""One client's connection: bytes in, requests to the channel, answers out in the order of the requests (NET-1, NET-2).

A connection has one queue. The channel takes requests from its head only, and only while nothing of `Hold` is set: so requests are
*handled* in the order in which they came, and a request that must wait goes back to the head.

`frame_reader.py` cuts the bytes, `answer_writer.py` writes the answers. Here are the limits, and what waits for what:

    hold, release        may the next request be handled? (`Hold`)
    _pause, read_again   may more be read? Not while too many requests are in flight or queued, while requests wait for `release`,
                         while there is no room for a large frame, while the connection is muted, or once it is to end
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.network.answer_writer import WRITTEN_AT_ONCE, AnswerWriter
from broker.network.connection_state import HELD_BYTES_MAX, AnswerOrder, ConnectionState, Hold
from broker.network.frame_reader import LARGE, LARGE_BEGINS, LARGE_ENDS, SMALL, FrameReader, IllegalFrame
from broker.network.large_frames import MODEST_FRAME_MAX
from broker.network.request_channel import Connection, Request, Ring
from broker.network.turnstile import hung_up
from protocol.errors import KafkaError
from protocol.kafka.framing import MalformedRequest, Part, StoredBytes, parse_request_header
from protocol.types import ANONYMOUS, Buffer, ClientSoftware, Principal

if TYPE_CHECKING:
    from broker.network.processor import Processor

REST_KEPT_S: Final = 10.0
"""Seconds after which an empty buffer is released."""

AHEAD_MAX: Final = 512 * 1024
"""Limit of the bytes that a connection may have sent since its requests were last handled, in small frames. Above it, the next frames wait:
the loop reads a busy socket many times in one turn, and a connection may then be held for long. More than a Java producer has in flight."""

LONG_FETCH: Final = 512
"""A Fetch request with more bytes is *long*. It lists more than about twenty partitions."""

HEAVY_S: Final = 2.0
"""How long a connection counts as heavy after a large answer or a long fetch."""

LARGE_FRAME_S: Final = 5.0
"""Time limit for a large frame while others wait for room: to arrive, not counting the time in which it is not read, and then to wait
while its connection is held."""

LAST_ANSWERS_S: Final = 30.0
"""Time limit for the last answers of a connection that is to end, and for its client to read them."""

NO_FETCH: Final = -1


Gate = Callable[["ClientConnection", Buffer], bool]
"""Takes the next frame of a connection. Returns False if it must not be handled: the gate has answered it, or closed the connection."""


class Limits(NamedTuple):
    """Limits of every connection. `idle_timeout_s` None: no limit. `answer_timeout_s`: for a client that reads nothing of its answers.

    `login_bytes_max`: of a frame before the login; 0: clients do not log in.
    """

    frame_bytes_max: int
    in_flight_max: int
    frame_timeout_s: float
    idle_timeout_s: float | None
    answer_timeout_s: float = 60.0
    login_bytes_max: int = 0


class ClientConnection(Connection):
    """The loop calls it with bytes, the channel takes its requests, and handlers answer through it."""

    def __init__(self, processor: Processor, listener: str) -> None:
        self.listener = listener
        self.remote_address = ""
        self.remote_port = 0
        self.software = ClientSoftware()
        self.principal = ANONYMOUS
        self.is_by_token = False
        self.state = ConnectionState.OPEN
        self.closes_in_ms = 0
        """How long a connection that is not admitted stays."""
        self.last_heard = 0.0
        self.queue: deque[Request] = deque()
        self.held = 0
        self.ring: Ring | None = None
        self.fetch_under_way = NO_FETCH
        self.is_heavy = False
        self._processor = processor
        self._channel = processor.channel
        self._room = processor.channel.large
        self._limits = processor.limits
        self._monotonic = processor.clock.monotonic
        self._reader = FrameReader(processor.receive_views, self._room, processor.limits.frame_bytes_max)
        if processor.limits.login_bytes_max:
            self._reader.size_max = processor.limits.login_bytes_max
            self._reader.size_setting = "sasl.server.max.receive.size"
        self._writer = AnswerWriter(
            self._channel.unsent, self._monotonic, processor.limits.answer_timeout_s, self._count_unsent
        )
        self._order = AnswerOrder()
        self._transport: asyncio.Transport | None = None
        self.gate = processor.gate
        """What sees each frame first; None, as for nearly all frames: nothing."""
        self._reserved = 0  # bytes reserved for the answer of the current fetch
        self._is_consumer = False
        self._large_at = 0.0  # when the last large answer or long fetch came
        self._at_end: dict[int, Callable[[], object]] = {}  # by number: `at_end`; by its complement: `when_answered`
        self._when_ended: list[Callable[[], object]] = []
        self._is_reading = True  # the last state given to the transport
        self._is_paused = False
        self._paused_at = 0.0
        self._waits_for_room = False  # for room in the queue; the channel then calls `read_again`
        self._read_ahead = 0  # bytes that count as those of large frames
        self._sent_ahead = 0  # bytes read since the queue was last empty, without those of incomplete large frames
        self._muted_until = 0.0
        self._unmuting: asyncio.TimerHandle | None = None
        self._end_reason = ""
        self._ends_by = 0.0  # 0: it is not to end
        self._frame_began: float | None = None  # when the frame that is incomplete began
        self._large_size = 0  # of the large frame that arrives
        self._large_began = 0.0

    @property
    def is_open(self) -> bool:
        return self.state is ConnectionState.OPEN

    @property
    def is_idle(self) -> bool:
        """Whether it is open, and its client waits for nothing and sends nothing."""
        return self.is_open and self._frame_began is None and self._is_answered

    @property
    def _is_answered(self) -> bool:
        """Whether all requests that are here are answered, and no answer waits to be sent."""
        return not (self._order.in_flight or self._writer.unsent)

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
        self.remote_port = int(name[1]) if name and len(name) > 1 else 0
        turnstile = self._processor.turnstile
        if turnstile is None or turnstile.passes(self):
            self.begin()
        elif self.is_open:
            self.state = ConnectionState.WAITING
            self._reader.read_little()

    def begin(self) -> None:
        """Its turn among the new connections has come."""
        transport = self._transport
        if transport is None:
            return
        self.state = ConnectionState.OPEN
        self.last_heard = self._monotonic()
        if self._processor.admit(self):
            self._writer.begin(transport)
            if self._reader.held:
                self._read_frames()
        else:
            self.state = ConnectionState.CLOSED
            if not self.closes_in_ms:
                transport.abort()
                return
            # What it sends until then is read, and dropped.
            asyncio.get_running_loop().call_later(self.closes_in_ms / 1000, self.abort)
        if not (self._is_reading or self._is_paused or transport.is_closing()):
            self._is_reading = True
            transport.resume_reading()

    def has_left(self) -> bool:
        """As one of `turnstile.Arriving`."""
        if self._transport is None:
            return True
        used = self._transport.get_extra_info("socket")
        return used is not None and hung_up(used.fileno())

    def connection_lost(self, exc: Exception | None) -> None:
        self.state = ConnectionState.CLOSED
        self._processor.forget(self)
        self._reader.end()
        self._room.gone(self)
        self._room.read_ahead(-self._read_ahead)
        self._read_ahead = 0
        self._channel.gone(self)
        self._channel.unsent_changed(self._writer.end() - self._reserved)
        self._reserved = 0
        callbacks, self._at_end = self._at_end, {}
        for number, callback in callbacks.items():
            if number >= 0:
                callback()
        ended, self._when_ended = self._when_ended, []
        for callback in ended:
            callback()
        self._transport = None
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmuting = None
        # Requests that wait now came before the client closed the connection. They are handled: a producer with acks=0 sends and closes.
        self.release(~Hold.ASYNC_API)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_heard = self._monotonic()
        if self.state is not ConnectionState.OPEN:
            if self.state is ConnectionState.WAITING:
                self._keep_until_its_turn(nbytes)
            return
        self._reader.received(nbytes)
        if not self._large_size:
            self._sent_ahead = self._sent_ahead + nbytes if self.queue else nbytes
            self._read_frames()
            return
        self._room.grew(self, nbytes)
        if self._reader.next() == LARGE_ENDS:
            self._read_frames()
        elif not self._room.may_read(self) or self._room.waits_for_next_turn(self):
            self._pause()

    def _keep_until_its_turn(self, nbytes: int) -> None:
        """uvloop reads once, even if reading is paused when the connection is made."""
        self._reader.received(nbytes)
        self._reader.stop()
        if self._is_reading and self._transport is not None:
            self._is_reading = False
            self._transport.pause_reading()

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
        if self.state is not ConnectionState.OPEN:
            return
        plain = [part for part in parts if not isinstance(part, StoredBytes)]
        if len(plain) < len(parts):
            try:
                plain, is_large = self._writer.send_from_file(parts, is_next=number == self._order.answered)
            except KafkaError as error:
                self.close(f"the records of an answer could not be read: {error}")
                return
            if is_large:
                self._had_large_answer()
        self._answered(number, self._order.answer(number, plain))

    def answer_at_gate(self, parts: Sequence[Buffer]) -> None:
        """Called by the gate: answers the frame that it takes."""
        self.answer(self._order.next_number(), parts)

    def reads_no_more(self) -> None:
        """Called by the gate: the connection is closed soon, and what the client still sends does not matter."""
        self._pause()

    def has_logged_in(self, principal: Principal, *, is_by_token: bool) -> None:
        """From now on its frames may be as large as those of any client."""
        self.principal = principal
        self.is_by_token = is_by_token
        self._reader.size_max = self._limits.frame_bytes_max
        self._reader.size_setting = "socket.request.max.bytes"

    def certificate(self) -> bytes | None:
        """The client's own, in DER; None: it has shown none."""
        encrypted = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        return encrypted.getpeercert(binary_form=True) if encrypted is not None else None

    def answer_in_turn(self, number: int, make: Callable[[], Sequence[Buffer]]) -> None:
        """Like `answer`; `make` creates the answer when it can be sent at once."""
        if self.state is ConnectionState.OPEN:
            self._answered(number, self._order.answer_in_turn(number, make))

    def hold(self, reason: int) -> None:
        """No further request is handled until `release` (`Hold`)."""
        self.held |= reason
        if self._large_size and not self._room.may_read(self):
            self._pause()
            self._room.oldest_changed()

    def release(self, reason: int) -> None:
        """Ends one reason to hold requests. If it was the last one, the requests are handled, and reading continues."""
        self.held &= ~reason
        if self.held:
            return
        if self.queue and self.ring is None:
            self._channel.may_run(self)
        if self._is_paused:
            self.read_again()

    def mute(self, milliseconds: int) -> None:
        """Neither reads nor handles anything for so long, or longer if it is muted already. Answers are still sent (KIP-219)."""
        now = self._monotonic()
        until = now + milliseconds / 1000
        if self.state is not ConnectionState.OPEN:
            return
        self.last_heard = now  # it is answered now, so its time to be idle begins
        if until <= self._muted_until:
            return
        self._muted_until = until
        self.hold(Hold.THROTTLED)
        self._pause()
        if self._unmuting is None:
            self._unmuting = asyncio.get_running_loop().call_later(milliseconds / 1000, self._unmute)

    def _unmute(self) -> None:
        left = self._muted_until - self._monotonic()
        if left > 0:
            self._unmuting = asyncio.get_running_loop().call_later(left, self._unmute)
            return
        self._unmuting = None
        self.release(Hold.THROTTLED)

    def begin_fetch(self, request: Request, *, needs_room: bool) -> bool:
        """Returns False if the fetch must wait for the previous fetch or for room for its answer; it is then handled again. Also returns
        False if the connection has ended.

        A long fetch of a consumer waits among those of the heavy connections, so that hundreds of them delay nobody else. Kafka handles
        one request of a connection at a time. Here only fetches wait for each other, because their answers are large.
        """
        if self.state is not ConnectionState.OPEN:
            return False
        if self.fetch_under_way != NO_FETCH:
            self.hold(Hold.ANOTHER_FETCH)
        elif needs_room and not self.is_heavy and len(request.frame) > LONG_FETCH:
            self._becomes_heavy()
        elif needs_room and self._channel.unsent.is_exhausted:
            self.hold(Hold.NO_ROOM)
            self._channel.when_answers_are_taken(self)
        else:
            self.fetch_under_way = request.number
            self._is_consumer = needs_room
            return True
        if request.large_size and self.held and self._room.is_short:
            request.close(f"{request} has to wait, and others need its room (queued.max.request.bytes)")
            return False
        request.keeps_frame = request.waits_again = True
        self.queue.appendleft(request)
        if self.ring is not None:
            self.ring.queued += 1
        return False

    def reserve(self, size: int) -> None:
        """Reserves bytes for the answer of the current fetch."""
        if self.fetch_under_way != NO_FETCH and self.state is ConnectionState.OPEN:
            self._channel.unsent_changed(size - self._reserved)
            self._reserved = size

    def answer_room(self) -> int:
        """Bytes that the answer to a fetch may have; 0: as few as possible."""
        return self._channel.answer_room(self)

    def frame_handled(self, request: Request) -> None:
        """Releases the room of the request's frame, which is no longer needed."""
        size, request.large_size = request.large_size, 0
        self._room.release(size)

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
        """Closes only this connection. Answers that were written before are still sent; requests that wait are not handled."""
        if self.state is ConnectionState.OPEN:
            self.refuse(reason)
            self.drop_requests()

    def end_when_answered(self, reason: str) -> None:
        """Reads nothing more. The connection ends when the requests that are here are answered, at the latest after LAST_ANSWERS_S."""
        if self.state is ConnectionState.OPEN:
            self._end_reason = reason
            self._ends_by = self._ends_by or self._monotonic() + LAST_ANSWERS_S
            self._pause()
            self._end_if_answered()

    def _end_if_answered(self) -> None:
        if self._is_answered:
            self.close(self._end_reason)

    def abort(self) -> None:
        """Closes the connection at once. Answers that are not sent yet are dropped."""
        if self.state is ConnectionState.OPEN:
            self.state = ConnectionState.CLOSING
            self.drop_requests()
        if self._transport is not None:
            self._transport.abort()

    def read_again(self) -> None:
        """Continues paused reading, if nothing else forbids it; starts with the bytes that are here."""
        self._waits_for_room = False
        if not self._is_paused or self.state is not ConnectionState.OPEN or self.held & Hold.THROTTLED:
            return
        if self._ends_by:
            self._end_if_answered()
            return
        self._is_paused = False
        if not self.queue:
            self._sent_ahead = self._reader.held
        self.last_heard = now = self._monotonic()
        self._large_began += now - self._paused_at
        if self._frame_began is not None:
            self._frame_began += now - self._paused_at
        if not self._large_size:
            self._read_frames()
        elif not self._room.may_read(self):
            self._pause()
        if not (self._is_paused or self._is_reading) and self._transport is not None and self.is_open:
            self._is_reading = True
            self._transport.resume_reading()

    # -- internals --------------------------------------------------------------------------------------------------------

    def _read_frames(self) -> None:
        """Submits the whole frames that are here. The rest waits for more input, or becomes the start of a large frame."""
        reader, room = self._reader, self._room
        has_progressed = False
        try:
            while found := reader.next():
                size = 0
                if found == LARGE_ENDS:
                    size = room.finish(self)
                    self._large_size = 0
                elif self._must_wait(is_large=found != SMALL):
                    reader.stop()
                    self._pause()
                    break
                elif found == LARGE:
                    size = reader.size
                    room.arrived(size)
                    if room.waits_for_next_turn(self):
                        self._pause()
                has_progressed = True
                if found == LARGE_BEGINS:
                    self._begin_large()
                elif not self._submit(reader.take(), size):
                    return
        except IllegalFrame as error:
            self.refuse(str(error))
            return
        if reader.read_ahead != self._read_ahead:
            before, self._read_ahead = self._read_ahead, reader.read_ahead
            room.read_ahead(self._read_ahead - before)
        if not (reader.held or self._large_size):
            self._frame_began = None
        elif self._frame_began is None or has_progressed:
            self._frame_began = self.last_heard

    def _begin_large(self) -> None:
        """Gives a large frame a buffer of its own."""
        room = self._room
        self._large_size = self._reader.size
        self._large_began = self.last_heard
        room.began(self, self._large_size)
        room.grew(self, self._reader.begin_large())
        if not room.may_read(self):
            self._pause()

    def _must_wait(self, *, is_large: bool) -> bool:
        """Whether the next frame must wait: too many requests are in flight or queued, or the requests before it are held."""
        in_flight = self._order.received - self._order.answered
        if in_flight >= self._limits.in_flight_max or (self.held and (self.queue or is_large)):
            return True
        may_be_ahead = is_large or self._sent_ahead <= AHEAD_MAX or not self.queue
        if may_be_ahead and self._channel.has_room(self, in_flight):
            return False
        self._waits_for_room = True
        self._channel.when_there_is_room(self)
        return True

    def _submit(self, frame: bytes | memoryview, large_size: int) -> bool:
        """Submits a request. Returns False if the connection is closed: the header is invalid or refused (BAD-3, BAD-34)."""
        gate = self.gate
        if gate is not None and not gate(self, frame):
            self._room.release(large_size)
            return self.state is ConnectionState.OPEN
        try:
            header = parse_request_header(frame)
        except MalformedRequest as error:
            self._room.release(large_size)
            self.refuse(str(error))
            return False
        self._channel.put(Request(self, self._order.next_number(), header, frame, self.last_heard, large_size))
        return True

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._paused_at = self.last_heard
        if self._is_reading and self._transport is not None:
            self._is_reading = False
            self._transport.pause_reading()

    def refuse(self, reason: str) -> None:
        """Closes the connection because of its input: requests that came before are still handled. "" is not logged."""
        if reason:
            self._processor.log_closing("closing the connection of %s: %s", self.peer, reason)
        self._writer.flush()
        self.state = ConnectionState.CLOSING
        self._reader.end()
        if self._transport is not None:
            self._transport.close()

    def drop_requests(self) -> None:
        """The requests that wait are not handled."""
        if self.ring is not None:
            self.ring.queued -= len(self.queue)
        dropped = list(self.queue)
        self.queue.clear()
        for request in dropped:
            self._room.release(request.large_size)

    def _answered(self, number: int, ready: Sequence[Buffer]) -> None:
        if self._at_end:
            self._at_end.pop(number, None)
            answered = self._at_end.pop(~number, None)
            if answered is not None:
                answered()
        order, writer = self._order, self._writer
        if ready:
            if writer.add(ready):
                self._channel.flush_soon(writer)
            if writer.ready_size > WRITTEN_AT_ONCE:
                writer.flush()
                self._had_large_answer()
        if number == self.fetch_under_way:
            self._fetch_ended()
        if order.held_bytes != writer.early:
            self._count_early()
        if self._is_paused and not self.held:
            in_flight = order.in_flight
            if not in_flight or (not self._waits_for_room and in_flight <= self._limits.in_flight_max // 2):
                self.read_again()

    def _fetch_ended(self) -> None:
        self.fetch_under_way = NO_FETCH
        if self._reserved:
            self._channel.unsent_changed(-self._reserved)
            self._reserved = 0
        if self.held & Hold.ANOTHER_FETCH:
            self.release(Hold.ANOTHER_FETCH)

    def _had_large_answer(self) -> None:
        """Others come first for the rest of this turn."""
        if self._is_consumer:
            self._becomes_heavy()
        if not self.held & Hold.HAD_ITS_SHARE:
            self.hold(Hold.HAD_ITS_SHARE)
            self._channel.in_the_next_turn(self)

    def _becomes_heavy(self) -> None:
        """From now on its requests take turns among those of the heavy connections."""
        self._large_at = self.last_heard
        self.is_heavy = True

    def _count_early(self) -> None:
        """Counts the answers that wait for an earlier one, and holds the next requests while these have too many bytes."""
        writer, held_bytes = self._writer, self._order.held_bytes
        self._channel.unsent_changed(held_bytes - writer.early)
        writer.early = held_bytes
        if held_bytes > HELD_BYTES_MAX:
            self.hold(Hold.EARLY_ANSWERS)
        elif self.held & Hold.EARLY_ANSWERS:
            self.release(Hold.EARLY_ANSWERS)

    def _count_unsent(self) -> None:
        """Counts the bytes in the transport after a change, and holds the next requests while they are too many."""
        writer = self._writer
        self._channel.unsent_changed(writer.count())
        if writer.is_behind:
            self.hold(Hold.SLOW_CLIENT)
        elif not writer.unsent and self.held & Hold.SLOW_CLIENT:
            self.release(Hold.SLOW_CLIENT)

    def _keeps_room(self) -> bool:
        """Whether it has some of the room for large frames."""
        return bool(self._large_size or self._read_ahead or any(request.large_size for request in self.queue))

    def overdue(self, now: float) -> str:
        """The reason to close the connection now, or ""."""
        limits = self._limits
        if self._ends_by and (now > self._ends_by or self._is_answered):
            return self._end_reason
        if self.is_heavy and not self._order.in_flight and now - self._large_at > HEAVY_S:
            self.is_heavy = False
        if now - self.last_heard > REST_KEPT_S:
            self._reader.release()
        is_late = self._large_size > 0 and now - self._large_began > LARGE_FRAME_S
        if (is_late or self.held) and self._room.is_short:
            # A frame of the size of a producer's may be late because the broker has no room for it.
            if is_late and (self.held or not (self._is_paused and self._large_size <= MODEST_FRAME_MAX)):
                return (
                    f"a frame did not arrive within {LARGE_FRAME_S:g} s while others waited (queued.max.request.bytes)"
                )
            if any(request.large_size and now - request.received_at > LARGE_FRAME_S for request in self.queue):
                return (
                    f"a request waited {LARGE_FRAME_S:g} s for an earlier one, and others for its room"
                    " (queued.max.request.bytes)"
                )
            if self.held & Hold.THROTTLED and self._muted_until - now > LARGE_FRAME_S and self._keeps_room():
                return (
                    f"over a quota for {self._muted_until - now:.0f} s more, and others wait for the room of its requests"
                    " (queued.max.request.bytes)"
                )
        is_idle = limits.idle_timeout_s is not None and now - self.last_heard > limits.idle_timeout_s
        if is_idle and self.held & Hold.THROTTLED and not self._writer.unsent:
            # Nobody notices when its client is gone, as nothing is read. Kafka's Selector closes it when nothing was read or written.
            return f"idle for {limits.idle_timeout_s:g} s, and over a quota"
        if self._is_paused or self.held & Hold.ASYNC_API:
            return ""
        if self._frame_began is not None and now - self._frame_began > limits.frame_timeout_s:
            return f"a frame did not arrive within {limits.frame_timeout_s:g} s"
        if is_idle:
            # A client that reads an answer, however slowly, is not idle; `stalled` checks it.
            return f"idle for {limits.idle_timeout_s:g} s" if self._is_answered else ""
        return ""

    def stalled(self, now: float) -> str:
        """The reason to disconnect the client because of unread answers, or "". Called once per sweep."""
        if self._writer.unsent or self._writer.early:
            self._count_unsent()
        return self._writer.stalled(now)
