"""The gate of a listener with SASL: who has not logged in gets no further, and does not stay long (NET-1, BAD-34).

    accepted -> pending --the login is done--> let in: counted as a client's, or a broker's --its time is over--> closed at its next request
                   |                              |  ^
                   |                              +--+ it logs in again (KIP-368)
                   +--> failed: answered after a delay, and closed
                   +--> closed: too slow, or displaced by others

A connection counts as a client's when its login is done. Until then it is *pending*: it has PENDING_S, and when there is no room for one
more, the oldest one of the address that has most of them is closed. The gate of a connection that is let in and never needs to log in
again is removed, so that its requests cost nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from broker.network.connection import ClientConnection, Gate
from broker.process.rare_lines import RareLine
from broker.security.login import LoggedIn, Login, LoginFailed, Logins
from broker.security.scram_users import shown_user
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest
from protocol.types import Buffer

log = logging.getLogger(__name__)

LOGIN_BYTES_MAX = 16 * 1024
"""Limit of a frame of a login, whatever `sasl.server.max.receive.size` is: hardly any token is as long."""
PENDING_S = 10.0
"""Time limit of a connection for its login."""
PENDING_MAX = 4096
"""Enough for all clients that come back at once after a failover."""
PENDING_MIN = 16
"""As many connections may be pending even when clients have used up their share: one of them may be a follower's."""
AGAIN_S = 1.0
"""A connection may log in again once in this time. As in Kafka, a handshake that comes earlier is refused."""
FAILURES_LOGGED_EVERY_S = 1.0


class _Guest:
    """A connection that the gate knows. `until`: when it must have logged in again; `again_at`: when it last began to."""

    __slots__ = ("again_at", "arrived_at", "has_failed", "is_in", "is_new", "login", "result", "until")

    def __init__(self, login: Login, now: float) -> None:
        self.login: Login | None = login
        """The login that is under way."""
        self.result: LoggedIn | None = None
        self.arrived_at = now
        self.again_at = float("-inf")
        self.until = 0.0
        self.is_in = False
        self.is_new = True
        self.has_failed = False


