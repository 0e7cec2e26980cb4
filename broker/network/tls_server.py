"""A listener with TLS: few connections shake hands at a time, each address in its turn, and none for long (NET-1, BAD-34).

    accepted -> silent -> waiting -> handshake -> the listener's own protocol
                   |         |           |
                   +---------+-----------+--> closed: failed, too slow, or displaced by others

A connection counts as a client's when its handshake is done. Until then it is *pending*, and costs a descriptor and at most one
handshake's time:

* It is *silent* until its whole first record is there, the ClientHello. Until then nothing is computed or kept for it, and it takes no
  place: thousands of connections that send nothing, or a byte at a time, let all others pass.
* At most HANDSHAKES_MAX run at once, so that one turn of the loop never computes more of them.
* Addresses take turns. One that has CROWD_MAX handshakes lets others pass, and leaves them CROWD_MAX places.
* If others wait, a handshake that has taken GRACE_S gives up its place.
* When there is no room for one more pending connection, the oldest one of the address that has most of them is closed.

The loop's own server with TLS does not tell of handshakes, so this one accepts by itself. A plain listener has nothing of it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable

from broker.network.turnstile import Turnstile, hung_up
from broker.process.rare_lines import RareLine
from broker.quotas.connection_rates import LINGERING_MAX
from protocol.tls import handshake_reason

log = logging.getLogger(__name__)

ACCEPTED_IN_A_TURN = 8
HANDSHAKES_MAX = 32
GRACE_S = 1.0
CROWD_MAX = 8
HANDSHAKE_S = 10.0
"""Time limit of a connection for its handshake, the time in which it waits for its turn included."""
TOO_LATE = f"no complete handshake within {HANDSHAKE_S:g} s"
CLOSING_S = 5.0
"""Time limit for the peer to confirm the end of an encrypted connection."""
PENDING_MAX = 4096
"""Enough for all clients that come back at once after a failover."""
PENDING_MIN = 16
"""As many connections may be pending even when clients have used up their share: one of them may be a follower's."""
RECORD_HEADER = 5
RECORD_MAX = 16 * 1024
"""Of a record's content, without encryption (RFC 8446). A ClientHello has about 500 bytes, with a post-quantum key 2 KB."""
HANDSHAKE_RECORD = 22
FAILURES_LOGGED_EVERY_S = 1.0
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ACCEPT_AGAIN_S = 1.0
"""Pause after an accept that failed because descriptors or memory are scarce."""


