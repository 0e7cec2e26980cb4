"""Requests take turns: one queue for each connection, and a round robin over the connections that may run (NET-1, NET-2).

Requests that one turn of the loop reads are handled right after it, without a task or a wake-up per request. Each connection has its
requests in the order in which they came, and only the first of them can be handled. A connection is in a *ring* while it has requests
and nothing holds them; in its turn one of them is handled, and it goes to the end of its ring. There are two rings. Consumers that
recently got a large answer or sent a long fetch are *heavy*: theirs comes second in each turn of the loop.

To let reading and writing continue in between, a turn of the loop handles at most `SLICE` requests of each ring, and stops after a time.

Memory is bounded: while a ring has a quarter of `queued.max.requests` or more, each connection may have one request, and a connection has
a limited number in flight; for large frames see `large_frames.py`, for answers `unsent_answers.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from broker.network.answer_writer import AnswerWriter
from broker.network.brief_polling import BriefPolling
from broker.network.connection_state import Hold
from broker.network.large_frames import LargeFrames, Turns
from broker.network.unsent_answers import UnsentAnswers
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import Part, RequestHeader, response_header
from protocol.types import Buffer, ClientSoftware, Principal

log = logging.getLogger(__name__)

SLICE: Final = 64
"""Limit of requests of each ring that one turn of the loop handles."""
SLICE_S: Final = 0.005
"""Time limit for all ordinary requests of a turn; at least one is handled."""
HEAVY_SLICE_S: Final = 0.001
"""Time limit for all heavy requests of a turn: one large answer, or some small ones."""
LONG_QUEUE: Final = 8
"""While this many requests are queued, an answer to a fetch has at most ANSWER_IN_A_QUEUE bytes, so that their turn comes soon."""
ANSWER_IN_A_QUEUE: Final = 1024 * 1024
WOKEN_AT_ONCE: Final = 16
"""Limit of waiting fetches that one call of `wake_fetches` retries."""

NO_FRAME: Final = b""
"""Replaces a request's frame after decoding, so that a waiting request does not keep it in memory."""


class Connection(asyncio.BufferedProtocol):
    """The part of a connection that the channel, its requests and their handlers use. `ClientConnection` describes it.

    A class, not a Protocol: compiled code calls its methods and reads its fields without a look-up by name. Fakes need not inherit.
    """

    listener: str
    remote_address: str
    principal: Principal
    is_by_token: bool
    """Whether the client has logged in by a delegation token."""
    software: ClientSoftware
    remote_port: int
    queue: deque[Request]
    """The requests that wait, in the order in which they came."""
    held: int
    """Why they may not be handled now (`Hold`); 0: they may."""
    ring: Ring | None
    """Where the connection takes turns. The channel sets it."""
    is_heavy: bool

    @property
    def is_open(self) -> bool:
        raise NotImplementedError

    @property
    def peer(self) -> str:
        raise NotImplementedError

    def hold(self, reason: int) -> None:
        raise NotImplementedError

    def release(self, reason: int) -> None:
        raise NotImplementedError

    def mute(self, milliseconds: int) -> None:
        raise NotImplementedError

    def read_again(self) -> None:
        raise NotImplementedError

    def begin_fetch(self, request: Request, *, needs_room: bool) -> bool:
        raise NotImplementedError

    def reserve(self, size: int) -> None:
        raise NotImplementedError

    def answer_room(self) -> int:
        raise NotImplementedError

    def frame_handled(self, request: Request) -> None:
        raise NotImplementedError

    def answer(self, number: int, parts: Sequence[Buffer]) -> None:
        raise NotImplementedError

    def answer_records(self, number: int, parts: Sequence[Part]) -> None:
        raise NotImplementedError

    def answer_in_turn(self, number: int, make: Callable[[], Sequence[Buffer]]) -> None:
        raise NotImplementedError

    def close(self, reason: str) -> None:
        raise NotImplementedError

    def at_end(self, number: int, callback: Callable[[], object]) -> None:
        raise NotImplementedError

    def when_answered(self, number: int, callback: Callable[[], object]) -> None:
        raise NotImplementedError

    def when_ended(self, callback: Callable[[], object]) -> None:
        raise NotImplementedError


CLIENT_ID_SHOWN_MAX: Final = 100
OLD_CLIENTS: Final = "; docs/CLIENTS.md has a chapter on old clients"
"""The end of a line in the log about a client whose version of an API is too old."""


class Toll(Protocol):
    """What the answer to a request costs its client."""

    def paid(self, request: Request, body: Sequence[Buffer]) -> Sequence[Buffer]:
        """The body of the answer, with the throttle time."""
        ...


