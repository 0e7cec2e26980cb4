"""The bounded queues between the processors and the request handler (NET-1, NET-2).

Requests that one turn of the loop reads are handled together right after it, in the order of arrival, without a task or a wake-up
per request. To let reading and writing continue in between, a turn handles at most `SLICE` requests of each queue, and
stops after a time. There are two queues. Requests of consumers that recently got a large answer or sent a long fetch are *heavy*: they have
their own queue, which comes second in each turn.

The memory of requests is bounded in two ways:

- Small frames: the connections of a processor share one receive buffer. Each connection keeps only the bytes of a read that are not
  requests yet, and has a limited number of requests in flight. Each of the two queues takes new requests only while it has fewer than
  `queued.max.requests`.
- Large frames: their bytes count from arrival until the request is handled, and are limited by `queued.max.request.bytes`. Above the
  limit, only the oldest incomplete large frame is read on, and frames up to MODEST_FRAME_MAX have a quarter more room. Small frames
  are read as usual: waiting producers depend on some of them. Meanwhile, a large frame must arrive within LARGE_FRAME_S of its
  start or of the last time that reading it resumed, unless it is paused and has at most MODEST_FRAME_MAX bytes. What a paused
  connection has read ahead, beyond the size of a small frame, counts as bytes of large frames, too.

When a request must wait with its connection, reading from this connection pauses.

Answers are bounded by `unsent` (`unsent_answers.py`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from broker.network.brief_polling import BriefPolling
from broker.network.kept_buffers import KeptBuffers
from broker.network.unsent_answers import UnsentAnswers
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import Buffer, Part, RequestHeader, response_header

log = logging.getLogger(__name__)

SLICE = 64
"""Limit of requests of each queue that one turn of the loop handles."""
SLICE_S = 0.005
"""Time limit for all ordinary requests of a turn; at least one is handled."""
HEAVY_SLICE_S = 0.001
"""Time limit for all heavy requests of a turn: one large answer, or some small ones."""
MODEST_FRAME_MAX = 2 * 1024 * 1024
"""Largest usual frame of a producer, in bytes. Such frames are *modest*: they have more room than larger ones."""
MODEST_EXTRA_DIVISOR = 4
"""The additional room of modest frames is `queued.max.request.bytes` divided by this number."""
LARGE_STEP_MAX = 1024 * 1024
LARGE_STEP_MIN = 64 * 1024
MANY_LARGE = 8
"""The buffer of a large frame grows at once by at most LARGE_STEP_MAX bytes. While MANY_LARGE or more arrive, the steps are smaller, down
to LARGE_STEP_MIN."""
LARGE_TURN_MAX = 8 * 1024 * 1024
"""Bytes of all large frames that are read in one turn of the loop. Connections with more bytes continue in the next turn."""
LONG_QUEUE = 8
"""While this many requests are queued, an answer to a fetch has at most ANSWER_IN_A_QUEUE bytes, so that their turn comes soon."""
ANSWER_IN_A_QUEUE = 1024 * 1024
WOKEN_AT_ONCE = 16
"""Limit of waiting fetches that one call of `wake_fetches` retries."""

NO_FRAME = memoryview(b"")
"""Replaces a request's frame after decoding, so that a waiting request does not keep it in memory."""