class _Pending:
    """A connection without a finished handshake. The loop owns the socket from the start of the handshake on (`has_begun`).

    `wanted`: as long as it is silent, how many bytes make it readable; then 0.
    """

    __slots__ = ("accepted", "address", "arrived_at", "began_at", "has_begun", "task", "wanted")

    def __init__(self, accepted: socket.socket, address: str, now: float) -> None:
        self.accepted = accepted
        self.address = address
        self.arrived_at = now
        self.began_at = 0.0
        self.has_begun = False
        self.wanted = 1
        self.task: asyncio.Task[None] | None = None

    def has_first_record(self) -> bool:
        """To be called when the socket is readable. False: it is so again when more of the first record is there.

        True also if it is no record of TLS, or if the peer ends before the record does: the handshake then says so.
        """
        try:
            start = self.accepted.recv(RECORD_HEADER, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True
        wanted = RECORD_HEADER
        if len(start) == RECORD_HEADER:
            wanted += int.from_bytes(start[3:], "big")
        is_tls = bool(start) and start[0] == HANDSHAKE_RECORD and wanted <= RECORD_HEADER + RECORD_MAX
        if not is_tls or wanted <= self.wanted:
            return True  # whoever is readable below the mark has ended
        self.wanted = wanted
        self.accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
        return False


class _Accepted:
    """A connection before its turn has come."""

    __slots__ = ("_accepted", "_server", "remote_address")

    def __init__(self, server: TlsServer, accepted: socket.socket, address: str) -> None:
        self._server = server
        self._accepted = accepted
        self.remote_address = address

    def begin(self) -> None:
        self._server.admit(self._accepted, self.remote_address)

    def abort(self) -> None:
        self._accepted.close()

    def has_left(self) -> bool:
        return hung_up(self._accepted.fileno())


class TlsServer:
    """Binds first, serves later, as a plain listener does."""

    def __init__(
        self,
        listener: str,
        context: Callable[[], ssl.SSLContext],
        new_protocol: Callable[[], asyncio.BaseProtocol],
        monotonic: Callable[[], float],
        room: Callable[[], int],
        throttle_ms: Callable[[str], int] = lambda address: 0,
        turnstile: Turnstile | None = None,
        refused: Callable[[str, str], None] = lambda address, reason: None,
    ) -> None:
        """`context`: for the next handshake. `new_protocol`: for the next connection; it is called when the handshake is done. `room`: how
        many connections may be pending; the result is taken within PENDING_MIN and PENDING_MAX. `throttle_ms`: counts a connection of that
        address; above 0, it is closed after so many milliseconds, without a handshake. `turnstile`: where connections wait before that.
        `refused(address, reason)` is called for each handshake that has failed, but not for one that did not come in time.
        """
        self._listener = listener
        self._context = context
        self._new_protocol = new_protocol
        self._monotonic = monotonic
        self._room = room
        self._failures = RareLine(FAILURES_LOGGED_EVERY_S, monotonic)
        self._pending: dict[_Pending, None] = {}  # the oldest first
        self._pending_of: Counter[str] = Counter()  # by address
        self._waiting: dict[str, deque[_Pending]] = {}  # by address; the first address has its turn
        self._under_way: dict[_Pending, None] = {}  # in the order of their start
        self._crowds: Counter[str] = Counter()  # handshakes that are under way, by address
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None
        self._sockets: list[socket.socket] = []
        self._retries: dict[socket.socket, asyncio.TimerHandle] = {}
        self._is_closed = False
        self._throttle_ms = throttle_ms
        self._turnstile = turnstile
        self._refused = refused
        self._lingering: dict[socket.socket, asyncio.TimerHandle] = {}

    @property
    def pending(self) -> int:
        """The number of connections without a finished handshake."""
        return len(self._pending)

    async def bind(self, host: str | None, port: int) -> int:
        """Binds the port (0: a free one) and returns the bound port. Raises OSError if the port is not available."""
        # The server resolves the host and binds; it never accepts.
        self._server = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, host or None, port, start_serving=False
        )
        self._sockets = [bound.dup() for bound in self._server.sockets]
        return int(self._server.sockets[0].getsockname()[1])

    def serve(self, backlog: int) -> None:
        """Accepts connections from now on."""
        for listening in self._sockets:
            listening.listen(backlog)
            listening.setblocking(False)
            self._accept_from(listening)

    def stop_accepting(self) -> None:
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            if (retry := self._retries.pop(listening, None)) is not None:
                retry.cancel()
            loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """Stops accepting, and closes all pending connections."""
        self._is_closed = True
        self.stop_accepting()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        for one in list(self._pending):
            self._end(one)
        for accepted in list(self._lingering):
            self._lingered(accepted)

    # -- accepting ------------------------------------------------------------------------------------------------------------

    def _accept_from(self, listening: socket.socket) -> None:
        self._retries.pop(listening, None)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_IN_A_TURN):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as problem:
                if problem.errno not in SCARCE:
                    continue  # Linux reports errors of the new connection's network here
                log.warning("%s accepts nobody for %g s: %s", self._listener, ACCEPT_AGAIN_S, problem.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                self._retries[listening] = loop.call_later(ACCEPT_AGAIN_S, self._accept_from, listening)
                break
            accepted.setblocking(False)
            new = _Accepted(self, accepted, str(peer[0]))
            if self._turnstile is None or self._turnstile.passes(new):
                new.begin()

    def admit(self, accepted: socket.socket, address: str) -> None:
        """The turn of a new connection has come."""
        if throttle_ms := self._throttle_ms(address):
            self._linger(accepted, throttle_ms)
        else:
            self._arrived(_Pending(accepted, address, self._monotonic()))

    def _linger(self, accepted: socket.socket, milliseconds: int) -> None:
        """The socket is closed after this time, or at once if there are too many of them."""
        if len(self._lingering) >= LINGERING_MAX:
            accepted.close()
            return
        loop = asyncio.get_running_loop()
        self._lingering[accepted] = loop.call_later(milliseconds / 1000, self._lingered, accepted)

    def _lingered(self, accepted: socket.socket) -> None:
        self._lingering.pop(accepted).cancel()
        accepted.close()

    def _arrived(self, new: _Pending) -> None:
        self._pending[new] = None
        self._pending_of[new.address] += 1
        asyncio.get_running_loop().add_reader(new.accepted, self._readable, new)
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._expire)
        while len(self._pending) > max(PENDING_MIN, min(self._room(), PENDING_MAX)):
            ((crowd, _),) = self._pending_of.most_common(1)
            oldest = next(one for one in self._pending if one.address == crowd)
            self._failed(oldest, "too many unfinished handshakes")
            self._end(oldest)

    def _readable(self, one: _Pending) -> None:
        if one.has_first_record():
            self._no_longer_silent(one)
            self._waiting.setdefault(one.address, deque()).append(one)
            self._begin_next()

    def _no_longer_silent(self, one: _Pending) -> None:
        if one.wanted:
            asyncio.get_running_loop().remove_reader(one.accepted)
            if one.wanted > 1:
                one.accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            one.wanted = 0

    def _expire(self) -> None:
        """Ends those whose time is over before their handshake began. The others have a timer of their own."""
        self._expiry = None
        now = self._monotonic()
        for one in [one for one in self._pending if not one.has_begun]:
            left = one.arrived_at + HANDSHAKE_S - now
            if left > 0:
                self._expiry = asyncio.get_running_loop().call_later(left, self._expire)
                return
            self._failed(one, TOO_LATE)
            self._end(one)

    # -- whose turn it is -----------------------------------------------------------------------------------------------------

    def _begin_next(self) -> None:
        while self._waiting and not self._is_closed:
            address = next((one for one in self._waiting if self._crowds[one] < CROWD_MAX), None)
            places = HANDSHAKES_MAX if address is not None else HANDSHAKES_MAX - CROWD_MAX
            if len(self._under_way) >= places and not self._displace():
                return
            if address is None:
                address = next(iter(self._waiting))
            ones = self._waiting.pop(address)
            one = ones.popleft()
            if ones:
                self._waiting[address] = ones  # its next turn comes after those of the others
            one.began_at = self._monotonic()
            self._under_way[one] = None
            self._crowds[address] += 1
            one.task = asyncio.get_running_loop().create_task(self._shake_hands(one))

    def _displace(self) -> bool:
        """Ends the handshake that has run for the longest time, if that is GRACE_S; else `_begin_next` is called again when it is."""
        slowest = next(iter(self._under_way))
        left = slowest.began_at + GRACE_S - self._monotonic()
        if left <= 0:
            self._failed(slowest, f"no handshake within {GRACE_S:g} s, while others wait")
            self._end(slowest)
            return True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(left, self._look_again)
        return False

    def _look_again(self) -> None:
        self._timer = None
        self._begin_next()

    def _end(self, one: _Pending) -> None:
        """Forgets the pending connection, and closes it."""
        self._no_longer_pending(one)
        self._no_longer_silent(one)
        ones = self._waiting.get(one.address)
        if ones is not None and one in ones:
            ones.remove(one)
            if not ones:
                del self._waiting[one.address]
        self._gives_up_its_place(one)
        if one.task is not None:
            one.task.cancel()
        if not one.has_begun:
            one.accepted.close()

    # -- one handshake --------------------------------------------------------------------------------------------------------

    async def _shake_hands(self, one: _Pending) -> None:
        one.has_begun = True
        left = one.arrived_at + HANDSHAKE_S - self._monotonic()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Door(self, one),
                one.accepted,
                ssl=self._context(),
                ssl_handshake_timeout=max(left, 0.001),
                ssl_shutdown_timeout=CLOSING_S,
            )
        except ssl.SSLError as problem:
            reason = handshake_reason(problem)
            self._failed(one, reason)
            self._refused(one.address, reason)
        except ConnectionAbortedError:
            self._failed(one, TOO_LATE)
        except OSError as problem:
            # Also the end of a connection that only wanted to know whether somebody listens here.
            log.debug("%s on %s left during its handshake: %s", one.address, self._listener, problem)
        except Exception:
            # The boundary of the connection.
            log.exception("a handshake of %s on %s failed", one.address, self._listener)
        self.finished(one)

    def finished(self, one: _Pending) -> None:
        """The handshake is done, or has failed."""
        self._no_longer_pending(one)
        if self._gives_up_its_place(one):
            self._begin_next()

    def _no_longer_pending(self, one: _Pending) -> None:
        if one in self._pending:
            del self._pending[one]
            self._pending_of[one.address] -= 1
            if not self._pending_of[one.address]:
                del self._pending_of[one.address]

    def _gives_up_its_place(self, one: _Pending) -> bool:
        """Returns False if it had none."""
        if one not in self._under_way:
            return False
        del self._under_way[one]
        self._crowds[one.address] -= 1
        if not self._crowds[one.address]:
            del self._crowds[one.address]
        return True

    def new_protocol(self) -> asyncio.BaseProtocol:
        """For a connection whose handshake is done."""
        return self._new_protocol()

    def _failed(self, one: _Pending, reason: str) -> None:
        if (earlier := self._failures.happened()) is not None:
            others = f" (and {earlier} earlier handshakes)" if earlier else ""
            log.warning("TLS handshake of %s on %s failed: %s%s", one.address, self._listener, reason, others)


class _Door(asyncio.Protocol):
    """Makes the listener's own protocol when the handshake is done, in the same call: no byte comes in between."""

    def __init__(self, server: TlsServer, one: _Pending) -> None:
        self._server = server
        self._one = one

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        protocol = self._server.new_protocol()
        transport.set_protocol(protocol)
        self._server.finished(self._one)
        protocol.connection_made(transport)
