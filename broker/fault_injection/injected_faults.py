"""Does to requests, and to their answers, what the rules say.

    request --RuleBook.hit--> an error in place of the work | not handled | the connection ends | another request in its place
                              | handled, and its answer is changed, late, halved or lost

Where a request or an answer gets lost and the connection stays, nothing behind it on the connection arrives either: TCP keeps the order.
Such a connection is *silent*. It ends when its rule does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from broker.network.connection_state import Hold
from broker.network.connection_under_faults import ConnectionUnderFaults
from broker.network.request_channel import Request
from protocol.conversation.asked import Asked, NameOf
from protocol.conversation.rule import Rule
from protocol.conversation.rule_book import Change, Hit, RuleBook
from protocol.conversation.rule_lines import RuleLines
from protocol.kafka import messages
from protocol.kafka.framing import parse_request_header
from protocol.types import Buffer

log = logging.getLogger(__name__)

LOOK_S = 0.25
"""Time between two looks at the silent connections."""


class InjectedFaults:
    """`takes` sees every request of a client, `answer` every line of the owner's socket."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        write_event: Callable[..., None],
        name_of: NameOf,
        connections: Callable[[], Sequence[ConnectionUnderFaults]],
        switch: Callable[[bool], None],
    ) -> None:
        """`name_of`: the topic with an id. `connections`: all that are open. `switch`: are there rules, so that `takes` must be called?"""
        self.book = RuleBook(monotonic)
        self.answer = RuleLines(self.book, self._close_idle, self._rules_changed).answer
        self._write_event = write_event
        self._name_of = name_of
        self._connections = connections
        self._switch = switch
        self._silent: dict[ConnectionUnderFaults, str] = {}

    # -- requests -------------------------------------------------------------------------------------------------------

    def takes(self, request: Request) -> bool:
        """Whether a rule keeps the request from being handled. Otherwise the request and its answer may be other ones from now on.

        A request that went back to its connection, as a fetch does behind another one, is the same request when it comes again.
        """
        connection = request.connection
        if not isinstance(connection, ConnectionUnderFaults) or request.number <= connection.seen_up_to:
            return False
        connection.seen_up_to = request.number
        try:
            return self._takes(request, connection)
        except Exception:
            # The boundary of the fault: a bug in it ends only this connection.
            log.exception("no fault can be injected into %s", request)
            request.close("")
            return True

    def _takes(self, request: Request, connection: ConnectionUnderFaults) -> bool:
        asked = Asked(request.header, request.frame, self._name_of, connection.principal.name, connection.listener)
        hit = self.book.hit(asked)
        if hit is None:
            if not self.book.live:
                self._switch(False)
            return False
        self._tell(hit.rule, request)
        if hit.closes:
            request.close("")
        elif hit.drops:
            self._is_silent(connection, hit)
        elif hit.body is not None:
            if not asked.has_answer:
                request.close("")  # as Kafka does, since nothing can be answered
            else:
                request.respond_small(hit.body)
        else:
            if hit.frame is not None:
                request.frame = hit.frame
                request.header = parse_request_header(hit.frame)
            if hit.changes:
                self._change(request, connection, hit, hit.change or Change())
            return False
        return True

    def _change(self, request: Request, connection: ConnectionUnderFaults, hit: Hit, change: Change) -> None:
        number, header = request.number, request.header

        def changed(frame: bytes | bytearray) -> None:
            if change.loses:
                if change.cuts:
                    connection.close("")
                else:
                    self._is_silent(connection, hit)
                return
            try:
                for each in hit.changes:
                    frame = each.rewritten(header.api_key, header.api_version, frame)
            except Exception:
                # The boundary of the fault: the answer is sent as it is.
                log.exception("the answer to %s cannot be changed", request)
            self._tell(hit.late_rule, request)
            if change.mute_ms:
                connection.mute(change.mute_ms)
            if change.halves:
                connection.answer_in_turn(number, lambda: _half(connection, frame))
            elif change.delay_s > 0:
                asyncio.get_running_loop().call_later(change.delay_s, connection.answer, number, (frame,))
            else:
                connection.answer(number, (frame,))

        connection.changed[number] = changed

    def _is_silent(self, connection: ConnectionUnderFaults, hit: Hit) -> None:
        """Nothing arrives on the connection any more, in either direction."""
        rule = hit.rule
        if rule is None:
            return
        connection.hold(Hold.FAULT)
        connection.drop_requests()
        if not self._silent:
            asyncio.get_running_loop().call_later(LOOK_S, self._look_at_silent)
        if connection not in self._silent:
            connection.when_ended(lambda: self._ended(connection))
        self._silent[connection] = rule.id

    def _look_at_silent(self) -> None:
        """Ends the connections whose time is over, and those that the client has closed: nobody else notices that, as nothing is read."""
        self._end_silence()
        for connection in [each for each in self._silent if each.has_left()]:
            connection.abort()
        if self._silent:
            asyncio.get_running_loop().call_later(LOOK_S, self._look_at_silent)

    def _ended(self, connection: ConnectionUnderFaults) -> None:
        self._silent.pop(connection, None)
        connection.drop_requests()

    def _end_silence(self) -> None:
        """Ends the connections whose rule is no longer in force."""
        live = {each.rule.id for each in self.book.live}
        for connection in [each for each, rule in self._silent.items() if rule not in live]:
            connection.abort()

    def _tell(self, rule: Rule | None, request: Request) -> None:
        if rule is None:
            return
        hits = self.book.hits_to_tell(rule)
        if hits is None:
            return
        self._write_event(
            "request_fault",
            rule=rule.id,
            hits=hits,
            api=messages.api_name(request.header.api_key),
            version=request.header.api_version,
            client_id=request.header.client_id,
            address=request.connection.remote_address,
        )

    def _rules_changed(self) -> None:
        self._switch(bool(self.book.live))
        self._end_silence()

    def _close_idle(self) -> None:
        """Closes the connections of clients that wait for nothing, as `connections.max.idle.ms` does."""
        for connection in [each for each in self._connections() if each.is_idle]:
            connection.close("")


def _half(connection: ConnectionUnderFaults, frame: bytes | bytearray) -> Sequence[Buffer]:
    """Half of the answer, behind which the connection ends. The answers behind it would look like the other half."""
    connection.says_no_more()
    asyncio.get_running_loop().call_soon(connection.close, "")
    return (frame[: len(frame) // 2],)