class Connection(Protocol):
    """The part of a connection that its requests and their handlers use."""

    listener: str
    remote_address: str
    hold: int
    waiting: deque[Request]
    fetch_under_way: int
    is_heavy: bool

    def wait_with(self, request: Request) -> None: ...

    def begin_fetch(self, request: Request, *, needs_room: bool) -> bool: ...

    def reserve(self, size: int) -> None: ...

    def answer_room(self) -> int: ...

    def frame_handled(self, request: Request) -> None: ...

    @property
    def is_open(self) -> bool: ...

    @property
    def peer(self) -> str: ...

    def answer(self, number: int, parts: Sequence[Buffer]) -> None: ...

    def answer_records(self, number: int, parts: Sequence[Part]) -> None: ...

    def answer_in_turn(self, number: int, make: Callable[[], Sequence[Buffer]]) -> None: ...

    def close(self, reason: str) -> None: ...

    def flush(self) -> None: ...

    def at_end(self, number: int, callback: Callable[[], object]) -> None: ...

    def when_answered(self, number: int, callback: Callable[[], object]) -> None: ...

    def when_ended(self, callback: Callable[[], object]) -> None: ...

    # Each of these methods ends one kind of wait. The connection may still wait for another reason.

    def requeue_waiting(self) -> None:
        """Ends the wait of the requests in `waiting`. The caller has removed a reason from `hold`."""

    def retry_fetch(self) -> None:
        """Ends the wait of a fetch for room for its answer (`when_answers_are_taken`)."""

    def renew_share(self) -> None:
        """Ends the wait for the next turn, after a large answer or a long fetch used up the share of this one (`in_the_next_turn`)."""

    def read_again(self) -> None:
        """Ends the wait for room: in a queue (`when_there_is_room`), or for more bytes of a large frame (`may_read_large`)."""

    def resume_large(self) -> None:
        """Ends the wait of a large frame for the next turn (`wait_for_next_large_turn`)."""


class Request:
    """One request. `frame` is everything after the length; exactly one of the seven ways to end it must be used."""

    __slots__ = ("connection", "frame", "header", "keeps_frame", "large_size", "number", "received_at")

    def __init__(
        self,
        connection: Connection,
        number: int,
        header: RequestHeader,
        frame: memoryview,
        received_at: float,
        large_size: int = 0,
    ) -> None:
        """`large_size`: bytes to return to the channel after handling; `keeps_frame`: the handler still needs the frame."""
        self.connection = connection
        self.number = number
        self.header = header
        self.frame = frame
        self.received_at = received_at
        self.large_size = large_size
        self.keeps_frame = False

    def respond(self, body: Sequence[Buffer]) -> None:
        """Sends the response with this body."""
        header = self.header
        head = response_header(header.api_key, header.api_version, header.correlation_id)
        size = len(head) + sum(map(len, body))
        self.connection.answer(self.number, (size.to_bytes(4, "big") + head, *body))

    def respond_small(self, body: bytes) -> None:
        """Like `respond`, for one small body: joined with its header, because that is cheaper than another buffer."""
        header = self.header
        head = response_header(header.api_key, header.api_version, header.correlation_id)
        self.connection.answer(self.number, ((len(head) + len(body)).to_bytes(4, "big") + head + body,))

    def respond_whole(self, frame: bytes) -> None:
        """Sends a response that has its length and its header already."""
        self.connection.answer(self.number, (frame,))

    def respond_records(self, body: Sequence[Part]) -> None:
        """Like `respond`, for a body that may have StoredBytes."""
        header = self.header
        head = response_header(header.api_key, header.api_version, header.correlation_id)
        size = len(head) + sum(map(len, body))
        self.connection.answer_records(self.number, (size.to_bytes(4, "big") + head, *body))

    def respond_in_turn(self, make: Callable[[], bytes]) -> None:
        """Like `respond_small`; `make` is called when all earlier requests of the connection are answered.

        For content that changes: an answer made now could be outdated when it is sent.
        """
        header = self.header
        head = response_header(header.api_key, header.api_version, header.correlation_id)

        def parts() -> Sequence[Buffer]:
            body = make()
            return ((len(head) + len(body)).to_bytes(4, "big") + head + body,)

        self.connection.answer_in_turn(self.number, parts)

    def respond_nothing(self) -> None:
        """Ends the request without a response (acks=0). Responses to later requests may then be sent."""
        self.connection.answer(self.number, ())

    def close(self, reason: str) -> None:
        """Closes the connection instead of responding."""
        self.connection.close(reason)

    def __str__(self) -> str:
        try:
            name = ApiKey(self.header.api_key).name
        except ValueError:
            name = f"api key {self.header.api_key}"
        return f"{name} v{self.header.api_version} of {self.connection.peer}"


