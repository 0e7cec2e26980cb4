"""One connection of a client, and the connection to a broker that continues it.

    client --request--> RuleBook.hit --> an error in place of the work | dropped | the connections end | forwarded, perhaps another one
    broker --answer---> addresses of the proxy --> what the rule does --> client, in the order of the requests

A request that is lost makes the connection *silent*, as at a broker with rules (`broker/fault_injection`): nothing behind it arrives.
It ends when its rule does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from protocol.conversation.asked import Asked, has_answer
from protocol.conversation.rule import Rule
from protocol.conversation.rule_book import Change, Hit
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest, RequestHeader, parse_request_header, response_header
from protocol.kafka.wire import INT
from tools.links import advertised
from tools.links.frames import ANSWER_BYTES_MAX, LENGTH, REQUEST_BYTES_MAX, Frame, Frames, framed

if TYPE_CHECKING:
    from tools.links.proxy import Broker, Proxy

CONNECT_TIMEOUT_S = 10.0
WAITING_MAX = 1000
"""Requests of a connection that wait for their answers. More are not read."""
HELD_BYTES_MAX = 16 * 1024 * 1024
"""Answers that wait for an earlier one, which is late. More are not read."""

log = logging.getLogger("links")


class Side(asyncio.Protocol):
    """A socket. It is not read while there is a reason (`hold`). What comes in spite of that, and its end, wait until there is none:
    uvloop reads from a new connection whatever it is told.
    """

    def __init__(
        self, received: Callable[[bytes], None], lost: Callable[[], None], room: Callable[[bool], None]
    ) -> None:
        """`room`: is there room for more bytes to write?"""
        self.transport: asyncio.Transport | None = None
        self._received, self._lost, self._room = received, lost, room
        self._holds: set[str] = set()
        self._kept: deque[bytes] = deque()
        self._is_delivering = self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._kept.append(data)
        if self._holds and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self._deliver()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = True
        self._deliver()

    def _deliver(self) -> None:
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            while self._kept and not self._holds:
                self._received(self._kept.popleft())
        finally:
            self._is_delivering = False
        if self._has_ended and not self._kept:
            self._lost()

    def pause_writing(self) -> None:
        self._room(False)

    def resume_writing(self) -> None:
        self._room(True)

    def hold(self, reason: str) -> None:
        if not self._holds and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self._holds.add(reason)

    def release(self, reason: str) -> None:
        if reason not in self._holds:
            return
        self._holds.discard(reason)
        if not self._holds:
            if self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()
            self._deliver()

    def held_if(self, is_held: bool, reason: str) -> None:
        if is_held:
            self.hold(reason)
        else:
            self.release(reason)

    def write(self, data: Frame) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """What was written still leaves."""
        if self.transport is not None:
            self.transport.close()


@dataclass(slots=True, eq=False)
class Waiting:
    """A request without an answer yet, or with one that must not leave yet. `is_asked`: the broker has not answered."""

    header: RequestHeader
    hit: Hit | None = None
    is_asked: bool = True
    answer: Frame | None = None
    """Ready to leave."""

    @property
    def change(self) -> Change | None:
        return None if self.hit is None else self.hit.change


class Connection:
    """`client` is the protocol of the client's socket. `brokers`: the first that accepts a connection is used."""

    def __init__(self, proxy: Proxy, brokers: Sequence[Broker]) -> None:
        self._proxy = proxy
        self._brokers = brokers
        self._broker: Broker | None = None
        self.client = Side(self._from_client, self.close, self._client_has_room)
        self._upstream = self._new_upstream()
        self._requests, self._answers = Frames(REQUEST_BYTES_MAX), Frames(ANSWER_BYTES_MAX)
        self._waiting: deque[Waiting] = deque()
        self._asked: deque[Waiting] = deque()
        self._held_bytes = 0
        self._muted_until = 0.0
        self._drops_requests = self._is_silent = self._is_closed = self._upstream_has_ended = False
        self.client.hold("connecting")

    @property
    def is_idle(self) -> bool:
        """Whether the client waits for nothing."""
        return self._broker is not None and not self._waiting and self._requests.is_between

    @property
    def held_bytes(self) -> int:
        """Of answers that must not leave yet."""
        return self._held_bytes

    def _client_has_room(self, room: bool) -> None:
        """A client that does not read is not read, too: some of its requests are answered here."""
        self._upstream.held_if(not room, "client")
        self.client.held_if(not room, "client")

    def _new_upstream(self) -> Side:
        return Side(self._from_broker, self._broker_ended, lambda room: self.client.held_if(not room, "broker"))

    async def run(self) -> None:
        """Connects to a broker; without one, the client's connection ends."""
        for broker in self._brokers:
            self._upstream = self._new_upstream()
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await asyncio.get_running_loop().create_connection(lambda: self._upstream, *broker.address)
            except (OSError, UnicodeError, OverflowError) as problem:
                broker.refuses(str(problem) or "no answer")
                continue
            broker.is_refusing = False
            if self._is_closed:
                self._upstream.close()
                return
            self._broker = broker
            broker.connections.add(self)
            self.client.release("connecting")
            return
        self.close()

    def close(self, why: str = "") -> None:
        """Ends both connections; what was written still leaves."""
        if self._is_closed:
            return
        self._is_closed = True
        if why:
            log.warning("a connection ends: %s", why)
        if self._broker is not None:
            self._broker.connections.discard(self)
            self._broker.silent.pop(self, None)
        self.client.close()
        self._upstream.close()
        self._proxy.connections.discard(self)

    # -- requests -------------------------------------------------------------------------------------------------------

    def _from_client(self, data: bytes) -> None:
        if self._drops_requests or self._is_closed:
            return
        try:
            for frame in self._requests.feed(data):
                self._take(frame)
                if self._drops_requests or self._is_closed:
                    return
        except MalformedRequest as problem:
            self.close(f"a request cannot be read: {problem}")

    def _take(self, frame: Frame) -> None:
        payload = memoryview(frame)[LENGTH.size :]
        header = parse_request_header(payload)
        hit = self._hit(Asked(header, payload, self._proxy.topic_name))
        if hit is not None:
            if hit.closes:
                self.close()
                return
            if hit.drops and hit.rule is not None:
                self._drops_requests = True
                self._falls_silent(hit.rule)
                return
            if hit.body is not None:
                if not has_answer(header, payload):
                    self.close()  # as Kafka does, since nothing can be answered
                    return
                head = response_header(header.api_key, header.api_version, header.correlation_id)
                self._waiting.append(Waiting(header, hit, is_asked=False, answer=framed(head, hit.body)))
                self._send_answers()
                return
            if hit.frame is not None:
                frame = framed(hit.frame)
        if has_answer(header, payload):
            waiting = Waiting(header, hit)
            self._waiting.append(waiting)
            self._asked.append(waiting)
            self.client.held_if(len(self._waiting) >= WAITING_MAX, "waiting")
        self._upstream.write(frame)

    def _hit(self, asked: Asked) -> Hit | None:
        broker = self._broker
        if broker is None:
            return None
        try:
            hit = broker.book.hit(asked)
        except Exception:
            # The boundary of the fault: the request is forwarded as it is.
            log.exception("rules cannot be applied to a request of API %d", asked.header.api_key)
            return None
        if hit is not None:
            self._tell(hit.rule, asked.header)
        return hit

    def _tell(self, rule: Rule | None, header: RequestHeader) -> None:
        if self._broker is not None and rule is not None:
            address = self.client.transport.get_extra_info("peername") if self.client.transport is not None else None
            self._broker.tell(rule, header, f"{address[0]}:{address[1]}" if address else "")

    # -- answers --------------------------------------------------------------------------------------------------------

    def _from_broker(self, data: bytes) -> None:
        if self._is_silent or self._is_closed:
            return
        try:
            for frame in self._answers.feed(data):
                self._answered(frame)
                if self._is_silent or self._is_closed:
                    return
        except (MalformedRequest, OSError) as problem:
            self.close(f"an answer cannot be passed on: {problem}")
        except Exception:
            # The boundary of the connection: without its answer, the client would wait for ever.
            log.exception("an answer cannot be passed on")
            self.close()

    def _answered(self, frame: Frame) -> None:
        """Raises MalformedRequest; OSError if there is no port for a broker that it names."""
        if not self._asked or len(frame) < 2 * LENGTH.size:
            raise MalformedRequest("nobody has asked for it")
        waiting = self._asked.popleft()
        header, change = waiting.header, waiting.change
        if INT.unpack_from(frame, LENGTH.size)[0] != header.correlation_id:
            raise MalformedRequest("it is not the answer to the oldest request")
        waiting.is_asked = False
        key, version = header.api_key, header.api_version
        if key == ApiKey.METADATA:
            self._proxy.learn_from(version, frame)
        if advertised.names_brokers(key, version):
            if advertised.is_readable(key, version):
                frame = advertised.rewritten(key, version, frame, self._proxy.moved)
            else:
                log.warning("%s v%d is newer than these links: its addresses pass", messages.api_name(key), version)
        if waiting.hit is not None:
            try:
                for each in waiting.hit.changes:
                    frame = each.rewritten(key, version, frame)
            except Exception:
                # The boundary of the fault: the answer is sent as it is.
                log.exception("the answer to %s cannot be changed", messages.api_name(key))
            self._tell(waiting.hit.late_rule, header)
        self._held_bytes += len(frame)
        self._upstream.held_if(self._held_bytes > HELD_BYTES_MAX, "held")
        if change is not None and change.delay_s > 0:
            asyncio.get_running_loop().call_later(change.delay_s, self._is_due, waiting, frame)
        else:
            self._is_due(waiting, frame)

    def _is_due(self, waiting: Waiting, frame: Frame) -> None:
        waiting.answer = frame
        self._send_answers()

    def _send_answers(self) -> None:
        """Those that are next."""
        while self._waiting and not self._is_closed and not self._is_silent:
            waiting = self._waiting[0]
            if waiting.answer is None:
                if waiting.is_asked and self._upstream_has_ended:
                    self.close()
                break
            self._waiting.popleft()
            self._send(waiting, waiting.answer)
        if self._upstream_has_ended and not self._waiting:
            self.close()
        self.client.held_if(len(self._waiting) >= WAITING_MAX, "waiting")
        self._upstream.held_if(self._held_bytes > HELD_BYTES_MAX, "held")

    def _send(self, waiting: Waiting, frame: Frame) -> None:
        hit, change = waiting.hit, waiting.change
        if hit is None or hit.body is None:
            self._held_bytes -= len(frame)
        if change is None or hit is None or hit.rule is None:
            self.client.write(frame)
        elif change.loses:
            if change.cuts:
                self.close()
            else:
                self._is_silent = self._drops_requests = True
                self._falls_silent(hit.rule)
        elif change.halves:
            self.client.write(frame[: len(frame) // 2])
            self.close()
        else:
            self.client.write(frame)
            if change.mute_ms:
                self._mute(change.mute_ms / 1000)

    def _mute(self, seconds: float) -> None:
        """The longest of several counts."""
        loop = asyncio.get_running_loop()
        until = self._muted_until = max(self._muted_until, loop.time() + seconds)

        def is_over() -> None:
            if self._muted_until <= until:
                self.client.release("muted")

        self.client.hold("muted")
        loop.call_at(until, is_over)

    def _broker_ended(self) -> None:
        self._upstream_has_ended = True
        if not self._is_silent:
            self._send_answers()

    def _falls_silent(self, rule: Rule) -> None:
        if self._broker is not None:
            self._broker.falls_silent(self, rule)
