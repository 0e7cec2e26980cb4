"""A part of one listener's connections (NET-1): admits them, lets them go, and looks at their limits every second."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from broker.network.connection import ClientConnection, Gate, Limits
from broker.network.connection_state import ConnectionState
from broker.network.frame_reader import ReceiveViews
from broker.network.request_channel import RequestChannel
from broker.network.turnstile import Turnstile
from broker.process.clock import Clock

log = logging.getLogger(__name__)

CLOSINGS_LOGGED_MAX: Final = 20
"""Limit of log lines about closed connections between two sweeps."""

SWEEP_S: Final = 1.0


class Processor:
    """See the module's docstring."""

    def __init__(
        self,
        channel: RequestChannel,
        limits: Limits,
        clock: Clock,
        admit: Callable[[ClientConnection], bool],
        released: Callable[[ClientConnection], None],
        gate: Gate | None = None,
        turnstile: Turnstile | None = None,
    ) -> None:
        """`gate`: the one of each new connection. `turnstile`: where it waits before it is admitted."""
        self.gate = gate
        self.turnstile = turnstile
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
        self.receive_views = ReceiveViews()

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
        self.channel.large.kept.sweep(now)
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
