"""The gate of a listener with SASL: who waits there and for how long, and that it goes away (NET-1, BAD-34)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from broker.apis.api_versions import answer_before_login
from broker.network import login_gate
from broker.network.connection import ClientConnection
from broker.network.login_gate import LOGIN_BYTES_MAX, PENDING_S, LoginGate
from broker.network.processor import Processor
from broker.process.audit_log import AuditLog
from broker.process.clock import SystemClock
from broker.security.login import Logins
from broker.security.mechanisms import Mechanism
from broker.security.scram_users import ScramUsers
from broker.settings.sasl import ListenerSasl
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey, ApiLevel
from tests.unit.broker.network.test_processor import LIMITS, Transport, World, receive

DELAY_S = 0.01
HANDSHAKE = (ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
PASSWORD = (ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0alice\0wonder"})
WRONG = (ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0alice\0x"})
METADATA = (ApiKey.METADATA, 1, {"topics": ()})
Asked = tuple[ApiKey, int, Mapping[str, Any]]

SILENT = AuditLog(None, SystemClock())


def framed(*asked: Asked) -> bytes:
    frames = [messages.encode_request(*one[:2], 7, "me", one[2]) for one in asked]
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


class Gated(World):
    """One listener, whose connections come from `address`."""

    def __init__(self, max_reauth_ms: int = 0) -> None:
        super().__init__(limits=LIMITS._replace(login_bytes_max=1000))
        self.room, self.admits, self.admitted = 1000, True, 0
        sasl = ListenerSasl("CLIENTS", ("PLAIN",), {"alice": "wonder"}, {"PLAIN": max_reauth_ms}, 1000)
        self.is_by_token = False
        logins = Logins(sasl, ScramUsers(), partial(answer_before_login, ApiLevel.KAFKA_3_9), SILENT)
        mechanism = logins.mechanism
        logins.mechanism = lambda name: self._owned(mechanism(name))  # type: ignore[method-assign]
        self.gate = LoginGate(logins, DELAY_S, self.clock.monotonic, lambda: self.room, self._admit, None)
        self.processor = Processor(
            self.channel, self.processor.limits, self.clock, self._arrived, self._gone, self.gate.take
        )

    def _owned(self, mechanism: Mechanism) -> Mechanism:
        mechanism.owner = "alice" if self.is_by_token else None
        return mechanism

    def _arrived(self, connection: ClientConnection) -> bool:
        self.gate.arrived(connection)
        return True

    def _gone(self, connection: ClientConnection) -> None:
        if self.gate.gone(connection):
            self.admitted -= 1

    def _admit(self, connection: ClientConnection) -> bool:
        self.admitted += self.admits
        return self.admits

    def ask(self, connection: ClientConnection, transport: Transport, *asked: Asked) -> None:
        receive(connection, transport, framed(*asked))
        self.turns.run()


def test_the_gate_goes_away_after_the_login() -> None:
    world = Gated()
    connection, transport = world.connect()
    assert (world.gate.pending, str(connection.principal)) == (1, "User:ANONYMOUS")
    world.ask(connection, transport, HANDSHAKE, PASSWORD, METADATA)
    assert connection.gate is None
    assert (world.gate.pending, world.admitted, str(connection.principal)) == (0, 1, "User:alice")
    assert [request.header.api_key for request in world.handled] == [ApiKey.METADATA]
    connection.connection_lost(None)
    assert world.admitted == 0


def test_a_request_before_the_login_is_not_handled() -> None:
    async def run() -> None:
        world = Gated()
        connection, transport = world.connect()
        world.ask(connection, transport, METADATA, HANDSHAKE, PASSWORD, METADATA)
        assert not transport.is_closed
        await asyncio.sleep(2 * DELAY_S)
        assert transport.is_closed
        assert (world.handled, transport.written, world.admitted) == ([], b"", 0)

    asyncio.run(run())


def test_a_failure_is_answered_after_the_delay() -> None:
    async def run() -> None:
        world = Gated()
        connection, transport = world.connect()
        world.ask(connection, transport, HANDSHAKE)
        before = transport.written
        world.ask(connection, transport, WRONG, PASSWORD, METADATA)
        assert (transport.written, transport.is_closed) == (before, False)
        await asyncio.sleep(2 * DELAY_S)
        assert transport.is_closed
        assert b"Invalid username or password" in transport.written[len(before) :]
        assert (world.handled, world.gate.pending, world.admitted) == ([], 1, 0)
        connection.connection_lost(None)
        assert world.gate.pending == 0

    asyncio.run(run())


def test_a_frame_before_the_login_has_a_limit() -> None:
    world = Gated()
    connection, transport = world.connect()
    receive(connection, transport, (1001).to_bytes(4, "big"))
    assert transport.is_closed
    connection, transport = world.connect()
    world.ask(connection, transport, HANDSHAKE, PASSWORD)
    receive(connection, transport, (900_000).to_bytes(4, "big"))
    assert not transport.is_closed


def test_a_slow_login_is_closed() -> None:
    world = Gated()
    connection, transport = world.connect()
    world.clock.now += PENDING_S - 1
    _, later = world.connect()
    world.clock.now += 1.5
    world.gate.sweep()
    assert (transport.is_closed, later.is_closed) == (True, False)
    connection.connection_lost(None)
    assert world.gate.pending == 1


def test_too_many_logins_displace_the_oldest_of_the_most_crowded_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_gate, "PENDING_MIN", 2)
    world = Gated()
    world.room = 3
    name = ["10.0.0.1"]
    monkeypatch.setattr(Transport, "get_extra_info", lambda self, key: (name[0], 1))
    _, first = world.connect()
    name[0] = "10.0.0.2"
    _, second = world.connect()
    _, third = world.connect()
    _, fourth = world.connect()
    assert [one.is_closed for one in (first, second, third, fourth)] == [False, True, False, False]


def test_a_connection_above_the_limit_is_closed_after_its_login() -> None:
    world = Gated()
    world.admits = False
    connection, transport = world.connect()
    world.ask(connection, transport, HANDSHAKE, PASSWORD, METADATA)
    assert transport.is_closed
    assert (world.handled, world.admitted) == ([], 0)
    connection.connection_lost(None)
    assert world.admitted == 0


def test_a_client_logs_in_again_in_time_and_others_are_closed() -> None:
    world = Gated(max_reauth_ms=10_000)
    connection, transport = world.connect()
    world.ask(connection, transport, HANDSHAKE, PASSWORD, METADATA)
    assert connection.gate is not None
    world.clock.now += 9
    world.ask(connection, transport, HANDSHAKE, PASSWORD)
    world.clock.now += 9
    world.ask(connection, transport, METADATA)
    assert len(world.handled) == 2
    world.clock.now += 2
    world.ask(connection, transport, METADATA)
    assert transport.is_closed
    assert len(world.handled) == 2


def test_a_client_may_log_in_again_by_a_token_or_without_one() -> None:
    """Only without one may it ask for tokens."""
    world = Gated(max_reauth_ms=5000)
    connection, transport = world.connect()
    found = []
    for is_by_token in (False, True, False):
        world.is_by_token = is_by_token
        world.ask(connection, transport, HANDSHAKE, PASSWORD)
        found.append(connection.is_by_token)
        world.clock.now += 2
    assert found == [False, True, False]


def test_a_frame_of_a_further_login_has_a_limit_too() -> None:
    async def run() -> None:
        world = Gated(max_reauth_ms=10_000)
        connection, transport = world.connect()
        world.ask(connection, transport, HANDSHAKE, PASSWORD)
        world.ask(connection, transport, HANDSHAKE)
        before = transport.written
        long = (ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0alice\0" + bytes(LOGIN_BYTES_MAX)})
        world.ask(connection, transport, long)
        await asyncio.sleep(2 * DELAY_S)
        assert (transport.is_closed, transport.written) == (True, before)

    asyncio.run(run())


def test_a_second_login_within_a_second_is_a_request_like_others() -> None:
    world = Gated(max_reauth_ms=10_000)
    connection, transport = world.connect()
    world.ask(connection, transport, HANDSHAKE, PASSWORD)
    world.ask(connection, transport, HANDSHAKE, PASSWORD)
    world.clock.now += 0.5
    world.ask(connection, transport, HANDSHAKE)
    assert [request.header.api_key for request in world.handled] == [ApiKey.SASL_HANDSHAKE]