class LoginGate:
    """The gate of all connections of one listener."""

    def __init__(
        self,
        logins: Logins,
        failure_delay_s: float,
        monotonic: Callable[[], float],
        room: Callable[[], int],
        admit: Callable[[ClientConnection], bool],
        next_gate: Gate | None,
    ) -> None:
        """`room`: how many connections may be pending; the result is taken within PENDING_MIN and PENDING_MAX. `admit` counts a connection
        that has logged in; it returns False, and says why, if a limit is reached. `next_gate` sees the first request after the login.
        """
        self._logins = logins
        self._failure_delay_s = failure_delay_s
        self._monotonic = monotonic
        self._room = room
        self._admit = admit
        self._next_gate = next_gate
        self._failures = RareLine(FAILURES_LOGGED_EVERY_S, monotonic)
        self._guests: dict[ClientConnection, _Guest] = {}
        self._pending: dict[ClientConnection, None] = {}  # the oldest first
        self._crowds: Counter[str] = Counter()  # of pending connections, by address

    @property
    def pending(self) -> int:
        """The number of connections without a finished login."""
        return len(self._pending)

    def arrived(self, connection: ClientConnection) -> None:
        """A new connection."""
        self._guests[connection] = _Guest(Login(self._logins), self._monotonic())
        self._pending[connection] = None
        self._crowds[connection.remote_address] += 1
        while len(self._pending) > max(PENDING_MIN, min(self._room(), PENDING_MAX)):
            ((crowd, _),) = self._crowds.most_common(1)
            oldest = next(one for one in self._pending if one.remote_address == crowd)
            self._log(oldest, "too many unfinished logins")
            self._no_longer_pending(oldest)
            oldest.abort()

    def gone(self, connection: ClientConnection) -> bool:
        """The connection has ended. Returns whether it had been let in, and counted."""
        self._no_longer_pending(connection)
        guest = self._guests.pop(connection, None)
        return guest is None or guest.is_in

    def sweep(self) -> None:
        """Closes connections whose login takes too long. To be called every second or so."""
        now = self._monotonic()
        for connection in list(self._pending):
            guest = self._guests[connection]
            if now - guest.arrived_at <= PENDING_S:
                break
            if not guest.has_failed:
                self._log(connection, f"no login within {PENDING_S:g} s")
                connection.abort()

    def take(self, connection: ClientConnection, frame: Buffer) -> bool:
        """The `Gate` of every connection."""
        guest = self._guests[connection]
        if guest.has_failed:
            return False
        if guest.login is None and not self._begins_again(connection, guest, frame):
            return self._is_in_time(connection, guest) and self._passes(connection, guest, frame)
        login = guest.login
        assert login is not None
        try:
            if len(frame) > LOGIN_BYTES_MAX:  # of a client that logs in again
                raise LoginFailed(f"a frame of {len(frame)} bytes: those of a login have at most {LOGIN_BYTES_MAX}")
            answer = login.take(frame)
        except MalformedRequest as problem:
            self._log(connection, str(problem))
            connection.refuse("no login")
        except LoginFailed as failed:
            guest.has_failed = True
            connection.reads_no_more()
            if failed.reason:
                self._log(connection, failed.reason, login)
            asyncio.get_running_loop().call_later(self._failure_delay_s, self._end, connection, failed.answer)
        else:
            connection.answer_at_gate((answer,))
            if login.refusal:
                self._log(connection, login.refusal, login)
            if login.software is not None:
                connection.software = login.software
            if login.result is not None:
                self._done(connection, guest, login.result)
        return False

    # -- before the login is done ---------------------------------------------------------------------------------------------

    def _done(self, connection: ClientConnection, guest: _Guest, result: LoggedIn) -> None:
        guest.login, guest.result = None, result
        self._no_longer_pending(connection)
        connection.has_logged_in(result.principal, is_by_token=result.is_by_token)
        if not guest.is_in:
            guest.is_in = self._admit(connection)
            if not guest.is_in:
                guest.has_failed = True
                connection.refuse("no room for it after its login")
                return
        if result.lifetime_ms:
            guest.until = self._monotonic() + result.lifetime_ms / 1000
        else:
            del self._guests[connection]
            connection.gate = self._next_gate

    def _end(self, connection: ClientConnection, answer: bytes) -> None:
        if connection.is_open:
            if answer:
                connection.answer_at_gate((answer,))
            connection.refuse("")

    def _no_longer_pending(self, connection: ClientConnection) -> None:
        if connection in self._pending:
            del self._pending[connection]
            address = connection.remote_address
            self._crowds[address] -= 1
            if not self._crowds[address]:
                del self._crowds[address]

    # -- after the login ------------------------------------------------------------------------------------------------------

    def _begins_again(self, connection: ClientConnection, guest: _Guest, frame: Buffer) -> bool:
        now = self._monotonic()
        is_handshake = int.from_bytes(frame[:2], "big") == ApiKey.SASL_HANDSHAKE
        if not is_handshake or now - guest.again_at < AGAIN_S:
            return False
        guest.again_at = now
        guest.login = Login(self._logins, guest.result)
        return True

    def _is_in_time(self, connection: ClientConnection, guest: _Guest) -> bool:
        if self._monotonic() <= guest.until:
            return True
        guest.has_failed = True
        connection.close(
            f"{connection.principal} has not logged in again in time (connections.max.reauth.ms, or the end of its token)"
        )
        return False

    def _passes(self, connection: ClientConnection, guest: _Guest, frame: Buffer) -> bool:
        if not guest.is_new or self._next_gate is None:
            return True
        guest.is_new = False
        passes = self._next_gate(connection, frame)
        connection.gate = self.take
        return passes

    def _log(self, connection: ClientConnection, reason: str, login: Login | None = None) -> None:
        self._logins.refused(connection.remote_address, reason, login)
        if (earlier := self._failures.happened()) is None:
            return
        who = f"user {shown_user(login.user)} by {login.mechanism}: " if login is not None and login.user else ""
        others = f" (and {earlier} earlier logins)" if earlier else ""
        log.warning("SASL login of %s failed: %s%s%s", connection.peer, who, reason, others)