class Request:
    """One request. `frame` is everything after the length; exactly one of the seven ways to end it must be used."""

    __slots__ = (
        "connection",
        "frame",
        "header",
        "keeps_frame",
        "large_size",
        "number",
        "received_at",
        "toll",
        "waits_again",
    )

    def __init__(
        self,
        connection: Connection,
        number: int,
        header: RequestHeader,
        frame: bytes | memoryview,
        received_at: float,
        large_size: int = 0,
    ) -> None:
        """`large_size`: bytes whose room is released after handling; `keeps_frame`: the frame is still needed; `waits_again`: the
        request went back to its connection, to be handled later (`begin_fetch`)."""
        self.connection = connection
        self.number = number
        self.header = header
        self.frame = frame
        self.received_at = received_at
        self.large_size = large_size
        self.keeps_frame = False
        self.waits_again = False
        self.toll: Toll | None = None
        """None: nothing, as for nearly all requests."""

    def respond(self, body: Sequence[Buffer]) -> None:
        """Sends the response with this body."""
        if self.toll is not None:
            body = self.toll.paid(self, body)
        header = self.header
        head = response_header(header.api_key, header.api_version, header.correlation_id)
        size = len(head) + sum(map(len, body))
        self.connection.answer(self.number, (size.to_bytes(4, "big") + head, *body))

    def respond_small(self, body: bytes) -> None:
        """Like `respond`, for one small body: joined with its header, because that is cheaper than another buffer."""
        if self.toll is not None:
            body = b"".join(self.toll.paid(self, (body,)))
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
            if self.toll is not None:
                body = b"".join(self.toll.paid(self, (body,)))
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

    def named(self) -> str:
        """Like `str`, with the client id: for lines by which a person looks for the client."""
        client_id = self.header.client_id
        return f"{self}, client id {None if client_id is None else client_id[:CLIENT_ID_SHOWN_MAX]!r}"