class Turns(Protocol):
    """The part of an event loop that the channel needs."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> object: ...


class RequestChannel:
    """See the module's docstring. `handle` and `end_turn` must not block and not raise."""

    def __init__(
        self,
        turns: Turns,
        handle: Callable[[Request], None],
        *,
        max_requests: int,
        max_large_bytes: int,
        max_unsent_bytes: int = -1,
        monotonic: Callable[[], float] = time.monotonic,
        end_turn: Callable[[], None] = lambda: None,
    ) -> None:
        """`max_large_bytes`, `max_unsent_bytes`: -1 means no limit. `end_turn` completes what `handle` has left for the end of the turn."""
        self.unsent = UnsentAnswers(max_unsent_bytes)
        self._monotonic = monotonic
        self._waiting_for_unsent: dict[Connection, None] = {}
        self._turns = turns
        self._handle = handle
        self._end_turn = end_turn
        self._max_requests = max_requests
        self._crowd = max(1, max_requests // 4)
        self._max_large_bytes = max_large_bytes
        self._queue: deque[Request] = deque()
        self._heavy: deque[Request] = deque()
        self._heavy_for_room: dict[Connection, None] = {}
        self._is_scheduled = False
        self._is_draining = False
        self._polling = BriefPolling()
        self._with_answers: list[Connection] = []
        self._at_end: list[Callable[[], None]] = []
        self._had_their_share: list[Connection] = []
        self._waiting_for_room: dict[Connection, None] = {}
        self._large: dict[Connection, int] = {}
        self._large_of_turn = 0
        self._after_large_turn: dict[Connection, None] = {}
        self._modest: set[Connection] = set()
        self.large_bytes = 0
        self.kept = KeptBuffers()

    @property
    def queued(self) -> int:
        """Requests that wait to be handled."""
        return len(self._queue) + len(self._heavy)

    # -- requests ------------------------------------------------------------------------------------------------

    def has_room(self, connection: Connection, in_flight: int) -> bool:
        """Whether a connection with `in_flight` requests may have another. When the queue is crowded, each connection has one, so
        that a client that pipelines on hundreds of connections does not get ahead of others (BAD-5)."""
        queued = len(self._heavy if connection.is_heavy else self._queue)
        return queued < self._crowd or (not in_flight and queued < self._max_requests)

    def answer_room(self, connection: Connection) -> int:
        """Bytes that the answer to a fetch of this connection may have, given the unsent answers and the waiting requests."""
        room = self.unsent.room()
        if room > ANSWER_IN_A_QUEUE and len(self._heavy if connection.is_heavy else self._queue) >= LONG_QUEUE:
            return ANSWER_IN_A_QUEUE
        return room

    def put(self, request: Request) -> None:
        """Queues a new request. The next turn of the loop handles it, or a later one."""
        (self._heavy if request.connection.is_heavy else self._queue).append(request)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._polling.arrived(request.received_at)
            self._turns.call_soon(self._drain)

    def put_back(self, requests: deque[Request]) -> None:
        """Requeues requests that waited with their connection, ahead of all others: they came earlier."""
        if not requests:
            return
        (self._heavy if requests[0].connection.is_heavy else self._queue).extendleft(reversed(requests))
        if not self._is_scheduled:
            self._is_scheduled = True
            self._turns.call_soon(self._drain)

    def when_there_is_room(self, connection: Connection) -> None:
        """Calls `connection.read_again()` when the queue has room again."""
        (self._heavy_for_room if connection.is_heavy else self._waiting_for_room)[connection] = None

    def flush_soon(self, connection: Connection) -> None:
        """`connection` has answers to write: they are sent together when this turn's requests are handled."""
        self._with_answers.append(connection)
        if not self._is_draining and len(self._with_answers) == 1:
            self._turns.call_soon(self._flush)

    def at_end_of_turn(self, callback: Callable[[], None]) -> None:
        """Calls back after `end_turn`, before the answers of this turn are written. Between two turns: in the next one."""
        if self._is_draining:
            self._at_end.append(callback)
        else:
            self._turns.call_soon(callback)

    def in_the_next_turn(self, connection: Connection) -> None:
        """Calls `connection.renew_share()` in the next turn, because the connection used up its share of this one."""
        if not self._had_their_share:
            self._turns.call_soon(self._next_shares)
        self._had_their_share.append(connection)

    def becomes_heavy(self, connection: Connection) -> None:
        """Moves the connection's requests from the ordinary queue back to the connection, so that they stay in order."""
        queue = self._queue
        others = [request for request in queue if request.connection is not connection]
        if len(others) < len(queue):
            mine = [request for request in queue if request.connection is connection]
            queue.clear()
            queue.extend(others)
            for request in mine:
                connection.wait_with(request)

    def _next_shares(self) -> None:
        connections, self._had_their_share = self._had_their_share, []
        for connection in connections:
            connection.renew_share()

    def put_last(self, requests: deque[Request]) -> None:
        """Requeues requests of a connection that had its share, behind those of others."""
        if not requests:
            return
        (self._heavy if requests[0].connection.is_heavy else self._queue).extend(requests)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._turns.call_soon(self._drain)

    def _flush(self) -> None:
        ready, self._with_answers = self._with_answers, []
        for connection in ready:
            connection.flush()

    def _call_back(self) -> None:
        callbacks, self._at_end = self._at_end, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                # The boundary, as the loop's own for a callback: the requests of the next turns must be handled.
                log.exception("a callback at the end of a turn failed")
        later, self._at_end = self._at_end, []
        for callback in later:
            self._turns.call_soon(callback)

    def _drain(self) -> None:
        self._is_draining = True
        began = self._monotonic()
        if self._queue:
            self._handle_some(self._queue, began + SLICE_S)
        if self._heavy:
            self._handle_some(self._heavy, self._monotonic() + HEAVY_SLICE_S)
        self._end_turn()
        if self._at_end:
            self._call_back()
        self._is_draining = False
        self._flush()
        if self._queue or self._heavy:
            self._turns.call_soon(self._drain)
        else:
            self._is_scheduled = False
            polling = self._polling
            polling.turn_ended(began, self._monotonic())
            if polling.is_on:
                self._turns.call_soon(self._poll)
        if self._waiting_for_room and len(self._queue) <= self._max_requests // 2:
            waiting, self._waiting_for_room = self._waiting_for_room, {}
            left = self._read_again(waiting, self._queue)
            self._waiting_for_room = left | self._waiting_for_room
        if self._heavy_for_room and len(self._heavy) <= self._max_requests // 2:
            waiting, self._heavy_for_room = self._heavy_for_room, {}
            left = self._read_again(waiting, self._heavy)
            self._heavy_for_room = left | self._heavy_for_room

    def _poll(self) -> None:
        """The loop looks at its sockets after each callback. Does nothing else, until a request has come or it takes too long."""
        if not self._is_scheduled and self._polling.goes_on(self._monotonic()):
            self._turns.call_soon(self._poll)

    def _read_again(self, waiting: dict[Connection, None], queue: deque[Request]) -> dict[Connection, None]:
        """Reads the longest-waiting connections until the queue is full. Returns the rest, which stay ahead of new waiters."""
        connections = iter(waiting)
        for connection in connections:
            connection.read_again()
            if len(queue) >= self._max_requests:
                break
        return dict.fromkeys(connections)

    def _handle_some(self, queue: deque[Request], ends_at: float) -> None:
        """Handles at least one request."""
        monotonic = self._monotonic
        left = SLICE
        while queue:
            request = queue.popleft()
            connection = request.connection
            if connection.hold or connection.waiting:
                connection.wait_with(request)
                continue
            self._handle(request)
            if request.large_size and not request.keeps_frame:
                connection.frame_handled(request)
            left -= 1
            if not left or monotonic() > ends_at:
                break

    # -- unread answers -----------------------------------------------------------------------------------------------------

    def when_answers_are_taken(self, connection: Connection) -> None:
        """Calls `connection.retry_fetch()` when there is room for another fetch."""
        self._waiting_for_unsent[connection] = None

    def unsent_changed(self, by: int) -> None:
        """A connection's unsent answers changed by `by` bytes."""
        self.unsent.total += by
        if self._waiting_for_unsent and by < 0 and not self.unsent.is_exhausted:
            self._turns.call_soon(self.wake_fetches)

    def wake_fetches(self) -> None:
        """Wakes the longest-waiting fetches. They may have to wait again."""
        for connection in list(self._waiting_for_unsent)[:WOKEN_AT_ONCE]:
            if self.unsent.is_exhausted:
                return
            del self._waiting_for_unsent[connection]
            connection.retry_fetch()

    def gone(self, connection: Connection) -> None:
        """The connection ended: it no longer waits for room. Its queued requests stay; `large_ended` releases its incomplete frame."""
        self._waiting_for_unsent.pop(connection, None)
        self._waiting_for_room.pop(connection, None)
        self._heavy_for_room.pop(connection, None)

    # -- large frames --------------------------------------------------------------------------------------------

    def large_step(self) -> int:
        """Maximum bytes by which a large frame's buffer grows at once: less while many arrive, since all may be read in one turn."""
        return max(LARGE_STEP_MAX // (1 + len(self._large) // MANY_LARGE), LARGE_STEP_MIN)

    def may_read_large(self, connection: Connection) -> bool:
        """False: the connection must wait for `read_again`, because there is no room for more bytes of its frame."""
        most = self._max_large_bytes
        if most < 0 or self.large_bytes < most:
            return True
        if connection in self._modest and self.large_bytes < most + most // MODEST_EXTRA_DIVISOR:
            return True
        return next(iter(self._large), connection) is connection

    @property
    def is_short_of_room(self) -> bool:
        """Whether large frames have reached `queued.max.request.bytes`."""
        return 0 <= self._max_large_bytes <= self.large_bytes

    def large_began(self, connection: Connection, size: int) -> None:
        """A large frame started; `size` is that of the whole frame."""
        self._large[connection] = 0
        if size <= MODEST_FRAME_MAX:
            self._modest.add(connection)

    def large_grew(self, connection: Connection, size: int) -> None:
        """`size` more bytes have arrived."""
        if not self._large_of_turn:
            self._turns.call_soon(self._resume_all_large)
        self._large_of_turn += size
        self._large[connection] += size
        self.large_bytes += size

    def large_arrived(self, size: int) -> None:
        """A large frame of `size` bytes came with one read. Its request carries them as `large_size`."""
        if not self._large_of_turn:
            self._turns.call_soon(self._resume_all_large)
        self._large_of_turn += size
        self.large_bytes += size

    def read_ahead(self, by: int) -> None:
        """The bytes that wait unhandled with a connection, beyond those of a small frame, changed by `by`."""
        if by < 0:
            self.large_handled(-by)
        else:
            self.large_bytes += by

    def wait_for_next_large_turn(self, connection: Connection) -> bool:
        """Returns True if large frames had their share of this turn; the connection then waits until `resume_large` is called."""
        if self._large_of_turn < LARGE_TURN_MAX:
            return False
        self._after_large_turn[connection] = None
        return True

    def _resume_all_large(self) -> None:
        self._large_of_turn = 0
        waiting, self._after_large_turn = self._after_large_turn, {}
        for connection in waiting:
            connection.resume_large()

    def finish_large(self, connection: Connection) -> int:
        """The frame is complete. Returns its bytes: they still count, and its request carries them as `large_size`."""
        self._modest.discard(connection)
        return self._large.pop(connection)

    def large_ended(self, connection: Connection) -> None:
        """The connection ended: releases the room of its incomplete large frame, if there is one."""
        self._modest.discard(connection)
        self.large_handled(self._large.pop(connection, 0))

    def large_handled(self, size: int) -> None:
        """Releases the room of `size` bytes."""
        self.large_bytes -= size
        if self._max_large_bytes >= 0:
            for connection in list(self._large):
                if self.may_read_large(connection):
                    connection.read_again()