class Ring:
    """Connections that take turns, and those that wait until fewer of its requests are queued."""

    __slots__ = ("connections", "for_room", "queued")

    def __init__(self) -> None:
        self.connections: deque[Connection] = deque()
        self.queued = 0
        """The requests of all these connections."""
        self.for_room: dict[Connection, None] = {}


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
        self.large = LargeFrames(turns, max_large_bytes)
        self.unsent = UnsentAnswers(max_unsent_bytes)
        self._monotonic = monotonic
        self._turns = turns
        self._handle = handle
        self._end_turn = end_turn
        self._crowd = max(1, max_requests // 4)
        self._usual = Ring()
        self._heavy = Ring()
        self._for_answers: dict[Connection, None] = {}
        self._is_scheduled = False
        self._is_draining = False
        self._polling = BriefPolling()
        self._with_answers: list[AnswerWriter] = []
        self._at_end: list[Callable[[], None]] = []
        self._had_their_share: list[Connection] = []

    @property
    def queued(self) -> int:
        """Requests that wait to be handled."""
        return self._usual.queued + self._heavy.queued

    # -- requests ------------------------------------------------------------------------------------------------

    def has_room(self, connection: Connection, in_flight: int) -> bool:
        """Whether a connection with `in_flight` requests may have another. When its ring is crowded, each connection has one, so
        that a client that pipelines on hundreds of connections does not get ahead of others (BAD-5).

        That one is never refused: its bytes are here already, and it waits for one round of the connections. Otherwise thousands of
        connections that were held, each with a full pipeline, would keep everybody else waiting when they are released together.
        """
        return not in_flight or (self._heavy if connection.is_heavy else self._usual).queued < self._crowd

    def when_there_is_room(self, connection: Connection) -> None:
        """Calls `connection.read_again()` when its ring has room again."""
        (self._heavy if connection.is_heavy else self._usual).for_room[connection] = None

    def put(self, request: Request) -> None:
        """Adds a new request. The next turn of the loop handles it, or a later one."""
        if not self._is_scheduled:
            self._polling.arrived(request.received_at)
        connection = request.connection
        connection.queue.append(request)
        ring = connection.ring
        if ring is not None:
            ring.queued += 1
        elif not connection.held:
            self.may_run(connection)

    def may_run(self, connection: Connection) -> None:
        """Nothing holds the connection's requests any more, and it is in no ring."""
        connection.ring = ring = self._heavy if connection.is_heavy else self._usual
        ring.connections.append(connection)
        ring.queued += len(connection.queue)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._turns.call_soon(self._drain)

    def in_the_next_turn(self, connection: Connection) -> None:
        """Releases the connection in the next turn, because it used up its share of this one."""
        if not self._had_their_share:
            self._turns.call_soon(self._next_shares)
        self._had_their_share.append(connection)

    def at_end_of_turn(self, callback: Callable[[], None]) -> None:
        """Calls back after `end_turn`, before the answers of this turn are written. Between two turns: in the next one."""
        if self._is_draining:
            self._at_end.append(callback)
        else:
            self._turns.call_soon(callback)

    def gone(self, connection: Connection) -> None:
        """The connection ended: it waits for no room."""
        self._for_answers.pop(connection, None)
        self._usual.for_room.pop(connection, None)
        self._heavy.for_room.pop(connection, None)

    def _next_shares(self) -> None:
        connections, self._had_their_share = self._had_their_share, []
        for connection in connections:
            connection.release(Hold.HAD_ITS_SHARE)

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
        usual, heavy = self._usual, self._heavy
        began = self._monotonic()
        if usual.connections:
            self._run(usual, began + SLICE_S)
        if heavy.connections:
            self._run(heavy, self._monotonic() + HEAVY_SLICE_S)
        self._end_turn()
        if self._at_end:
            self._call_back()
        self._is_draining = False
        self._flush()
        if usual.connections or heavy.connections:
            self._turns.call_soon(self._drain)
        else:
            self._is_scheduled = False
            polling = self._polling
            polling.turn_ended(began, self._monotonic())
            if polling.is_on:
                self._turns.call_soon(self._poll)
        if usual.for_room:
            self._read_again(usual)
        if heavy.for_room:
            self._read_again(heavy)

    def _run(self, ring: Ring, ends_at: float) -> None:
        """Handles requests of a ring, at least one if there is one."""
        monotonic = self._monotonic
        handle = self._handle
        connections = ring.connections
        left = SLICE
        while connections:
            connection = connections.popleft()
            queue = connection.queue
            if connection.held or not queue:
                self._leave(connection, ring)
                continue
            request = queue.popleft()
            ring.queued -= 1
            if request.large_size:
                request.keeps_frame = request.waits_again = False  # it may have gone back to its connection before
            handle(request)
            if request.large_size and not request.keeps_frame:
                connection.frame_handled(request)
            if not queue:
                connection.ring = None
            elif connection.is_heavy is (ring is self._heavy):
                connections.append(connection)
            else:
                self._leave(connection, ring)
                self.may_run(connection)
            left -= 1
            if not left or monotonic() > ends_at:
                break

    def _leave(self, connection: Connection, ring: Ring) -> None:
        ring.queued -= len(connection.queue)
        connection.ring = None

    def _read_again(self, ring: Ring) -> None:
        """Reads the longest-waiting connections until the ring is crowded. The rest stay ahead of new waiters."""
        if ring.queued >= self._crowd:
            return
        waiting, ring.for_room = ring.for_room, {}
        connections = iter(waiting)
        for connection in connections:
            connection.read_again()
            if ring.queued >= self._crowd:
                break
        ring.for_room = dict.fromkeys(connections) | ring.for_room

    def _poll(self) -> None:
        """The loop looks at its sockets after each callback. Does nothing else, until a request has come or it takes too long."""
        if not self._is_scheduled and self._polling.goes_on(self._monotonic()):
            self._turns.call_soon(self._poll)

    # -- answers ------------------------------------------------------------------------------------------------------------

    def flush_soon(self, answers: AnswerWriter) -> None:
        """`answers` are ready: they are written together when this turn's requests are handled."""
        self._with_answers.append(answers)
        if not self._is_draining and len(self._with_answers) == 1:
            self._turns.call_soon(self._flush)

    def _flush(self) -> None:
        ready, self._with_answers = self._with_answers, []
        for answers in ready:
            answers.flush()

    def answer_room(self, connection: Connection) -> int:
        """Bytes that the answer to a fetch of this connection may have, given the unsent answers and the waiting requests."""
        room = self.unsent.room()
        if room > ANSWER_IN_A_QUEUE and (self._heavy if connection.is_heavy else self._usual).queued >= LONG_QUEUE:
            return ANSWER_IN_A_QUEUE
        return room

    def when_answers_are_taken(self, connection: Connection) -> None:
        """Releases the connection when there is room for the answer to another fetch."""
        self._for_answers[connection] = None

    def unsent_changed(self, by: int) -> None:
        """A connection's unsent answers changed by `by` bytes."""
        self.unsent.total += by
        if self._for_answers and by < 0 and not self.unsent.is_exhausted:
            self._turns.call_soon(self.wake_fetches)

    def wake_fetches(self) -> None:
        """Wakes the longest-waiting fetches. They may have to wait again."""
        for connection in list(self._for_answers)[:WOKEN_AT_ONCE]:
            if self.unsent.is_exhausted:
                return
            del self._for_answers[connection]
            connection.release(Hold.NO_ROOM)
